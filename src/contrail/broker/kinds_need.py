"""The parts that the services behind the message kinds are made from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from contrail.broker.handlers.found_records import FoundRecords
from contrail.broker.services.acknowledgements import Acknowledgements
from contrail.broker.services.deliveries import Deliveries
from contrail.broker.services.far_reads import FarReads
from contrail.broker.services.send_admission import SendAdmission
from contrail.broker.state.client_channels import ClientChannel
from contrail.broker.state.escaped import Escaped
from contrail.broker.state.placement import TimerRules
from contrail.broker.state.recall_seal import RecallSeal
from contrail.broker.state.stats import BrokerStats
from contrail.broker.state.ways import Ways
from contrail.broker.tables import Tables
from contrail.clock import Clock
from contrail.runtime.files import FileSystem
from contrail.store import MessageStore, StoreConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class KindsNeed:
    """The parts of the broker that its services get."""

    tables: Tables
    store: MessageStore
    store_config: StoreConfig
    files: FileSystem
    admission: SendAdmission
    deliveries: Deliveries
    answers: Acknowledgements
    far_reads: FarReads
    stats: BrokerStats
    clock: Clock
    address: str
    store_host: bytes
    timer_rules: TimerRules
    recall_seal: RecallSeal
    ways: Ways
    # The messages that a slave handed to other brokers while the master was away.
    escaped: Escaped
    # Whether this broker delivers; a slave leaves that to its master.
    leads: bool
    # Whether this broker is a member of a failover group, and delivers while it leads.
    in_group: bool
    # Why sends are turned away now, if they are.
    busy_reason: Callable[[], str | None]
    # The rights on records that requests find.
    records: FoundRecords
    # Whether a producer may see half messages of a topic.
    may_check: Callable[[ClientChannel, str], bool]
    # Has another tick come soon.
    wake: Callable[[], object]
