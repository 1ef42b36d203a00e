"""Apache's strategies and ours share the same queues among the same clients in the same way.

Both get the lists unsorted, so that the order of queues and client ids is compared too. The file of
a broadcasting consumer's offsets is read and written by both as well.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from contrail.client.instance import ClientInstance
from contrail.client.message import MessageQueue
from contrail.client.offset_stores import LocalOffsets
from contrail.client.settings import ClientSettings
from contrail.client.state.allocation import (
    AllocationStrategy,
    ByConfig,
    ByMachineRoom,
    ConsistentHash,
    MachineRoomNearby,
    sorted_client_ids,
    sorted_queues,
    strategy_named,
)
from contrail.errors import ClientError
from tests.interop.peers import JavaPeer, java_peer

SEED = int(os.environ.get("CONTRAIL_INTEROP_SEED", "20240229"))
CASES_PER_STRATEGY = 400
RUN_TIMEOUT_S = 240
SHOWN_DIFFERENCES = 8
NEARBY = "MACHINE_ROOM_NEARBY-"

STRATEGIES = (
    "AVG",
    "AVG_BY_CIRCLE",
    "CONSISTENT_HASH",
    "MACHINE_ROOM",
    f"{NEARBY}AVG",
    f"{NEARBY}CONSISTENT_HASH",
    "CONFIG",
)
ROOMS = ("hangzhou", "上海", "r1", "\U0001f3e2", "\uff5e")
# Beyond the basic plane Java's order of text and that of code points part.
TOPICS = ("orders", "订单", "%RETRY%计费", "TopicTest", "\U0001f4e6", "\uff5eorders")


@dataclass(frozen=True, slots=True)
class Case:
    """One case: queues and clients to allocate."""

    strategy: str
    group: str
    client_id: str
    queues: tuple[MessageQueue, ...]
    client_ids: tuple[str, ...]
    # The strategy's other arguments: a number of nodes, machine rooms, queues.
    more: tuple[str, ...] = ()
    configured: tuple[MessageQueue, ...] = ()

    def line(self) -> str:
        fields = [self.strategy, self.group, self.client_id, *_queue_fields(self.queues)]
        fields += [str(len(self.client_ids)), *self.client_ids]
        if self.strategy == "CONFIG":
            fields += _queue_fields(self.configured)
        else:
            fields += [str(len(self.more)), *self.more]
        return "\t".join(map(_encoded, fields))


class CaseGenerator:
    """Seeded cases: few and many queues and clients, several brokers, names of all kinds."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def case(self, strategy: str) -> Case:
        queues = self._queues()
        client_ids = self._client_ids()
        client_id = self._random.choice(client_ids) if client_ids else "nobody"
        if self._random.random() < 0.05:
            client_id = self._random.choice(("10.0.0.9@unknown", "r1-unknown", ""))
        more: tuple[str, ...] = ()
        if strategy.endswith("CONSISTENT_HASH") and self._random.random() < 0.3:
            more = (str(self._random.choice((0, 1, 3, 50))),)
        if strategy == "MACHINE_ROOM":
            more = tuple(self._random.sample(ROOMS, self._random.randint(0, len(ROOMS))))
        configured = tuple(self._random.sample(queues, self._random.randint(0, len(queues))))
        return Case(strategy, "组-billing", client_id, queues, client_ids, more, configured)

    def _queues(self) -> tuple[MessageQueue, ...]:
        if self._random.random() < 0.03:
            return ()
        topic = self._random.choice(TOPICS)
        queues = [
            MessageQueue(topic, broker_name, queue_id)
            for broker_name in dict.fromkeys(
                self._broker_name() for _ in range(self._random.randint(1, 5))
            )
            for queue_id in range(self._random.choice((1, 2, 4, 8, 13)))
        ]
        self._random.shuffle(queues)
        return tuple(queues)

    def _broker_name(self) -> str:
        separator = self._random.choice("@@@-------")
        name = f"{self._random.choice(ROOMS)}{separator}broker-{self._random.choice('abc机')}"
        odd = (name.replace(separator, ""), f"{name}@", f"{name}@x", f"@{name}", "@")
        return self._random.choice(odd) if self._random.random() < 0.04 else name

    def _client_ids(self) -> tuple[str, ...]:
        if self._random.random() < 0.03:
            return ()
        count = self._random.choice((1, 2, 3, 4, 7, 12, 30))
        client_ids = [self._client_id() for _ in range(count)]
        if self._random.random() < 0.1:
            # A client with two connections is listed twice.
            client_ids.append(self._random.choice(client_ids))
        return tuple(client_ids)

    def _client_id(self) -> str:
        address = ".".join(str(self._random.randint(0, 255)) for _ in range(4))
        name = f"{address}@{self._random.randint(1, 99999)}#{self._random.randint(1, 10**15)}"
        if self._random.random() < 0.002:
            return name
        return f"{self._random.choice(ROOMS)}-{name}"


@pytest.fixture(scope="module", params=["java-client-5", "java-client-4"])
def peer(request: pytest.FixtureRequest) -> JavaPeer:
    return java_peer(str(request.param))


