"""The client over TLS, to a NameServer and a broker that have a certificate."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from contrail.aio import Message, Producer, PullConsumer
from contrail.errors import NameServerUnreachable, RouteMissing
from contrail.testing import LocalCluster
from contrail.testing.cluster import free_port
from tests.e2e.test_wire_tls import make_certificate

pytestmark = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="the openssl command makes the certificates"
)
PATIENCE_S = 120.0


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    return make_certificate(tmp_path / "tls", "server")


@pytest.fixture
def namesrv(tmp_path: Path, certificate: tuple[Path, Path]) -> Iterator[str]:
    """A NameServer and a broker that speak TLS to clients that ask for it."""
    path, key = certificate
    port = free_port()
    settings = {"tls.server.certPath": str(path), "tls.server.keyPath": str(key)}
    flags = [flag for pair in settings.items() for flag in ("--set", "=".join(pair))]
    folder = str(tmp_path / "secured")
    command = ["namesrv", "--folder", folder, "--port", str(port), *flags]
    nameserver = subprocess.Popen(
        [sys.executable, "-m", "contrail.cli", *command], stdout=subprocess.PIPE
    )
    try:
        assert nameserver.stdout is not None
        assert b"is ready" in nameserver.stdout.readline()
        cluster = LocalCluster(folder=tmp_path, in_children=True)
        address = f"127.0.0.1:{port}"
        cluster.properties = {**settings, "namesrvAddr": f"{cluster.namesrv};{address}"}
        with cluster:
            yield address
    finally:
        nameserver.terminate()
        nameserver.communicate(timeout=PATIENCE_S)


async def until_routed(consumer: PullConsumer) -> None:
    """Wait for the route: the broker made the topic with the first message, and registers soon."""
    while True:
        try:
            await consumer.fetch_queues("secrets")
        except RouteMissing:
            await asyncio.sleep(0.05)
        else:
            return


def test_messages_are_sent_and_pulled_over_tls(
    namesrv: str, certificate: tuple[Path, Path]
) -> None:
    trusting = ssl.create_default_context(cafile=str(certificate[0]))

    async def main() -> None:
        async with (
            asyncio.timeout(PATIENCE_S),
            Producer("secret-senders", namesrv, tls=trusting) as producer,
            PullConsumer(
                "secret-readers", namesrv, tls=trusting, consume_from_where="first"
            ) as consumer,
        ):
            receipt = await producer.send(Message("secrets", b"in secret"))
            await until_routed(consumer)
            await consumer.assign([receipt.queue])
            await consumer.seek_to_begin(receipt.queue)
            found = await consumer.poll(timeout_ms=60_000)
            assert [message.body for message in found] == [b"in secret"]

    asyncio.run(main())


def test_a_certificate_that_is_not_trusted_is_named(namesrv: str) -> None:
    async def main() -> None:
        async with Producer("strangers", namesrv, tls=True) as producer:
            with pytest.raises(NameServerUnreachable, match=r"(?i)certificate"):
                await producer.send(Message("secrets", b"in secret"))

    asyncio.run(main())
