# SPDX-License-Identifier: Apache-2.0
# cmake -DOUT=file.c -DSYMBOL=name "-DFILES=a.cu;b.cuh" -P embed.cmake: the files as fx_cuda_source name[]
# (dynamo_rt/codegen/cuda/source.h) and name_count.
list(SORT FILES)
set(texts)
set(rows)
set(count 0)
foreach(file ${FILES})
  get_filename_component(name ${file} NAME)
  file(READ ${file} bytes HEX)
  string(LENGTH "${bytes}" length)
  math(EXPR length "${length} / 2")
  string(REGEX REPLACE "(..)" "0x\\1," bytes "${bytes}")
  string(APPEND texts "static const char text_${count}[] = {${bytes}0};\n")
  string(APPEND rows "    {\"${name}\", text_${count}, ${length}},\n")
  math(EXPR count "${count} + 1")
endforeach()
file(WRITE ${OUT} "/* SPDX-License-Identifier: Apache-2.0 */\n#include \"dynamo_rt/codegen/cuda/source.h\"\n\n${texts}\n"
  "const fx_cuda_source ${SYMBOL}[] = {\n${rows}};\nconst int ${SYMBOL}_count = ${count};\n")
