"""A broker is killed under an open page: the page says so, and goes on with what is left."""

from __future__ import annotations

from pathlib import Path

import pytest

from contrail import Admin
from contrail.testing import LocalCluster
from tests.browser.chromium import browser, tab
from tests.e2e.test_console import running

pytestmark = pytest.mark.matrix


@pytest.mark.proves("console.shown.killed")
def test_an_open_page_names_the_broker_that_is_killed_and_keeps_the_others(tmp_path: Path) -> None:
    with browser() as chromium, LocalCluster(brokers=2) as cluster:
        with Admin(cluster.namesrv) as admin:
            admin.create_topic("orders", queues=2)
        with (
            running(cluster.namesrv, tmp_path) as facts,
            tab(chromium, facts["url"]) as page,
        ):
            page.log_in("admin", facts["first_password"])
            page.page.wait_for_selector("text=All brokers answer")
            page.page.wait_for_selector("td:has-text('broker-b')")
            cluster.brokers[1].kill()
            page.page.wait_for_selector("[data-state=partial] >> text=broker-b")
            page.page.wait_for_selector(".top >> text=Brokers without an answer: 1")
            page.go("/topics")
            page.page.wait_for_selector("[data-state=partial] >> text=broker-b")
            page.page.wait_for_selector("table >> text=orders")
            page.require_clean()
