"""The HA port and a slave's link under strangers: floods, lies, replays and torn frames."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from contrail.protocol.ha_frames import encode_report
from contrail.protocol.handshake import SLAVE, Introduction, SlaveHandshake, fingerprint_of
from contrail.protocol.link_frames import PREFACE, Kind, LinkReader, LinkWriter
from contrail.replication.config import LinkTrust
from contrail.replication.state.ha_limits import HaLimits
from contrail.replication.state.in_sync import InSyncRules
from contrail.testing.waiting import eventually_async
from contrail.wire import cluster_port
from contrail.wire.cluster_port import ClusterPort, Link
from tests.e2e.replication_pair import SECRET, Pair, pair_of
from tests.e2e.test_replication_pair import assert_copies, drafts

pytestmark = pytest.mark.proves("replication.pair.refusals")
SYNCHRONOUS = InSyncRules(is_synchronous=True, in_sync_replicas=2)


def run(story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await story()

    asyncio.run(bounded())


class Stranger:
    """A connection to a master's HA port that says whatever the test wants."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def at(cls, pair: Pair) -> Stranger:
        return cls(*await asyncio.open_connection("127.0.0.1", pair.proxy.target_port))

    def say(self, *parts: bytes | memoryview) -> None:
        self.writer.write(b"".join(parts))

    async def told(self) -> bytes:
        """All that comes until the master ends the connection."""
        found = b""
        try:
            while data := await self.reader.read(1 << 16):
                found += data
        except ConnectionError:
            pass
        self.writer.close()
        return found

    async def frame(self, reader: LinkReader) -> tuple[Kind, bytes]:
        while (found := reader.take()) is None:
            data = await self.reader.read(1 << 16)
            assert data, "the master ended the connection"
            reader.feed(data)
        return found[0], bytes(found[1])


def introduction(broker_id: int = 7, **changes: Any) -> Introduction:
    fields: dict[str, Any] = {
        "cluster": "c",
        "broker_name": "b",
        "broker_id": broker_id,
        "role": SLAVE,
        "nonce": bytes(range(32)),
        "fingerprint": fingerprint_of(SECRET),
    }
    return Introduction(**{**fields, **changes})


def framed(kind: Kind, payload: bytes) -> bytes:
    return b"".join(LinkWriter().frame(kind, payload))


def refusal_in(data: bytes) -> dict[str, str]:
    """The last refusal of the master, if it speaks our language."""
    reader, told = LinkReader(), {}
    reader.feed(data)
    while (found := reader.take()) is not None:
        if found[0] is Kind.REFUSED:
            told = json.loads(bytes(found[1]))
    return told


# Floods.


