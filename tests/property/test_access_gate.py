"""The gate over any request: it passes, or it is refused; nothing else happens."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contrail.access.state.gate import AccessGate
from contrail.access.state.needs import NEEDS
from contrail.access.state.rights import Entry, PolicyType
from contrail.access.state.users import UserTable
from contrail.errors import RequestRejected
from contrail.protocol.command import Request
from contrail.protocol.signing import ACCESS_KEY, SIGNATURE, Credentials, signed_fields

USER = Credentials("user", "secret")
FIELD_NAMES = sorted(
    {
        *("topic", "b", "group", "consumerGroup", "groupName", "srcGroup", "destGroup", "sinkId"),
        *("topicList", "compareGroup", "producerGroup", "_UNIQUE_KEY_QUERY"),
        *(ACCESS_KEY, SIGNATURE),
    }
)
TEXTS = st.one_of(st.text(max_size=12), st.sampled_from(["mine", "%RETRY%", "%RETRY%g_mine", "*"]))
BODY_NAMES = st.sampled_from(
    [
        *("clientID", "consumerDataSet", "groupName", "subscriptionDataSet", "topic", "mqSet"),
        *("group", "topicConfigList", "topicName", "groupConfigList", "topics"),
        *("subscriptionData", "mode"),
    ]
)
DOCUMENTS = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), TEXTS),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(BODY_NAMES, inner, max_size=4)
    ),
    max_leaves=12,
)
BODIES = st.one_of(
    st.binary(max_size=40), DOCUMENTS.map(lambda document: json.dumps(document).encode())
)


class _Facts:
    cluster_name = "c"

    def has_topic(self, topic: str) -> bool:
        return topic == "mine"

    def sink_topics(self, sink_id: str) -> tuple[str, ...]:
        return ("mine",) if sink_id == "mine" else ()


def gate() -> AccessGate:
    table = UserTable()
    table.create_user(USER.access_key, USER.secret_key)
    entry = Entry.parse("Topic:mine", ["All"], [], "Allow")
    table.merge("user", {PolicyType.CUSTOM: (entry,)})
    return AccessGate(table, _Facts())


GATE = gate()


@pytest.mark.proves("access.shown.fuzz")
@settings(max_examples=400)
@given(
    st.one_of(st.sampled_from(sorted(NEEDS)), st.integers(-1, 300_000)),
    st.dictionaries(st.sampled_from(FIELD_NAMES), TEXTS, max_size=6),
    BODIES,
    st.integers(-1, 500),
    st.booleans(),
)
def test_any_request_is_admitted_or_refused(
    code: int, fields: dict[str, str], body: bytes, version: int, is_signed: bool
) -> None:
    given_fields = signed_fields(fields, body, USER) if is_signed else fields
    request = Request(code, 1, given_fields, body, version=version)
    is_refused = False
    try:
        GATE.require(request, "10.0.0.1:1")
    except RequestRejected:
        is_refused = True
    assert is_signed or is_refused, "an unsigned request passed"
