"""Sends, pulls and other requests of several connections, in reads that are cut anywhere.

Some of them need no tick, some are joined with those of others, some go the general way. Whichever
way they go, each is answered once, and messages lie in their queues as they were sent.
"""

from __future__ import annotations

import json
import struct
from contextlib import ExitStack
from dataclasses import dataclass, field
from random import Random

import pytest

from contrail.protocol.codes import RequestCode
from contrail.protocol.command import FLAG_ONE_WAY
from contrail.testing import LocalCluster
from tests.e2e.asking import Asker
from tests.e2e.raw_client import RawClient, pull_fields, send_fields

TOPIC = "mixed"
QUEUES = ("0", "1")
STEPS = 120
KINDS = ("send", "pull", "other")


def frame(
    code: int, opaque: int, fields: dict[str, str], body: bytes = b"", flag: int = 0
) -> bytes:
    """A request as a Java client writes it."""
    header = {"code": int(code), "extFields": fields, "flag": flag, "language": "JAVA"}
    text = json.dumps({**header, "opaque": opaque, "version": 401}, separators=(",", ":")).encode()
    return struct.pack(">II", 4 + len(text) + len(body), len(text)) + text + body


@dataclass
class Peer:
    """One connection: what it sent, what it holds back, and the answers it waits for."""

    client: RawClient
    name: int
    random: Random
    count: int = 0
    held_back: bytes = b""
    # Frames by where they end in what was made so far, with the number that is to be answered.
    ends: list[tuple[int, int | None]] = field(default_factory=list)
    made_bytes: int = 0
    sent_bytes: int = 0
    bodies: dict[str, list[bytes]] = field(default_factory=lambda: {queue: [] for queue in QUEUES})

    def make_some(self) -> None:
        for _ in range(self.random.choice([1, 1, 1, 2, 5, 30])):
            [kind] = self.random.choices(KINDS, [60, 37, 3])
            self.count += 1
            made, is_answered = getattr(self, f"_{kind}")()
            self.held_back += made
            self.made_bytes += len(made)
            self.ends.append((self.made_bytes, self.count if is_answered else None))

    def write(self, *, everything: bool = False) -> list[int]:
        """Send what is held back, or a part of it; returns the numbers that must be answered."""
        size = len(self.held_back)
        cut = size if everything or self.random.random() < 0.6 else self.random.randrange(size + 1)
        self.client.send(self.held_back[:cut])
        self.held_back = self.held_back[cut:]
        self.sent_bytes += cut
        whole = [number for end, number in self.ends if end <= self.sent_bytes]
        self.ends = self.ends[len(whole) :]
        return [number for number in whole if number is not None]

    def _send(self) -> tuple[bytes, bool]:
        queue, is_one_way = self.random.choice(QUEUES), self.random.random() < 0.05
        body = b"%d-%d-" % (self.name, self.count)
        body += bytes(self.random.choice([1, 10, 300, 2000]))
        self.bodies[queue].append(body)
        tags = "TAGS\x01a\x02" if self.count % 3 else ""
        # Now and then one that has to be looked at: without a unique key it gets one.
        key = "KEYS" if self.random.random() < 0.05 else "UNIQ_KEY"
        properties = f"{key}\x01K{self.name}{self.count:08}\x02{tags}"
        fields = send_fields(TOPIC, i=properties, e=queue)
        flag = FLAG_ONE_WAY if is_one_way else 0
        return frame(RequestCode.SEND_MESSAGE_V2, self.count, fields, body, flag), not is_one_way

    def _pull(self) -> tuple[bytes, bool]:
        place = self.random.choice([0, 0, 1, 3, 5, 10**6])
        changes = {"queueId": self.random.choice(QUEUES), "sysFlag": "5", "maxMsgNums": "4"}
        fields = pull_fields(TOPIC, place, commitOffset=str(self.random.randrange(50)), **changes)
        return frame(RequestCode.PULL_MESSAGE, self.count, fields), True

    def _other(self) -> tuple[bytes, bool]:
        fields = {"topic": TOPIC, "queueId": "0"}
        return frame(RequestCode.GET_MAX_OFFSET, self.count, fields), True


@pytest.mark.proves("apache.peers.without-a-tick")
@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_everything_is_answered_once_and_stored_in_order(flush: str, seed: int) -> None:
    """Segments are so small that runs go over their ends."""
    random = Random(seed)
    properties = {"flushDiskType": flush, "mappedFileSizeCommitLog": "65536"}
    with LocalCluster(properties=properties) as running, ExitStack() as opened:
        broker = Asker(running)
        broker.make_topic(TOPIC, read=2, write=2)
        peers = [
            Peer(opened.enter_context(RawClient(broker.broker.port)), name, random)
            for name in range(3)
        ]
        for step in range(STEPS):
            # For a while one alone, then several.
            chosen = [peers[0]] if step // 20 % 2 == 0 else random.sample(peers, 2)
            for peer in chosen:
                peer.make_some()
            due = [peer.write() for peer in chosen]
            for peer, numbers in zip(chosen, due, strict=True):
                assert _answered(peer, len(numbers)) == sorted(numbers)
        for peer in peers:
            numbers = peer.write(everything=True)
            assert _answered(peer, len(numbers)) == sorted(numbers)
            assert not peer.client.has_news()
        for queue in QUEUES:
            stored = broker.bodies(TOPIC, int(queue))
            for peer in peers:
                mine = [body for body in stored if body.startswith(b"%d-" % peer.name)]
                assert mine == peer.bodies[queue]


def _answered(peer: Peer, count: int) -> list[int]:
    return sorted(peer.client.next_frame().opaque for _ in range(count))
