"""The table of users."""

from __future__ import annotations

import json

import pytest

from contrail.access.state.rights import (
    Action,
    Entry,
    Need,
    PolicyType,
    Resource,
    ResourceType,
    RightsInvalid,
)
from contrail.access.state.users import (
    AccessRefused,
    UserStatus,
    UserTable,
    UserType,
    name_of_subject,
    parse_policies,
    parse_table,
    table_fields,
    user_fields,
)

PUB_ORDERS = Need(ResourceType.TOPIC, "orders", (Action.PUB,))


def rights(resource: str, decision: str = "Allow") -> dict[PolicyType, tuple[Entry, ...]]:
    return {PolicyType.CUSTOM: (Entry.parse(resource, ["Pub"], [], decision),)}


@pytest.fixture
def table() -> UserTable:
    table = UserTable()
    table.create_user("root", "r", UserType.SUPER)
    table.create_user("alice", "a")
    return table


def test_every_change_makes_a_new_generation(table: UserTable) -> None:
    seen = {table.generation}
    for change in (
        lambda: table.create_user("bob", "b"),
        lambda: table.update_user("bob", password="c"),
        lambda: table.merge("bob", rights("Topic:orders")),
        lambda: table.remove("bob"),
        lambda: table.delete_user("bob"),
    ):
        change()
        assert table.generation not in seen
        seen.add(table.generation)
    table.delete_user("nobody")
    assert table.generation in seen


def test_a_user_needs_a_name_and_a_password_of_its_own(table: UserTable) -> None:
    for name, password in (
        ("alice", "x"),
        ("bob", " "),
        ("", "x"),
        ("a\nb", "x"),
        ("c" * 300, "x"),
    ):
        with pytest.raises(AccessRefused):
            table.create_user(name, password)
    with pytest.raises(AccessRefused):
        table.update_user("nobody", password="x")


def test_an_update_changes_only_the_parts_that_are_given(table: UserTable) -> None:
    table.update_user("alice", status=UserStatus.DISABLE)
    alice = table.require("alice")
    assert (alice.password, alice.kind, alice.is_enabled) == ("a", UserType.NORMAL, False)
    table.update_user("alice", password="new", status=UserStatus.ENABLE)
    assert table.require("alice").password == "new"
    assert table.require("alice").key.sign(b"x") != alice.key.sign(b"x")


@pytest.mark.proves("access.administration.super")
def test_the_last_enabled_super_stays(table: UserTable) -> None:
    for change in (
        lambda: table.delete_user("root"),
        lambda: table.update_user("root", kind=UserType.NORMAL),
        lambda: table.update_user("root", status=UserStatus.DISABLE),
    ):
        with pytest.raises(AccessRefused, match="last enabled Super"):
            change()
    table.create_user("second", "s", UserType.SUPER)
    table.delete_user("root")
    with pytest.raises(AccessRefused):
        table.delete_user("second")


def test_entries_are_merged_by_policy_and_resource(table: UserTable) -> None:
    table.merge("alice", rights("Topic:orders"))
    table.merge("alice", rights("Topic:*"))
    assert table.require("alice").refusal([PUB_ORDERS], "::1") is None
    table.merge("alice", rights("Topic:orders", "Deny"))
    assert len(table.require("alice").policies[PolicyType.CUSTOM]) == 2
    assert "denies" in (table.require("alice").refusal([PUB_ORDERS], "::1") or "")
    table.remove("alice", PolicyType.CUSTOM, Resource.parse("Topic:orders"))
    assert table.require("alice").refusal([PUB_ORDERS], "::1") is None
    table.remove("alice", PolicyType.CUSTOM, Resource.parse("Topic:*"))
    assert "no policy matches" in (table.require("alice").refusal([PUB_ORDERS], "::1") or "")
    with pytest.raises(AccessRefused, match="no rights"):
        table.remove("alice")


def test_a_super_needs_no_rights(table: UserTable) -> None:
    assert table.require("root").refusal([PUB_ORDERS], "::1") is None


def test_a_change_that_is_refused_leaves_the_table(table: UserTable) -> None:
    table.merge("alice", rights("Topic:orders"))
    before = table_fields(table)
    many = tuple(Entry.parse(f"Topic:t{n}", ["Pub"], [], "Allow") for n in range(1001))
    with pytest.raises(AccessRefused):
        table.merge("alice", {PolicyType.CUSTOM: many})
    assert table_fields(table) == before


def test_a_table_reads_back_from_its_file(table: UserTable) -> None:
    table.merge("alice", rights("Topic:or*", "Deny"))
    table.update_user("alice", status=UserStatus.DISABLE)
    again = parse_table(json.loads(json.dumps(table_fields(table))))
    assert again.users == table.users and again.generation == table.generation
    assert "password" not in user_fields(table.require("alice"))
    assert "'a'" not in repr(table.require("alice"))


@pytest.mark.parametrize(
    "document",
    [
        [],
        {},
        {"users": []},
        {"generation": 1, "users": [1]},
        {"generation": 1, "users": [{"username": "a", "password": "b", "userType": "King"}]},
    ],
)
def test_a_document_that_is_no_table_is_believed_in_no_part(document: object) -> None:
    with pytest.raises(ValueError):
        parse_table(document)


def test_subjects_and_policies_of_requests_are_checked() -> None:
    assert name_of_subject("user:alice") == "alice"
    with pytest.raises(AccessRefused):
        name_of_subject("Role:alice")
    for listed in ([], [1], [{"entries": []}], [{"policyType": "Third", "entries": [{}]}], [{}]):
        with pytest.raises(RightsInvalid):
            parse_policies(listed)