@pytest.mark.parametrize("talks", [False, True])
def test_strangers_take_no_place_of_a_slave(
    tmp_path: Path, talks: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """They hold as many links as a master keeps, and would be heard for ten seconds each."""

    async def story() -> None:
        limits = HaLimits(reconnect_ms=1, slave_count_max=8)
        async with pair_of(tmp_path, limits=limits) as pair:
            pair.append(drafts(0, 10))
            await pair.caught_up()
            await pair.slave.stop()
            strangers = [await Stranger.at(pair) for _ in range(60)]
            for stranger in strangers if talks else ():
                stranger.say(PREFACE)
            await eventually_async(lambda: len(pair.master.status().slaves) == 8)
            assert pair.master.slave_count == 0
            await pair.slave.start()
            pair.append(drafts(10, 10))
            await eventually_async(lambda: pair.master.slave_count == 1)
            await eventually_async(
                lambda: pair.slave_store.physical_end == pair.master_store.physical_end
            )
            assert set(pair.master.status().refusals) == {"crowded_out"}
            assert pair.master.status().refusals["crowded_out"] > 50
            for stranger in strangers:
                stranger.writer.close()

    run(story)
    told = [one for one in caplog.records if "crowded_out" in one.getMessage()]
    assert 1 <= len(told) < 10, "the log is not flooded, too"


def test_a_65th_slave_that_proved_itself_is_refused_and_the_others_stay(tmp_path: Path) -> None:
    async def story() -> None:
        limits = HaLimits(reconnect_ms=1, slave_count_max=3)
        async with pair_of(tmp_path, limits=limits) as pair:
            await eventually_async(lambda: pair.master.slave_count == 1)
            others = [await proven(pair, broker_id) for broker_id in (2, 3)]
            last = await Stranger.at(pair)
            assert await last.told() == b""
            assert pair.master.status().refusals == {"too_many": 1}
            assert len(pair.master.status().slaves) == 3
            for other in others:
                other.writer.close()

    run(story)


async def proven(pair: Pair, broker_id: int) -> Stranger:
    """A link of another slave that knows the secret and has asked for nothing yet."""
    slave, reader = await Stranger.at(pair), LinkReader()
    handshake = SlaveHandshake(introduction(broker_id), SECRET)
    slave.say(PREFACE, framed(Kind.HELLO, handshake.hello))
    proof, _ = handshake.answered((await slave.frame(reader))[1])
    slave.say(framed(Kind.PROOF, proof))
    assert (await slave.frame(reader))[0] is Kind.WELCOME
    return slave


# Lies.


def test_no_stranger_lets_a_synchronous_master_answer(tmp_path: Path) -> None:
    """Without the secret, or with a proof of an earlier handshake."""

    async def story() -> None:
        async with pair_of(tmp_path, in_sync=SYNCHRONOUS, trust=LinkTrust(secret=SECRET)) as pair:
            await pair.slave.stop()
            await eventually_async(lambda: pair.master.slave_count == 0)
            pair.append(drafts(0, 10))
            end = pair.master_store.physical_end
            before = pair.master_store.acknowledged_end
            for said in (
                encode_report(end),
                encode_report(0) + encode_report(end),
                PREFACE + framed(Kind.REPORT, end.to_bytes(8, "big")),
                PREFACE + framed(Kind.BEGIN, bytes(16)),
                PREFACE + framed(Kind.PROOF, bytes(32)),
                PREFACE + framed(Kind.WELCOME, b"{}"),
            ):
                stranger = await Stranger.at(pair)
                stranger.say(said)
                await stranger.told()
            assert pair.master_store.acknowledged_end == before < end
            counts = pair.master.status().refusals
            assert counts == {"stranger": 2, "handshake": 4}

    run(story)


def test_a_handshake_that_is_replayed_or_sent_back_proves_nothing(tmp_path: Path) -> None:
    async def story() -> None:
        async with pair_of(tmp_path) as pair:
            await eventually_async(lambda: pair.master.slave_count == 1)
            handshake = SlaveHandshake(introduction(), SECRET)
            first, reader = await Stranger.at(pair), LinkReader()
            first.say(PREFACE, framed(Kind.HELLO, handshake.hello))
            answer = (await first.frame(reader))[1]
            proof, _ = handshake.answered(answer)
            first.say(framed(Kind.PROOF, proof))
            await first.frame(reader)
            first.writer.close()
            # The very bytes again: the master has a fresh nonce.
            again = await Stranger.at(pair)
            again.say(PREFACE, framed(Kind.HELLO, handshake.hello), framed(Kind.PROOF, proof))
            assert refusal_in(await again.told())["reason"] == "proof"
            # The master's own words, back to it: another role, and no proof of a slave.
            back, reader = await Stranger.at(pair), LinkReader()
            back.say(PREFACE, framed(Kind.HELLO, answer[32:]))
            assert refusal_in(await back.told())["reason"] == "stranger"
            mirror, reader = await Stranger.at(pair), LinkReader()
            mirror.say(PREFACE, framed(Kind.HELLO, handshake.hello))
            mirror.say(framed(Kind.PROOF, (await mirror.frame(reader))[1][:32]))
            assert refusal_in(await mirror.told())["reason"] == "proof"
            assert pair.master.slave_count == 1

    run(story)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"cluster": "another"}, "stranger"),
        ({"broker_name": "another"}, "stranger"),
        ({"group": "another"}, "stranger"),
        ({"role": "master"}, "stranger"),
        ({"role": "console"}, "stranger"),
        ({"broker_id": 0}, "broker_id"),
        ({"fingerprint": "0" * 16}, "secret"),
        ({"version": 0, "version_min": 0}, "version"),
        ({"needs": ("teleport",)}, "features"),
        ({"cluster": "two\nlines"}, "handshake"),
        ({"cluster": "x" * 1000}, "handshake"),
        ({"nonce": b"short"}, "handshake"),
    ],
)
def test_a_peer_that_is_none_of_this_pair_is_refused_by_name(
    tmp_path: Path, changes: dict[str, Any], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        async with pair_of(tmp_path) as pair:
            stranger = await Stranger.at(pair)
            stranger.say(PREFACE, framed(Kind.HELLO, introduction(**changes).encode()))
            assert refusal_in(await stranger.told())["reason"] == reason
            assert pair.master.status().refusals[reason] == 1

    run(story)
    assert all("\n" not in record.getMessage() for record in caplog.records)


def test_of_two_slaves_with_one_id_the_older_link_ends_and_counts_no_more(tmp_path: Path) -> None:
    async def story() -> None:
        limits = HaLimits(reconnect_ms=60_000)
        async with pair_of(tmp_path, limits=limits, in_sync=SYNCHRONOUS) as pair:
            pair.append(drafts(0, 10))
            await pair.caught_up()
            twin = await proven(pair, 1)
            await eventually_async(lambda: not pair.slave.is_connected)
            assert "connected again" in pair.slave.status().problem
            assert pair.master.status().refusals == {"replaced": 1}
            before = pair.master_store.acknowledged_end
            pair.append(drafts(10, 10))
            assert pair.master_store.acknowledged_end == before
            twin.writer.close()

    run(story)


def test_a_stranger_at_the_masters_address_cannot_stop_a_slave_for_good(
    tmp_path: Path,
) -> None:
    """Before the secret is proven a refusal is a reason to try again, whatever it says."""
    lies = [
        json.dumps({"reason": reason, "text": "\n\x1b[2J" + "x" * 5000}).encode()
        for reason in ("diverged", "future_offset", "reset_needed", *map(str, range(50)))
    ]
    said: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        said.append(lies[len(said) % len(lies)])
        writer.write(framed(Kind.REFUSED, said[-1]))
        await writer.drain()
        writer.close()

    async def story() -> None:
        async with pair_of(tmp_path) as pair:
            await pair.caught_up()
            true_master = pair.slave.status().master_address
            server = await asyncio.start_server(serve, "127.0.0.1", 0)
            pair.slave.follow(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
            await eventually_async(lambda: len(said) > 6)
            status = pair.slave.status()
            assert status.phase == "READY" and "diverged" not in status.events
            assert "\n" not in status.problem and len(status.problem) < 2000
            assert set(status.events) <= {"refused", "closed_by_peer", "another_master"}
            server.close()
            pair.slave.follow(true_master)
            pair.append(drafts(0, 10))
            await pair.caught_up()

    run(story)


# Frames.


def test_a_stranger_has_no_large_frame_kept_for_it(tmp_path: Path) -> None:
    async def story() -> None:
        async with pair_of(tmp_path) as pair:
            stranger = await Stranger.at(pair)
            stranger.say(PREFACE, (1 << 20).to_bytes(4, "big"), bytes([Kind.HELLO]))
            assert refusal_in(await stranger.told())["reason"] == "link_frame"

    run(story)


def test_a_slave_with_another_segment_size_writes_nothing_and_names_the_setting(
    tmp_path: Path,
) -> None:
    async def story() -> None:
        async with pair_of(tmp_path, slave_changes={"segment_bytes": 2 << 20}) as pair:
            pair.append(drafts(0, 10))
            await eventually_async(lambda: pair.slave.status().events.get("segment_bytes", 0) > 1)
            assert "mappedFileSizeCommitLog" in pair.slave.status().problem
            assert pair.slave_store.is_empty and pair.slave.status().phase == "READY"

    run(story)


def test_a_slave_ahead_of_a_master_that_was_emptied_keeps_its_log(tmp_path: Path) -> None:
    async def fill() -> None:
        async with pair_of(tmp_path) as pair:
            pair.append(drafts(0, 40))
            await pair.caught_up()

    async def story() -> None:
        async with pair_of(tmp_path) as pair:
            end = pair.slave_store.physical_end
            await eventually_async(lambda: pair.slave.status().phase == "DIVERGED")
            assert pair.master.status().refusals == {"future_offset": 1}
            pair.append(drafts(0, 80))
            assert pair.master.slave_count == 0
            assert pair.slave_store.physical_end == end > 0

    asyncio.run(fill())
    shutil.rmtree(tmp_path / "master")
    run(story)


@pytest.mark.parametrize("is_plain", [False, True])
def test_random_bytes_end_their_own_link_and_no_other(tmp_path: Path, is_plain: bool) -> None:
    """Whole, torn and slow: the pair goes on, and its logs stay equal."""
    rng = random.Random(5)
    hello = PREFACE + framed(Kind.HELLO, introduction().encode())

    def noise() -> bytes:
        start = rng.choice([b"", PREFACE, hello, hello[: rng.randrange(len(hello))]])
        frame = rng.randrange(40).to_bytes(4, "big") + bytes([rng.randrange(12)])
        return start + rng.choice([b"", frame]) + rng.randbytes(rng.randrange(60))

    async def story() -> None:
        async with pair_of(tmp_path, is_plain=is_plain) as pair:
            for number in range(60):
                stranger, said = await Stranger.at(pair), noise()
                cut = rng.randrange(len(said) + 1)
                stranger.say(said[:cut])
                await stranger.writer.drain()
                await asyncio.sleep(0)
                stranger.say(said[cut:])
                if rng.random() < 0.5:
                    stranger.writer.transport.abort()
                else:
                    stranger.writer.write_eof()
                    await stranger.told()
                pair.append(drafts(number * 5, 5))
            await eventually_async(
                lambda: pair.slave_store.physical_end == pair.master_store.physical_end
            )
            assert "internal_error" not in pair.master.status().refusals
            pair.master_store.dispatch()

    run(story)
    assert_copies(tmp_path)


class _Talker:
    """Sends more than any peer takes, then a last word."""

    def __init__(self) -> None:
        self.lost_reason: str | None = None

    def opened(self, link: Link) -> None:
        link.send([bytes(32 << 20)])
        link.close("told", last=[b"bye"])

    def received(self, link: Link, data: bytes) -> None: ...
    def resumed(self, link: Link) -> None: ...
    def lost(self, link: Link, reason: str) -> None:
        self.lost_reason = reason


def test_a_peer_that_reads_nothing_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_port, "_LAST_WORD_S", 0.05)

    async def story() -> None:
        talker = _Talker()
        port = ClusterPort(talker)
        number = await port.listen("127.0.0.1", 0)
        _, writer = await asyncio.open_connection("127.0.0.1", number, limit=1)
        await eventually_async(lambda: talker.lost_reason == "told")
        writer.close()
        await port.close()

    run(story)


def test_a_port_closes_although_a_peer_reads_nothing() -> None:
    async def story() -> None:
        talker = _Talker()
        port = ClusterPort(talker)
        number = await port.listen("127.0.0.1", 0)
        _, writer = await asyncio.open_connection("127.0.0.1", number, limit=1)
        await eventually_async(lambda: bool(port._links))
        async with asyncio.timeout(1):
            await port.close()
        assert not port._links
        writer.close()

    run(story)
