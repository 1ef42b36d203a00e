"""Transactions of the official producer: each half message is decided once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.interop.clients.kinds import Kinds
from tests.interop.clients.registry import clients_of
from tests.interop.clients.session import JavaSession
from tests.interop.clients.stored import read_all

COMMIT, ROLLBACK, UNKNOWN = "COMMIT_MESSAGE", "ROLLBACK_MESSAGE", "UNKNOW"
HANG = "HANG"
STEP_MS = 2000


@pytest.mark.proves("kinds.shown.java-transactions")
@pytest.mark.parametrize("client", clients_of("transactions"), indirect=True)
def test_transactions(session: JavaSession, kinds: Kinds, topic: str) -> None:
    commits, rolls_back = f"{topic}-commits", f"{topic}-rolls-back"
    # Two groups: the first answer to a check is "unknown".
    session.do("producer", name=commits, group=commits, check=[UNKNOWN, COMMIT])
    session.do("producer", name=rolls_back, group=rolls_back, check=[UNKNOWN, ROLLBACK])
    consuming = f"{topic}-consumer"
    session.do("consumer", name=consuming, group=f"group_{topic}", topic=topic)
    for name, key, fate in (
        (commits, "committed", COMMIT),
        (commits, "rolled-back", ROLLBACK),
        (commits, "checked-committed", UNKNOWN),
        (rolls_back, "checked-rolled-back", UNKNOWN),
    ):
        session.transact(name, topic, key, fate)
    kinds.wait_for(lambda: "committed" in session.received(consuming), "a commit", step_ms=0)
    assert session.received(consuming) == ["committed"]
    kinds.wait_for(
        lambda: (
            "checked-committed" in session.received(consuming)
            and len(session.of("checked", rolls_back)) > 1
        ),
        "checks of unknown transactions",
        step_ms=STEP_MS,
    )
    assert session.received(consuming) == ["committed", "checked-committed"]
    # Another round of checks passes by: only the new half message is asked for.
    mark = len(session.of("checked", commits))
    session.transact(commits, topic, "last", UNKNOWN)
    kinds.wait_for(lambda: "last" in session.received(consuming), "another round", step_ms=STEP_MS)
    assert session.received(consuming) == ["committed", "checked-committed", "last"]
    assert {event["key"] for event in session.of("checked", commits)[mark:]} == {"last"}
    asked = Counter(
        event["key"] for name in (commits, rolls_back) for event in session.of("checked", name)
    )
    assert set(asked) == {"checked-committed", "checked-rolled-back", "last"}
    # Once more while an answer is on its way: a round of checks takes less than a second here.
    assert min(asked.values()) >= 2, asked
    assert sorted(one["key"] for one in read_all(kinds, topic)) == sorted(
        session.received(consuming)
    )
    session.close(commits, rolls_back, consuming)


@pytest.mark.proves("kinds.shown.java-transactions")
@pytest.mark.parametrize("client", clients_of("transaction of a killed producer"), indirect=True)
def test_transaction_of_a_killed_producer(
    client_name: str, session: JavaSession, kinds: Kinds, topic: str, tmp_path: Path
) -> None:
    """Its twin, of the same group in another process, answers the check and commits."""
    twin, consuming, group = f"{topic}-twin", f"{topic}-consumer", f"group_{topic}"
    session.do("producer", name=twin, group=group, check=[COMMIT])
    session.do("consumer", name=consuming, group=f"consumers_{topic}", topic=topic)
    # Brokers know a producer of this client once it has sent something.
    for number in range(2 * len(kinds.brokers)):
        session.transact(twin, topic, f"hello-{number}", ROLLBACK)
    with JavaSession(client_name, kinds.namesrv, tmp_path / "killed") as killed:
        killed.do("producer", name="killed", group=group, check=[ROLLBACK])
        killed.begin("transact", producer="killed", topic=topic, key="orphan", fate=HANG)
        kinds.wait_for(lambda: bool(killed.of("half", "killed")), "the half message", step_ms=0)
        killed.kill()
    kinds.wait_for(
        lambda: bool(session.of("received", consuming)), "the twin's commit", step_ms=STEP_MS
    )
    assert session.received(consuming) == ["orphan"]
    # The broker may ask once more while the answer is on its way.
    assert {event["key"] for event in session.of("checked", twin)} == {"orphan"}
    session.close(twin, consuming)
