"""A prefork server: a master that has clients of its own, and workers that are forked from it.

Usage: NAMESRV TOPIC. Workers make their client after the fork, as gunicorn's ``post_fork`` would;
one that dies is replaced. A module that made its client before is told so.
"""

from __future__ import annotations

import os
import signal
import sys

import contrail
from contrail.errors import ClientForked

WORKERS, REQUESTS = 3, 20
namesrv, topic = sys.argv[1:]

preloaded = contrail.Producer("preloaded", namesrv)


def work(number: int) -> None:
    """Serve some requests, and end as gunicorn's workers do."""
    try:
        preloaded.start()
    except ClientForked as error:
        told = str(error)
    else:
        raise AssertionError("what was made before the fork worked")
    assert "post_fork" in told, told
    producer = contrail.Producer("workers", namesrv, send_timeout_ms=60_000)
    producer.start()
    for request in range(REQUESTS):
        producer.send(contrail.Message(topic, b"worker %d: %d" % (number, request)))
    if number == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    # Not closed: the exit does it.
    sys.exit(0)


def fork_worker(number: int) -> int:
    pid = os.fork()
    if pid == 0:
        work(number)
    return pid


def main() -> None:
    with contrail.Producer("master", namesrv, send_timeout_ms=60_000) as producer:
        producer.send(contrail.Message(topic, b"master"))
        pids = {fork_worker(number) for number in range(WORKERS)}
        replaced = False
        while pids:
            pid, status = os.wait()
            pids.discard(pid)
            if os.WIFSIGNALED(status) and not replaced:
                replaced = True
                pids.add(fork_worker(WORKERS))
            else:
                assert status == 0, status
            producer.send(contrail.Message(topic, b"master"))
        assert replaced
    print("done")


main()
