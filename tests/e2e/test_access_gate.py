"""A broker with access control: no way between socket and log escapes the gate."""

from __future__ import annotations

import json
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from contrail.access.state.needs import NEEDS
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import (
    FLAG_ONE_WAY,
    ReceivedResponse,
    Request,
    encode_binary_request,
    encode_request,
)
from contrail.protocol.signing import ACCESS_KEY, SIGNATURE, Credentials, signed_fields
from contrail.testing import LocalBroker, LocalCluster, eventually
from tests.e2e.access_setup import ACCESS, ADMIN, INNER, Signer
from tests.e2e.pop_asking import popped, receipt_fields
from tests.e2e.raw_client import RawClient, heartbeat, pull_fields, send_fields

SEND, PULL = RequestCode.SEND_MESSAGE_V2, RequestCode.PULL_MESSAGE
REFUSED = ResponseCode.NO_PERMISSION
ALICE = Credentials("alice", "alice-password")
GONE = Credentials("gone", "gone-password")
UNKNOWN_CODES = (999, 31_000, 210_000)
BODY = b"a body that must not be stored"
HALF_FLAG = "4"


@pytest.fixture(scope="module")
def broker() -> Iterator[LocalBroker]:
    with LocalCluster(properties=ACCESS) as cluster:
        broker = cluster.brokers[0]
        with Signer(broker, ADMIN) as admin:
            assert admin.make_user(ALICE).code == 0
            assert admin.make_user(GONE, userType="Super", userStatus="disable").code == 0
            assert admin.ask(SEND, send_fields("orders"), b"the first").code == 0
            assert admin.ask(SEND, send_fields("secrets"), b"nobody's business").code == 0
        yield broker


@pytest.fixture
def admin(broker: LocalBroker) -> Iterator[Signer]:
    with Signer(broker, ADMIN) as admin:
        yield admin


@pytest.fixture
def alice(broker: LocalBroker, admin: Signer) -> Iterator[Signer]:
    """A user without rights."""
    admin.revoke(ALICE.access_key)
    with Signer(broker, ALICE) as alice:
        yield alice


def fields_for_any(code: int) -> dict[str, str]:
    """Names of all resources that a request could ask for, in all spellings."""
    names = {"topic": "orders", "group": "readers", "consumerGroup": "readers"}
    names |= {"groupName": "readers", "srcGroup": "readers", "destGroup": "others"}
    names |= {"username": "mallory", "subject": "User:alice", "offset": "0", "msgId": "1"}
    names |= {"clientID": "c1", "clientId": "c1", "producerGroup": "p", "queueId": "0"}
    if code in (SEND, RequestCode.SEND_BATCH_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2):
        return send_fields("orders")
    return names | (pull_fields("orders", 0) if code == PULL else {})


def wrong_ways(code: int) -> Iterator[tuple[str, dict[str, str], bytes]]:
    """A request of this code as nobody may send it."""
    fields = fields_for_any(code)
    yield "unsigned", fields, BODY
    yield "only a name", {**fields, ACCESS_KEY: ADMIN.access_key}, BODY
    yield "an empty signature", {**fields, ACCESS_KEY: ADMIN.access_key, SIGNATURE: ""}, BODY
    yield "another secret", signed_fields(fields, BODY, Credentials("root", "guessed")), BODY
    yield "nobody's name", signed_fields(fields, BODY, Credentials("nobody", "nobody")), BODY
    yield "another body", signed_fields(fields, b"another", ADMIN), BODY
    yield "another field", signed_fields(fields, BODY, ADMIN) | {"more": "1"}, BODY
    yield "a field less", signed_fields({**fields, "more": "1"}, BODY, ADMIN) | {"more": ""}, BODY
    yield "disabled", signed_fields(fields, BODY, GONE), BODY


def state_of(broker: LocalBroker) -> tuple[object, ...]:
    """All that a request could have changed."""
    app = broker.app
    assert app is not None
    return (
        app.store.physical_end,
        sorted(app.tables.topics.table.topics),
        sorted(app.tables.groups.table.groups),
        # The broker's own checks of transactions note their progress, too.
        {
            name: offsets
            for name, offsets in app.tables.consumer_offsets.snapshot().offsets.items()
            if not name.startswith("RMQ_SYS_")
        },
        app.tables.settings.config,
        app.access.gate.table.generation if app.access.gate else None,
        len(app.pulls.held.parked),
        dict(app.tables.producers.groups),
        dict(app.tables.consumers.groups),
    )


