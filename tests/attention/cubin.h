/* SPDX-License-Identifier: Apache-2.0 */
/* Registers, stack and shared bytes and products of a kernel, read from a cubin: an ELF file whose .nv.info
 * section lists, for every function's symbol, attributes of (format, attribute, bytes, symbol, value), and
 * whose .text.NAME is the machine code: 16 bytes an instruction, the opcode in the low 12 bits (wgmma's were
 * read off nvdisasm 13); the size of .nv.shared.NAME is that of its static shared memory, CUDA 13 with the
 * 1024 bytes of a CTA that are the system's. */
#ifndef FX_TESTS_ATTENTION_CUBIN_H
#define FX_TESTS_ATTENTION_CUBIN_H

#include <elf.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "dynamo_rt/base/cache.h"

typedef struct cubin_usage {
  int registers, stack; /* -1: not found */
} cubin_usage;

static inline const Elf64_Shdr *cubin_section(const fx_cache_image *image, const char *name) {
  const Elf64_Ehdr *elf = (const void *)image->data;
  const Elf64_Shdr *section = (const void *)(image->data + elf->e_shoff);
  const char *names = (const char *)image->data + section[elf->e_shstrndx].sh_offset;
  for (int i = 0; i < elf->e_shnum; i++)
    if (strcmp(names + section[i].sh_name, name) == 0) return &section[i];
  return NULL;
}

/* Number of the function's symbol; 0: none. */
static inline uint32_t cubin_symbol(const fx_cache_image *image, const char *function) {
  const Elf64_Shdr *symbols = cubin_section(image, ".symtab"), *strings = cubin_section(image, ".strtab");
  if (!symbols || !strings) return 0;
  const Elf64_Sym *symbol = (const void *)(image->data + symbols->sh_offset);
  const char *names = (const char *)image->data + strings->sh_offset;
  for (uint32_t i = 1; i < symbols->sh_size / sizeof *symbol; i++)
    if (ELF64_ST_TYPE(symbol[i].st_info) == STT_FUNC && strcmp(names + symbol[i].st_name, function) == 0)
      return i;
  return 0;
}

static inline cubin_usage cubin_usage_of(const fx_cache_image *image, const char *function) {
  enum { SIZED = 4, FRAME_SIZE = 0x11, REGISTERS = 0x2f };
  cubin_usage usage = {-1, -1};
  const Elf64_Shdr *info = cubin_section(image, ".nv.info");
  uint32_t symbol = cubin_symbol(image, function);
  if (!info || symbol == 0) return usage;
  const unsigned char *at = image->data + info->sh_offset, *end = at + info->sh_size;
  while (at + 4 <= end) {
    uint16_t bytes;
    uint32_t pair[2] = {0, 0};
    memcpy(&bytes, at + 2, sizeof bytes);
    bool sized = at[0] == SIZED;
    if (sized && bytes == sizeof pair) memcpy(pair, at + 4, sizeof pair);
    if (pair[0] == symbol && at[1] == FRAME_SIZE) usage.stack = (int)pair[1];
    if (pair[0] == symbol && at[1] == REGISTERS) usage.registers = (int)pair[1];
    at += 4 + (sized ? bytes : 0);
  }
  return usage;
}

static inline uint64_t cubin_shared_of(const fx_cache_image *image, const char *function) {
  char name[80];
  snprintf(name, sizeof name, ".nv.shared.%s", function);
  const Elf64_Shdr *section = cubin_section(image, name);
  return section ? section->sh_size : 0;
}

typedef struct cubin_wgmma {
  int products, marks; /* HGMMA; WARPGROUP.ARRIVE and .DEPBAR, two a product where products run one by one */
  int beside; /* special functions (exp2) in the text between a wait for all products but the latest and the
                 wait for those: the most of them */
} cubin_wgmma;

static inline cubin_wgmma cubin_wgmma_of(const fx_cache_image *image, const char *function) {
  enum { FROM_SHARED = 0x9f0, FROM_REGISTERS = 0xdf0, MARK = 0x9c5, SPECIAL = 0x308, BYTES = 16 };
  cubin_wgmma found = {0, 0, 0};
  char name[80];
  int beside = -1; /* functions since a wait that left products under way; -1: none are known to be */
  snprintf(name, sizeof name, ".text.%s", function);
  const Elf64_Shdr *text = cubin_section(image, name);
  for (size_t at = 0; text && at + BYTES <= text->sh_size; at += BYTES) {
    uint64_t word[2];
    memcpy(word, image->data + text->sh_offset + at, sizeof word);
    int opcode = (int)(word[0] & 0xfff);
    bool wait = opcode == MARK && word[0] >> 47 & 1;
    found.products += opcode == FROM_SHARED || opcode == FROM_REGISTERS;
    found.marks += opcode == MARK;
    if (beside >= 0 && opcode == SPECIAL) beside++;
    if (wait && beside > found.beside) found.beside = beside;
    if (wait) beside = word[1] >> 8 & 0xff ? 0 : -1;
  }
  return found;
}

#endif
