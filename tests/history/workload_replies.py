"""Replies under kills: an accepted reply has reached the requesting client."""

from __future__ import annotations

import json

from contrail.model.properties import (
    CORRELATION_ID,
    MSG_TYPE,
    REPLY_TO_CLIENT,
    TTL,
    UNIQ_KEY,
    decode_properties,
    encode_properties,
)
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import Request
from tests.e2e.raw_client import send_fields
from tests.history.campaign import Campaign, digest
from tests.history.events import ReplyInvoked, ReplyReceived
from tests.history.wire_client import OnRequest, WireClient

_REPLY_TOPIC = "DefaultCluster_REPLY_TOPIC"
_REQUESTERS = ("asker@1", "asker@2")


class ReplyWorkload:
    """Two requesters with a connection each; the campaign's own connection is the responder."""

    def __init__(self, campaign: Campaign) -> None:
        self._campaign = campaign
        self._clients: dict[str, WireClient] = {}
        campaign.after_start = self._connect

    def run(self, kill_count: int) -> None:
        campaign = self._campaign
        self._connect()
        while campaign.kill_count < kill_count:
            for _ in range(campaign.random.randint(1, 30)):
                self._reply()
            for _ in range(campaign.random.randrange(4)):
                self._take_pushes(campaign.random.uniform(0, 0.02))
            campaign.kill()
            for client in self._clients.values():
                client.read_to_the_end()
            campaign.restart()
        for _ in range(30):
            self._reply()
        campaign.wait_until(self._all_answered, "every reply is accepted or refused")
        self.close()

    def close(self) -> None:
        for client in self._clients.values():
            client.close()

    def _connect(self) -> None:
        for name in _REQUESTERS:
            client = WireClient(self._campaign.broker.port, self._listener(name))
            self._clients[name] = client
            producers = [{"groupName": "askers"}]
            body = json.dumps({"clientID": name, "producerDataSet": producers}).encode()
            answer = client.call(RequestCode.HEART_BEAT, {}, body)
            assert answer is not None and answer.code == ResponseCode.SUCCESS, answer

    def _reply(self) -> None:
        campaign = self._campaign
        key, requester = campaign.next_key(), campaign.random.choice(_REQUESTERS)
        body = campaign.body_of(key)
        event = ReplyInvoked(
            campaign.clock.now_ms(), campaign.next_op(), key, requester, digest(body)
        )
        properties = {
            UNIQ_KEY: key,
            MSG_TYPE: "reply",
            CORRELATION_ID: key,
            REPLY_TO_CLIENT: requester,
            TTL: "3000",
        }
        fields = send_fields(_REPLY_TOPIC, i=encode_properties(properties).decode())
        campaign.invoke(event, RequestCode.SEND_REPLY_MESSAGE_V2, fields, body)

    def _listener(self, name: str) -> OnRequest:
        def take(request: Request) -> None:
            if request.code != RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT:
                return
            properties = decode_properties(request.fields["properties"].encode())
            key, now_ms = properties[CORRELATION_ID], self._campaign.clock.now_ms()
            event = ReplyReceived(now_ms, key, name, digest(request.body))
            self._campaign.events.append(event)
            self._clients[name].answer(request)

        return take

    def _take_pushes(self, duration_s: float) -> None:
        for client in (*self._clients.values(), self._campaign.client):
            client.read_for(duration_s)

    def _all_answered(self) -> bool:
        self._take_pushes(0.02)
        return self._campaign.client.waiting_count == 0