@pytest.mark.proves("access.gate.every-way")
def test_no_code_on_any_way_is_served_without_a_right_signature(broker: LocalBroker) -> None:
    before = state_of(broker)
    codes = [*map(int, RequestCode), *UNKNOWN_CODES]
    count = 0
    for port in (broker.port, broker.port - 2):
        with RawClient(port) as client:
            opaque = 1000
            for code in codes:
                frames, wanted = [], {}
                for kind, fields, body in wrong_ways(code):
                    opaque += 2
                    wanted[opaque] = kind
                    request = Request(code, opaque, fields, body)
                    if len(wanted) % 2 and code < 1 << 15:
                        frames.append(encode_binary_request(request))
                    else:
                        frames.append(encode_request(request))
                    one_way = request._replace(opaque=opaque + 1, flag=FLAG_ONE_WAY)
                    frames.append(encode_request(one_way))
                # All of a code in one write: runs of sends and of pulls, too.
                client.send(b"".join(frames))
                answered: dict[int, ReceivedResponse] = {}
                while len(answered) < len(wanted):
                    answer = client.next_frame()
                    answered[answer.opaque] = answer
                assert {o: a.code for o, a in answered.items()} == dict.fromkeys(wanted, REFUSED), (
                    code,
                    {wanted.get(o): a.remark for o, a in answered.items() if a.code != REFUSED},
                )
                count += len(frames)
    assert count > 5000
    assert state_of(broker) == before


@pytest.mark.proves("access.rules.needs")
def test_every_served_code_has_a_row_and_every_row_is_served(broker: LocalBroker) -> None:
    with LocalCluster(members=1) as group:
        member = group.brokers[0].app
        assert broker.app is not None and member is not None
        served = set(broker.app.router._handlers) | set(member.router._handlers)
    # Told to brokers that may act as masters, and two codes of pop.
    elsewhere = {
        int(RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE),
        int(RequestCode.PEEK_MESSAGE),
        int(RequestCode.NOTIFICATION),
    }
    assert set(NEEDS) - elsewhere == served - elsewhere


@pytest.mark.proves("access.gate.every-way")
def test_frames_in_pieces_and_answers_nobody_asked_for_pass_no_gate(broker: LocalBroker) -> None:
    before = state_of(broker)
    with RawClient(broker.port) as client:
        data = encode_request(Request(SEND, 7, send_fields("orders"), BODY))
        for byte in data[:-1]:
            client.send(bytes([byte]))
        client.send(data[-1:])
        assert client.answer_to(7).code == REFUSED
        for code in (0, 39, int(SEND)):
            client.send(encode_request(Request(code, 3, fields_for_any(SEND), BODY, flag=1)))
        assert client.call(SEND, send_fields("orders"), BODY).code == REFUSED
    assert state_of(broker) == before


@pytest.mark.proves("access.rules.cache", "access.rules.needs")
def test_rights_count_from_the_next_request_on(
    broker: LocalBroker, admin: Signer, alice: Signer
) -> None:
    assert alice.ask(SEND, send_fields("orders"), b"1").code == REFUSED
    admin.grant("alice", ("Topic:ord*", "Pub"))
    assert alice.ask(SEND, send_fields("orders"), b"2").code == 0
    assert alice.ask(SEND, send_fields("secrets"), b"3").code == REFUSED
    pull = pull_fields("orders", 0)
    assert alice.ask(PULL, pull).code == REFUSED
    admin.grant("alice", ("Topic:orders", "Sub,Pub"))
    refused = alice.ask(PULL, pull)
    assert refused.code == REFUSED and "Group:readers" in (refused.remark or "")
    admin.grant("alice", ("Group:readers", "Sub"))
    assert alice.ask(PULL, pull).code == 0
    assert admin.revoke("alice", "Topic:orders").code == 0
    assert alice.ask(PULL, pull).code == REFUSED
    assert alice.ask(SEND, send_fields("orders"), b"4").code == 0
    admin.change_user("alice", userStatus="disable")
    assert alice.ask(SEND, send_fields("orders"), b"5").code == REFUSED
    admin.change_user("alice", userStatus="enable", password="changed")
    assert alice.ask(SEND, send_fields("orders"), b"6").code == REFUSED
    admin.change_user("alice", password=ALICE.secret_key)
    assert alice.ask(SEND, send_fields("orders"), b"7").code == 0


@pytest.mark.proves("access.gate.held")
def test_a_held_pull_is_answered_when_its_user_loses_the_right(
    broker: LocalBroker, admin: Signer, alice: Signer
) -> None:
    admin.grant("alice", ("Topic:orders", "Sub"), ("Group:readers", "Sub"))
    app = broker.app
    assert app is not None
    end = app.store.queue_offset_max(b"orders", 0)
    alice.send(alice.frame(PULL, 900, pull_fields("orders", end)))
    eventually(lambda: len(app.pulls.held.parked) == 1)
    assert not alice.has_news()
    admin.revoke("alice", "Topic:orders")
    assert alice.answer_to(900).code == REFUSED
    admin.ask(SEND, send_fields("orders"), b"not for alice")
    assert not alice.has_news()


