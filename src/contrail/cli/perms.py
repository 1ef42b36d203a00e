"""Permissions of topics and brokers as a person reads and writes them."""

from __future__ import annotations

from contrail.errors import OptionInvalid
from contrail.model.topic import Perm

_BY_TEXT = {
    "rw": int(Perm.READ | Perm.WRITE),
    "r": int(Perm.READ),
    "w": int(Perm.WRITE),
    "none": 0,
}
_BY_NUMBER = {str(number): number for number in _BY_TEXT.values()}


def perm_words(perm: int) -> str:
    """``read and written`` and the like, for a table of permissions."""
    words = [word for word, bit in (("read", Perm.READ), ("written", Perm.WRITE)) if perm & bit]
    return " and ".join(words) or "neither read nor written"


def parse_perm(option: str, text: str) -> int:
    """Letters, or RocketMQ's number.

    Raises:
        OptionInvalid: it is neither.
    """
    known = {**_BY_TEXT, **_BY_NUMBER}
    if text.lower() not in known:
        raise OptionInvalid(f"{option} {text!r} is no permission: write rw, r, w or none")
    return known[text.lower()]
