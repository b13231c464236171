/* SPDX-License-Identifier: Apache-2.0 */
/* Processors, memory and limits, as Linux tells them. */
#include "launch/doctor.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "core/train/threads.h"

enum { LINE_BYTES = 8192 }; /* the flags of one processor take about 2 KiB */

/* The value of the first "key<spaces>: value" line of a /proc file; false when there is none. */
static bool proc_value(const char *path, const char *key, char value[LINE_BYTES]) {
  char line[LINE_BYTES];
  size_t length = strlen(key);
  bool found = false;
  FILE *file = fopen(path, "r");
  if (!file) return false;
  while (!found && fgets(line, sizeof line, file)) {
    char *colon = strchr(line, ':');
    if (!colon || strncmp(line, key, length) != 0 ||
        strspn(line + length, " \t") != (size_t)(colon - line) - length)
      continue;
    const char *start = colon + 1 + strspn(colon + 1, " \t");
    snprintf(value, LINE_BYTES, "%.*s", (int)strcspn(start, "\n"), start);
    found = true;
  }
  fclose(file);
  return found;
}

static bool has_word(const char *words, const char *word) {
  size_t length = strlen(word);
  for (const char *at = words; (at = strstr(at, word)); at += length)
    if ((at == words || at[-1] == ' ') && (at[length] == ' ' || at[length] == '\0')) return true;
  return false;
}

static void report_features(fx_doctor *doctor) {
  static const struct {
    const char *flag, *name; /* as /proc/cpuinfo and as people call it */
  } features[] = {
      {"avx2", "avx2"}, {"avx512f", "avx512f"}, {"avx512_bf16", "avx512_bf16"}, {"amx_tile", "amx"}};
  char flags[LINE_BYTES], text[128] = "";
  json_t *list = json_array();
  if (!proc_value("/proc/cpuinfo", "flags", flags)) flags[0] = '\0';
  for (size_t i = 0; i < sizeof features / sizeof features[0]; i++) {
    if (!has_word(flags, features[i].flag)) continue;
    json_array_append_new(list, json_string(features[i].name));
    snprintf(text + strlen(text), sizeof text - strlen(text), "%s%s", text[0] ? " " : "", features[i].name);
  }
  fx_doctor_fact(doctor, "features", list, "features", "%s", text[0] ? text : "none of avx2, avx512, amx");
}

/* "0-3,8" */
static void list_processors(const fx_affinity *affinity, char *text, size_t capacity) {
  size_t used = 0;
  text[0] = '\0';
  for (int cpu = 0; cpu < FX_AFFINITY_WORDS * 64; cpu++) {
    if (!(affinity->mask[cpu / 64] >> (cpu % 64) & 1)) continue;
    int last = cpu;
    while (last + 1 < FX_AFFINITY_WORDS * 64 && (affinity->mask[(last + 1) / 64] >> ((last + 1) % 64) & 1))
      last++;
    int wrote = last > cpu ? snprintf(text + used, capacity - used, "%s%d-%d", used ? "," : "", cpu, last)
                           : snprintf(text + used, capacity - used, "%s%d", used ? "," : "", cpu);
    if (wrote < 0 || used + (size_t)wrote >= capacity) return;
    used += (size_t)wrote;
    cpu = last;
  }
}

static void report_processors(fx_doctor *doctor) {
  char model[LINE_BYTES], list[512];
  if (proc_value("/proc/cpuinfo", "model name", model))
    fx_doctor_fact(doctor, "cpu", json_string(model), "cpu", "%s", model);
  else
    fx_doctor_fact(doctor, "cpu", json_null(), "cpu", "unknown");
  report_features(doctor);
  long online = sysconf(_SC_NPROCESSORS_ONLN);
  fx_affinity affinity = fx_affinity_get();
  int usable = fx_affinity_count(&affinity);
  list_processors(&affinity, list, sizeof list);
  fx_doctor_fact(doctor, "processors_online", json_integer(online), NULL, NULL);
  fx_doctor_fact(doctor, "processors", json_integer(usable), "processors", "%d of %ld: %s", usable, online,
                 list);
  fx_doctor_fact(doctor, "affinity", json_string(list), NULL, NULL);
  if (usable == 1 && online > 1)
    fx_doctor_warn(
        doctor,
        "this process may run on one of %ld processors only; under mpirun start it with launch/run.sh "
        "or --bind-to none",
        online);
}

static void report_memory(fx_doctor *doctor) {
  static const struct {
    const char *key, *fact, *label;
  } rows[] = {{"MemTotal", "memory_total_bytes", "memory"},
              {"MemAvailable", "memory_available_bytes", "available"}};
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    char value[LINE_BYTES];
    long long kib = 0;
    if (proc_value("/proc/meminfo", rows[i].key, value) &&
        sscanf(value, "%lld", &kib) == 1) // NOLINT: our kernel's
      fx_doctor_fact(doctor, rows[i].fact, json_integer(kib * 1024), rows[i].label, "%.1f GiB",
                     (double)kib / (1024.0 * 1024.0));
    else
      fx_doctor_fact(doctor, rows[i].fact, json_null(), rows[i].label, "unknown");
  }
}

static void report_limits(fx_doctor *doctor) {
  static const struct {
    int resource;
    const char *key, *label;
    bool bytes;
    rlim_t enough; /* a warning below */
    const char *why;
  } rows[] = {
      {RLIMIT_NOFILE, "limit_nofile", "open files", false, 1024,
       "reading a checkpoint through its index keeps up to 256 files open; raise it with ulimit -n 4096"},
      {RLIMIT_AS, "limit_as_bytes", "addresses", true, RLIM_INFINITY,
       "an allocation may fail while memory is free; lift it with ulimit -v unlimited"},
      {RLIMIT_MEMLOCK, "limit_memlock_bytes", "locked mem.", true, 0, ""},
  };
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    struct rlimit limit;
    if (getrlimit(rows[i].resource, &limit) != 0) continue;
    unsigned long long value = limit.rlim_cur;
    if (limit.rlim_cur == RLIM_INFINITY)
      fx_doctor_fact(doctor, rows[i].key, json_null(), rows[i].label, "unlimited");
    else
      fx_doctor_fact(doctor, rows[i].key, json_integer((json_int_t)value), rows[i].label, "%llu%s", value,
                     rows[i].bytes ? " bytes" : "");
    if (limit.rlim_cur < rows[i].enough)
      fx_doctor_warn(doctor, "the limit on %s is %llu: %s", rows[i].label, value, rows[i].why);
  }
}

void fx_doctor_machine(fx_doctor *doctor) {
  report_processors(doctor);
  report_memory(doctor);
  report_limits(doctor);
}
