"""A slave's folder in the hands of the other implementation: it reads every message there is.

Apache's published store reads by queue, by place and by key what our slave has kept; our store does
so with what Apache's slave has kept. Both work on copies.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.interop.comparison import read_log
from tests.interop.peers import java_peer
from tests.interop.replication.replicas import APACHE_4, OURS, SETTINGS, Replicas
from tests.interop.test_store_carried import Carried, open_ours, read_ours


def open_elsewhere(replicas: Replicas, folder: Path) -> None:
    """Let the other implementation open the folder of every slave; the brokers have ended."""
    for number, (kind, slave) in enumerate(
        zip(replicas.kinds[1:], replicas.brokers[1:], strict=True)
    ):
        peer = "apache-4" if APACHE_4 in (kind, replicas.kinds[0]) else "apache-5"
        carried = Carried(folder / f"carried-{number}", java_peer(peer), 0, settings=SETTINGS)
        shutil.copytree(slave.store, carried.root)
        if kind == OURS:
            carried.apache("read")
            continue
        store = open_ours(carried)
        try:
            read_ours(store, read_log(carried.root), f"the folder of {kind} opened by ours")
        finally:
            store.close()
