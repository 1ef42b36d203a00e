"""Signatures of requests, as clients with ACL 1.0 and ACL 2.0 write them.

The signed content is the values of all header fields in the order of their names, and the body
behind them; code, opaque, flag, version and remark are not signed. The signature is the HMAC-SHA1
of the content under the user's secret, in base64. The secret itself never travels.
"""

from __future__ import annotations

import binascii
import hashlib
import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from contrail.errors import ConfigError

ACCESS_KEY = "AccessKey"
SECURITY_TOKEN = "SecurityToken"
SIGNATURE = "Signature"

# Clients up to this version add the field after they have signed.
_LATE_FIELD = "_UNIQUE_KEY_QUERY"
_LATE_FIELD_VERSION_MAX = 399

SIGNED_FIELDS = frozenset({ACCESS_KEY, SECURITY_TOKEN, SIGNATURE})
"""The fields that signing adds; they are for the server that is asked, and nobody else."""

_BLOCK_BYTES = 64
_SIGNATURE_CHARACTERS = 28
_INNER = bytes(byte ^ 0x36 for byte in range(256))
_OUTER = bytes(byte ^ 0x5C for byte in range(256))


@dataclass(frozen=True, slots=True)
class Credentials:
    """A user's name and secret, as a client signs with them; never shown with the secret."""

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not self.access_key or not self.secret_key:
            raise ConfigError("credentials need an access key and a secret key, both not empty")


CredentialSource = Credentials | Callable[[], Credentials]
"""Credentials, or a function that is asked before each request, for secrets that change."""


def current(source: CredentialSource) -> Credentials:
    """The credentials to sign with now."""
    return source if isinstance(source, Credentials) else source()


class SigningKey:
    """One secret, with the hash states that every signature under it begins with."""

    __slots__ = ("_inner", "_outer")

    def __init__(self, secret: str) -> None:
        key = secret.encode("utf-8", "replace")
        if len(key) > _BLOCK_BYTES:
            key = hashlib.sha1(key, usedforsecurity=False).digest()
        key = key.ljust(_BLOCK_BYTES, b"\0")
        self._inner = hashlib.sha1(key.translate(_INNER), usedforsecurity=False)
        self._outer = hashlib.sha1(key.translate(_OUTER), usedforsecurity=False)

    def sign(self, content: bytes, body: bytes = b"") -> str:
        """The signature of ``content`` with ``body`` behind it."""
        inner = self._inner.copy()
        inner.update(content)
        if body:
            inner.update(body)
        outer = self._outer.copy()
        outer.update(inner.digest())
        return binascii.b2a_base64(outer.digest(), newline=False).decode("ascii")

    def has_signed(self, content: bytes | bytearray, signature: bytes) -> bool:
        """Whether ``signature`` is that of ``content``, body and all; in constant time."""
        if len(signature) != _SIGNATURE_CHARACTERS:
            return False
        inner = self._inner.copy()
        inner.update(content)
        outer = self._outer.copy()
        outer.update(inner.digest())
        made = binascii.b2a_base64(outer.digest(), newline=False)
        return hmac.compare_digest(signature, made)


def signed_content(fields: Mapping[str, str], version: int | None = None) -> bytes:
    """The part of the signed content that stands before the body.

    ``version`` is that of a received request; some old clients sign before their last field.
    """
    left_out = SIGNATURE
    is_old = version is not None and version <= _LATE_FIELD_VERSION_MAX
    names = sorted(fields)
    texts = [
        fields[name] for name in names if name != left_out and not (is_old and name == _LATE_FIELD)
    ]
    return "".join(texts).encode("utf-8", "replace")


def is_signed_by(
    key: SigningKey, fields: Mapping[str, str], body: bytes, version: int | None = None
) -> bool:
    """Whether a request carries the signature that this key makes; in constant time."""
    given = fields.get(SIGNATURE, "").encode("utf-8", "replace")
    if len(given) != _SIGNATURE_CHARACTERS:
        # No signature is that long, so nothing is given away; a large body is not hashed for it.
        return False
    expected = key.sign(signed_content(fields, version), body).encode("ascii")
    return hmac.compare_digest(given, expected)


def signed_fields(
    fields: Mapping[str, str], body: bytes, credentials: Credentials
) -> dict[str, str]:
    """The fields of a request with a user's name and signature among them."""
    signed = {name: text for name, text in fields.items() if name != SIGNATURE}
    signed[ACCESS_KEY] = credentials.access_key
    if credentials.security_token is not None:
        signed[SECURITY_TOKEN] = credentials.security_token
    signed[SIGNATURE] = key_of(credentials).sign(signed_content(signed), body)
    return signed


_KEYS: dict[Credentials, SigningKey] = {}
_KEYS_MAX = 1000


def key_of(credentials: Credentials) -> SigningKey:
    """The prepared key of credentials; remembered, because a client signs every request."""
    key = _KEYS.get(credentials)
    if key is None:
        if len(_KEYS) >= _KEYS_MAX:
            _KEYS.clear()
        key = _KEYS[credentials] = SigningKey(credentials.secret_key)
    return key
