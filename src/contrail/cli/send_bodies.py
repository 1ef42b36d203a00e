"""The bodies of ``contrail send``: arguments, lines and files, byte for byte."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import BinaryIO

from contrail.client.outgoing import MESSAGE_BYTES_MAX
from contrail.errors import ConfigError

STANDARD_INPUT = "-"
_READ_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Bodies:
    """Bodies to send; with ``is_stream`` their number is not known."""

    texts: Sequence[str] = ()
    files: Sequence[Path] = ()
    line_files: Sequence[Path] = ()
    repeat_count: int = 1

    @property
    def is_stream(self) -> bool:
        return bool(self.line_files) or STANDARD_INPUT in self.texts

    def chunks(self) -> Iterator[Iterable[bytes]]:
        """Bodies as they come: those available together may be sent together.

        Raises:
            ConfigError: a file cannot be read.
        """
        for bodies in self._once():
            yield (body for one in bodies for body in repeat(one, self.repeat_count))

    def _once(self) -> Iterator[Sequence[bytes]]:
        for text in self.texts:
            if text == STANDARD_INPUT:
                yield from _line_chunks(sys.stdin.buffer)
            else:
                yield [text.encode("utf-8", "surrogateescape")]
        for path in self.files:
            yield [_content(path)]
        for path in self.line_files:
            yield from _lines_of(path)


def gather(
    texts: Sequence[str], files: Sequence[Path], line_files: Sequence[Path], repeat_count: int
) -> Bodies:
    """The bodies that the options name; without any, lines of standard input.

    All that can be checked before is checked, so that a wrong body keeps all from being sent.

    Raises:
        ConfigError: no body is named, and standard input is a terminal; or a body is empty or
            too long, or a file cannot be read.
    """
    if not (texts or files or line_files):
        if sys.stdin.isatty():
            raise ConfigError(
                "nothing to send: give bodies, --file or --lines, or - for lines of standard input"
            )
        texts = [STANDARD_INPUT]
    for number, text in enumerate(texts, 1):
        _require_length(f"BODY {number}", len(text.encode("utf-8", "surrogateescape")))
    for path in files:
        _require_readable("--file", path)
        if path.is_file():
            _require_length(f"--file {path}", path.stat().st_size)
    for path in line_files:
        _require_readable("--lines", path)
    return Bodies(texts, files, line_files, repeat_count)


def _require_readable(option: str, path: Path) -> None:
    """Raises ``ConfigError``. No file is opened: the writer of a pipe would notice."""
    try:
        path.stat()
    except OSError as error:
        raise _unreadable(option, path, error) from error
    if path.is_dir():
        raise ConfigError(f"{option} {path}: it is a folder")
    if not os.access(path, os.R_OK):
        raise ConfigError(f"{option} {path}: {os.strerror(errno.EACCES)}")


def _require_length(what: str, length: int) -> None:
    if length == 0:
        raise ConfigError(f"{what} is empty: a message needs a body")
    if length > MESSAGE_BYTES_MAX:
        raise ConfigError(f"{what} has {length:,} bytes: a body has {MESSAGE_BYTES_MAX:,} at most")


def _line_chunks(stream: BinaryIO) -> Iterator[list[bytes]]:
    """Lines without their ends; available lines do not wait for later ones.

    Blank lines are skipped, since a message needs a body.
    """
    rest = b""
    # Of a stream that waits for its writer, ``read1`` returns the available bytes.
    while data := stream.read1(_READ_BYTES):  # type: ignore[attr-defined]
        *lines, rest = (rest + data).split(b"\n")
        yield [line for line in lines if line]
    yield [rest] if rest else []


def _lines_of(path: Path) -> Iterator[list[bytes]]:
    try:
        with path.open("rb") as stream:
            yield from _line_chunks(stream)
    except OSError as error:
        raise _unreadable("--lines", path, error) from error


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise _unreadable("--file", path, error) from error


def _unreadable(option: str, path: Path, error: OSError) -> ConfigError:
    return ConfigError(f"{option} {path}: {error.strerror or error}")
