"""Failover groups as Apache's controller tools see them: the leader plays the controller.

Brokers have fixed ids there, the number of ``dLegerSelfId`` plus one, under every leader.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import NamedTuple, Protocol

from contrail.errors import RequestRejected
from contrail.model.fastjson import FastJsonError, loads
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import Request, Response
from contrail.protocol.fields import HeaderFields
from contrail.protocol.json_style import encode_body
from contrail.wire.peer import LATER, Answer, Handler, Peer

# Apache's tools read terms as 32-bit numbers.
_TERM_MAX = (1 << 31) - 1


class MemberFacts(NamedTuple):
    """One voter of a group."""

    self_id: str
    broker_id: int
    address: str
    is_alive: bool
    is_in_sync: bool


class EpochSpan(NamedTuple):
    """The stretch of the log that one leader wrote."""

    epoch: int
    physical_start: int
    physical_end: int


class GroupView(Protocol):
    """A member's knowledge of its group."""

    cluster: str
    broker_name: str
    group: str

    @property
    def leader_id(self) -> str:
        """The ``dLegerSelfId`` of the leader; empty while none is known."""
        ...

    @property
    def leader_address(self) -> str: ...

    @property
    def leads(self) -> bool: ...

    @property
    def term(self) -> int: ...

    @property
    def own_broker_id(self) -> int:
        """The id under which this member is registered now."""
        ...

    def peers(self) -> dict[str, str]:
        """The addresses of all configured members, at which they reach each other."""
        ...

    def members(self) -> Sequence[MemberFacts]: ...

    def epochs(self) -> Sequence[EpochSpan]: ...

    def hand_over(self, target: str = "") -> Awaitable[bool]:
        """Let another member lead; whether it does."""
        ...


