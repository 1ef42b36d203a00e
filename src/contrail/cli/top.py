"""``contrail top``: a live view of brokers, topics and groups."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from contrail.cli.output import AsJson, print_json, print_rich
from contrail.cli.target import ContextName, NameServers, open_admin
from contrail.cli.top_frame import Frame, draw, look
from contrail.client.blocking.admin import Admin
from contrail.clock import SystemClock

app = typer.Typer(add_completion=False)

_QUIT_KEYS = ("q", "Q", "\x03", "\x04")


@app.command()
def top(
    namesrv: NameServers = None,
    ctx: ContextName = None,
    interval: Annotated[
        float, typer.Option("--interval", min=0.1, metavar="SECONDS", help="Between two frames.")
    ] = 2.0,
    rows: Annotated[
        int, typer.Option("--rows", min=1, metavar="N", help="How many topics and groups.")
    ] = 10,
    once: Annotated[bool, typer.Option("--once", help="Print one frame and end.")] = False,
    as_json: AsJson = False,
) -> None:
    """Watch rates of brokers, the busiest topics, and the groups that are furthest behind.

    The key q, or Ctrl-C, ends it. Without a terminal frames are printed one after another.
    """
    with open_admin(namesrv, ctx) as admin:
        if once or as_json or not _is_at_terminal():
            _print_frames(admin, interval, rows, once=once, as_json=as_json)
        else:
            _live(admin, interval, rows)


def _print_frames(admin: Admin, interval: float, rows: int, *, once: bool, as_json: bool) -> None:
    pause = threading.Event()
    for frame in _frames(admin, lambda: pause.wait(interval)):
        print_json(frame.facts(rows)) if as_json else print_rich(draw(frame, rows))
        sys.stdout.flush()
        if once:
            return


def _live(admin: Admin, interval: float, rows: int) -> None:
    from rich.live import Live

    with _keys() as wait_for_key, Live(screen=True, auto_refresh=False) as live:
        for frame in _frames(admin, lambda: wait_for_key(interval) in _QUIT_KEYS):
            live.update(draw(frame, rows), refresh=True)


def _frames(admin: Admin, wait: Callable[[], bool]) -> Iterator[Frame]:
    """Print frames until ``wait`` returns the end."""
    frame = look(admin, SystemClock().now_ms, None)
    yield frame
    while not wait():
        frame = look(admin, SystemClock().now_ms, frame)
        yield frame


def _is_at_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()


@contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """A function that waits for a key, with a timeout; the terminal is restored at the end."""
    import os
    import select
    import termios
    import tty

    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)

    def wait_for_key(timeout_s: float) -> str:
        ready, _, _ = select.select([descriptor], [], [], timeout_s)
        return os.read(descriptor, 1).decode("ascii", "replace") if ready else ""

    tty.setcbreak(descriptor)
    try:
        yield wait_for_key
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
