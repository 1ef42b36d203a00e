"""The rules of consumer groups."""

from __future__ import annotations

from dataclasses import replace

import pytest

from contrail.broker.config import BrokerConfig, BrokerRole
from contrail.broker.services.groups import Groups
from contrail.broker.state.groups import GroupTable
from contrail.broker.state.runtime_settings import RuntimeSettings
from contrail.errors import RequestRejected
from contrail.model.data_version import DataVersion
from contrail.model.group import (
    BUILT_IN_GROUPS,
    TRANSACTION_GROUP,
    SubscriptionGroupConfig,
)
from contrail.protocol.codes import ResponseCode

NOW_MS = 1_760_000_000_000


def new_groups(*, auto_create: bool = True) -> Groups:
    config = replace(BrokerConfig(), auto_create_group=auto_create)
    return Groups(GroupTable(), RuntimeSettings(config))


def test_a_broker_has_the_groups_of_the_original_from_the_start() -> None:
    table = new_groups().table
    assert set(table.groups) == set(BUILT_IN_GROUPS)
    assert table.data_version == DataVersion()


def test_an_unknown_group_is_created_with_defaults_when_it_is_looked_for() -> None:
    groups = new_groups()
    told: list[str] = []
    groups.on_change.append(told.append)
    found = groups.find("billing", NOW_MS)
    assert found == SubscriptionGroupConfig("billing")
    assert groups.find("billing", NOW_MS) is found
    assert told == ["billing"]


def test_a_slave_takes_an_unknown_group_for_one_with_defaults_and_makes_none() -> None:
    config = BrokerConfig(role=BrokerRole.SLAVE, broker_id=1)
    groups = Groups(GroupTable(), RuntimeSettings(config))
    assert groups.require("billing", NOW_MS, client="") == SubscriptionGroupConfig("billing")
    assert groups.table.get("billing") is None
    assert groups.table.data_version == DataVersion()


def test_no_group_is_created_when_that_is_switched_off() -> None:
    groups = new_groups(auto_create=False)
    assert groups.find("billing", NOW_MS) is None
    assert groups.find("TOOLS_CONSUMER", NOW_MS) is not None


@pytest.mark.proves("broker.system-names.operator-s-request")
def test_a_group_of_the_system_is_neither_created_nor_changed_nor_deleted() -> None:
    groups = new_groups()
    before = dict(groups.table.groups)
    assert groups.find("CID_RMQ_SYS_x", NOW_MS) is None
    for group in ("CID_RMQ_SYS_x", TRANSACTION_GROUP):
        changed = SubscriptionGroupConfig(group, consume_enable=False)
        for change in (
            lambda changed=changed: groups.update([changed], NOW_MS),
            lambda group=group: groups.delete(group, NOW_MS),
            lambda group=group: groups.set_readable(group, "orders", False, NOW_MS),
        ):
            with pytest.raises(RequestRejected, match=f"'{group}' belongs to the system") as told:
                change()
            assert told.value.code == ResponseCode.INVALID_PARAMETER
    assert groups.table.groups == before and not groups.table.forbidden_table()


@pytest.mark.parametrize("name", ["", " ", "a/b", "x" * 121])
def test_a_name_no_group_may_have_is_not_created(name: str) -> None:
    groups = new_groups()
    assert groups.find(name, NOW_MS) is None
    with pytest.raises(RequestRejected) as refusal:
        groups.update([SubscriptionGroupConfig("fine"), SubscriptionGroupConfig(name)], NOW_MS)
    assert refusal.value.code == ResponseCode.INVALID_PARAMETER
    assert groups.table.get("fine") is None


@pytest.mark.proves("broker.topics.groups")
def test_an_update_replaces_the_settings() -> None:
    groups = new_groups()
    groups.update([SubscriptionGroupConfig("billing", consume_broadcast_enable=False)], NOW_MS)
    version = groups.table.data_version
    groups.update([SubscriptionGroupConfig("billing", consume_broadcast_enable=False)], NOW_MS)
    assert groups.table.data_version == version
    found = groups.table.get("billing")
    assert found is not None
    assert not found.consume_broadcast_enable


