"""A replica's users become its leader's; what is not the leader's answer changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from contrail.access.state.users import UserTable
from contrail.broker.handlers.sealed_users import SealedUsersHandlers
from contrail.broker.services.access_table import AccessTable, Work
from contrail.broker.services.followed_users import FollowedUsers, SealedUsers
from contrail.errors import CallFailed
from contrail.protocol.codes import ResponseCode
from contrail.protocol.command import ReceivedResponse, Request
from contrail.runtime.durable_changes import Done, ignore

SECRET = b"s" * 32


class Users(AccessTable):
    """A table whose file is written at once."""

    def __init__(self, *names: str, generation: int | None = None) -> None:
        self.table = UserTable()
        self.on_change = lambda: None
        for name in names:
            self.table.create_user(name, f"password of {name}")
        if generation is not None:
            self.table.generation = generation

    def change(self, work: Work, now_ms: int, done: Done = ignore) -> None:
        work(self.table)
        done(None)


class Leader:
    """The caller of a replica: its calls are answered by the leader's handlers."""

    def __init__(self, users: Users, *, secret: bytes = SECRET, replica_count: int = 0) -> None:
        self.now_ms = 0
        self.asked_back: list[str] = []
        self.handlers = SealedUsersHandlers(
            SealedUsers(users, secret),
            replica_count=replica_count,
            ask_back=self.asked_back.append,
            elapsed_ms=lambda: self.now_ms,
        )
        self.code = 0
        self.count = 0
        self.changed = b""

    async def call(
        self, address: str, code: int, fields: Mapping[str, str], *, timeout_ms: int
    ) -> ReceivedResponse:
        self.count += 1
        if self.code:
            return ReceivedResponse(self.code, 1, "refused", {}, b"", 1, "JAVA")
        (handler,) = self.handlers.table().values()
        answer = handler(Request(code, 1, dict(fields), b""), None)  # type: ignore[arg-type]
        body = self.changed or bytes(answer.body)  # type: ignore[union-attr,arg-type]
        return ReceivedResponse(0, 1, None, {}, body, 1, "JAVA")


class Replica:
    def __init__(self, users: Users, leader: Leader, *, newest_counts: bool = False) -> None:
        self.address: str | None = "leader:10911"
        self.now_ms = 0
        self.users = users
        self.followed = FollowedUsers(
            users,
            SECRET,
            lambda: leader,  # type: ignore[arg-type,return-value]
            lambda: self.address,
            own_address="replica:10911",
            newest_counts=newest_counts,
            now_ms=lambda: self.now_ms,
            elapsed_ms=lambda: self.now_ms,
        )

    def follow(self, after_ms: int = 500) -> None:
        self.now_ms += after_ms

        async def run() -> None:
            self.followed.run(self.now_ms)
            if self.followed._task is not None:
                await self.followed._task

        asyncio.run(run())


def test_a_replica_takes_its_leaders_users_and_then_asks_for_nothing_new() -> None:
    leader_users = Users("root", "reader")
    leader = Leader(leader_users)
    replica = Replica(Users("own"), leader)
    replica.follow()
    assert set(replica.users.table.users) == {"root", "reader"}
    assert replica.users.table.generation == leader_users.table.generation
    # Asked once more, which tells the leader that the table is there.
    assert leader.count == 2
    changes = replica.users.table.change_count
    replica.follow()
    assert leader.count == 3 and replica.users.table.change_count == changes


def test_an_answer_that_is_not_sealed_for_this_question_changes_nothing() -> None:
    for leader in (Leader(Users("root"), secret=b"x" * 32), Leader(Users("root"))):
        leader.changed = SealedUsers(Users("mallory"), SECRET).answer("another question", "")
        replica = Replica(Users("own"), leader)
        replica.follow()
        assert set(replica.users.table.users) == {"own"}
        replica.follow(after_ms=9_500)
        assert replica.followed.stale_ms() == 10_000


def test_silence_counts_as_stale_and_a_leader_is_never_stale() -> None:
    leader = Leader(Users("root"))
    replica = Replica(Users("own"), leader)
    replica.follow()
    leader.code = ResponseCode.SYSTEM_ERROR
    replica.follow(after_ms=11_000)
    assert replica.followed.stale_ms() == 11_000
    leader.code = 0
    replica.follow()
    assert replica.followed.stale_ms() == 0
    replica.address = None
    replica.now_ms += 60_000
    assert replica.followed.stale_ms() == 0 and not replica.followed.follows


def test_a_leader_of_an_older_version_is_not_followed() -> None:
    leader = Leader(Users("root"))
    leader.code = ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    replica = Replica(Users("own"), leader)
    replica.follow(after_ms=20_000)
    assert replica.followed.stale_ms() == 0 and not replica.followed.follows


def test_a_member_with_later_changes_keeps_them_and_the_leader_takes_them_back() -> None:
    leader = Leader(Users("root", generation=7))
    replica = Replica(Users("root", "kept", generation=8), leader, newest_counts=True)
    replica.follow()
    assert "kept" in replica.users.table.users
    assert leader.asked_back == ["replica:10911"]


def test_a_change_waits_until_enough_replicas_have_it_or_its_time_is_over() -> None:
    users = Users("root")
    leader = Leader(users, replica_count=1)
    told: list[Exception | None] = []
    users.table.create_user("new", "password")
    leader.handlers.when_known(told.append)(None)
    assert not told
    Replica(Users("own"), leader).follow()
    assert told == [None]
    leader.handlers.when_known(told.append)(CallFailed("the disk is full"))
    assert isinstance(told[-1], CallFailed)
    users.table.create_user("late", "password")
    leader.handlers.when_known(told.append)(None)
    leader.now_ms += 6_000
    leader.handlers.expire(leader.now_ms)
    assert "too few members" in str(told[-1])
