"""The JSON dialect over all inputs: written values are read back, and only one error is raised."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contrail.model.fastjson import FastJsonError, JsonValue, _Parser, dumps, loads

# Every code unit, unpaired surrogates included; "$ref" alone means something else to the reader.
TEXTS = st.text(st.characters(exclude_categories=()), max_size=12)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS
VALUES: st.SearchStrategy[JsonValue] = st.recursive(
    SCALARS.filter(lambda value: value not in (float("inf"), float("-inf"))),
    lambda children: st.lists(children, max_size=5) | st.dictionaries(TEXTS, children, max_size=5),
    max_leaves=25,
)
# Documents that are nearly right: the pieces of the grammar in any order.
PIECES = st.sampled_from(
    [*"{}[]:,'\"\\ 0a\x00é\ud800", "-1", "2.5", "1e9", "true", "null", "\\u0041", "\\x4"]
) | st.sampled_from(['"k"', '"$ref"', '"$.k"'])


def without_nulls(value: JsonValue) -> JsonValue:
    """The value as the writer keeps it: null fields are left out."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value


def joined(value: JsonValue) -> JsonValue:
    """Surrogate halves side by side become one character on the way, as they do in Java."""
    if isinstance(value, dict):
        return {str(joined(key)): joined(item) for key, item in value.items()}
    if isinstance(value, list):
        return [joined(item) for item in value]
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
    return value


@given(VALUES)
def test_written_values_are_read_back(value: JsonValue) -> None:
    expected = joined(without_nulls(value))
    for pretty in (True, False):
        assert loads(dumps(value, pretty=pretty)) == expected


@given(VALUES)
def test_the_tolerant_parser_agrees_with_the_strict_one(value: JsonValue) -> None:
    document = json.dumps(value)
    assert _Parser(document).document() == json.loads(document)


@pytest.mark.proves("wire.frames.integer-keys")
@given(st.dictionaries(st.integers(0, 10**6), st.integers(-(2**63), 2**63 - 1)))
def test_number_keys_read_the_same_quoted_and_bare(table: dict[int, int]) -> None:
    quoted = dumps(table)
    bare = re.sub(rb'"([0-9]+)":', rb"\1:", quoted)
    assert loads(bare) == loads(quoted) == {str(key): value for key, value in table.items()}


@pytest.mark.proves("wire.hostile.round-trips")
@given(st.binary(max_size=200))
def test_arbitrary_bytes_raise_nothing_but_the_one_error(data: bytes) -> None:
    read_or_refuse(data)


@given(st.lists(PIECES, max_size=40))
def test_nearly_right_documents_raise_nothing_but_the_one_error(pieces: list[str]) -> None:
    read_or_refuse("".join(pieces))


@given(VALUES, st.data())
def test_a_document_cut_at_any_byte_is_refused(value: JsonValue, data: st.DataObject) -> None:
    document = dumps({"table": value})
    cut = data.draw(st.integers(0, len(document) - 1))
    with pytest.raises(FastJsonError):
        loads(document[:cut])


def read_or_refuse(document: bytes | str) -> None:
    try:
        value = loads(document)
    except FastJsonError:
        return
    assert dumps(value, pretty=False)
