"""The answer to GET_BROKER_HA_STATUS: how replication stands, as its master or its slave sees it.

Fields that begin with ``contrail`` are ours; RocketMQ's readers pass over them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from contrail.model.fastjson import Fields
from contrail.protocol.json_style import body_errors, decode_body, encode_body

UNKNOWN_MS = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class SlaveLink:
    """One slave's connection, as its master sees it."""

    address: str
    acknowledged_end: int
    lag_bytes: int
    in_sync: bool
    bytes_per_second: int = 0
    sent_end: int = 0
    broker_id: int | None = None
    lag_ms: int = UNKNOWN_MS
    state: str = ""

    def to_fields(self) -> dict[str, object]:
        return {
            "addr": self.address,
            "diff": self.lag_bytes,
            "inSync": self.in_sync,
            "slaveAckOffset": self.acknowledged_end,
            "transferFromWhere": self.sent_end,
            "transferredByteInSecond": self.bytes_per_second,
            "contrailBrokerId": self.broker_id,
            "contrailLagMs": self.lag_ms,
            "contrailState": self.state,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class MasterLink:
    """A slave's connection to its master, as the slave sees it."""

    master_address: str = ""
    physical_end: int = 0
    bytes_per_second: int = 0
    last_read_ms: int = 0
    last_write_ms: int = 0
    master_flushed_end: int = 0
    is_active: bool = False
    state: str = ""
    problem: str = ""
    # The problem in one word, as its master counts it.
    problem_reason: str = ""
    # Of a slave that has diverged: what moves its log aside, once it is stopped.
    rebuild_command: str = ""

    def to_fields(self) -> dict[str, object]:
        return {
            "activated": self.is_active,
            "lastReadTimestamp": self.last_read_ms,
            "lastWriteTimestamp": self.last_write_ms,
            "masterAddr": self.master_address,
            "masterFlushOffset": self.master_flushed_end,
            "maxOffset": self.physical_end,
            "transferredByteInSecond": self.bytes_per_second,
            "contrailState": self.state,
            "contrailProblem": self.problem,
            "contrailProblemReason": self.problem_reason,
            "contrailRebuildCommand": self.rebuild_command,
        }


@dataclass(frozen=True, slots=True)
class LastRefusal:
    """Why a master ended the link of a slave the last time, and how long ago."""

    reason: str
    text: str
    ago_ms: int

    def to_fields(self) -> dict[str, object]:
        return {"reason": self.reason, "text": self.text, "agoMs": self.ago_ms}


LEADER_ROLE = "LEADER"
GROUP_ROLES = frozenset({LEADER_ROLE, "TAKING_OVER", "FOLLOWER", "CANDIDATE", "JOINER"})
"""``HaStatus.role`` of members of failover groups."""

ACTS_AS_MASTER = "acts as master"
"""``HaStatus.acting`` of a slave that delivers, after taking over and before handing back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HaStatus:
    """How replication of one broker stands.

    ``refusals`` counts the links that a master ended, by reason. ``acting`` is how far a slave is
    with its master's work, empty while it does none. A member of a failover group tells its term,
    and how far the clocks of the others are ahead of its own.
    """

    is_master: bool
    physical_end: int
    in_sync_slaves: int = 0
    slaves: tuple[SlaveLink, ...] = ()
    master: MasterLink = field(default_factory=MasterLink)
    role: str = ""
    acknowledged_end: int = 0
    required_replicas: int = 1
    total_replicas: int = 1
    refusals: Mapping[str, int] = field(default_factory=dict)
    last_refusal: LastRefusal | None = None
    acting: str = ""
    term: int = 0
    clock_skews_ms: Mapping[str, int] = field(default_factory=dict)

    def encode(self) -> bytes:
        return encode_body(
            {
                "haClientRuntimeInfo": self.master.to_fields(),
                "haConnectionInfo": [slave.to_fields() for slave in self.slaves],
                "inSyncSlaveNums": self.in_sync_slaves,
                "master": self.is_master,
                "masterCommitLogMaxOffset": self.physical_end if self.is_master else 0,
                "contrailRole": self.role,
                "contrailAcknowledgedEnd": self.acknowledged_end,
                "contrailRequiredReplicas": self.required_replicas,
                "contrailTotalReplicas": self.total_replicas,
                "contrailRefusals": dict(self.refusals),
                "contrailActing": self.acting,
                "contrailTerm": self.term,
                "contrailClockSkews": dict(self.clock_skews_ms),
                "contrailLastRefusal": self.last_refusal and self.last_refusal.to_fields(),
            }
        )


def decode_ha_status(body: bytes) -> HaStatus:
    """The status that a broker answers; one of Apache leaves out our own fields.

    Raises:
        RequestRejected: the body is no such answer.
    """
    what = "a status of replication"
    fields = decode_body(body, what, is_table=True)
    with body_errors(what):
        slaves = tuple(
            _slave_link(Fields(entry, "a slave")) for entry in fields.array("haConnectionInfo")
        )
        is_master = fields.boolean("master", False)
        master = _master_link(fields.child("haClientRuntimeInfo"))
        end = fields.integer("masterCommitLogMaxOffset", 0)
        return HaStatus(
            is_master=is_master,
            physical_end=end if is_master else master.physical_end,
            in_sync_slaves=fields.integer("inSyncSlaveNums", 0),
            slaves=slaves,
            master=master,
            role=fields.text("contrailRole", ""),
            acknowledged_end=fields.integer("contrailAcknowledgedEnd", 0),
            required_replicas=fields.integer("contrailRequiredReplicas", 1),
            total_replicas=fields.integer("contrailTotalReplicas", 1),
            refusals=fields.integers("contrailRefusals"),
            acting=fields.text("contrailActing", ""),
            term=fields.integer("contrailTerm", 0),
            clock_skews_ms=fields.integers("contrailClockSkews"),
            last_refusal=_last_refusal(fields.child("contrailLastRefusal")),
        )


def _last_refusal(fields: Fields | None) -> LastRefusal | None:
    if fields is None:
        return None
    return LastRefusal(
        fields.text("reason", ""), fields.text("text", ""), fields.integer("agoMs", 0)
    )


def _slave_link(fields: Fields) -> SlaveLink:
    broker_id = fields.integer("contrailBrokerId", 0)
    return SlaveLink(
        address=fields.text("addr", ""),
        acknowledged_end=fields.integer("slaveAckOffset", 0),
        lag_bytes=fields.integer("diff", 0),
        in_sync=fields.boolean("inSync", False),
        bytes_per_second=fields.integer("transferredByteInSecond", 0),
        sent_end=fields.integer("transferFromWhere", 0),
        broker_id=broker_id or None,
        lag_ms=fields.integer("contrailLagMs", UNKNOWN_MS),
        state=fields.text("contrailState", ""),
    )


def _master_link(fields: Fields | None) -> MasterLink:
    if fields is None:
        return MasterLink()
    return MasterLink(
        master_address=fields.text("masterAddr", ""),
        physical_end=fields.integer("maxOffset", 0),
        bytes_per_second=fields.integer("transferredByteInSecond", 0),
        last_read_ms=fields.integer("lastReadTimestamp", 0),
        last_write_ms=fields.integer("lastWriteTimestamp", 0),
        master_flushed_end=fields.integer("masterFlushOffset", 0),
        is_active=fields.boolean("activated", False),
        state=fields.text("contrailState", ""),
        problem=fields.text("contrailProblem", ""),
        problem_reason=fields.text("contrailProblemReason", ""),
        rebuild_command=fields.text("contrailRebuildCommand", ""),
    )
