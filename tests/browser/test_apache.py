"""The same journeys over Apache's own broker: facts that it does not tell are named, never zero."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from contrail import Admin, Message, Producer, PushConsumer
from tests.browser.chromium import Tab, browser, tab
from tests.browser.seed import HOSTILE
from tests.e2e.test_console import running
from tests.interop.apache_cluster import ApacheCluster

pytestmark = pytest.mark.matrix


def seed(namesrv: str) -> None:
    with Admin(namesrv) as admin:
        admin.create_topic("orders", queues=2)
        admin.create_group("billing")
    with Producer("shop", namesrv) as producer:
        for number in range(8):
            producer.send(Message("orders", json.dumps({"total": number}).encode(), keys=["o-1"]))
        producer.send(Message("orders", HOSTILE.encode(), tags="hostile"))
    with PushConsumer("billing", namesrv, consume_from_where="first") as consumer:
        consumer.subscribe("orders")
        for count, message in enumerate(consumer, 1):
            message.ack()
            if count == 4:
                break


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("console")
    with browser() as chromium, ApacheCluster(peer="apache-5-server", brokers=1) as cluster:
        seed(cluster.namesrv)
        with running(cluster.namesrv, folder) as facts:
            yield chromium, {**facts, "namesrv": cluster.namesrv}


@pytest.fixture
def page(console: tuple[Any, dict[str, Any]]) -> Iterator[Tab]:
    chromium, facts = console
    with tab(chromium, facts["url"]) as opened:
        opened.log_in("admin", facts["first_password"])
        yield opened
        opened.require_clean()


@pytest.mark.proves("console.shown.journeys-apache")
def test_every_page_is_shown_over_an_apache_broker(page: Tab) -> None:
    views = ["/", "/topics", "/topics/orders/queues", "/groups", "/groups/billing/queues"]
    views += ["/messages?topic=orders", "/dlq", "/timers", "/brokers", "/clients", "/doctor"]
    for view in views:
        page.go(view)
        page.settled()
        assert page.page.locator("[data-state=failed]").count() == 0, view


@pytest.mark.proves("console.shown.journeys-apache")
def test_facts_that_apache_does_not_tell_are_named(page: Tab) -> None:
    page.go("/transactions")
    page.page.wait_for_selector("text=this broker does not tell its open transactions")
    page.go("/access")
    page.settled()
    assert page.page.locator("[data-state=failed]").count() == 0


@pytest.mark.proves("console.shown.journeys-apache")
def test_a_hostile_message_is_text_and_a_group_is_moved(
    page: Tab, console: tuple[Any, dict[str, Any]]
) -> None:
    page.go("/messages?topic=orders&tags=hostile")
    page.page.click("tbody tr a")
    page.page.wait_for_selector("[data-body]")
    assert page.page.inner_text("[data-body]") == HOSTILE
    page.go("/groups/billing/queues")
    page.page.click("text=Seek…")
    page.page.click("dialog >> text=Make the plan")
    page.page.click("dialog >> text=Run it")
    page.page.wait_for_selector("dialog .outcomes .done")
    page.page.keyboard.press("Escape")
    with Admin(console[1]["namesrv"]) as admin:
        assert set(admin.committed_offsets("billing", "orders").values()) == {0}