class ControllerView:
    """Answers ``getBrokerEpoch``, ``getSyncStateSet``, ``electMaster`` and their like."""

    def __init__(self, view: GroupView) -> None:
        self._view = view
        self._elections: set[asyncio.Task[None]] = set()

    def table(self) -> dict[int, Handler]:
        return {
            RequestCode.GET_BROKER_EPOCH_CACHE: self.handle_epochs,
            RequestCode.CONTROLLER_GET_METADATA_INFO: self.handle_metadata,
            RequestCode.CONTROLLER_GET_SYNC_STATE_DATA: self.handle_sync_state,
            RequestCode.CONTROLLER_GET_REPLICA_INFO: self.handle_replica_info,
            RequestCode.CONTROLLER_ELECT_MASTER: self.handle_elect,
        }

    def handle_epochs(self, request: Request, peer: Peer) -> Response:
        view = self._view
        spans = view.epochs()
        body = {
            "brokerId": view.own_broker_id,
            "brokerName": view.broker_name,
            "clusterName": view.cluster,
            "epochList": [
                {
                    "endOffset": span.physical_end,
                    "epoch": min(span.epoch, _TERM_MAX),
                    "startOffset": span.physical_start,
                }
                for span in spans
            ],
            "maxOffset": spans[-1].physical_end if spans else 0,
        }
        return Response(body=encode_body(body))

    def handle_metadata(self, request: Request, peer: Peer) -> Response:
        """Where the controller is: Apache's tools ask the leader next."""
        view = self._view
        if not view.leader_address:
            raise RequestRejected(
                ResponseCode.SERVICE_NOT_AVAILABLE,
                f"no leader of failover group {view.group!r} is known: ask again soon",
            )
        return Response(
            fields={
                "group": view.group,
                "controllerLeaderId": view.leader_id,
                "controllerLeaderAddress": view.leader_address,
                "isLeader": str(view.leads).lower(),
                "peers": ";".join(f"{one}:{address}" for one, address in view.peers().items()),
            }
        )

    def handle_sync_state(self, request: Request, peer: Peer) -> Response:
        """In sync is a voter that has the whole log, as far as its last answer tells."""
        self._require_leader()
        view, term = self._view, min(self._view.term, _TERM_MAX)
        try:
            names = loads(request.body)
        except FastJsonError as error:
            raise RequestRejected(
                ResponseCode.SYSTEM_ERROR, f"the body is no list of broker names: {error}"
            ) from error
        table: dict[str, object] = {}
        if isinstance(names, list) and view.broker_name in names:
            members = view.members()
            table[view.broker_name] = {
                "inSyncReplicas": [_identity(view, one) for one in members if one.is_in_sync],
                "masterAddress": view.leader_address,
                "masterBrokerId": self._leader_broker_id(),
                "masterEpoch": term,
                "notInSyncReplicas": [
                    _identity(view, one) for one in members if not one.is_in_sync
                ],
                "syncStateSetEpoch": term,
            }
        return Response(body=encode_body({"replicasInfoTable": table}))

    def handle_replica_info(self, request: Request, peer: Peer) -> Response:
        self._require_leader()
        self._require_own_name(HeaderFields(request).text("brokerName"))
        body = {
            "syncStateSet": [one.broker_id for one in self._view.members() if one.is_in_sync],
            "syncStateSetEpoch": min(self._view.term, _TERM_MAX),
        }
        return Response(fields=self._leader_fields(), body=encode_body(body))

    def handle_elect(self, request: Request, peer: Peer) -> Answer:
        """Hand over to the broker of an id; the answer comes once it leads."""
        self._require_leader()
        fields, view = HeaderFields(request), self._view
        self._require_own_name(fields.text("brokerName", ""))
        broker_id = fields.integer("brokerId", -1)
        target = next((one for one in view.members() if one.broker_id == broker_id), None)
        if target is None or not target.is_alive:
            raise RequestRejected(
                ResponseCode.CONTROLLER_ELECT_MASTER_FAILED,
                f"broker {broker_id} is no living voter of failover group {view.group!r}",
            )
        if target.self_id == view.leader_id:
            raise RequestRejected(
                ResponseCode.CONTROLLER_MASTER_STILL_EXIST,
                f"broker {broker_id} leads failover group {view.group!r} already",
            )
        task = asyncio.get_running_loop().create_task(
            self._elect(target, request, peer), name="elect a master"
        )
        self._elections.add(task)
        task.add_done_callback(self._elections.discard)
        return LATER

    async def _elect(self, target: MemberFacts, request: Request, peer: Peer) -> None:
        view = self._view
        if not await view.hand_over(target.self_id):
            refusal = Response(
                ResponseCode.CONTROLLER_ELECT_MASTER_FAILED,
                f"{target.self_id} did not take over in time: it is slow, or away",
            )
            peer.reply(request, refusal)
            return
        addresses = {str(one.broker_id): one.address for one in view.members() if one.is_alive}
        body = {
            "brokerAddrs": addresses,
            "brokerName": view.broker_name,
            "cluster": view.cluster,
        }
        term = str(min(view.term, _TERM_MAX))
        fields = {
            "masterBrokerId": str(target.broker_id),
            "masterAddress": target.address,
            "masterEpoch": term,
            "syncStateSetEpoch": term,
        }
        peer.reply(request, Response(fields=fields, body=encode_body(body)))

    def _leader_fields(self) -> dict[str, str]:
        return {
            "masterBrokerId": str(self._leader_broker_id()),
            "masterAddress": self._view.leader_address,
            "masterEpoch": str(min(self._view.term, _TERM_MAX)),
        }

    def _leader_broker_id(self) -> int:
        leader = self._view.leader_id
        return next((one.broker_id for one in self._view.members() if one.self_id == leader), -1)

    def _require_leader(self) -> None:
        if not self._view.leads:
            raise RequestRejected(
                ResponseCode.CONTROLLER_NOT_LEADER,
                f"the leader of failover group {self._view.group!r} answers this: ask "
                f"{self._view.leader_address or 'again soon'}",
            )

    def _require_own_name(self, broker_name: str) -> None:
        if broker_name not in ("", self._view.broker_name):
            raise RequestRejected(
                ResponseCode.CONTROLLER_BROKER_METADATA_NOT_EXIST,
                f"this group is that of {self._view.broker_name!r}: {broker_name!r} is unknown",
            )


def _identity(view: GroupView, one: MemberFacts) -> dict[str, object]:
    return {
        "alive": one.is_alive,
        "brokerAddress": one.address,
        "brokerId": one.broker_id,
        "brokerName": view.broker_name,
    }
