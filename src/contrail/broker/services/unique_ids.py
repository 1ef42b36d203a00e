"""Unique ids for messages whose producer gave them none."""

from __future__ import annotations

import os
import secrets
from datetime import datetime

from contrail.clock import Clock
from contrail.model.message_id import build_unique_id


class UniqueIds:
    """Makes ids in the form client libraries make them."""

    def __init__(self, address: bytes, clock: Clock) -> None:
        self._address = address
        self._clock = clock
        self._process_id = os.getpid()
        self._process_hash = secrets.randbits(32)
        self._counter = 0

    def next(self) -> str:
        now_ms = self._clock.now_ms()
        self._counter += 1
        return build_unique_id(
            address=self._address,
            process_id=self._process_id,
            process_hash=self._process_hash,
            month_start_ms=_month_start_ms(now_ms),
            now_ms=now_ms,
            counter=self._counter,
        )


def _month_start_ms(now_ms: int) -> int:
    moment = datetime.fromtimestamp(now_ms / 1000)
    start = moment.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    return int(start.timestamp() * 1000)
