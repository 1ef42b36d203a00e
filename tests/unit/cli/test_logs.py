"""Log lines: one line for people, one JSON object for machines."""

from __future__ import annotations

import json
import logging
import sys
from datetime import datetime

import pytest

from contrail.cli.logs import JsonFormatter, TextFormatter


def record(message: str, *arguments: object, failure: bool = False) -> logging.LogRecord:
    found = None
    if failure:
        try:
            raise ValueError("what went wrong")
        except ValueError:
            found = sys.exc_info()
    return logging.LogRecord(
        "contrail.broker.app", logging.WARNING, __file__, 1, message, arguments, found
    )


@pytest.mark.proves("broker.running.logs")
def test_a_line_has_time_level_logger_and_message() -> None:
    line = TextFormatter().format(record("queue %d is full", 3))
    time, level, logger, message = line.split(maxsplit=3)
    assert datetime.fromisoformat(time).tzinfo is not None
    assert (level, logger, message) == ("WARNING", "broker.app:", "queue 3 is full")


@pytest.mark.parametrize("text", ["a\nFORGED line", "a\r\nFORGED", "a\x1b[2J", "a\x00b"])
def test_a_peers_text_cannot_look_like_a_line_of_its_own(text: str) -> None:
    line = TextFormatter().format(record("client %s", text))
    assert line.isprintable()
    assert (
        json.loads(JsonFormatter().format(record("client %s", text)))["message"] == f"client {text}"
    )


def test_an_exception_follows_its_line() -> None:
    lines = TextFormatter().format(record("failed", failure=True)).splitlines()
    assert lines[0].endswith("failed")
    assert lines[-1] == "ValueError: what went wrong"


@pytest.mark.proves("broker.running.logs")
def test_a_json_line_is_one_object_with_everything_in_it() -> None:
    line = JsonFormatter().format(record("queue %d is full", 3, failure=True))
    assert "\n" not in line
    found = json.loads(line)
    assert found.keys() == {"time", "level", "logger", "message", "exception"}
    assert (found["level"], found["logger"]) == ("WARNING", "broker.app")
    assert found["message"] == "queue 3 is full"
    assert found["exception"].endswith("ValueError: what went wrong")
    assert "exception" not in json.loads(JsonFormatter().format(record("fine")))
