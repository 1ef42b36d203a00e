"""Signatures of requests."""

from __future__ import annotations

import base64
import hashlib
import hmac

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contrail.errors import ConfigError
from contrail.protocol.signing import (
    ACCESS_KEY,
    SIGNATURE,
    Credentials,
    SigningKey,
    is_signed_by,
    signed_content,
    signed_fields,
)

ALICE = Credentials("alice", "secret")
FIELDS = st.dictionaries(st.text(max_size=8), st.text(max_size=20), max_size=6)


@pytest.mark.proves("access.rules.signatures")
@settings(max_examples=60)
@given(st.text(min_size=1, max_size=200), FIELDS, st.binary(max_size=300))
def test_prepared_states_make_the_signature_of_the_standard_library(
    secret: str, fields: dict[str, str], body: bytes
) -> None:
    content = "".join(fields[name] for name in sorted(fields) if name != SIGNATURE)
    encoded = content.encode("utf-8", "replace")
    expected = hmac.new(secret.encode("utf-8", "replace"), encoded + body, hashlib.sha1).digest()
    key = SigningKey(secret)
    assert key.sign(signed_content(fields), body) == base64.b64encode(expected).decode()


@settings(max_examples=40)
@given(FIELDS, st.binary(max_size=100))
def test_a_signed_request_is_believed_and_any_other_is_not(
    fields: dict[str, str], body: bytes
) -> None:
    key, other = SigningKey("secret"), SigningKey("another")
    signed = signed_fields(fields, body, ALICE)
    assert signed[ACCESS_KEY] == "alice"
    assert is_signed_by(key, signed, body)
    assert not is_signed_by(other, signed, body)
    assert not is_signed_by(key, signed, body + b"x")
    assert not is_signed_by(key, signed | {"one more": "1"}, body)
    assert not is_signed_by(key, {name: signed[name] for name in signed if name != SIGNATURE}, body)


def test_upper_case_names_are_signed_first_and_the_token_between() -> None:
    fields = {"b": "3", "SecurityToken": "2", "AccessKey": "1", "Signature": "none of it", "a": "x"}
    assert signed_content(fields) == b"12x3"


def test_old_clients_add_one_field_after_they_have_signed() -> None:
    fields = {"topic": "t", "_UNIQUE_KEY_QUERY": "true"}
    assert signed_content(fields, version=399) == b"t"
    assert signed_content(fields, version=400) == b"truet"


def test_credentials_never_show_their_secret() -> None:
    shown = repr(Credentials("alice", "the-secret", "the-token"))
    assert "alice" in shown and "the-secret" not in shown and "the-token" not in shown
    with pytest.raises(ConfigError):
        Credentials("alice", "")
