"""The handle that recalls a timer message."""

from __future__ import annotations

import base64

import pytest

from contrail.errors import MessageIllegal
from contrail.model.recall_handle import RecallHandle


def test_a_handle_reads_back() -> None:
    handle = RecallHandle("orders", "broker-a", 1_700_000_000_001, "7F00")
    assert RecallHandle.decode(handle.encode()) == handle


@pytest.mark.parametrize("key", ["A B", " A", "A ", "A  B", "k " + "x" * 22])
def test_a_key_with_spaces_reads_back(key: str) -> None:
    handle = RecallHandle("orders", "broker-a", 5, key)
    assert RecallHandle.decode(handle.encode()) == handle
    sealed = handle._replace(seal="n" * 16 + "m" * 22)
    assert RecallHandle.decode(sealed.encode()) == sealed
    assert (handle.nonce, sealed.nonce) == ("", "n" * 16)


def test_a_handle_is_the_original_text_in_base64() -> None:
    text = base64.urlsafe_b64decode(RecallHandle("t", "b", 5, "k").encode())
    assert text == b"v1 t b 5 k"


@pytest.mark.parametrize(
    "text", ["", "x", "djEg", "\u00fc", base64.urlsafe_b64encode(b"v2 t b 5 k").decode()]
)
def test_a_text_that_is_no_recall_handle_is_refused(text: str) -> None:
    with pytest.raises(MessageIllegal, match="recall handle"):
        RecallHandle.decode(text)


def test_a_handle_with_a_time_that_is_no_number_is_refused() -> None:
    with pytest.raises(MessageIllegal):
        RecallHandle.decode(base64.urlsafe_b64encode(b"v1 t b -5 k").decode())
