"""The question of replicas for users and rights, and the changes that wait for their answers.

In a failover group a change is answered once a majority of members has it, this broker included:
a member that is elected then has it, too. The member that asks again tells which table it has.
"""

from __future__ import annotations

from collections.abc import Callable

from contrail.broker.services.followed_users import (
    GENERATION_FIELD,
    KNOWN_FIELD,
    NONCE_FIELD,
    REPLICA_FIELD,
    SealedUsers,
)
from contrail.errors import StoreReadOnly
from contrail.protocol.codes import RequestCode
from contrail.protocol.command import Request, Response
from contrail.protocol.fields import HeaderFields
from contrail.runtime.durable_changes import Done
from contrail.wire.peer import Handler, Peer

# As long as a send waits for a majority.
_WAIT_MS = 5_000
_REPLICAS_MAX = 100


class SealedUsersHandlers:
    """Serves GET_SEALED_USERS; a change may wait here for replicas."""

    def __init__(
        self,
        sealed: SealedUsers,
        *,
        replica_count: int,
        ask_back: Callable[[str], None],
        elapsed_ms: Callable[[], int],
    ) -> None:
        """``replica_count`` says how many other brokers must have a change; ``ask_back`` takes the
        table of a replica that has a later one.
        """
        self._sealed = sealed
        self._ask_back = ask_back
        self._replica_count = replica_count
        self._elapsed_ms = elapsed_ms
        # The table that each replica had when it asked last, by the replica's address.
        self._known: dict[str, str] = {}
        self._waiting: list[tuple[str, int, Done]] = []

    def table(self) -> dict[int, Handler]:
        return {RequestCode.GET_SEALED_USERS: self.handle}

    def handle(self, request: Request, peer: Peer) -> Response:
        fields = HeaderFields(request)
        nonce, known = fields.text(NONCE_FIELD), fields.text(KNOWN_FIELD)
        replica = fields.text(REPLICA_FIELD)
        if replica in self._known or len(self._known) < _REPLICAS_MAX:
            self._known[replica] = known
        self._let_go()
        if fields.integer(GENERATION_FIELD, 0) > self._sealed.generation:
            self._ask_back(replica)
        return Response(body=self._sealed.answer(nonce, known))

    def when_known(self, done: Done) -> Done:
        """``done`` for a change that counts once replicas have it."""
        if not self._replica_count:
            return done

        def written(problem: Exception | None) -> None:
            if problem is not None:
                done(problem)
                return
            deadline_ms = self._elapsed_ms() + _WAIT_MS
            self._waiting.append((self._sealed.name(), deadline_ms, done))

        return written

    def _let_go(self) -> None:
        """Answer the changes that enough replicas have; a later table holds the earlier changes."""
        now = self._sealed.name()
        count = sum(known == now for known in self._known.values())
        if count >= self._replica_count:
            waiting, self._waiting = self._waiting, []
            for _, _, done in waiting:
                done(None)

    def expire(self, now_ms: int) -> None:
        """Give up changes that too few replicas have taken: whether they count is not known."""
        elapsed_ms = self._elapsed_ms()
        late = [one for one in self._waiting if one[1] <= elapsed_ms]
        self._waiting = [one for one in self._waiting if one[1] > elapsed_ms]
        for _, _, done in late:
            done(StoreReadOnly("too few members of the failover group have the change yet"))
