"""The names of the version numbers that clients send: RocketMQ counts its releases."""

from __future__ import annotations

_V4_0_0, _LAST = 212, 611


def client_version_name(version: int) -> str:
    """Such as ``V5_3_3`` for 479; what is older than 4.0.0 is all ``V3``.

    Each release has two numbers, first that of its snapshot; a hundred releases make a generation.
    """
    if version < _V4_0_0:
        return "V3"
    release, is_final = divmod(min(version, _LAST) - _V4_0_0, 2)
    generation, release = divmod(release, 100)
    suffix = "" if is_final else "_SNAPSHOT"
    return f"V{4 + generation}_{release // 10}_{release % 10}{suffix}"
