"""Messages on standard output: formatted, byte for byte, or as one JSON object a line."""

from __future__ import annotations

import json
import os
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from contrail.cli.message_format import (
    DEFAULT_FORMAT,
    compile_format,
    for_terminal,
    message_fields,
)
from contrail.cli.output import complain
from contrail.client.message import ReceivedMessage
from contrail.errors import ConfigError

Format = Annotated[
    str | None,
    typer.Option(
        "-f",
        "--format",
        metavar="FORMAT",
        help=r"How a message is printed, such as '%t %q@%o %k %b\n'; see the reference.",
    ),
]
AsJsonLines = Annotated[bool, typer.Option("--json", help="Print a JSON object a line.")]


class MessagePrinter:
    """Prints messages in one way; ``flush`` makes sure that they are out.

    With ``holds`` nothing is written before, so that a caller notes messages as printed before a
    reader can have seen them.
    """

    def __init__(self, show: Callable[[ReceivedMessage], bytes], *, is_plain: bool) -> None:
        self._show = show
        # A received body must not steer the terminal, unless a format asks for bytes.
        self._is_tame = is_plain and sys.stdout.isatty()
        self.holds = False
        self._pending: deque[bytes] = deque()
        self.count = 0

    def print(self, message: ReceivedMessage) -> None:
        """Print a message; one that cannot be decoded is printed as it is, after its error."""
        if message.decode_error is not None:
            complain(str(message.decode_error))
        data = self._show(message)
        data = for_terminal(data).encode() if self._is_tame else data
        if self.holds:
            self._pending.append(data)
        else:
            write_bytes(data)
        self.count += 1

    def flush(self) -> None:
        """Write the printed messages; called again after an interrupt, it writes the rest."""
        while self._pending:
            write_bytes(self._pending[0])
            self._pending.popleft()
        sys.stdout.flush()


def open_printer(format: str | None, *, as_json: bool) -> MessagePrinter:
    """A printer for the options.

    Raises:
        ConfigError: both options are given, or the format is invalid.
    """
    if as_json and format is not None:
        raise ConfigError("--json and --format: give one of the two")
    if as_json:
        return MessagePrinter(_json_line, is_plain=False)
    return MessagePrinter(compile_format(format or DEFAULT_FORMAT), is_plain=format is None)


@contextmanager
def until_reader_leaves() -> Iterator[None]:
    """End the command well when the reader of standard output, such as ``head``, has left."""
    try:
        yield
    except BrokenPipeError:
        # Output that is flushed at exit is dropped.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
        raise typer.Exit from None


def write_bytes(data: bytes) -> None:
    """Bytes as they are, where standard output takes them; not to be mixed with printed text."""
    buffer = getattr(sys.stdout, "buffer", None)
    if buffer is None:
        sys.stdout.write(data.decode("utf-8", "replace"))
    else:
        buffer.write(data)


def _json_line(message: ReceivedMessage) -> bytes:
    return (json.dumps(message_fields(message), ensure_ascii=False) + "\n").encode(
        "utf-8", "surrogatepass"
    )
