"""Pictures of every page of the console in both themes, for the docs: ``make console-shots``.

A cluster with something of everything, a console and a browser are started here. The pictures go to
``docs/images/console``, with the digest of the page's sources: a test of tests/house fails when the
page has changed since. They are looked at before they are committed, not compared by pixel.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from contrail import Admin
from contrail.testing import LocalCluster
from scripts.console_page import digest
from tests.browser.chromium import Tab, browser, tab
from tests.browser.seed import seed

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images" / "console"
DIGEST = IMAGES / "sources.txt"
SAMPLES_S = 6
PAGES = {
    "overview": "/",
    "topics": "/topics",
    "topic": "/topics/orders/queues",
    "groups": "/groups",
    "group": "/groups/billing/queues",
    "messages": "/messages?topic=orders",
    "dead-letters": "/dlq/billing",
    "timers": "/timers",
    "transactions": "/transactions",
    "brokers": "/brokers",
    "broker": "/brokers/broker-a/config",
    "replication": "/replication",
    "clients": "/clients",
    "doctor": "/doctor",
    "access": "/access",
    "audit": "/audit",
}
THEMES = ("light", "dark")


def main() -> None:
    IMAGES.mkdir(parents=True, exist_ok=True)
    with LocalCluster(brokers=2) as cluster, tempfile.TemporaryDirectory() as folder:
        seed(cluster.namesrv, topics=12)
        pages = {**PAGES, "message": _message(cluster.namesrv)}
        with _console(cluster.namesrv, Path(folder)) as facts, browser() as chromium:
            for theme in THEMES:
                with tab(chromium, facts["url"], color_scheme=theme) as opened:
                    opened.log_in("admin", facts["first_password"])
                    opened.page.wait_for_timeout(SAMPLES_S * 1000)
                    for name, address in pages.items():
                        _shoot(opened, address, IMAGES / f"{name}-{theme}.png")
                    opened.require_clean()
    DIGEST.write_text(f"{digest()}\n", encoding="utf-8")
    print(f"{len(pages) * len(THEMES)} pictures are in {IMAGES.relative_to(ROOT)}: look at them")


def _message(namesrv: str) -> str:
    with Admin(namesrv) as admin:
        (found,) = admin.messages_by_key("orders", "o-3")
    return f"/messages/orders/{quote(found.offset_message_id)}"


def _shoot(opened: Tab, address: str, path: Path) -> None:
    opened.go(address)
    opened.settled()
    opened.page.wait_for_timeout(300)
    opened.page.screenshot(path=str(path))


@contextmanager
def _console(namesrv: str, folder: Path) -> Iterator[dict[str, Any]]:
    command = [sys.executable, "-m", "contrail.cli", "console", "-n", namesrv, "--port", "0"]
    command += ["--folder", str(folder), "--interval", "1", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())
    finally:
        process.terminate()
        process.wait(30)


if __name__ == "__main__":
    main()
