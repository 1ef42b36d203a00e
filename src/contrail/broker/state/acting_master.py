"""Whether a slave acts as the master of its name: it does while it is the lowest that is alive.

NameServers say which brokers of the name are alive. A slave that is the lowest of them is *prime*:
it answers for the master. It also *acts*, delivering what waits in its log, unless its master
sends it the log: a master that is back but not registered yet must find nobody at work.
"""

from __future__ import annotations

from collections.abc import Iterable


class ActingMaster:
    """The brokers of its name that a slave believes to be alive."""

    def __init__(self, own_id: int) -> None:
        self._own_id = own_id
        self._lowest_id: int | None = None

    def members_seen(self, alive: Iterable[int]) -> bool:
        """Take the ids that NameServers list; True if another one is the lowest now.

        No ids are no news: a NameServer that has just started knows nobody.
        """
        ids = set(alive)
        if not ids:
            return False
        lowest_id = min(ids | {self._own_id})
        is_news = lowest_id != self._lowest_id
        self._lowest_id = lowest_id
        return is_news

    @property
    def is_prime(self) -> bool:
        """Whether no broker with a lower id is alive; False until a NameServer has answered."""
        return self._lowest_id == self._own_id

    def acts(self, *, master_sends: bool) -> bool:
        """Whether to deliver; ``master_sends``: the master sends its log to this slave."""
        return self.is_prime and not master_sends
