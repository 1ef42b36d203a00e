"""Apache's own master and slave live through the story: what holds here is asked of ours."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.interop.replication.agreeing import agree
from tests.interop.replication.replicas import APACHE_4, APACHE_5, Replicas
from tests.interop.replication.story import faults_of_brokers, faults_of_links, live

MESSAGE_COUNT = 20_000
SEED = 20_261_118


@pytest.mark.matrix
@pytest.mark.proves("replication.shown.oracle")
@pytest.mark.parametrize("kind", [APACHE_5, APACHE_4])
def test_a_slave_of_apache_agrees_with_its_master(tmp_path: Path, kind: str) -> None:
    with Replicas(kind, [kind], tmp_path) as replicas:
        faults = [*faults_of_brokers(replicas), *faults_of_links(replicas)]
        sent = asyncio.run(live(replicas, MESSAGE_COUNT, faults, seed=SEED))
        agree(replicas, sent)
