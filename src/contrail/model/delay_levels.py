"""Delay levels: the setting ``messageDelayLevel`` as a table of delays."""

from __future__ import annotations

import re

from contrail.errors import ConfigError

# How far ahead a message may be delayed, unless the broker is told otherwise.
TIMER_DELAY_S_MAX = 259_200
DEFAULT_DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"

_PIECE = re.compile(r"([0-9]{1,15})([smhd])")
_UNIT_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_delay_levels(text: str) -> list[int]:
    """The delay in ms of each level; levels start at 1, so index 0 is unused.

    Raises:
        ConfigError: a piece is not a number and one of the units s, m, h, d.
    """
    pieces = text.split()
    if not pieces:
        raise ConfigError("messageDelayLevel is empty; give at least one level, such as '1s'")
    return [0, *(_parse_piece(piece, level) for level, piece in enumerate(pieces, 1))]


def _parse_piece(piece: str, level: int) -> int:
    match = _PIECE.fullmatch(piece)
    if match is None:
        raise ConfigError(
            f"messageDelayLevel: level {level} is {piece!r}; "
            "write a number and a unit (s, m, h or d), such as '30s'"
        )
    return int(match[1]) * _UNIT_MS[match[2]]
