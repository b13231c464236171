/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE /* pipe2 */
#include "attention/tile/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "dynamo_rt/base/clock.h"
#include "dynamo_rt/base/memory.h"

extern char **environ;

static double now(void) {
  return 1e-9 * (double)fx_now_ns();
}

/* The child leads a process group of its own, so that what it starts ends with it. It gets default signal
 * handling and an empty mask whatever its parent has. */
static int start(const char *path, char *const argv[], int write_end, pid_t *child) {
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  sigset_t defaults, none;
  sigemptyset(&none);
  sigemptyset(&defaults);
  sigaddset(&defaults, SIGCHLD);
  sigaddset(&defaults, SIGPIPE);
  sigaddset(&defaults, SIGTERM);
  sigaddset(&defaults, SIGINT);
  int error = posix_spawn_file_actions_init(&actions);
  if (error) return error;
  error = posix_spawnattr_init(&attributes);
  if (error) {
    posix_spawn_file_actions_destroy(&actions);
    return error;
  }
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, write_end, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, write_end, STDERR_FILENO);
  posix_spawnattr_setsigdefault(&attributes, &defaults);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes,
                           POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
  error = posix_spawn(child, path, &actions, &attributes, argv, environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  return error;
}

/* Reads until the other end is closed; false when that did not happen before the deadline. */
static bool listen_to(int read_end, double deadline, char *text, size_t size) {
  size_t length = 0;
  text[0] = '\0';
  for (;;) {
    double left = deadline - now();
    struct pollfd waits = {.fd = read_end, .events = POLLIN};
    int ready = left > 0.0 ? poll(&waits, 1, (int)(left * 1e3) + 1) : 0;
    if (ready == 0) return false;
    if (ready < 0 && errno == EINTR) continue;
    char chunk[1024];
    ssize_t got = read(read_end, chunk, sizeof chunk);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return true;
    size_t kept = (size_t)got < size - 1 - length ? (size_t)got : size - 1 - length;
    memcpy(text + length, chunk, kept);
    length += kept;
    text[length] = '\0';
  }
}

/* False at the deadline. */
static bool wait_for(pid_t child, double deadline, int *code) {
  for (;;) {
    int how;
    pid_t ended = waitpid(child, &how, WNOHANG);
    if (ended == child) {
      *code = WIFEXITED(how) ? WEXITSTATUS(how) : 128 + WTERMSIG(how);
      return true;
    }
    if (ended < 0 && errno != EINTR) {
      *code = -1;
      return true;
    }
    if (now() > deadline) return false;
    nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
  }
}

fx_status fx_spawn(const char *path, char *const argv[], double limit, char *text, size_t size, int *code) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return fx_error(FX_ERR_IO, "no pipe to run %s: %s", path, strerror(errno));
  pid_t child;
  double deadline = now() + limit;
  int error = start(path, argv, ends[1], &child);
  close(ends[1]);
  if (error) {
    close(ends[0]);
    return fx_error(FX_ERR_IO, "%s cannot be run: %s", path, strerror(error));
  }
  bool ended = listen_to(ends[0], deadline, text, size) && wait_for(child, deadline, code);
  close(ends[0]);
  if (ended) return FX_OK;
  kill(-child, SIGKILL);
  wait_for(child, now() + 10.0, code);
  return fx_error(FX_ERR_IO, "%s did not end within %.0f s and was killed", path, limit);
}

static bool is_program(const char *path) {
  struct stat file;
  return stat(path, &file) == 0 && S_ISREG(file.st_mode) && access(path, X_OK) == 0;
}

char *fx_spawn_find(const char *name) {
  if (strchr(name, '/')) return is_program(name) ? fx_strdup(name) : NULL;
  const char *path = getenv("PATH");
  while (path && *path) {
    size_t length = strcspn(path, ":");
    char *candidate = fx_strfmt("%.*s/%s", (int)length, path, name);
    if (candidate && length > 0 && is_program(candidate)) return candidate;
    free(candidate);
    path += length + (path[length] == ':');
  }
  return NULL;
}
