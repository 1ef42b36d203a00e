"""Header fields are text on the wire and typed here."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contrail.errors import RequestRejected
from contrail.protocol.codes import ResponseCode
from contrail.protocol.command import Request
from contrail.protocol.fields import HeaderFields


def fields(**values: str) -> HeaderFields:
    return HeaderFields(Request(11, 1, values))


def test_a_missing_field_falls_back_to_its_default() -> None:
    empty = fields()
    assert empty.text("topic", "") == ""
    assert empty.integer("queueId", -1) == -1
    assert empty.long("offset", 0) == 0
    assert empty.boolean("order") is False
    assert empty.boolean("committed", True) is True


def test_optional_fields_are_none_when_absent_and_typed_when_present() -> None:
    found = fields(a="x", b="7", c="8", d="false")
    assert (found.optional_text("a"), found.optional_text("z")) == ("x", None)
    assert (found.optional_integer("b"), found.optional_integer("z")) == (7, None)
    assert (found.optional_long("c"), found.optional_long("z")) == (8, None)
    assert (found.optional_boolean("d"), found.optional_boolean("z")) == (False, None)


@pytest.mark.parametrize("read", ["text", "integer", "long"])
def test_a_missing_required_field_is_refused_with_the_code_and_its_name(read: str) -> None:
    with pytest.raises(RequestRejected, match=r"PULL_MESSAGE \(11\).*queueId") as caught:
        getattr(fields(), read)("queueId")
    assert caught.value.code == ResponseCode.SYSTEM_ERROR


@pytest.mark.parametrize("text", ["", "x", "1.5", "1_0", " 1", "0x1", "٣", str(1 << 63), "9" * 30])
def test_a_field_that_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(RequestRejected, match="queueId="):
        fields(queueId=text).long("queueId")


def test_an_integer_has_32_bits_and_a_long_64() -> None:
    assert fields(n=str(2**31 - 1)).integer("n") == 2**31 - 1
    assert fields(n=str(2**31)).long("n") == 2**31
    with pytest.raises(RequestRejected, match="32-bit"):
        fields(n=str(2**31)).integer("n")


@pytest.mark.parametrize(
    ("text", "expected"),
    [("true", True), ("TRUE", True), ("1", False), ("0", False), ("false", False), ("yes", False)],
)
def test_a_boolean_is_true_as_java_and_the_cpp_client_write_it(text: str, expected: bool) -> None:
    assert fields(flag=text).boolean("flag", not expected) is expected


@given(st.integers(-(2**63), 2**63 - 1))
def test_every_long_reads_back(value: int) -> None:
    assert fields(n=str(value)).long("n") == value


@given(st.text(max_size=30).filter(lambda text: not text.lstrip("+-").isdecimal()))
def test_any_text_that_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(RequestRejected):
        fields(n=text).long("n")
