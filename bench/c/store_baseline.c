/*
 * The costs of disk and kernel without a store: the reference of the store benchmark.
 *
 *   store_baseline write  FILE RECORD_BYTES BATCH COUNT   pwrite COUNT records, BATCH a call
 *   store_baseline commit FILE RECORD_BYTES BATCH COUNT   the same, with fdatasync after each call
 *
 * The file is filled with zeros and synced first, as a prepared log segment is, so that the timed
 * loop writes into allocated, cached pages. Prints one line of JSON; CPU is this process's own.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define FILL_BYTES (1 << 20)

static void fail(const char *what)
{
    fprintf(stderr, "store_baseline: %s: %s\n", what, strerror(errno));
    exit(1);
}

static double seconds(clockid_t clock)
{
    struct timespec now;
    if (clock_gettime(clock, &now) != 0)
        fail("clock_gettime");
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static long number(const char *text, const char *name)
{
    char *end;
    long value = strtol(text, &end, 10);
    if (*end != '\0' || value <= 0) {
        fprintf(stderr, "store_baseline: %s must be a positive number, not '%s'\n", name, text);
        exit(2);
    }
    return value;
}

static void write_fully(int fd, const char *data, size_t byte_count, off_t position)
{
    while (byte_count > 0) {
        ssize_t written = pwrite(fd, data, byte_count, position);
        if (written <= 0)
            fail("pwrite");
        data += written;
        position += written;
        byte_count -= (size_t)written;
    }
}

static int open_filled(const char *path, off_t file_bytes)
{
    char *zeros = calloc(1, FILL_BYTES);
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (zeros == NULL || fd < 0)
        fail(path);
    for (off_t position = 0; position < file_bytes; position += FILL_BYTES) {
        off_t left = file_bytes - position;
        write_fully(fd, zeros, left < FILL_BYTES ? (size_t)left : FILL_BYTES, position);
    }
    if (fsync(fd) != 0)
        fail("fsync");
    free(zeros);
    return fd;
}

static char *sample_batch(size_t byte_count)
{
    char *data = malloc(byte_count);
    if (data == NULL)
        fail("malloc");
    for (size_t i = 0; i < byte_count; i++)
        data[i] = (char)(i * 31 + 7);
    return data;
}

int main(int argc, char **argv)
{
    if (argc != 6 || (strcmp(argv[1], "write") != 0 && strcmp(argv[1], "commit") != 0)) {
        fprintf(stderr, "usage: store_baseline write|commit FILE RECORD_BYTES BATCH COUNT\n");
        return 2;
    }
    int commits = strcmp(argv[1], "commit") == 0;
    long record_bytes = number(argv[3], "RECORD_BYTES");
    long batch = number(argv[4], "BATCH");
    long calls = number(argv[5], "COUNT") / batch;
    size_t batch_bytes = (size_t)record_bytes * (size_t)batch;
    if (calls == 0) {
        fprintf(stderr, "store_baseline: COUNT must be at least BATCH\n");
        return 2;
    }
    int fd = open_filled(argv[2], (off_t)batch_bytes * calls);
    char *data = sample_batch(batch_bytes);

    double cpu_start = seconds(CLOCK_PROCESS_CPUTIME_ID);
    double wall_start = seconds(CLOCK_MONOTONIC);
    for (long call = 0; call < calls; call++) {
        write_fully(fd, data, batch_bytes, (off_t)batch_bytes * call);
        if (commits && fdatasync(fd) != 0)
            fail("fdatasync");
    }
    double wall_s = seconds(CLOCK_MONOTONIC) - wall_start;
    double cpu_s = seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu_start;

    printf("{\"cpu_s\": %.9f, \"wall_s\": %.9f, \"record_count\": %ld, \"byte_count\": %zu}\n",
           cpu_s, wall_s, calls * batch, batch_bytes * (size_t)calls);
    free(data);
    close(fd);
    unlink(argv[2]);
    return 0;
}
