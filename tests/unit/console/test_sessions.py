"""Sessions: bounded in number, ended with their account."""

from __future__ import annotations

from contrail.console.state.roles import Role
from contrail.console.state.sessions import (
    IDLE_MS,
    SESSIONS_MAX,
    SESSIONS_PER_ACCOUNT_MAX,
    Sessions,
)


def test_the_least_recent_session_of_an_account_makes_room() -> None:
    sessions = Sessions()
    for number in range(SESSIONS_PER_ACCOUNT_MAX):
        sessions.begin(f"t{number}", "a", Role.VIEWER, "c", number)
    assert sessions.find("t0", 1_000) is not None
    sessions.begin("new", "a", Role.VIEWER, "c", 1_001)
    assert sessions.find("t0", 1_002) is not None, "it was used a moment ago"
    assert sessions.find("t1", 1_002) is None
    assert len(sessions) == SESSIONS_PER_ACCOUNT_MAX


def test_there_are_so_many_sessions_at_most() -> None:
    sessions = Sessions()
    for number in range(SESSIONS_MAX + 5):
        sessions.begin(f"t{number}", f"a{number}", Role.VIEWER, "c", number)
    assert len(sessions) == SESSIONS_MAX
    assert sessions.find("t4", SESSIONS_MAX) is None
    assert sessions.find("t5", SESSIONS_MAX) is not None


def test_asking_whether_a_session_is_open_does_not_keep_it_alive() -> None:
    sessions = Sessions()
    sessions.begin("t", "a", Role.VIEWER, "c", 0)
    assert sessions.is_open("t", IDLE_MS - 1)
    assert not sessions.is_open("t", IDLE_MS)
    assert not sessions.is_open("another", 0)


def test_sessions_of_one_account_are_ended_together() -> None:
    sessions = Sessions()
    sessions.begin("t1", "a", Role.VIEWER, "c", 0)
    sessions.begin("t2", "b", Role.VIEWER, "c", 0)
    sessions.end_of_account("a")
    assert sessions.find("t1", 1) is None and sessions.find("t2", 1) is not None


def test_no_token_is_kept_as_it_is() -> None:
    sessions = Sessions()
    sessions.begin("the-token", "a", Role.VIEWER, "c", 0)
    sessions.add_link("the-link", "a", Role.VIEWER, 0)
    assert "the-token" not in repr(vars(sessions)) and "the-link" not in repr(vars(sessions))
