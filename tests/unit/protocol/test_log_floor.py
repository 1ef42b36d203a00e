from __future__ import annotations

import json

import pytest

from contrail.protocol.log_floor import LogFloor

FLOOR = LogFloor(
    physical_start=500,
    removed_count=3,
    starts=((1, 10), (4, 300)),
    voters=frozenset(("n0@a", "n1@b")),
    voters_end=200,
)


def test_a_floor_is_read_back() -> None:
    assert LogFloor.decode(FLOOR.encode()) == FLOOR


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("physicalStart", -1),
        ("physicalStart", 300),
        ("starts", [[4, 10], [1, 300]]),
        ("starts", [[1, 300], [4, 10]]),
        ("starts", [[1]]),
        ("starts", "x"),
        ("starts", [[1, None]]),
        ("voters", [""]),
        ("voters", [1]),
        ("voters", 7),
        ("votersEnd", 501),
        ("removedMarkers", True),
    ],
)
def test_a_floor_that_no_member_wrote_is_refused(name: str, value: object) -> None:
    fields = json.loads(FLOOR.encode())
    with pytest.raises(ValueError):
        LogFloor.decode(json.dumps({**fields, name: value}).encode())
    del fields[name]
    with pytest.raises(ValueError):
        LogFloor.decode(json.dumps(fields).encode())
