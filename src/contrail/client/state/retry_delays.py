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


def delay_level(delay: int | float | timedelta | None) -> int:
    """The level for a delay: an ``int`` is one, a ``float`` or ``timedelta`` is rounded up to one.

    None leaves it to the broker, which waits longer with every retry.

    Raises:
        ConfigError: a level below 1, or a delay that is negative or above the longest.
    """
    if delay is None:
        return BROKER_DECIDES
    if isinstance(delay, int):
        if delay < 1:
            raise ConfigError(f"delay level {delay} does not exist: levels start at 1")
        return delay
    wanted_ms = delay_ms(delay)
    level = bisect_left(_DELAYS_MS, wanted_ms, lo=1)
    if wanted_ms < 0 or level == len(_DELAYS_MS):
        longest = timedelta(milliseconds=_DELAYS_MS[-1])
        raise ConfigError(f"a message cannot come again after {delay!r}: give 0 to {longest}")
    return level


def delay_ms(delay: int | float | timedelta) -> int:
    """How long a delay is; an ``int`` is a level."""
    if isinstance(delay, int):
        return _DELAYS_MS[min(max(delay, 1), len(_DELAYS_MS) - 1)]
    seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
    return int(seconds * 1000)
