"""The KV table and its file's content."""

from __future__ import annotations

import pytest

from contrail.errors import RequestRejected
from contrail.model.fastjson import FastJsonError
from contrail.nameserver.state import kv
from contrail.nameserver.state.kv import KvTable, decode_kv
from contrail.protocol.codes import ResponseCode


@pytest.mark.proves("nameserver.routes.kv-config")
def test_values_are_kept_by_namespace_and_key() -> None:
    table = KvTable()
    table.put("n", "k", "1")
    table.put("n", "k", "2")
    assert table.get("n", "k") == "2"
    assert table.get("n", "x") is None and table.get("m", "k") is None
    assert table.namespace("n") == {"k": "2"} and table.namespace("m") is None


def test_a_namespace_outlives_its_last_key() -> None:
    table = KvTable()
    table.put("n", "k", "1")
    table.delete("n", "k")
    table.delete("m", "k")
    assert table.namespace("n") == {}
    assert table.namespace("m") is None


def test_a_full_table_accepts_only_new_values_for_known_keys(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kv, "ENTRY_COUNT_MAX", 1)
    table = KvTable()
    table.put("n", "k", "1")
    table.put("n", "k", "2")
    with pytest.raises(RequestRejected, match="delete some"):
        table.put("m", "k", "1")
    assert table.namespace("m") is None


@pytest.mark.proves("nameserver.routes.kv-config")
def test_the_file_is_rocketmqs_and_reads_back() -> None:
    table = KvTable()
    table.put("ORDER_TOPIC_CONFIG", "t", "broker-a:4")
    document = table.encode()
    lines = ["{", '\t"configTable":{', '\t\t"ORDER_TOPIC_CONFIG":{', '\t\t\t"t":"broker-a:4"']
    assert document.decode() == "\n".join([*lines, "\t\t}", "\t}", "}"])
    again = KvTable()
    again.fill(decode_kv(document).namespaces)
    assert again.get("ORDER_TOPIC_CONFIG", "t") == "broker-a:4"
    assert decode_kv(b"{}") == ({}, ())


def test_a_file_of_another_shape_is_refused() -> None:
    with pytest.raises(FastJsonError):
        decode_kv(b'{"configTable":[]}')


def test_entries_that_break_a_rule_are_returned_and_the_others_read() -> None:
    stored = decode_kv(b'{"configTable":{"n":{"a":"1","b":{},"\\u0001":"2"},"m":1,"o":{"k":true}}}')
    assert stored.namespaces == {"n": {"a": "1"}, "o": {"k": "true"}}
    places = [entry.place for entry in stored.refused]
    assert places == [
        ("configTable", "n", "b"),
        ("configTable", "n", "\x01"),
        ("configTable", "m"),
    ]


@pytest.mark.proves("broker.tables.refused-entries")
@pytest.mark.parametrize(
    ("namespace", "key", "value"),
    [
        ("", "k", "v"),
        ("n", " ", "v"),
        ("n", "$ref", "$.x"),
        ("n", "k\n", "v"),
        ("n", "k", "\ud800"),
    ],
)
def test_an_entry_that_the_files_reader_would_refuse_is_refused(
    namespace: str, key: str, value: str
) -> None:
    table = KvTable()
    with pytest.raises(RequestRejected) as refusal:
        table.put(namespace, key, value)
    assert refusal.value.code == ResponseCode.INVALID_PARAMETER
    assert table.namespace(namespace) is None
