/* Makes the nth matching file operation of a process fail, from outside of it.
 *
 * Loaded with LD_PRELOAD and told by environment variables:
 *   FAULT_OPERATION  pwrite | fdatasync | fsync | rename
 *   FAULT_PATH       only paths that contain this text count
 *   FAULT_NTH        which matching call goes wrong, counted from 1
 *   FAULT_MODE       eio | enospc | short (pwrite only: half of the bytes are written)
 *   FAULT_LOG        a line is appended to this file when the fault strikes
 *   FAULT_SLOWNESS   a file of one 64-bit integer: the microseconds that each fsync and fdatasync
 *                    takes longer; it may be changed at any time
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

static atomic_long seen;
static volatile int64_t *slowness;
static pthread_once_t slowness_is_mapped = PTHREAD_ONCE_INIT;

static const char *setting(const char *name) {
    const char *value = getenv(name);
    return value ? value : "";
}

static void tell(const char *operation, const char *path) {
    char line[5000];
    int fd = open(setting("FAULT_LOG"), O_WRONLY | O_CREAT | O_APPEND, 0644);
    if (fd < 0) return;
    int length = snprintf(line, sizeof line, "%s %s\n", operation, path);
    ssize_t written = write(fd, line, (size_t)length);
    (void)written;
    close(fd);
}

static int strikes(const char *operation, const char *path) {
    if (strcmp(operation, setting("FAULT_OPERATION")) != 0) return 0;
    if (strstr(path, setting("FAULT_PATH")) == NULL) return 0;
    if (atomic_fetch_add(&seen, 1) + 1 != atol(setting("FAULT_NTH"))) return 0;
    tell(operation, path);
    return 1;
}

static int strikes_fd(const char *operation, int fd) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return strikes(operation, path);
}

static int failed(void) {
    errno = strcmp(setting("FAULT_MODE"), "enospc") == 0 ? ENOSPC : EIO;
    return -1;
}

static void map_slowness(void) {
    if (!*setting("FAULT_SLOWNESS")) return;
    int fd = open(setting("FAULT_SLOWNESS"), O_RDONLY);
    if (fd < 0) return;
    void *found = mmap(NULL, sizeof *slowness, PROT_READ, MAP_SHARED, fd, 0);
    if (found != MAP_FAILED) slowness = found;
    close(fd);
}

static void be_slow(void) {
    pthread_once(&slowness_is_mapped, map_slowness);
    int64_t micros = slowness ? *slowness : 0;
    if (micros <= 0) return;
    struct timespec wait = {micros / 1000000, micros % 1000000 * 1000};
    nanosleep(&wait, NULL);
}

typedef ssize_t (*pwrite_call)(int, const void *, size_t, off_t);

static ssize_t guarded_pwrite(const char *symbol, int fd, const void *data, size_t count, off_t at) {
    pwrite_call real = (pwrite_call)dlsym(RTLD_NEXT, symbol);
    if (!strikes_fd("pwrite", fd)) return real(fd, data, count, at);
    if (strcmp(setting("FAULT_MODE"), "short") == 0) return real(fd, data, count / 2, at);
    return failed();
}

ssize_t pwrite(int fd, const void *data, size_t count, off_t at) {
    return guarded_pwrite("pwrite", fd, data, count, at);
}

ssize_t pwrite64(int fd, const void *data, size_t count, off_t at) {
    return guarded_pwrite("pwrite64", fd, data, count, at);
}

int fdatasync(int fd) {
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    be_slow();
    return strikes_fd("fdatasync", fd) ? failed() : real(fd);
}

int fsync(int fd) {
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    be_slow();
    return strikes_fd("fsync", fd) ? failed() : real(fd);
}

int rename(const char *from, const char *to) {
    int (*real)(const char *, const char *) =
        (int (*)(const char *, const char *))dlsym(RTLD_NEXT, "rename");
    return strikes("rename", to) ? failed() : real(from, to);
}