@pytest.mark.proves("access.gate.held")
def test_pops_are_for_users_with_rights_and_held_ones_are_judged_again(
    broker: LocalBroker, admin: Signer, alice: Signer
) -> None:
    admin.grant("alice", ("Topic:orders", "Sub"), ("Group:poppers", "Sub"))
    app = broker.app
    assert app is not None
    pop = {
        "consumerGroup": "poppers",
        "topic": "orders",
        "queueId": "-1",
        "maxMsgNums": "1",
        "invisibleTime": "60000",
        "pollTime": "0",
        "initMode": "0",
    }

    def ask(**changes: str) -> ReceivedResponse:
        fields = {**pop, "bornTime": str(int(time.time() * 1000)), **changes}
        return alice.ask(RequestCode.POP_MESSAGE, fields)

    assert ask(topic="secrets").code == REFUSED
    assert ask(consumerGroup="others").code == REFUSED
    ack = receipt_fields(popped(ask())[0]) | {"consumerGroup": "poppers", "topic": "orders"}
    assert alice.ask(RequestCode.ACK_MESSAGE, {**ack, "topic": "%RETRY%others"}).code == REFUSED
    assert alice.ask(RequestCode.ACK_MESSAGE, ack).code == 0
    entry = {"c": "poppers", "t": "secrets", "r": "0", "b": "", "so": 0, "q": 0}
    batch = json.dumps({"brokerName": broker.name, "acks": [entry]}).encode()
    assert alice.ask(RequestCode.BATCH_ACK_MESSAGE, {}, batch).code == REFUSED
    while ask(maxMsgNums="32").code == 0:
        pass
    fields = {**pop, "pollTime": "20000", "bornTime": str(int(time.time() * 1000))}
    alice.send(alice.frame(RequestCode.POP_MESSAGE, 901, fields))
    eventually(lambda: len(app.kinds.pop.waits.waiters) == 1)
    admin.grant("alice", ("Group:other", "Sub"))
    assert not alice.has_news() and len(app.kinds.pop.waits.waiters) == 1
    admin.revoke("alice", "Topic:orders")
    assert alice.answer_to(901).code == REFUSED
    assert not app.kinds.pop.waits.waiters


@pytest.mark.proves("access.rules.records")
def test_a_place_in_the_log_opens_no_topic(
    broker: LocalBroker, admin: Signer, alice: Signer
) -> None:
    """Requests that name a record by its offset need rights on the record's own topic."""
    admin.grant("alice", ("Topic:orders", "Sub,Get,Pub"), ("Group:readers", "Sub"))
    assert alice.ask(RequestCode.HEART_BEAT, {}, heartbeat("c1")).code == 0
    found, ids = {}, {}
    for topic in ("orders", "secrets"):
        sent = admin.ask(SEND, send_fields(topic), b"a body")
        ids[topic] = sent.fields["msgId"]
        found[topic] = str(int(ids[topic][-16:], 16))
    view = RequestCode.VIEW_MESSAGE_BY_ID
    assert alice.ask(view, {"offset": found["orders"], "topic": "orders"}).code == 0
    assert alice.ask(view, {"offset": found["secrets"], "topic": "orders"}).code == REFUSED
    back = {"group": "readers", "delayLevel": "-1", "originTopic": "orders"}
    send_back = RequestCode.CONSUMER_SEND_MSG_BACK
    assert alice.ask(send_back, {**back, "offset": found["orders"]}).code == 0
    refused = alice.ask(send_back, {**back, "offset": found["secrets"]})
    assert refused.code == REFUSED and "secrets" in (refused.remark or "")
    # A consumer of one's own is not given the record either.
    directly = {"consumerGroup": "readers", "clientId": "c1", "msgId": ids["secrets"]}
    refused = alice.ask(RequestCode.CONSUME_MESSAGE_DIRECTLY, directly)
    assert refused.code == REFUSED and "secrets" in (refused.remark or "")
    assert not alice.has_news()


