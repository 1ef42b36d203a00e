"""Entries, and the one that decides."""

from __future__ import annotations

import pytest

from contrail.access.state.rights import (
    Action,
    Decision,
    Entry,
    Need,
    PolicyType,
    Resource,
    ResourceType,
    RightsInvalid,
    deciding_entry,
)

ORDERS = Need(ResourceType.TOPIC, "orders", (Action.PUB,))


def entry(resource: str, actions: str = "Pub", decision: str = "Allow", ips: str = "") -> Entry:
    return Entry.parse(resource, actions.split(","), ips.split(",") if ips else [], decision)


def decided(*entries: Entry, default: tuple[Entry, ...] = (), address: str = "10.0.0.1") -> object:
    policies = {PolicyType.CUSTOM: entries, PolicyType.DEFAULT: default}
    found = deciding_entry(policies, ORDERS, address)
    return None if found is None else str(found.resource)


@pytest.mark.parametrize(
    "text", ["*", "Topic:*", "topic:a", "Group:a*", "Cluster:c", "Topic:%DLQ%g"]
)
def test_a_resource_reads_back_as_it_was_written(text: str) -> None:
    written = str(Resource.parse(text))
    assert written.lower() == text.lower()
    assert Resource.parse(written) == Resource.parse(text)


@pytest.mark.parametrize("text", ["", "orders", "Topic:", "Any:x", "Unknown:x", "Queue:x"])
def test_other_texts_are_no_resources(text: str) -> None:
    with pytest.raises(RightsInvalid):
        Resource.parse(text)


@pytest.mark.parametrize(
    ("actions", "ips", "decision"),
    [
        (["Any"], [], "Allow"),
        ([], [], "Allow"),
        (["Fly"], [], "Allow"),
        (["Pub"], ["here"], "Allow"),
        (["Pub"], ["10.0.0.0/33"], "Allow"),
        (["Pub"], [], "Perhaps"),
        (["Pub"], [], None),
    ],
)
def test_an_entry_that_says_nothing_sound_is_refused(
    actions: list[str], ips: list[str], decision: str | None
) -> None:
    with pytest.raises(RightsInvalid):
        Entry.parse("Topic:orders", actions, ips, decision)


def test_unknown_actions_beside_known_ones_are_left_out() -> None:
    assert entry("Topic:a", "Fly,pub").actions == {Action.PUB}


def test_the_most_specific_entry_decides() -> None:
    everything, topics = entry("*"), entry("Topic:*")
    short, long, name = entry("Topic:o*"), entry("Topic:ord*"), entry("Topic:orders")
    for entries, best in (
        ([everything, topics], "Topic:*"),
        ([topics, short, everything], "Topic:o*"),
        ([short, long, topics], "Topic:ord*"),
        ([long, name, everything, short], "Topic:orders"),
    ):
        assert decided(*entries) == decided(*reversed(entries)) == best


def test_default_entries_count_only_if_no_custom_one_matches() -> None:
    default = (entry("Topic:orders"),)
    assert decided(entry("*"), default=default) == "*"
    assert decided(entry("Topic:orders", "Sub"), default=default) == "Topic:orders"
    assert decided(entry("Group:orders")) is None


def test_an_entry_holds_for_its_addresses_only() -> None:
    narrow = entry("Topic:orders", ips="10.0.0.0/24,::1")
    assert decided(narrow) == "Topic:orders"
    assert decided(narrow, address="::1") == "Topic:orders"
    assert decided(narrow, address="10.0.1.1") is None
    assert decided(narrow, address="not an address") is None


def test_all_stands_for_every_action() -> None:
    assert decided(entry("Topic:orders", "All")) == "Topic:orders"
    assert entry("Topic:orders", decision="Deny").decision is Decision.DENY
