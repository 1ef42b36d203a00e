/*
 * Marks for callgrind, callable from Python: count from here, and put the count into a file.
 *
 * Outside of valgrind both do nothing.
 */
#include <valgrind/callgrind.h>

void marks_begin(void)
{
    CALLGRIND_ZERO_STATS;
}

void marks_end(const char *name)
{
    CALLGRIND_DUMP_STATS_AT(name);
}
