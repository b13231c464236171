# SPDX-License-Identifier: Apache-2.0
# cmake -DOUT=file.c "-DFILES=a.yaml;b.yaml" -P embed.cmake: the files as fx_builtin_variants (core/config/builtin.h).
list(SORT FILES)
set(texts)
set(rows)
set(count 0)
foreach(file ${FILES})
  get_filename_component(name ${file} NAME_WE)
  file(READ ${file} bytes HEX)
  string(LENGTH "${bytes}" length)
  math(EXPR length "${length} / 2")
  string(REGEX REPLACE "(..)" "0x\\1," bytes "${bytes}")
  string(APPEND texts "static const char text_${count}[] = {${bytes}0};\n")
  string(APPEND rows "    {\"${name}\", text_${count}, ${length}},\n")
  math(EXPR count "${count} + 1")
endforeach()
file(WRITE ${OUT} "/* SPDX-License-Identifier: Apache-2.0 */\n#include \"core/config/builtin.h\"\n\n${texts}\n"
  "const fx_builtin_variant fx_builtin_variants[] = {\n${rows}};\nconst int fx_builtin_variants_count = ${count};\n")
