"""``python -m bench SUITE``: run one suite; without a name, list them."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path
from typing import Protocol, cast

from bench.harness import REPOSITORY, BenchError, Row
from bench.report import (
    Draw,
    Result,
    describe_commit,
    describe_machine,
    publish,
    require_publishable,
    row_in_words,
    write_json,
    write_page_again,
)

# suite -> (module, what it measures)
SUITES = {
    "store": ("bench.store", "append, sync flush, recovery and start of the message store"),
    "backlog": ("bench.backlog", "the tail's latency while another group drains a backlog"),
    "timers": ("bench.timers", "how late timed messages are, idle and with a million waiting"),
    "pop": ("bench.pop", "pops and acks beside Apache's broker, and a million in flight"),
    "wire": ("bench.wire", "send and pull through the broker, beside servers that do nothing"),
    "client": ("bench.client", "send and consume by our Python client, beside other clients"),
    "spark": ("bench.spark", "the Spark connector beside Parquet, Kafka and our client"),
    "growth": ("bench.growth", "what sends, pulls and restarts cost while something else grows"),
    "startup": (
        "bench.startup",
        "until the command line, contrail dev, a test's broker can be used",
    ),
    "replication": (
        "bench.replication",
        "what slaves cost a master, and what they cost themselves",
    ),
    "access": ("bench.access", "what signatures and rights cost sends and pulls"),
    "peers": ("bench.peers", "beside Apache RocketMQ, Redis, NATS, RabbitMQ and Kafka"),
}
# Groups that take too long for five minutes in all; a full run and `--only` have them.
NOT_IN_QUICK = {
    "timers": ("levels", "million"),
    "client": ("proxy",),
    "pop": ("million",),
    "spark": ("sink", "micro-batch"),
    "replication": ("java", "failover", "failover-apache"),
}


class Suite(Protocol):
    """The module of a suite: its row groups, each measured on its own.

    One that has ``draw`` as well, a ``bench.report.Draw``, is published with pictures; one that has
    ``CAUSES``, by the names of its rows, says why targets were missed.
    """

    def groups(self) -> list[str]: ...
    def measure(self, group: str, *, size: str, folder: Path) -> list[Row]: ...


def main(arguments: list[str] | None = None) -> int:
    """Run the named suites. 1 when a full run missed a target, 2 when it could not run."""
    options = _options(arguments)
    # Started servers are stopped on the way out, also after SIGTERM.
    signal.signal(signal.SIGTERM, _end)
    if options.suite is None and options.size != "quick":
        _list_suites()
        return 0
    if options.page:
        return _write_page(options.suite)
    everything = options.suite in (None, "quick")
    names = list(SUITES) if everything else [options.suite]
    size = "quick" if everything else options.size
    try:
        results = [run_suite(name, size=size, options=options) for name in names]
        return 1 if size == "full" and any(result.missed for result in results) else 0
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2


def _write_page(name: str) -> int:
    suite = cast(Suite, import_module(SUITES[name][0]))
    for path in write_page_again(name, _causes_of(suite), getattr(suite, "draw", None)):
        print(f"written {path.relative_to(REPOSITORY)}", file=sys.stderr)
    return 0


def _end(number: int, frame: object) -> None:
    sys.exit(128 + number)


def run_suite(name: str, *, size: str, options: argparse.Namespace) -> Result:
    """Measure every group of a suite, then print, write and publish as asked."""
    suite = cast(Suite, import_module(SUITES[name][0]))
    kernels = _kernel_states()
    print(f"suite {name}, {size} run; kernels: {kernels}", file=sys.stderr)
    if options.publish:
        require_publishable(size if not options.only else "partial", kernels)
    parent = Path(options.folder)
    parent.mkdir(parents=True, exist_ok=True)
    machine = describe_machine(parent)
    commit = describe_commit()
    started = time.monotonic()
    wanted = options.only or _groups_of(name, suite, size)
    rows = _measured(suite, size=size, parent=parent, wanted=wanted)
    result = Result(
        suite=name,
        size=size,
        machine=machine,
        kernels=kernels,
        rows=tuple(rows),
        elapsed_s=time.monotonic() - started,
        command=_command(name, size),
        commit=commit.name,
        is_dirty=commit.is_dirty,
        causes=_causes_of(suite),
    )
    _hand_over(result, options, getattr(suite, "draw", None))
    return result


def _causes_of(suite: Suite) -> dict[str, str]:
    return getattr(suite, "CAUSES", {})


def _groups_of(name: str, suite: Suite, size: str) -> list[str]:
    """The suites of a run without names; suites that cannot run are printed."""
    left_out = NOT_IN_QUICK.get(name, ()) if size == "quick" else ()
    for group in left_out:
        print(f"  {group} is left out of a quick run", file=sys.stderr)
    return [group for group in suite.groups() if group not in left_out]


def _command(name: str, size: str) -> str:
    """The command that repeats the run."""
    if size != "full":
        return f"python -m bench {name} --size {size}"
    return f"make bench SUITE={name}{' FULL=1' if os.environ.get('FULL') == '1' else ''}"


def _measured(suite: Suite, *, size: str, parent: Path, wanted: list[str]) -> list[Row]:
    if unknown := set(wanted) - set(suite.groups()):
        known = ", ".join(suite.groups())
        raise BenchError(f"no such group: {', '.join(sorted(unknown))}; choose of {known}")
    rows: list[Row] = []
    for group in suite.groups():
        if group in wanted:
            rows += _measured_group(suite, group, size=size, parent=parent)
    if not rows:
        raise BenchError("nothing was measured: the named suites have no rows in this run")
    return rows


def _measured_group(suite: Suite, group: str, *, size: str, parent: Path) -> list[Row]:
    print(f"  measuring {group} ...", file=sys.stderr, end="", flush=True)
    started = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix=f"{group}-", dir=parent))
    try:
        measured = suite.measure(group, size=size, folder=folder)
    finally:
        shutil.rmtree(folder)
    print(f" {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
    for row in measured:
        print(f"    {row_in_words(row)}", file=sys.stderr, flush=True)
    return measured


def _hand_over(result: Result, options: argparse.Namespace, draw: Draw | None) -> None:
    print(result.as_text())
    if options.json is not None:
        write_json(result, Path(options.json))
    if options.publish:
        for path in publish(result, draw):
            print(f"published {path.relative_to(REPOSITORY)}", file=sys.stderr)


def _kernel_states() -> dict[str, str]:
    from contrail.kernels import compiled_kernels

    found = compiled_kernels()
    return {name: "compiled" if state else "interpreted" for name, state in found.items()}


def _list_suites() -> None:
    print("python -m bench SUITE [--quick] [--json PATH] [--publish]\n")
    for name, (_, what) in SUITES.items():
        print(f"  {name:10} {what}")
    print(f"  {'quick':10} every suite, small: five minutes in all")


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("suite", nargs="?", choices=[*SUITES, "quick"])
    parser.add_argument("--size", choices=["full", "quick", "tiny"], default="full")
    parser.add_argument("--quick", dest="size", action="store_const", const="quick")
    parser.add_argument(
        "--only", action="append", metavar="GROUP", help="measure these groups only"
    )
    parser.add_argument("--json", metavar="PATH", help="also write the result as JSON")
    parser.add_argument("--publish", action="store_true", help="write docs/benchmarks/SUITE.*")
    parser.add_argument(
        "--page", action="store_true", help="write its page again, from the published data"
    )
    parser.add_argument(
        "--folder",
        default=str(REPOSITORY / "build" / "bench"),
        help="where stores are written; its disk is what sync flush measures",
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
