"""For any requests in any order, the fast path answers and stores what the general way does.

Answers are compared byte for byte after each tick, and every file of the store at the end.
"""

from __future__ import annotations

import asyncio
import random
import re
import shutil
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

from contrail.broker.config import FastPath
from contrail.broker.state.ways import Ways
from tests.property import request_streams
from tests.property.request_streams import BODY_BYTES_MAX, CONNECTIONS, RequestStream
from tests.property.signed_streams import FIRST_USER, make_users, signed_frame
from tests.property.two_ways import Read, Told, Way, frames_of, same_chances

STEPS = 60
FLUSHES = ["ASYNC_FLUSH", "SYNC_FLUSH"]
_SMALL_FILES = {
    "mappedFileSizeCommitLog": "16384",
    "mappedFileSizeConsumeQueue": "400",
    "maxHashSlotNum": "50",
    "maxIndexNum": "200",
    "maxMessageSize": str(BODY_BYTES_MAX),
    "contrailAutoTopicsPerSecond": "1000",
    # Whether a check finds a decision durable depends on the machine's disk.
    "transactionTimeOut": "86400000",
}


async def _run(folder: Path, seed: int, settings: dict[str, str]) -> list[Counter[str]]:
    """Give both ways one stream; returns how many requests went which way in either."""
    stream = RequestStream(seed)
    ways = [Way(folder / kind.value, kind, _SMALL_FILES | settings) for kind in FastPath]
    for way in ways:
        random.seed(seed)
        await way.open()
        make_users(way.broker)
    try:
        for step in range(STEPS):
            reads = stream.reads() if step else stream.first_reads()
            lost = stream.rng.randrange(CONNECTIONS) if stream.rng.random() < 0.03 else None
            passes_ms = stream.rng.choice((400, 3000, 20_000)) if stream.rng.random() < 0.2 else 0
            told = []
            for way in ways:
                random.seed(step)
                told.append(await way.tick(reads))
                if stream.only_sends:
                    reads = way.as_handled(reads)
                if lost is not None:
                    way.lose(lost)
                if passes_ms:
                    random.seed(step)
                    later = await way.let_pass(passes_ms)
                    told[-1] = {n: told[-1].get(n, []) + frames for n, frames in later.items()}
            if told[0] != told[1]:
                pytest.fail(f"seed {seed}, step {step}: {_difference(*told, reads)}")
            stream.learn(told[0])
    finally:
        for way in ways:
            random.seed(seed)
            await way.close()
    rejected = [_rejected(way) for way in ways]
    assert rejected[0] == rejected[1], f"seed {seed}"
    fast, general = (way.stored() for way in ways)
    assert fast.keys() == general.keys()
    differing = [name for name in fast if fast[name] != general[name]]
    assert not differing, f"seed {seed}: {_where(fast, general, differing)}"
    return [
        Counter({f"{kind} {name}": count for kind, name, count in way.broker.ways.rows()})
        for way in ways
    ]


def _rejected(way: Way) -> dict[str, int]:
    """How many requests were refused, by the code of their answer."""
    counts = way.broker.router.counts
    return {name: count for name, count in counts.items() if name.startswith("rejected_")}


def _where(fast: dict[str, bytes], general: dict[str, bytes], names: list[str]) -> list[str]:
    lines = []
    for name in names:
        ours, theirs = fast[name], general[name]
        pairs = enumerate(zip(ours, theirs, strict=False))
        at = next((at for at, (one, other) in pairs if one != other), min(len(ours), len(theirs)))
        part = slice(max(0, at - 80), at + 80)
        lines.append(f"{name} at {at}: {ours[part]!r} and {theirs[part]!r}")
    return lines


def _difference(fast: Told, general: Told, reads: list[Read]) -> str:
    """The answers that are not the same, and what was read."""
    lines = []
    for number in sorted({*fast, *general}):
        ours, theirs = fast.get(number, []), general.get(number, [])
        lines += [f"fast on {number}: {one[:600]!r}" for one in ours if one not in theirs]
        lines += [f"general on {number}: {one[:600]!r}" for one in theirs if one not in ours]
    numbers = set(re.findall(rb'"opaque":-?[0-9]+', repr(lines).encode()))
    for number, data in reads:
        for one in frames_of(data):
            if not numbers or any(asked in one for asked in numbers) or b'"opaque"' not in one:
                lines.append(f"read from {number}: {one[:800]!r}")
    return "\n".join(lines)


def _compared(folder: Path, seeds: Iterable[int], flush: str) -> tuple[Counter[str], Counter[str]]:
    """How many requests of all streams went which way, by the fast path and by the general way."""
    fast: Counter[str] = Counter()
    general: Counter[str] = Counter()
    with same_chances():
        for seed in seeds:
            settings = {"flushDiskType": flush}
            taken = asyncio.run(_run(folder / str(seed), seed, settings))
            fast += taken[0]
            general += taken[1]
            shutil.rmtree(folder / str(seed))
    return fast, general


@pytest.mark.proves("broker.fast.fast-is-general")
@pytest.mark.parametrize("flush", FLUSHES)
def test_streams_of_requests_are_answered_and_stored_the_same_both_ways(
    memory_path: Path, flush: str
) -> None:
    fast, general = _compared(memory_path, range(8), flush)
    every_way = {f"{kind} {way}" for kind, way, _ in Ways().rows()}
    # Everything is near the end of such a small log.
    assert set(+fast) == every_way - {"pull far"}
    assert set(+general) == {"send general", "pull general", "end general"}


@pytest.mark.proves("access.gate.fast")
def test_streams_of_signed_requests_are_answered_and_stored_the_same_both_ways(
    memory_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_streams, "frame", signed_frame)
    monkeypatch.setitem(_SMALL_FILES, "authenticationEnabled", "true")
    monkeypatch.setitem(_SMALL_FILES, "authorizationEnabled", "true")
    monkeypatch.setitem(_SMALL_FILES, "initAuthenticationUser", FIRST_USER)
    fast, general = _compared(memory_path, range(6), "ASYNC_FLUSH")
    sends = {"send tickless", "send rows", "send batches", "send general"}
    assert set(+fast) >= sends and set(+general) & sends == {"send general"}


@pytest.mark.torture
@pytest.mark.parametrize("flush", FLUSHES)
def test_many_streams_are_answered_and_stored_the_same_both_ways(
    memory_path: Path, flush: str
) -> None:
    _compared(memory_path, range(8, 1000), flush)
