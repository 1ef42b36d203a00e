"""Links of master and slave that must not be, or not go on: told, counted, and nothing written."""

from __future__ import annotations

import asyncio
import shutil
import ssl
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from contrail.clock import ManualClock, SystemClock
from contrail.errors import ConfigError
from contrail.protocol.ha_frames import encode_report
from contrail.protocol.handshake import fingerprint_of
from contrail.replication.config import HaMasterConfig, HaSlaveConfig, LinkTrust
from contrail.replication.services.ha_master import HaMaster
from contrail.replication.services.ha_slave import HaSlave
from contrail.replication.state.in_sync import InSyncRules
from contrail.store.config import FlushDiskType
from contrail.store.log import MessageStore
from contrail.testing.waiting import eventually_async
from tests.e2e.replication_pair import LIMITS, SECRET, Pair, identity, pair_of, store_config
from tests.e2e.test_replication_pair import assert_copies, drafts
from tests.e2e.test_wire_tls import make_certificate


def run(story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(story())


async def refusal(pair: Pair, reason: str) -> None:
    await eventually_async(
        lambda: pair.master.status().refusals.get(reason, 0) > 0,
        lambda: f"{pair.master.status()} {pair.slave.status()}",
    )


@pytest.mark.proves("replication.pair.secret")
def test_another_secret_is_told_on_both_sides(tmp_path: Path) -> None:
    other = b"another secret"

    async def story() -> None:
        async with pair_of(tmp_path, slave_trust=LinkTrust(secret=other)) as pair:
            pair.append(drafts(0, 10))
            await refusal(pair, "secret")
            await eventually_async(lambda: fingerprint_of(SECRET) in pair.slave.status().problem)
            assert fingerprint_of(other) in pair.slave.status().problem
            assert pair.slave_store.is_empty and pair.master.slave_count == 0

    run(story)


@pytest.mark.proves("replication.pair.plain-needs-a-word")
def test_plain_ha_is_refused_unless_it_is_allowed(tmp_path: Path) -> None:
    async def story() -> None:
        async with pair_of(
            tmp_path,
            is_plain=True,
            trust=LinkTrust(secret=SECRET),
            slave_trust=LinkTrust(takes_plain=True),
        ) as pair:
            pair.append(drafts(0, 10))
            await refusal(pair, "stranger")
            assert pair.slave_store.is_empty

    run(story)
    with (
        MessageStore.open(store_config(tmp_path / "alone"), follows=True) as store,
        pytest.raises(ConfigError, match="contrailHaCompat"),
    ):
        HaSlave(store, HaSlaveConfig(identity=identity(1), is_plain=True), SystemClock())


def test_a_slave_without_a_secret_does_not_begin(tmp_path: Path) -> None:
    with (
        MessageStore.open(store_config(tmp_path), follows=True) as store,
        pytest.raises(ConfigError, match="contrailClusterSecretFile"),
    ):
        HaSlave(store, HaSlaveConfig(identity=identity(1)), SystemClock())


@pytest.mark.proves("replication.pair.refusals")
@pytest.mark.parametrize(
    ("reports", "reason"),
    [([1 << 40], "future_offset"), ([0, 1 << 40], "fake_acknowledgement")],
)
def test_a_fake_slave_is_turned_away(tmp_path: Path, reports: list[int], reason: str) -> None:
    async def story() -> None:
        async with pair_of(tmp_path, is_plain=True) as pair:
            pair.append(drafts(0, 10))
            await pair.caught_up()
            reader, writer = await asyncio.open_connection("127.0.0.1", pair.proxy.target_port)
            for report in reports:
                writer.write(encode_report(report))
                await writer.drain()
                if report == 0:
                    await reader.readexactly(12)
            while await reader.read(1 << 16):
                pass
            writer.close()
            assert pair.master.status().refusals == {reason: 1}
            assert pair.master.slave_count == 1, "the true slave stays"

    run(story)


@pytest.mark.proves("replication.pair.diverged", "replication.pair.refusals")
def test_a_slave_with_records_of_its_own_diverges_and_writes_nothing(tmp_path: Path) -> None:
    """Its log is as long as a part of the master's, and another one."""

    async def prepare(folder: Path, first: int) -> None:
        async with pair_of(folder) as pair:
            pair.append(drafts(first, 40))
            await pair.caught_up()

    async def story() -> None:
        async with pair_of(tmp_path / "one") as pair:
            await eventually_async(lambda: pair.slave.status().phase == "DIVERGED")
            assert pair.master.status().refusals == {"diverged": 1}
            assert "differ" in pair.slave.status().problem
            end = pair.slave_store.physical_end
            pair.append(drafts(900, 10))
            await asyncio.sleep(0)
            assert pair.slave_store.physical_end == end
            _, stranger = await asyncio.open_connection("127.0.0.1", pair.proxy.target_port)
            stranger.write(encode_report(0))
            await eventually_async(lambda: pair.master.status().refusals.get("stranger") == 1)
            stranger.close()
            last = pair.master.status().last_refusal
            assert last is not None and last.reason == "diverged", "no stranger hides it"

    asyncio.run(prepare(tmp_path / "one", 0))
    asyncio.run(prepare(tmp_path / "two", 40))
    shutil.rmtree(tmp_path / "one" / "slave")
    shutil.move(tmp_path / "two" / "slave", tmp_path / "one" / "slave")
    # The sizes of these bodies repeat after 60 messages, not after 40: end within the master's log.
    with MessageStore.open(store_config(tmp_path / "one" / "master")) as master:
        master.append(drafts(40, 80))
    run(story)


@pytest.mark.proves("replication.pair.refusals")
def test_a_slave_behind_the_beginning_of_the_log_is_told_to_be_emptied(tmp_path: Path) -> None:
    async def fill() -> None:
        async with pair_of(tmp_path) as pair:
            pair.append(drafts(0, 40))
            await pair.caught_up()

    async def story() -> None:
        async with pair_of(tmp_path) as pair:
            await eventually_async(lambda: pair.slave.status().phase == "DIVERGED")
            assert pair.master.status().refusals == {"reset_needed": 1}
            assert "empty the slave's store" in pair.slave.status().problem

    asyncio.run(fill())
    shutil.rmtree(tmp_path / "master")
    with MessageStore.open(store_config(tmp_path / "other")) as other:
        other.append(drafts(0, 6_000))
        segment = other.segment_bytes
    # As after retention: the log begins with its second segment.
    (tmp_path / "other" / "commitlog" / f"{0:020d}").unlink()
    for path in (tmp_path / "other").glob("*checkpoint*"):
        path.unlink()
    shutil.move(tmp_path / "other", tmp_path / "master")
    with MessageStore.open(store_config(tmp_path / "master")) as master:
        assert master.physical_min == segment
    run(story)


def test_an_empty_slave_of_a_contrail_master_gets_the_whole_log(tmp_path: Path) -> None:
    """An Apache master would begin with its last segment."""

    async def story() -> None:
        async with pair_of(tmp_path) as pair:
            await pair.caught_up()
            pair.master_store.dispatch()

    with MessageStore.open(store_config(tmp_path / "master")) as master:
        master.append(drafts(0, 12_000))
        assert master.physical_end > 3 << 20
    run(story)
    assert_copies(tmp_path)


@pytest.mark.proves("replication.pair.ha-master")
@pytest.mark.parametrize("begins_at", [0, 1 << 20])
def test_an_empty_plain_slave_begins_where_it_asks_or_with_the_last_segment(
    tmp_path: Path, begins_at: int
) -> None:
    async def story() -> None:
        async with pair_of(tmp_path, is_plain=True) as pair:
            pair.slave.begin_at(begins_at)
            await pair.caught_up()
            end = pair.master_store.physical_end
            assert pair.slave_store.physical_min == (begins_at or end - end % (1 << 20))

    with MessageStore.open(store_config(tmp_path / "master")) as master:
        master.append(drafts(0, 12_000))
    run(story)


@pytest.mark.proves("replication.pair.ha-slave")
def test_under_sync_flush_a_slave_reports_what_is_synced(tmp_path: Path) -> None:
    sync = {"flush_disk_type": FlushDiskType.SYNC_FLUSH}

    async def story() -> None:
        async with pair_of(tmp_path, slave_changes=sync, master_changes=sync) as pair:
            reported = []
            report = pair.slave._report

            def watched() -> None:
                report()
                reported.append(pair.slave.status().reported_end <= pair.slave_store.flushed_end)

            pair.slave._report = watched  # type: ignore[method-assign]
            for first in range(0, 500, 10):
                pair.append(drafts(first, 10))
                await asyncio.sleep(0)
            await pair.caught_up()
            assert reported and all(reported)

    run(story)


@pytest.mark.proves("replication.pair.seals")
def test_frames_to_another_host_are_sealed_and_a_changed_one_ends_the_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proxy of this test stands for a host between both, and changes one byte."""
    monkeypatch.setattr("contrail.wire.cluster_port.is_loopback", lambda host: False)
    monkeypatch.setattr("contrail.wire.cluster_port.Link.is_this_host", _NEVER, raising=False)

    async def story() -> None:
        async with pair_of(tmp_path) as pair:
            pair.append(drafts(0, 200))
            await pair.caught_up()
            pair.proxy.change_next()
            pair.append(drafts(200, 200))
            await eventually_async(lambda: pair.slave.status().events.get("seal", 0) == 1)
            await pair.caught_up()
            pair.master_store.dispatch()

    run(story)
    assert_copies(tmp_path)


class _Never:
    """An attribute that is False, whatever it is set to."""

    def __get__(self, instance: object, owner: type) -> bool:
        return False

    def __set__(self, instance: object, value: bool) -> None:
        """Another host's link, whatever its addresses say."""


_NEVER = _Never()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates")
@pytest.mark.proves("replication.pair.handshake")
def test_a_link_with_tls_is_bound_to_the_masters_certificate(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path / "tls", "master")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate, key)
    trust = LinkTrust(
        secret=SECRET,
        server_tls=server,
        server_certificate=ssl.PEM_cert_to_DER_cert(certificate.read_text()),
        client_tls=ssl.create_default_context(cafile=str(certificate)),
    )

    async def story(name: str, trust: LinkTrust, reason: str | None) -> None:
        async with pair_of(tmp_path / name, trust=trust) as pair:
            pair.append(drafts(0, 500))
            if reason is None:
                await pair.caught_up()
            else:
                await eventually_async(lambda: pair.slave.status().events.get(reason, 0) > 0)
                assert pair.slave_store.is_empty

    asyncio.run(story("right", trust, None))
    # A master that shows another certificate than the one it proves with.
    wrong = LinkTrust(
        secret=SECRET,
        server_tls=server,
        server_certificate=b"of another",
        client_tls=trust.client_tls,
    )
    asyncio.run(story("wrong", wrong, "proof"))