@pytest.mark.proves("access.rules.records", "access.gate.claims")
def test_a_half_message_is_ended_and_checked_by_producers_of_its_topic_alone(
    broker: LocalBroker, admin: Signer, alice: Signer
) -> None:
    admin.grant("alice", ("Topic:orders", "Pub"))
    half = send_fields("secrets", f=HALF_FLAG, i="TRAN_MSG\x01true\x02PGROUP\x01producers\x02")
    sent = admin.ask(SEND, half, b"half")
    assert sent.code == 0
    place = str(int(sent.fields["msgId"][-16:], 16))
    end = {
        "producerGroup": "producers",
        "tranStateTableOffset": sent.fields["queueOffset"],
        "commitLogOffset": place,
        "commitOrRollback": "8",
        "msgId": "1",
        "topic": "orders",
    }
    assert alice.ask(RequestCode.END_TRANSACTION, end).code == REFUSED
    app = broker.app
    assert app is not None and app.access.gate is not None
    beat = json.dumps(
        {"clientID": "claimer", "producerDataSet": [{"groupName": "producers"}]}
    ).encode()
    assert alice.ask(RequestCode.HEART_BEAT, {}, beat).code == 0
    (claimed,) = app.tables.producers.channels("producers")
    assert claimed.user == "alice"
    assert app.access.may_check(claimed, "orders")
    assert not app.access.may_check(claimed, "secrets")
    assert admin.ask(RequestCode.END_TRANSACTION, end).code == 0


@pytest.mark.proves("access.settings.secrets", "access.settings.file")
def test_secrets_stay_in_their_file(
    broker: LocalBroker, admin: Signer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    secrets = [ADMIN.secret_key, INNER.secret_key, ALICE.secret_key, GONE.secret_key]
    listed = admin.ask(RequestCode.AUTH_LIST_USER)
    assert {user["username"] for user in json.loads(listed.body)} >= {"root", "inner", "alice"}
    answers = [
        listed,
        admin.ask(RequestCode.AUTH_GET_USER, {"username": "alice"}),
        admin.ask(RequestCode.AUTH_LIST_ACL),
        admin.ask(RequestCode.GET_BROKER_CONFIG),
        admin.ask(RequestCode.GET_BROKER_RUNTIME_INFO),
        admin.ask(RequestCode.AUTH_CREATE_USER, {"username": "alice"}, b'{"password":"again"}'),
    ]
    for answer in answers:
        shown = repr(answer)
        assert not [secret for secret in secrets if secret in shown]
    passer = Credentials("passer-by", "passing-password")
    secrets.append(passer.secret_key)
    admin.make_user(passer)
    admin.change_user("passer-by", password="second-password")
    secrets.append("second-password")
    assert broker.app is not None
    # The next refusal is written, however many there were in this minute.
    broker.app.access._refusals.clear()
    with Signer(broker, passer) as wrong:
        wrong.ask(SEND, send_fields("orders"), b"refused")
    admin.ask(RequestCode.AUTH_DELETE_USER, {"username": "passer-by"})
    assert "created user 'passer-by'" in caplog.text and "was refused" in caplog.text
    assert not [secret for secret in secrets if secret in caplog.text]
    for name in ("initAuthenticationUser", "authenticationEnabled", "contrailAdminNetworks"):
        change = admin.ask(RequestCode.UPDATE_BROKER_CONFIG, {}, f"{name}=false".encode())
        assert change.code == REFUSED, name
    files = [path for path in Path(broker.folder).rglob("*") if path.is_file()]
    with_secrets = [
        path for path in files if any(secret.encode() in path.read_bytes() for secret in secrets)
    ]
    assert {path.name for path in with_secrets} == {"contrailAcl.json", "contrailAcl.json.bak"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in with_secrets} == {0o600}


@pytest.mark.proves("access.administration.super")
def test_only_a_super_touches_a_super(broker: LocalBroker, admin: Signer, alice: Signer) -> None:
    admin.grant("alice", ("Cluster:*", "Update,Get"))
    helper = Credentials("helper", "helper-password")
    assert alice.make_user(helper).code == 0
    assert alice.make_user(Credentials("boss", "p"), userType="Super").code != 0
    assert alice.change_user("helper", userType="Super").code != 0
    assert alice.change_user("root", password="taken").code == REFUSED
    assert alice.ask(RequestCode.AUTH_DELETE_USER, {"username": "root"}).code == REFUSED
    assert alice.grant("root", ("Topic:*", "All"), decision="Deny").code == REFUSED
    assert admin.ask(RequestCode.AUTH_DELETE_USER, {"username": "helper"}).code == 0
    # Only root and inner are enabled Supers: one of them must stay.
    assert admin.ask(RequestCode.AUTH_DELETE_USER, {"username": "inner"}).code == 0
    assert admin.change_user("root", userStatus="disable").code == REFUSED
    assert admin.ask(RequestCode.AUTH_DELETE_USER, {"username": "root"}).code == REFUSED
    assert admin.make_user(INNER, userType="Super").code == 0
