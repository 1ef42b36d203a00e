/*
 * Marks for callgrind, callable from Python: count from here, and put the count into a file.
 *
 * Nothing is counted outside of the marks: zeroing alone leaves what other threads did before.
 * Outside of valgrind both do nothing.
 */
#include <valgrind/callgrind.h>

void marks_begin(void)
{
    CALLGRIND_START_INSTRUMENTATION;
    CALLGRIND_ZERO_STATS;
}

void marks_end(const char *name)
{
    CALLGRIND_DUMP_STATS_AT(name);
    CALLGRIND_STOP_INSTRUMENTATION;
}
