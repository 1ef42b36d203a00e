"""Client ids and message ids in RocketMQ's form."""

from __future__ import annotations

import os
import re

import pytest

from contrail.client.identity import UniqueIds, build_client_id
from contrail.client.settings import ClientSettings
from contrail.model.message_id import decode_unique_id


@pytest.mark.proves("client.shared.one-instance")
def test_a_default_instance_is_named_after_process_and_start_time() -> None:
    client_id = build_client_id(ClientSettings.of("n:1"), "10.0.0.7")
    assert re.fullmatch(rf"10\.0\.0\.7@{os.getpid()}#\d+", client_id)


def test_a_named_instance_and_unit_stand_as_given() -> None:
    settings = ClientSettings.of("n:1", instance_name="billing", unit_name="eu")
    assert build_client_id(settings, "10.0.0.7") == "10.0.0.7@billing@eu"


def test_ids_are_unique_and_read_back() -> None:
    ids = UniqueIds(bytes([10, 0, 0, 7]))
    taken = [ids.take(1_760_000_000_000) for _ in range(1000)]
    assert len(set(taken)) == 1000
    parts = decode_unique_id(taken[0])
    assert parts.address == bytes([10, 0, 0, 7])
    assert parts.process_id == os.getpid() & 0xFFFF


def test_a_new_month_begins_its_time_at_zero() -> None:
    ids = UniqueIds(bytes(4))
    december_ms, january_ms = 1_767_200_000_000, 1_767_300_000_000
    late = decode_unique_id(ids.take(december_ms))
    early = decode_unique_id(ids.take(january_ms))
    assert early.month_ms < late.month_ms
