"""The names of the version numbers that clients send; a number counts RocketMQ's releases."""

from __future__ import annotations

_FIRST_NAMES = (
    *("V3_0_0_SNAPSHOT", "V3_0_0_ALPHA1", "V3_0_0_BETA1", "V3_0_0_BETA2", "V3_0_0_BETA3"),
    *("V3_0_0_BETA4", "V3_0_0_BETA5", "V3_0_0_BETA6_SNAPSHOT", "V3_0_0_BETA6"),
    *("V3_0_0_BETA7_SNAPSHOT", "V3_0_0_BETA7", "V3_0_0_BETA8_SNAPSHOT", "V3_0_0_BETA8"),
    *("V3_0_0_BETA9_SNAPSHOT", "V3_0_0_BETA9", "V3_0_0_FINAL"),
)


def _all_names() -> tuple[str, ...]:
    """RocketMQ's releases in the order of their numbers, each after its snapshot."""
    lines = [(3, 0, range(1, 16)), (3, 1, range(10)), (3, 2, range(10))]
    lines += [(3, minor, range(1, 10)) for minor in range(3, 10)]
    lines += [(major, minor, range(10)) for major in (4, 5) for minor in range(10)]
    names = [f"V{major}_{minor}_{last}" for major, minor, lasts in lines for last in lasts]
    return (*_FIRST_NAMES, *(one for name in names for one in (f"{name}_SNAPSHOT", name)))


_NAMES = _all_names()


def client_version_name(version: int) -> str:
    """Such as ``V5_3_3`` for 479; a number above the table has the last name, as in Apache."""
    return _NAMES[min(max(0, version), len(_NAMES) - 1)]
