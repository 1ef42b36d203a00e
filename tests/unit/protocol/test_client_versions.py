"""Version numbers of clients have RocketMQ's names."""

from __future__ import annotations

import pytest

from contrail.protocol.client_versions import client_version_name


@pytest.mark.proves("house.folded.mqadmin-facts")
@pytest.mark.parametrize(
    ("version", "name"),
    [
        (479, "V5_3_3"),
        (478, "V5_3_3_SNAPSHOT"),
        (413, "V5_0_0"),
        (411, "V4_9_9"),
        (212, "V4_0_0_SNAPSHOT"),
        (211, "V3_9_9"),
        (15, "V3_0_0_FINAL"),
        (-1, "V3_0_0_SNAPSHOT"),
        (611, "V5_9_9"),
        (10_000, "V5_9_9"),
    ],
)
def test_a_version_number_has_its_name(version: int, name: str) -> None:
    assert client_version_name(version) == name
