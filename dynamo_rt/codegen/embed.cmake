# SPDX-License-Identifier: Apache-2.0
# cmake -DOUT=file.c -DHEADER=a/b.h -DTYPE=struct -DSYMBOL=array -DPART=NAME|NAME_WE "-DFILES=a;b" -P embed.cmake: files as
# rows {name, text, length} of `const TYPE SYMBOL[]`, sorted by path, and SYMBOL_count; the header declares both.
list(SORT FILES)
set(texts)
set(rows)
set(count 0)
foreach(file ${FILES})
  get_filename_component(name ${file} ${PART})
  file(READ ${file} bytes HEX)
  string(LENGTH "${bytes}" length)
  math(EXPR length "${length} / 2")
  string(REGEX REPLACE "(..)" "0x\\1," bytes "${bytes}")
  string(APPEND texts "static const char text_${count}[] = {${bytes}0};\n")
  string(APPEND rows "    {\"${name}\", text_${count}, ${length}},\n")
  math(EXPR count "${count} + 1")
endforeach()
file(WRITE ${OUT} "/* SPDX-License-Identifier: Apache-2.0 */\n#include \"${HEADER}\"\n\n${texts}\n"
  "const ${TYPE} ${SYMBOL}[] = {\n${rows}};\nconst int ${SYMBOL}_count = ${count};\n")
