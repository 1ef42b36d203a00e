#!/bin/sh
# One step of `make test`: pytest with the given arguments.
#
#   scripts/test_step.sh PYTHON ARGUMENT ...
#
# Two workers share two cores with brokers, Java and Spark, and now and then a deadline passes there that
# nothing in the product missed. The files of what failed are therefore run once more, alone, in a new process.
# If anything in them fails again, the step has failed; if not, it goes on and names what was unsteady, so that
# it is mended and not forgotten. More than AGAIN_MAX failures are no accident: nothing is run again.
# See docs/design/decisions/0023-once-more-alone.md.
set -eu

AGAIN_MAX=3
PYTHON=$1
shift

status=0
"$PYTHON" -m pytest --cache-clear "$@" || status=$?
# 1 says that tests failed; everything else (an interrupt, wrong options, nothing found) is final.
[ "$status" -eq 1 ] || exit "$status"

failed=$("$PYTHON" -c 'import json; print(*json.load(open(".pytest_cache/v/cache/lastfailed")), sep="\n")')
count=$(printf '%s\n' "$failed" | wc -l)
if [ "$count" -gt "$AGAIN_MAX" ]; then
    printf '%s tests failed: too many to be run again alone\n' "$count" >&2
    exit 1
fi

printf '\n%s failed; their files are run once more, alone:\n%s\n' "$count" "$failed"
# Whole files: some tests stand on what those before them left. No path of a test has a blank in it.
# shellcheck disable=SC2046
"$PYTHON" -m pytest $(printf '%s\n' "$failed" | sed 's/::.*//' | sort -u)
printf '\nUNSTEADY: failed beside others, passed alone:\n%s\n' "$failed"