@pytest.mark.proves("replication.pair.synchronous")
def test_answers_wait_for_as_many_brokers_as_are_asked_for(tmp_path: Path) -> None:
    async def story() -> None:
        rules = InSyncRules(is_synchronous=True, in_sync_replicas=2)
        async with pair_of(tmp_path, in_sync=rules) as pair:
            await eventually_async(lambda: pair.master.slave_count == 1)
            store = pair.master_store
            pair.append(drafts(0, 10))
            assert store.acknowledged_end == 0 < store.physical_end
            await eventually_async(lambda: store.acknowledged_end == store.physical_end)
            await pair.slave.stop()
            await eventually_async(lambda: pair.master.slave_count == 0)
            before = store.acknowledged_end
            pair.append(drafts(10, 10))
            assert store.acknowledged_end == before
            status = pair.master.status()
            assert (status.in_sync_count, status.needed_count) == (1, 2)

    run(story)


def test_asynchronous_replication_never_holds_an_answer(tmp_path: Path) -> None:
    async def story() -> None:
        async with pair_of(tmp_path) as pair:
            pair.append(drafts(0, 10))
            assert pair.master_store.acknowledged_end == pair.master_store.physical_end
            assert pair.master.status().replicated_end is None

    run(story)


@pytest.mark.proves("replication.pair.ha-master", "replication.pair.ha-slave")
def test_heartbeats_keep_an_idle_link_and_silence_ends_it(tmp_path: Path) -> None:
    clock = ManualClock()

    async def story() -> None:
        async with pair_of(tmp_path, is_plain=True, clock=clock) as pair:
            pair.append(drafts(0, 10))
            await pair.caught_up()
            for _ in range(6):
                clock.advance(ms=5_000)
                await eventually_async(lambda: _heard_ms(pair) == [0, 0])
            assert pair.master.status().refusals == {} and pair.slave.status().events == {}
            pair.proxy.hold()
            clock.advance(ms=20_000)
            # The first to notice ends the link for both.
            await eventually_async(
                lambda: pair.master.slave_count == 0 and not pair.slave.is_connected
            )
            ends = {**pair.master.status().refusals, **pair.slave.status().events}
            assert ends.get("silent") == 1
            pair.proxy.release()
            clock.advance(ms=1)
            pair.append(drafts(10, 10))
            await pair.caught_up()

    run(story)


def _heard_ms(pair: Pair) -> list[int]:
    """How long ago master and slave heard of each other."""
    slaves = pair.master.status().slaves
    return [*(slave.last_report_ms for slave in slaves), pair.slave.status().last_received_ms]


def test_two_masters_cannot_have_one_port(tmp_path: Path) -> None:
    async def story() -> None:
        async with pair_of(tmp_path) as pair:
            config = HaMasterConfig(
                identity=identity(0),
                trust=LinkTrust(secret=SECRET),
                limits=LIMITS,
                listen_address="127.0.0.1",
                listen_port=pair.master.status().port,
            )
            with pytest.raises(ConfigError):
                await HaMaster(pair.master_store, config, SystemClock()).start()

    run(story)
