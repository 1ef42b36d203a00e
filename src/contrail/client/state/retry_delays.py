"""How long until a message comes again: delays as the levels that brokers know."""

from __future__ import annotations

from bisect import bisect_left
from datetime import timedelta

from contrail.errors import ConfigError
from contrail.model.delay_levels import DEFAULT_DELAY_LEVELS, parse_delay_levels

# 10 s for the first retry, 30 s for the second, and so on.
FIRST_RETRY_LEVEL = 3
BROKER_DECIDES = 0
DEAD_LETTER = -1

_DELAYS_MS = parse_delay_levels(DEFAULT_DELAY_LEVELS)
LEVEL_MAX = len(_DELAYS_MS) - 1


def delay_level(delay: int | float | timedelta | None) -> int:
    """The level for a delay: an ``int`` is one, a ``float`` or ``timedelta`` is rounded up to one.

    None leaves it to the broker, which waits longer with every retry.

    Raises:
        ConfigError: there is no such level, or the delay is negative or above the longest.
    """
    if delay is None:
        return BROKER_DECIDES
    wanted_ms = delay_ms(delay)
    return delay if isinstance(delay, int) else bisect_left(_DELAYS_MS, wanted_ms, lo=1)


def delay_ms(delay: int | float | timedelta) -> int:
    """How long a delay is; an ``int`` is a level.

    Raises:
        ConfigError: there is no such level, or the delay is negative or above the longest.
    """
    if isinstance(delay, int) and not isinstance(delay, bool):
        return _DELAYS_MS[_level(delay)]
    seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
    longest_ms = _DELAYS_MS[-1]
    if not isinstance(seconds, float) or not 0 <= seconds * 1000 <= longest_ms:
        raise ConfigError(
            f"a message cannot come again after {delay!r}: give 0.0 to {longest_ms / 1000} seconds "
            f"(a float, or a timedelta), or a delay level of 1 to {LEVEL_MAX} (an int)"
        )
    return int(seconds * 1000)


def _level(delay: int) -> int:
    if not 1 <= delay <= LEVEL_MAX:
        raise ConfigError(
            f"delay level {delay} does not exist: an int is a level of 1 to {LEVEL_MAX}; seconds "
            f"are a float, such as {abs(float(delay))}, or a timedelta"
        )
    return delay
