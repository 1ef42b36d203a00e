"""Log lines of servers: text for people, or a JSON object a line for machines."""

from __future__ import annotations

import json
import logging
import sys
from datetime import datetime
from enum import StrEnum
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

from contrail.errors import ConfigError

_FILE_BYTES_MAX = 64 << 20
_OLD_FILES_MAX = 10
_ROOM = "contrail."
# A peer's text must not be able to look like a line of its own.
_CONTROL = {code: f"\\x{code:02x}" for code in (*range(32), 127)} | {10: "\\n", 13: "\\r", 9: "\t"}


class LogFormat(StrEnum):
    """How a line is written."""

    TEXT = "text"
    JSON = "json"


class LogLevel(StrEnum):
    """The least important line that is still written."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class TextFormatter(logging.Formatter):
    """``time level logger message``; an exception follows on lines of its own."""

    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage().translate(_CONTROL)
        line = f"{_time(record)} {record.levelname:<8} {_short(record.name)}: {message}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonFormatter(logging.Formatter):
    """One JSON object: time, level, logger, message and, where there is one, exception."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname,
            "logger": _short(record.name),
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


_FORMATTERS = {LogFormat.TEXT: TextFormatter, LogFormat.JSON: JsonFormatter}


def set_up_logs(
    *,
    style: LogFormat = LogFormat.TEXT,
    level: LogLevel = LogLevel.INFO,
    path: Path | None = None,
) -> None:
    """Write all logs to stderr, or to a file that is rotated; call once in a process.

    Raises:
        ConfigError: the file cannot be written.
    """
    handler = _file_handler(path) if path is not None else logging.StreamHandler(sys.stderr)
    handler.setFormatter(_FORMATTERS[style]())
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(level.upper())
    # The origin of a broken log line is of no use to an operator; its text is.
    logging.captureWarnings(True)


def _file_handler(path: Path) -> logging.Handler:
    if not path.parent.is_dir():
        # A folder made here would hide a mistyped path.
        raise ConfigError(f"--log-file {path}: there is no folder {path.parent}; create it first")
    try:
        return RotatingFileHandler(
            path, maxBytes=_FILE_BYTES_MAX, backupCount=_OLD_FILES_MAX, encoding="utf-8"
        )
    except OSError as error:
        raise ConfigError(f"--log-file {path} cannot be written: {error.strerror}") from error


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created).astimezone().isoformat(timespec="milliseconds")


def _short(name: str) -> str:
    return name.removeprefix(_ROOM)
