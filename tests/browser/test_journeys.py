"""Journeys through the console's page in a real browser, over a cluster of ours."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from contrail import Admin, Message, Producer, PushConsumer
from contrail.testing import LocalCluster
from tests.browser.chromium import Tab, browser, tab
from tests.e2e.test_console import running

HOSTILE = "<img src=x onerror=alert(1)>"
LAGGING = 6


def seed(namesrv: str) -> None:
    """Topics, a group that stopped half way, and a message that would like to be a script."""
    with Admin(namesrv) as admin:
        admin.create_topic("orders", queues=2)
        admin.create_topic("clicks", queues=1)
        admin.create_group("billing")
        admin.create_group("mail")
    with Producer("shop", namesrv) as producer:
        for number in range(12):
            body = json.dumps({"total": number, "note": HOSTILE}).encode()
            tag = "paid" if number % 2 else "open"
            producer.send(Message("orders", body, keys=[f"o-{number}"], tags=tag))
    with PushConsumer("billing", namesrv, consume_from_where="first") as consumer:
        consumer.subscribe("orders")
        for count, message in enumerate(consumer, 1):
            message.ack()
            if count == LAGGING:
                break


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def console(chromium: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("console")
    with LocalCluster(brokers=1) as cluster:
        seed(cluster.namesrv)
        with running(cluster.namesrv, folder) as facts:
            yield facts


@pytest.fixture
def page(chromium: Any, console: dict[str, Any]) -> Iterator[Tab]:
    with tab(chromium, console["url"]) as opened:
        opened.log_in("admin", console["first_password"])
        yield opened
        opened.require_clean()


@pytest.mark.proves("console.pages.links")
def test_a_stuck_group_is_found_by_mouse_and_its_address_leads_back(page: Tab) -> None:
    page.page.click("nav >> text=Groups")
    page.page.fill("[data-filter]", "bil")
    page.page.wait_for_url(re.compile(r"/groups\?q=bil"))
    page.page.click("table >> text=billing")
    page.page.wait_for_selector("h1:has-text('billing')")
    page.page.wait_for_selector("text=orders broker-a/0")
    address = page.page.url
    page.go("/topics")
    page.page.goto(address)
    page.page.wait_for_selector("text=orders broker-a/0")
    page.page.go_back()
    page.page.wait_for_selector("h1:has-text('Topics')")


@pytest.mark.proves("console.pages.links")
def test_a_topic_is_opened_by_keys_alone(page: Tab) -> None:
    keyboard = page.page.keyboard
    keyboard.press("g")
    keyboard.press("t")
    page.page.wait_for_selector("h1:has-text('Topics')")
    page.page.wait_for_selector("table >> text=orders")
    keyboard.press("/")
    keyboard.type("ord")
    page.page.wait_for_url(re.compile(r"q=ord"))
    page.until("document.querySelectorAll('tbody tr a').length === 1")
    keyboard.press("Escape")
    for _ in range(40):
        if page.page.evaluate("document.activeElement.className") == "scroll":
            break
        keyboard.press("Tab")
    keyboard.press("j")
    page.until("document.activeElement.textContent === 'orders'")
    keyboard.press("Enter")
    page.page.wait_for_selector("h1:has-text('orders')")
    keyboard.press("?")
    page.page.wait_for_selector("dialog[open]")
    keyboard.press("Escape")
    page.page.wait_for_selector("dialog[open]", state="detached")


def test_the_page_speaks_the_browsers_language_and_the_chosen_one(
    chromium: Any, console: dict[str, Any]
) -> None:
    with tab(chromium, console["url"], locale="zh-CN") as chinese:
        chinese.log_in("admin", console["first_password"])
        chinese.page.wait_for_selector("h1:has-text('概览')")
        assert chinese.page.get_attribute("html", "lang") == "zh-CN"
        chinese.page.select_option("select >> nth=1", "en")
        chinese.page.wait_for_selector("h1:has-text('Overview')")
        chinese.page.reload()
        chinese.page.wait_for_selector("h1:has-text('Overview')")
        chinese.require_clean()


VIEWS = (
    "/",
    "/topics",
    "/topics/orders/queues",
    "/groups",
    "/groups/billing/queues",
    "/brokers",
    "/audit",
    "/licences",
)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_page_has_a_serious_finding_of_axe(
    chromium: Any, console: dict[str, Any], scheme: str
) -> None:
    with tab(chromium, console["url"], color_scheme=scheme) as opened:
        opened.go("/")
        opened.page.wait_for_selector("#account")
        assert opened.serious() == []
        opened.log_in("admin", console["first_password"])
        found = {}
        for view in VIEWS:
            opened.go(view)
            opened.settled()
            if serious := opened.serious():
                found[view] = serious
        assert found == {}
        opened.require_clean()


def test_a_page_that_is_not_for_an_account_says_which_role_it_needs(
    chromium: Any, console: dict[str, Any], page: Tab
) -> None:
    page.go("/topics/nothing-there/queues")
    page.page.wait_for_selector("[data-state=failed]")
    page.page.route(
        "**/api/v1/audit*",
        lambda route: route.fulfill(
            status=403,
            content_type="application/problem+json",
            body='{"title":"","status":403,"detail":"no","needs_role":"admin"}',
        ),
    )
    page.go("/audit")
    page.page.wait_for_selector("[data-state=forbidden] >> text=admin")
