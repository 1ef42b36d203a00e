"""The key of a folder's recall handles, and the seal that it puts on them."""

from __future__ import annotations

import secrets
import stat
from pathlib import Path

import pytest

from contrail.broker.services.recall_key import KEY_FILE, load_recall_key
from contrail.broker.state.recall_seal import KEY_BYTES, RecallKey, RecallSeal
from contrail.errors import MessageIllegal
from contrail.model.recall_handle import RecallHandle
from contrail.runtime.files import FileSystem

OLD, NEW = b"o" * KEY_BYTES, b"n" * KEY_BYTES
HANDLE = RecallHandle("orders", "broker-a", 1_700_000_000_001, "KEY-1")


def load(root: Path, secret: bytes, now_ms: int) -> RecallKey:
    return load_recall_key(FileSystem(), root, now_ms=now_ms, new_secret=secret)


def test_a_key_is_made_once_and_kept_with_its_time(tmp_path: Path) -> None:
    assert load(tmp_path, OLD, 5) == RecallKey(OLD, 5)
    assert load(tmp_path, NEW, 9) == RecallKey(OLD, 5)


@pytest.mark.proves("kinds.recall.sealed")
def test_nobody_but_the_owner_reads_the_key(tmp_path: Path) -> None:
    load(tmp_path, OLD, 5)
    assert stat.S_IMODE((tmp_path / "config" / KEY_FILE).stat().st_mode) == 0o600


@pytest.mark.parametrize("content", [b"", b"{}", b"no key", None])
def test_a_key_that_cannot_be_read_is_replaced_and_told(
    tmp_path: Path, content: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    load(tmp_path, OLD, 5)
    path = tmp_path / "config" / KEY_FILE
    path.write_bytes(path.read_bytes()[:-9] if content is None else content)
    assert load(tmp_path, NEW, 9) == RecallKey(NEW, 9)
    assert "a new key is made" in caplog.text
    assert load(tmp_path, OLD, 12) == RecallKey(NEW, 9)


def test_a_seal_is_the_sixth_word_and_holds_for_one_handle_and_one_key() -> None:
    seal = RecallSeal(RecallKey(OLD, 5), secrets.token_bytes)
    sealed = seal.sealed(HANDLE)
    assert RecallHandle.decode(sealed.encode()) == sealed
    assert len(sealed.seal) == 38 and sealed[:4] == HANDLE[:4]
    assert seal.is_own(sealed)
    assert not seal.is_own(HANDLE)
    assert not RecallSeal(RecallKey(NEW, 5), secrets.token_bytes).is_own(sealed)
    for other in (
        sealed._replace(topic="others"),
        sealed._replace(broker_name="broker-b"),
        sealed._replace(deliver_ms=1_700_000_001_001),
        sealed._replace(unique_key="KEY-2"),
        sealed._replace(seal=sealed.seal[:-1]),
        sealed._replace(seal=""),
        sealed._replace(seal="x" * 16 + sealed.seal[16:]),
        sealed._replace(seal=sealed.seal[16:]),
        sealed._replace(seal="é"),
    ):
        assert not seal.is_own(other)


@pytest.mark.proves("kinds.recall.one-message")
def test_two_messages_with_the_same_five_words_get_two_seals() -> None:
    asked: list[int] = []

    def numbered(count: int) -> bytes:
        asked.append(count)
        return bytes([len(asked)]) * count

    seal = RecallSeal(RecallKey(OLD, 5), numbered)
    one, other = seal.sealed(HANDLE), seal.sealed(HANDLE)
    assert asked == [12, 12] and one.nonce == "AQEBAQEBAQEBAQEB" != other.nonce
    assert seal.is_own(one) and seal.is_own(other)
    # The nonce of one message does not go with the MAC of another.
    assert not seal.is_own(one._replace(seal=other.nonce + one.seal[16:]))


def test_a_handle_without_a_seal_is_apaches() -> None:
    # The handle that Apache's HandleV1.buildHandle makes of the same.
    text = "djEgb3JkZXJzIGJyb2tlci1hIDE3MDAwMDAwMDAwMDEgS0VZLTE="
    assert HANDLE.encode() == text
    assert RecallHandle.decode(text) == HANDLE
    for wrong in ("djEgb3JkZXJz", "djIgYSBiIDEgaw==", ""):
        with pytest.raises(MessageIllegal):
            RecallHandle.decode(wrong)
