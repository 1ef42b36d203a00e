"""Users and rights of a replica: those of the broker that leads, asked for twice a second.

The leader's table travels sealed under the cluster secret, for the one question that asked for it,
and is in no log, record or trace. Until the first answer, and when the leader is away, the table of
the replica's own file counts; after a time the gate may refuse it (``is_stale``).

A question tells which table the replica has, so that the leader of a failover group knows when a
majority has a change.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections.abc import Callable

from contrail.access.state.sealing import SALT_BYTES, SealBroken, fingerprint, seal, unseal
from contrail.access.state.users import UserTable, parse_table, table_fields
from contrail.broker.services.access_table import AccessTable
from contrail.errors import CallFailed, ContrailError
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.wire.caller import Caller

_log = logging.getLogger(__name__)

INTERVAL_MS = 500
KNOWN_FIELD = "known"
NONCE_FIELD = "nonce"
REPLICA_FIELD = "replica"
GENERATION_FIELD = "generation"
_TIMEOUT_MS = 3_000
_CONTEXT = b"contrail users "
_NONCE_BYTES = 16


def rendered(table: UserTable) -> bytes:
    """The table as replicas get it."""
    return json.dumps(table_fields(table), separators=(",", ":")).encode()


class SealedUsers:
    """The table of a leader as its replicas ask for it."""

    def __init__(self, users: AccessTable, secret: bytes) -> None:
        self._users = users
        self._secret = secret

    @property
    def generation(self) -> int:
        return self._users.table.generation

    def name(self) -> str:
        """The name of the table as it is now."""
        return fingerprint(self._secret, _CONTEXT, rendered(self._users.table))

    def answer(self, nonce: str, known: str) -> bytes:
        """The sealed table; sealed nothing for a replica that knows it."""
        data = rendered(self._users.table)
        if fingerprint(self._secret, _CONTEXT, data) == known:
            data = b""
        return seal(self._secret, _CONTEXT + nonce.encode(), data, secrets.token_bytes(SALT_BYTES))


class FollowedUsers:
    """Keeps a replica's users as its leader's; ``run`` is called by the schedule."""

    def __init__(
        self,
        users: AccessTable,
        secret: bytes,
        caller: Callable[[], Caller],
        leader: Callable[[], str | None],
        *,
        own_address: str,
        newest_counts: bool,
        now_ms: Callable[[], int],
        elapsed_ms: Callable[[], int],
    ) -> None:
        """``leader`` is the address of the broker that leads, empty while it is unknown; None says
        that this broker's own table counts. With ``newest_counts`` a table of an earlier generation
        is not taken: the leader of a failover group may have missed changes.
        """
        self._users = users
        self._secret = secret
        self._caller = caller
        self._leader = leader
        self._own_address = own_address
        self._newest_counts = newest_counts
        self._now_ms = now_ms
        self._elapsed_ms = elapsed_ms
        self._task: asyncio.Task[None] | None = None
        self._problem = False
        # When the leader answered last, or this broker's own table ceased to count.
        self._fresh_ms = elapsed_ms()
        # A leader without access control, or of an older version, has nothing to be followed.
        self._lacks = False

    @property
    def follows(self) -> bool:
        """Whether changes are made at another broker."""
        return self._leader() is not None and not self._lacks

    @property
    def leader_address(self) -> str:
        return self._leader() or ""

    def stale_ms(self) -> int:
        """For how long the leader has told nothing; 0 while this broker's own table counts."""
        return self._elapsed_ms() - self._fresh_ms if self.follows else 0

    def run(self, now_ms: int) -> None:
        """Ask, unless an answer is on its way."""
        leader = self._leader()
        if leader is None:
            self._fresh_ms = self._elapsed_ms()
        elif leader and (self._task is None or self._task.done()):
            self._task = asyncio.get_running_loop().create_task(
                self._follow(leader), name="users of the leader"
            )

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _follow(self, leader: str) -> None:
        try:
            while await self._ask(leader):
                """Told of a change: ask once more, which tells the leader that it is here."""
        except (ContrailError, ValueError) as error:
            if not self._problem:
                _log.warning("the users of %s were not taken: %s; it is asked again", leader, error)
            self._problem = True
            return
        if self._problem:
            _log.info("the users of %s are taken again", leader)
        self._problem = False

    async def _ask(self, leader: str) -> bool:
        """Whether a table was taken that this replica did not have."""
        nonce = secrets.token_hex(_NONCE_BYTES)
        fields = {
            NONCE_FIELD: nonce,
            KNOWN_FIELD: fingerprint(self._secret, _CONTEXT, rendered(self._users.table)),
            REPLICA_FIELD: self._own_address,
            GENERATION_FIELD: str(self._users.table.generation),
        }
        code = RequestCode.GET_SEALED_USERS
        answer = await self._caller().call(leader, code, fields, timeout_ms=_TIMEOUT_MS)
        self._lacks = answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        if answer.code != ResponseCode.SUCCESS:
            raise CallFailed(f"request {code} was answered {answer.code}: {answer.remark}")
        try:
            data = unseal(self._secret, _CONTEXT + nonce.encode(), answer.body)
        except SealBroken as error:
            raise CallFailed(
                f"{error}: give both brokers the same contrailClusterSecretFile"
            ) from error
        is_taken = bool(data) and await self._take(data)
        self._fresh_ms = self._elapsed_ms()
        return is_taken

    def ask_back(self, replica: str) -> None:
        """A replica has a later table: take it, for a change may count already."""
        if self._newest_counts and (self._task is None or self._task.done()):
            self._task = asyncio.get_running_loop().create_task(
                self._follow(replica), name="users of a replica"
            )

    async def _take(self, data: bytes) -> bool:
        told = parse_table(json.loads(data))
        if self._newest_counts and told.generation < self._users.table.generation:
            # The leader asks back for what it has missed; see ``SealedUsersHandlers``.
            return False
        written = asyncio.get_running_loop().create_future()

        def done(problem: Exception | None) -> None:
            if not written.done():
                written.set_result(problem)

        self._users.change(lambda table: table.become(told), self._now_ms(), done)
        problem = await written
        if problem is not None:
            raise CallFailed(f"the table of users could not be written: {problem}")
        _log.info("users and rights of generation %s were taken", told.generation)
        return True
