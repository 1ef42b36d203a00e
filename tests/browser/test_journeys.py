"""Journeys through the console's page in a real browser, over a cluster of ours."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from contrail import Admin, Message, Producer
from contrail.testing import LocalCluster, eventually
from tests.browser.chromium import Tab, browser, tab
from tests.browser.seed import HOSTILE, HOSTILE_KEY, seed
from tests.e2e.test_console import running


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def console(chromium: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("console")
    with LocalCluster(brokers=1) as cluster:
        half = seed(cluster.namesrv)
        with running(cluster.namesrv, folder) as facts:
            yield {**facts, "namesrv": cluster.namesrv, "half": half}


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
    "/groups/billing/config",
    "/messages?topic=orders",
    "/dlq",
    "/dlq/billing",
    "/timers",
    "/transactions",
    "/brokers",
    "/brokers/broker-a/config",
    "/replication",
    "/clients",
    "/doctor",
    "/access",
    "/audit",
    "/licences",
)


@pytest.mark.proves("console.api.messages", "console.facts.story", "console.shown.journeys")
def test_a_hostile_message_is_found_and_shown_as_text_with_its_story(page: Tab) -> None:
    page.go("/messages?topic=orders&tags=hostile")
    page.page.wait_for_selector(f"td:has-text('{HOSTILE_KEY}')")
    page.page.click("tbody tr a")
    page.page.wait_for_selector("[data-body]")
    assert page.page.inner_text("[data-body]") == HOSTILE
    assert page.page.evaluate("document.querySelectorAll('[data-body] *, main img').length") == 0
    page.page.wait_for_selector("td:has-text('store')")
    page.page.wait_for_selector("td:has-text('group offset')")
    page.page.select_option("select[aria-label='Shown as']", "hex")
    page.until("document.querySelector('[data-body]').textContent.startsWith('000000  3c 69')")
    assert "as=hex" in page.page.url


def test_a_search_says_how_far_it_got_and_filters_by_json(page: Tab) -> None:
    page.go("/messages?topic=orders")
    page.page.fill("#search-where", "$.total >= 220")
    page.page.keyboard.press("Enter")
    page.page.wait_for_selector("text=Looked at all")
    assert page.page.locator("tbody tr").count() == 2
    page.page.fill("#search-where", "total >")
    page.page.keyboard.press("Enter")
    page.page.wait_for_selector("[data-state=failed] >> text=is no condition")


@pytest.mark.proves("console.api.tail")
def test_a_live_tail_shows_new_messages_of_a_topic(page: Tab, console: dict[str, Any]) -> None:
    page.go("/messages?topic=clicks-0&live=true")
    page.page.wait_for_selector("text=Waiting for new messages")
    page.go("/messages?topic=clicks-0&live=true")

    with Producer("shop", console["namesrv"]) as producer:

        def is_shown() -> bool:
            producer.send(Message("clicks-0", b"a click", keys=["live-1"]))
            return bool(page.page.locator("td:has-text('live-1')").count())

        eventually(is_shown, "the message in the tail", timeout_s=30)


@pytest.mark.proves("console.api.replay", "console.facts.dead-letters")
def test_dead_letters_are_edited_and_replayed_with_an_outcome_each(
    page: Tab, console: dict[str, Any]
) -> None:
    page.go("/dlq")
    page.page.click("table >> text=billing")
    page.page.wait_for_selector("input[type=checkbox]")
    page.page.click("tbody tr >> nth=0 >> button")
    page.page.fill("dialog textarea", '{"total": 777}')
    page.page.click("dialog >> text=Keep for the replay")
    page.page.check("tbody tr >> nth=1 >> input[type=checkbox]")
    page.page.click("text=Replay…")
    page.page.click("dialog >> text=Make the plan")
    page.page.wait_for_selector("dialog >> text=1 of them with an edited body")
    page.page.click("dialog >> text=Run it")
    page.page.click("dialog footer >> text=Close")
    page.page.wait_for_selector("[data-replays] >> text=sent 2 / 2")
    page.page.click("[data-replays] tbody button")
    page.page.wait_for_selector("[data-replays] >> text=orders broker-a/")
    page.go("/messages?topic=orders&where=" + "%24.total%20%3D%20777")
    page.page.wait_for_selector("code:has-text('777')")


@pytest.mark.proves("console.api.changes")
def test_a_transaction_is_settled_by_keys_alone(page: Tab, console: dict[str, Any]) -> None:
    page.go("/")
    keyboard = page.page.keyboard
    keyboard.press("g")
    keyboard.press("x")
    page.page.wait_for_selector(f"code:has-text('{console['half']}')")

    def go_to(label: str) -> None:
        for _ in range(60):
            keyboard.press("Tab")
            if page.page.evaluate("document.activeElement.textContent") == label:
                return
        raise AssertionError(f"{label} cannot be reached by Tab")

    go_to("Commit…")
    keyboard.press("Enter")
    page.page.wait_for_selector("dialog[open]")
    go_to("Make the plan")
    keyboard.press("Enter")
    page.page.wait_for_selector(f"dialog code:has-text('contrail tx commit {console['half']}')")
    go_to("Run it")
    keyboard.press("Enter")
    page.page.wait_for_selector("dialog .outcomes .done")
    keyboard.press("Escape")
    page.page.wait_for_selector("text=No transaction is open")


@pytest.mark.proves("console.api.changes")
def test_a_group_is_moved_and_the_audit_page_tells_of_it(
    page: Tab, console: dict[str, Any]
) -> None:
    page.go("/groups/billing/queues")
    page.page.click("text=Seek…")
    page.page.select_option("dialog select >> nth=0", "earliest")
    page.page.click("dialog >> text=Make the plan")
    page.page.wait_for_selector("dialog >> text=contrail group seek billing --to earliest")
    page.page.click("dialog >> text=Run it")
    page.page.wait_for_selector("dialog .outcomes .done")
    page.page.keyboard.press("Escape")
    with Admin(console["namesrv"]) as admin:
        places = admin.committed_offsets("billing", "orders")
    assert set(places.values()) == {0}
    page.go("/audit")
    page.page.wait_for_selector("td:has-text('seek group')")


def test_a_broker_is_drained_and_taken_back(page: Tab) -> None:
    page.go("/brokers/broker-a")
    for button, state in (("Drain…", "rw -> r"), ("Back in service…", "r -> rw")):
        page.page.click(f"text={button}")
        page.page.click("dialog >> text=Make the plan")
        page.page.wait_for_selector(f"dialog >> text={state}")
        page.page.click("dialog >> text=Run it")
        page.page.wait_for_selector("dialog .outcomes .done")
        page.page.keyboard.press("Escape")


@pytest.mark.proves("console.shown.journeys")
def test_no_page_has_a_serious_finding_of_axe_in_either_theme(
    chromium: Any, console: dict[str, Any]
) -> None:
    with tab(chromium, console["url"]) as opened:
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
