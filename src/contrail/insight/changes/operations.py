"""Changes of waiting messages and of brokers: settle, recall, settings, drain, transfer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from contrail.client.admin import Admin
from contrail.client.admin_values import OpenTransaction
from contrail.errors import BrokerRefused, ClientError, NotOnCluster
from contrail.insight.brokers import PERMISSION, permission
from contrail.insight.changes.planned import Change, Hands, Outcome, Planned, command, tried
from contrail.insight.transactions import open_transaction
from contrail.insight.words import perm_text, time_text
from contrail.model.fastjson import loads
from contrail.model.recall_handle import RecallHandle
from contrail.model.topic import Perm
from contrail.protocol.codes import RequestCode, ResponseCode

COMMIT, ROLL_BACK = "commit", "rollback"


@dataclass(frozen=True)
class Settle(Change):
    """Decide an open transaction: its message is delivered, or dropped."""

    broker: str
    transaction_id: str
    fate: str
    action = "settle transaction"

    @property
    def target(self) -> str:
        return f"{self.fate} {self.transaction_id} on {self.broker}"

    async def _found(self, admin: Admin) -> OpenTransaction:
        return await open_transaction(admin, self.broker, self.transaction_id)

    async def plan(self, admin: Admin) -> Planned:
        one = await self._found(admin)
        verb = "delivered" if self.fate == COMMIT else "dropped"
        step = (
            f"message {one.message_id} of producer group {one.producer_group} for topic "
            f"{one.topic} on broker {one.broker_name} is {verb}"
        )
        warning = "its producer is not asked: it may have decided otherwise"
        words = ["tx", self.fate, self.transaction_id]
        return Planned(f"transaction {self.transaction_id}", [step], [warning], command(words))

    async def run(self, hands: Hands) -> list[Outcome]:
        admin = hands.admin
        decide = admin.commit_transaction if self.fate == COMMIT else admin.roll_back_transaction
        return [await tried(self.transaction_id, decide(self.broker, self.transaction_id))]


@dataclass(frozen=True)
class Recall(Change):
    """Take a message back before its time comes."""

    handle: str
    action = "recall timer"

    @property
    def target(self) -> str:
        told = RecallHandle.decode(self.handle)
        return f"{told.unique_key} of {told.topic}"

    async def plan(self, admin: Admin) -> Planned:
        told = RecallHandle.decode(self.handle)
        step = (
            f"message {told.unique_key} for topic {told.topic}, due at "
            f"{time_text(told.deliver_ms)}, is dropped"
        )
        words = ["timer", "recall", self.handle]
        return Planned("take a timed message back", [step], [], command(words))

    async def run(self, hands: Hands) -> list[Outcome]:
        return [await tried(self.target, self._recall(hands.admin), "recalled")]

    async def _recall(self, admin: Admin) -> None:
        if not await admin.recall_timer(self.handle):
            raise ClientError("this broker recalls for producers only: `contrail timer recall`")


@dataclass(frozen=True)
class SetBroker(Change):
    """Change settings of one broker."""

    broker: str
    settings: Mapping[str, str]
    action = "set broker"

    @property
    def target(self) -> str:
        return f"{self.broker} {' '.join(f'{name}={v}' for name, v in self.settings.items())}"

    async def plan(self, admin: Admin) -> Planned:
        known = await admin.broker_config(self.broker)
        missing = sorted(set(self.settings) - set(known))
        if missing:
            raise NotOnCluster(f"broker {self.broker!r} has no setting {', '.join(missing)}")
        steps = [f"{name}: {known[name]} -> {value}" for name, value in self.settings.items()]
        words = ["broker", "config", self.broker]
        words += [
            word for name, value in self.settings.items() for word in ("--set", f"{name}={value}")
        ]
        return Planned(f"settings of broker {self.broker}", steps, [], command(words))

    async def run(self, hands: Hands) -> list[Outcome]:
        work = hands.admin.update_broker_config(self.settings, broker=self.broker)
        return [await tried(self.broker, work)]


@dataclass(frozen=True)
class Drain(Change):
    """Send producers away from a broker, or back to it. It does not wait until none is left."""

    broker: str
    takes_messages: bool
    action = "drain broker"

    @property
    def target(self) -> str:
        return f"{self.broker} {'back in service' if self.takes_messages else 'drained'}"

    async def _perm(self, admin: Admin) -> int:
        known = await permission(admin, self.broker)
        if self.takes_messages:
            return known | int(Perm.READ | Perm.WRITE)
        return known & ~int(Perm.WRITE)

    async def plan(self, admin: Admin) -> Planned:
        before, after = await permission(admin, self.broker), await self._perm(admin)
        steps = [f"{PERMISSION} of {self.broker}: {perm_text(before)} -> {perm_text(after)}"]
        if self.takes_messages:
            words = ["broker", "undrain", self.broker]
            return Planned(f"{self.broker} is back in service", steps, [], command(words))
        steps.insert(0, f"the NameServers keep producers from {self.broker}")
        others = [one for one in await admin.brokers() if one.is_master]
        warnings = ["stop it when no message comes any more: its page shows the rate"]
        if len(others) < 2:
            warnings.append("no other broker takes messages: sends will fail")
        words = ["broker", "drain", self.broker]
        return Planned(
            f"producers are sent away from {self.broker}", steps, warnings, command(words)
        )

    async def run(self, hands: Hands) -> list[Outcome]:
        admin = hands.admin
        found = []
        if not self.takes_messages:
            work = admin.wipe_write_perm(self.broker)
            found.append(await tried("NameServers", work))
        perm = {PERMISSION: str(await self._perm(admin))}
        work_on = admin.update_broker_config(perm, broker=self.broker)
        found.append(await tried(self.broker, work_on, perm_text(int(perm[PERMISSION]))))
        return found


@dataclass(frozen=True)
class Transfer(Change):
    """Hand the leadership of a failover group over to another member that has the whole log."""

    broker: str
    to: str | None = None
    action = "transfer leadership"

    @property
    def target(self) -> str:
        return f"{self.broker} to {self.to or 'any member in sync'}"

    async def plan(self, admin: Admin) -> Planned:
        leader_id, _, broker_id = await self._found(admin)
        step = f"member {leader_id} of {self.broker} hands over to n{broker_id - 1}"
        words = ["replication", "transfer", self.broker, *(["--to", self.to] if self.to else [])]
        return Planned("the leader changes", [step], [], command(words))

    async def _found(self, admin: Admin) -> tuple[str, str, int]:
        """The leader's id and address, and the broker id of the member that is to lead."""
        try:
            answer = await admin.ask_broker(self.broker, RequestCode.CONTROLLER_GET_METADATA_INFO)
        except BrokerRefused as error:
            if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise ClientError(f"{self.broker} is no failover group") from error
            raise
        leader_id = answer.fields["controllerLeaderId"]
        leader_address = answer.fields["controllerLeaderAddress"]
        code = RequestCode.CONTROLLER_GET_SYNC_STATE_DATA
        body = json.dumps([self.broker]).encode()
        told: Any = loads((await admin.ask_broker(leader_address, code, None, body)).body)
        in_sync = told["replicasInfoTable"][self.broker]["inSyncReplicas"]
        members = {f"n{int(one['brokerId']) - 1}": int(one["brokerId"]) for one in in_sync}
        members.pop(leader_id, None)
        if not members or (self.to and self.to not in members):
            raise ClientError(
                f"{self.to or 'no member'} cannot take over from {leader_id}; members that have "
                f"the whole log: {', '.join(sorted(members)) or 'none'}"
            )
        return leader_id, leader_address, members[self.to or min(members)]

    async def run(self, hands: Hands) -> list[Outcome]:
        _, address, target = await self._found(hands.admin)
        fields = {"brokerName": self.broker, "brokerId": str(target)}
        code = RequestCode.CONTROLLER_ELECT_MASTER
        return [await tried(f"n{target - 1}", hands.admin.ask_broker(address, code, fields))]
