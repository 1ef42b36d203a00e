"""The broker's settings as they are now: a closed list of them may be changed while it runs."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import NamedTuple

from contrail.broker.config import BrokerConfig, BrokerRole
from contrail.broker.state.watched import Watched
from contrail.errors import ConfigError, RequestRejected
from contrail.model.data_version import DataVersion
from contrail.protocol.codes import ResponseCode

_INT_MAX = (1 << 31) - 1
_LONG_MAX = (1 << 63) - 1
_NUMBER = re.compile(r"[0-9]{1,19}")


class Changeable(NamedTuple):
    """A setting that may change at run time; a number has bounds, a switch has none."""

    field: str
    lowest: int = 0
    highest: int | None = None
    # The value that lets clients do least, of a setting that gives clients rights.
    closed: str | None = None


# By RocketMQ's property name. Nothing that names a path, address, port, class or command may ever
# stand here: a remote request must not steer where the broker writes or connects to.
CHANGEABLE: Mapping[str, Changeable] = {
    "brokerPermission": Changeable("permission", 0, 7, closed="0"),
    "autoCreateTopicEnable": Changeable("auto_create_topic", closed="false"),
    "autoCreateSubscriptionGroup": Changeable("auto_create_group", closed="false"),
    "defaultTopicQueueNums": Changeable("default_topic_queue_count", 1, 1024),
    "contrailAutoTopicsMax": Changeable("auto_topic_count_max", 0, 1_000_000),
    "contrailAutoTopicsPerSecond": Changeable("auto_topics_per_second_max", 0, 1_000_000),
    "contrailAutoGroupsMax": Changeable("auto_group_count_max", 0, 1_000_000),
    "contrailAutoCreateShare": Changeable("auto_create_share", 1, 100),
    "contrailAutoGroupsPerSecond": Changeable("auto_groups_per_second_max", 0, 1_000_000),
    "contrailDeadLetterPerm": Changeable("dead_letter_perm", 0, 6, closed="0"),
    "traceOn": Changeable("trace_on"),
    "enablePropertyFilter": Changeable("property_filter"),
    "filterSupportRetry": Changeable("filter_support_retry"),
    "litePullMessageEnable": Changeable("lite_pull_enabled", closed="false"),
    "slaveReadEnable": Changeable("slave_read_enabled", closed="false"),
    "longPollingEnable": Changeable("long_polling"),
    "shortPollingTimeMills": Changeable("short_polling_ms", 1, 60_000),
    "notifyConsumerIdsChangedEnable": Changeable("notify_consumer_ids_changed"),
    "useServerSideResetOffset": Changeable("server_side_reset"),
    "maxTransferCountOnMessageInMemory": Changeable("transfer_count_in_memory_max", 1, 4096),
    "maxTransferBytesOnMessageInMemory": Changeable("transfer_bytes_in_memory_max", 1024, 8 << 20),
    "maxTransferCountOnMessageInDisk": Changeable("transfer_count_on_disk_max", 1, 4096),
    "maxTransferBytesOnMessageInDisk": Changeable("transfer_bytes_on_disk_max", 1024, 8 << 20),
    "accessMessageInMemoryMaxRatio": Changeable("memory_ratio_max", 1, 100),
    "popPollingSize": Changeable("pop_waiters_per_key_max", 0, 1_000_000),
    "maxPopPollingSize": Changeable("pop_waiters_max", 0, 1_000_000),
    "popFromRetryProbability": Changeable("pop_retry_probability", 0, 100),
    "enableRetryTopicV2": Changeable("pop_retry_v2"),
    "contrailPopDeadLetterEnable": Changeable("pop_dead_letters"),
    "retrieveMessageFromPopRetryTopicV1": Changeable("pop_reads_retry_v1"),
    "popResponseReturnActualRetryTopic": Changeable("pop_returns_retry_topic"),
    "initPopOffsetByCheckMsgInMem": Changeable("pop_starts_in_memory"),
    "serverLoadBalancerEnable": Changeable("assigns_queues"),
    "rejectTransactionMessage": Changeable("transactions_rejected", closed="true"),
    "waitTimeMillsInSendQueue": Changeable("send_wait_ms_max", 1, 600_000),
    "waitTimeMillsInPullQueue": Changeable("pull_wait_ms_max", 1, 600_000),
    "brokerFastFailureEnable": Changeable("fast_failure"),
    "contrailParkedPullsMax": Changeable("parked_pulls_max", 0, 1_000_000),
    # RocketMQ itself keeps the period between ten seconds and a minute.
    "registerNameServerPeriod": Changeable("register_interval_ms", 10_000, 60_000),
    "forceRegister": Changeable("force_register"),
    "flushConsumerOffsetInterval": Changeable("flush_consumer_offset_ms", 100, 600_000),
    "channelExpiredTimeout": Changeable("channel_expired_ms", 10_000, _INT_MAX),
    "startAcceptSendRequestTimeStamp": Changeable("accept_sends_after_ms", 0, _LONG_MAX),
}

_SHIELDED = re.compile(
    r"path|dir(?![a-z])|folder|home|addr|listen|host|port(?![a-z])|ip\d|class|command|script|"
    r"shell|plugin|black|acl|auth|tls|secret|password|key(?![a-z])",
    re.IGNORECASE,
)
_KNOWN = frozenset(str(field.metadata["apache"]) for field in dataclasses.fields(BrokerConfig))


class RuntimeSettings(Watched):
    """Holds the current ``BrokerConfig``; ``epoch`` grows with each change."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        fixed_names: frozenset[str] = frozenset(),
        data_version: DataVersion | None = None,
    ) -> None:
        """``fixed_names`` are settings of other rooms, known but never changed here."""
        super().__init__()
        self.config = config
        self.data_version = data_version or DataVersion()
        self.changed: Mapping[str, str] = {}
        self._fixed_names = fixed_names | (_KNOWN - set(CHANGEABLE))

    def change(self, properties: Mapping[str, str], now_ms: int) -> dict[str, tuple[str, str]]:
        """Apply all of ``properties`` or, if one is refused, none; returns old and new values.

        Raises:
            RequestRejected: a setting is not changeable, unknown, or its value wrong.
        """
        old = self.config
        self.config, texts = self._plan(properties)
        self.changed = {**self.changed, **texts}
        self.data_version = self.data_version.bump(now_ms)
        self.moved()
        return {
            name: (setting_text(getattr(old, CHANGEABLE[name].field)), text)
            for name, text in texts.items()
        }

    def take_role(self, role: BrokerRole, broker_id: int) -> None:
        """The role of this broker is another one from now on."""
        self.config = dataclasses.replace(self.config, role=role, broker_id=broker_id)
        self.moved()

    def checked(self, properties: Mapping[str, str]) -> dict[str, str]:
        """The texts that a file keeps of ``properties``; raises as ``change``, and changes nothing.

        They are our own: text that a request wrote around a number must not reach the file.
        """
        return self._plan(properties)[1]

    def _plan(self, properties: Mapping[str, str]) -> tuple[BrokerConfig, dict[str, str]]:
        new = {CHANGEABLE[self._require(name)].field: name for name in properties}
        values = {field: self._parse(name, properties[name]) for field, name in new.items()}
        try:
            config = dataclasses.replace(self.config, **values)  # type: ignore[arg-type]
        except ConfigError as error:
            raise RequestRejected(ResponseCode.SYSTEM_ERROR, str(error)) from error
        return config, {name: setting_text(values[field]) for field, name in new.items()}

    def _require(self, name: str) -> str:
        if name in CHANGEABLE:
            return name
        if name in self._fixed_names or _SHIELDED.search(name):
            raise RequestRejected(
                ResponseCode.NO_PERMISSION,
                f"{name} cannot be changed while the broker runs; set it in its file and restart",
            )
        raise RequestRejected(
            ResponseCode.SYSTEM_ERROR, f"{name} is no setting of this broker; check its spelling"
        )

    def _parse(self, name: str, text: str) -> bool | int:
        setting = CHANGEABLE[name]
        if setting.highest is None:
            return _parse_switch(name, text)
        value = int(text) if _NUMBER.fullmatch(text.strip()) else -1
        if not setting.lowest <= value <= setting.highest:
            raise _wrong_value(name, text, f"a number from {setting.lowest} to {setting.highest}")
        return value


def _parse_switch(name: str, text: str) -> bool:
    word = text.strip().lower()
    if word not in ("true", "false"):
        raise _wrong_value(name, text, "true or false")
    return word == "true"


def _wrong_value(name: str, text: str, wanted: str) -> RequestRejected:
    return RequestRejected(
        ResponseCode.SYSTEM_ERROR, f"{name}={text[:80]!r} is refused: it must be {wanted}"
    )


def setting_text(value: object) -> str:
    """A setting's value as RocketMQ's properties files write it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(str(item) for item in value)
    return str(value)
