"""Request and reply with the official client: the reply reaches the requester, or times out."""

from __future__ import annotations

import pytest

from tests.interop.clients.kinds import Kinds
from tests.interop.clients.registry import clients_of
from tests.interop.clients.session import JavaSession
from tests.interop.clients.topics import create_topic

PATIENCE_MS = 30_000
# Longer than the client may take to learn the route and to send: else it fails in another way.
SHORT_MS = 5000


@pytest.mark.proves("kinds.shown.java-replies")
@pytest.mark.parametrize("client", clients_of("request-reply"), indirect=True)
def test_request_reply(session: JavaSession, kinds: Kinds, topic: str) -> None:
    create_topic(kinds, topic)
    asking, other = f"{topic}-asking", f"{topic}-other"
    replying, consuming = f"{topic}-replying", f"{topic}-consumer"
    # Two of one group: a reply is for the one that asked.
    for name in (asking, other):
        session.do("producer", name=name, group=f"asking_{topic}")
        # The first message of a client takes time: it learns the route and connects.
        session.send(name, f"{topic}_hello", ["hello"])
    ignored = session.answer(ask(session, asking, topic, "ignored", SHORT_MS))
    assert ignored["event"] == "failed"
    assert "RequestTimeoutException" in ignored["text"]
    session.do("producer", name=replying, group=f"replying_{topic}")
    session.do("consumer", name=consuming, group=f"group_{topic}", topic=topic, reply_with=replying)
    # The reply to the request that timed out is sent too, and does no harm.
    kinds.wait_for(lambda: replied(session, consuming) == {"ignored"}, "a late reply", step_ms=0)
    questions = {
        key: ask(session, name, topic, key, PATIENCE_MS)
        for name in (asking, other)
        for key in (f"{name}-{number}" for number in range(3))
    }
    for key, number in questions.items():
        answer = session.answer(number)
        assert (answer["event"], answer.get("body")) == ("ok", f"re:body-{key}"), answer
    expected = {"ignored", *questions}
    kinds.wait_for(lambda: replied(session, consuming) == expected, "replies sent", step_ms=0)
    session.close(asking, other, replying, consuming)


def ask(session: JavaSession, name: str, topic: str, key: str, timeout_ms: int) -> int:
    return session.begin("request", producer=name, topic=topic, key=key, timeout_ms=timeout_ms)


def replied(session: JavaSession, consuming: str) -> set[str]:
    assert session.of("not_replied", consuming) == []
    return {event["key"] for event in session.of("replied", consuming)}