@pytest.mark.proves("client.consumers.allocation")
def test_generated_cases_are_shared_as_apaches_classes_share_them(
    peer: JavaPeer, tmp_path: Path
) -> None:
    generator = CaseGenerator(SEED)
    cases = [generator.case(name) for name in STRATEGIES for _ in range(CASES_PER_STRATEGY)]
    theirs = _apaches_answers(peer, tmp_path, cases)
    ours = [_our_answer(case) for case in cases]
    different = [
        f"{case}\n  Apache: {their}\n  ours:   {our}"
        for case, their, our in zip(cases, theirs, ours, strict=True)
        if their != our
    ]
    counts = Counter(_kind(answer) for answer in theirs)
    print(f"{len(cases)} cases, seed {SEED}: {dict(counts)}")
    assert not different, f"{len(different)} differences, seed {SEED}\n" + "\n".join(
        different[:SHOWN_DIFFERENCES]
    )
    assert len(cases) >= 2000
    assert min(counts["queues"], counts["nothing"]) > 400
    assert counts["refused"] > 100


@pytest.mark.proves("client.consumers.broadcasting")
def test_each_others_offset_files_are_read(peer: JavaPeer, tmp_path: Path) -> None:
    settings = ClientSettings.of("127.0.0.1:9876")
    instance = cast(ClientInstance, SimpleNamespace(client_id="10.0.0.1@7#1", settings=settings))
    queues = [MessageQueue(topic, "broker-机", number) for number, topic in enumerate(TOPICS)]

    async def write() -> Path:
        offsets = LocalOffsets(instance, "组", tmp_path / "ours")
        for number, queue in enumerate(queues):
            offsets.update(queue, number << 40)
        assert not await offsets.persist()
        return offsets.path

    async def read() -> list[int | None]:
        offsets = LocalOffsets(instance, "组", tmp_path / "theirs")
        await offsets.load()
        return [await offsets.read(queue) for queue in queues]

    theirs = tmp_path / "theirs" / "10.0.0.1@DEFAULT" / "组" / "offsets.json"
    theirs.parent.mkdir(parents=True)
    _run(peer, tmp_path, "offsets", asyncio.run(write()), theirs)
    assert asyncio.run(read()) == [(number << 40) + 1 for number in range(len(queues))]


def _apaches_answers(peer: JavaPeer, folder: Path, cases: Sequence[Case]) -> list[str]:
    asked, answers = folder / "cases.tsv", folder / "answers.tsv"
    asked.write_text("".join(f"{case.line()}\n" for case in cases), encoding="ascii")
    _run(peer, folder, "allocate", asked, answers)
    return answers.read_text(encoding="ascii").splitlines()


def _run(peer: JavaPeer, folder: Path, what: str, source: Path, target: Path) -> None:
    # Java reads its arguments in the locale's encoding: a name of its own is plain.
    plain = folder / f"{what}.in"
    plain.write_bytes(source.read_bytes())
    answer = folder / f"{what}.out"
    arguments = [what, str(plain), str(answer)]
    peer.run("ConsumerCases", arguments, home=folder / "home", timeout_s=RUN_TIMEOUT_S)
    target.write_bytes(answer.read_bytes())


def _our_answer(case: Case) -> str:
    strategy = _our_strategy(case, case.strategy)
    queues, client_ids = sorted_queues(case.queues), sorted_client_ids(case.client_ids)
    try:
        share = strategy.allocate(case.group, case.client_id, queues, client_ids)
    except ClientError:
        return "ERROR"
    return "\t".join(["OK", strategy.name, *map(_encoded, _queue_fields(share)[1:])])


def _our_strategy(case: Case, name: str) -> AllocationStrategy:
    if name.startswith(NEARBY):
        return MachineRoomNearby(
            _our_strategy(case, name.removeprefix(NEARBY)),
            queue_room=lambda queue: _room(queue.broker_name),
            client_room=_room,
        )
    if name == "MACHINE_ROOM":
        return ByMachineRoom(case.more)
    if name == "CONFIG":
        return ByConfig(case.configured)
    if name == "CONSISTENT_HASH" and case.more:
        return ConsistentHash(int(case.more[0]))
    return strategy_named(name)


def _room(name: str) -> str:
    return name.partition("-")[0] if "-" in name else ""


def _kind(answer: str) -> str:
    if answer == "ERROR":
        return "refused"
    return "queues" if answer.count("\t") > 1 else "nothing"


def _queue_fields(queues: Sequence[MessageQueue]) -> list[str]:
    fields = [(queue.topic, queue.broker_name, str(queue.queue_id)) for queue in queues]
    return [str(len(queues)), *(field for entry in fields for field in entry)]


def _encoded(text: str) -> str:
    """``text`` in printable ASCII without tabs, as the Java program reads and writes it."""
    return re.sub(r"[^ -\[\]-~]", _encoded_units, text)


def _encoded_units(found: re.Match[str]) -> str:
    units = found[0].encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[place : place + 4]}" for place in range(0, len(units), 4))