def test_a_group_has_no_attributes_and_no_negative_number_of_retry_queues() -> None:
    groups = new_groups()
    with pytest.raises(RequestRejected, match="unknown"):
        groups.update([SubscriptionGroupConfig("g", attributes={"+a": "b"})], NOW_MS)
    with pytest.raises(RequestRejected, match="retryQueueNums"):
        groups.update([SubscriptionGroupConfig("g", retry_queue_count=-1)], NOW_MS)


def test_reading_is_forbidden_by_group_and_topic() -> None:
    groups = new_groups()
    groups.set_readable("billing", "orders", False, NOW_MS)
    groups.set_readable("billing", "other", False, NOW_MS)
    assert groups.is_read_forbidden("billing", "orders")
    assert not groups.is_read_forbidden("shipping", "orders")
    groups.set_readable("billing", "orders", True, NOW_MS)
    assert not groups.is_read_forbidden("billing", "orders")
    assert groups.table.forbidden_table() == {"billing": {"other": 4}}


def test_reading_is_forbidden_for_every_name_that_a_file_can_hold() -> None:
    groups = new_groups()
    groups.set_readable("\u00e9", "a/b", False, NOW_MS)
    assert groups.is_read_forbidden("\u00e9", "a/b"), "as RocketMQ does"
    for group, topic in (("", "orders"), ("billing", " "), ("a\nb", "orders"), ("g", "\ud800")):
        for readable in (True, False):
            with pytest.raises(RequestRejected) as refused:
                groups.set_readable(group, topic, readable, NOW_MS)
            assert refused.value.code == ResponseCode.INVALID_PARAMETER
    assert groups.table.forbidden_table() == {"\u00e9": {"a/b": 4}}


def test_allowing_what_was_never_forbidden_changes_nothing() -> None:
    groups = new_groups()
    groups.set_readable("billing", "orders", True, NOW_MS)
    assert groups.table.data_version == DataVersion()
    assert groups.table.forbidden_table() == {}


def test_other_forbidden_bits_stay_when_reading_is_allowed() -> None:
    table = GroupTable(forbidden={"billing": {"orders": 7}})
    groups = Groups(table, RuntimeSettings(BrokerConfig()))
    groups.set_readable("billing", "orders", True, NOW_MS)
    assert table.forbidden("billing", "orders") == 3


def test_deleting_a_group_forgets_what_was_forbidden_to_it() -> None:
    groups = new_groups()
    groups.update([SubscriptionGroupConfig("billing")], NOW_MS)
    groups.set_readable("billing", "orders", False, NOW_MS)
    told: list[str] = []
    groups.on_change.append(told.append)
    groups.delete("billing", NOW_MS)
    groups.delete("billing", NOW_MS)
    assert told == ["billing"]
    assert groups.table.get("billing") is None
    assert groups.table.forbidden_table() == {}


def test_groups_are_created_up_to_a_total_and_then_only_by_administrators(
    caplog: pytest.LogCaptureFixture,
) -> None:
    count_max = len(BUILT_IN_GROUPS) + 1
    config = replace(BrokerConfig(), auto_group_count_max=count_max)
    groups = Groups(GroupTable(), RuntimeSettings(config))
    found = groups.find("first", NOW_MS)
    assert found is not None
    for name in ("second", "CID_RMQ_SYS_second"):
        assert groups.find(name, NOW_MS) is None
    assert caplog.text.count("no more are created automatically") == 1
    assert groups.find("first", NOW_MS) is found
    groups.update([SubscriptionGroupConfig("second")], NOW_MS)
    assert groups.find("second", NOW_MS) is not None
    groups.delete("first", NOW_MS)
    groups.delete("second", NOW_MS)
    assert groups.find("third", NOW_MS) is not None


def test_each_client_may_create_a_bounded_number_of_groups_in_a_second() -> None:
    config = replace(BrokerConfig(), auto_groups_per_second_max=2)
    groups = Groups(GroupTable(), RuntimeSettings(config))
    found = [groups.find(name, NOW_MS, client="one") for name in "abc"]
    assert [config is not None for config in found] == [True, True, False]
    assert groups.find("c", NOW_MS, client="two") is not None
    assert groups.find("d", NOW_MS + 1000, client="one") is not None
