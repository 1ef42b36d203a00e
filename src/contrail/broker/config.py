"""The broker's settings: one frozen value, under RocketMQ's own property names too."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from contrail.errors import ConfigError
from contrail.model.settings import require_sound, setting
from contrail.model.topic import NAME_PATTERN
from contrail.protocol.prometheus_text import MetricsExporter, parse_labels


class FastPath(StrEnum):
    """Whether requests may take a way of their own between socket and log."""

    ON = "on"
    OFF = "off"


class BrokerRole(StrEnum):
    """A broker's role among those that share its name; see ``ReplicationConfig``."""

    ASYNC_MASTER = "ASYNC_MASTER"
    SYNC_MASTER = "SYNC_MASTER"
    SLAVE = "SLAVE"

    @property
    def leads(self) -> bool:
        """Whether a broker of this role takes messages."""
        return self is not BrokerRole.SLAVE


class RequestMode(StrEnum):
    """How a group asks for a topic's messages."""

    PULL = "PULL"
    POP = "POP"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """Everything the broker room can be told. Each field names its RocketMQ property."""

    broker_name: str = setting("brokerName", "broker-a")
    cluster_name: str = setting("brokerClusterName", "DefaultCluster")
    broker_id: int = setting("brokerId", 0, lowest=0)
    role: BrokerRole = setting("brokerRole", BrokerRole.ASYNC_MASTER)  # noqa: RUF009
    broker_ip: str = setting("brokerIP1", "127.0.0.1")
    listen_address: str = setting("listenAddress", "127.0.0.1")
    listen_port: int = setting("listenPort", 10911, lowest=0, highest=65535)
    name_servers: str = setting("namesrvAddr", "")
    permission: int = setting("brokerPermission", 6, lowest=0, highest=7)
    cluster_allow_list: str = setting("contrailClusterAllowList", "")

    auto_create_topic: bool = setting("autoCreateTopicEnable", True)
    auto_create_group: bool = setting("autoCreateSubscriptionGroup", True)
    default_topic_queue_count: int = setting("defaultTopicQueueNums", 8, lowest=1, highest=1024)
    auto_topic_count_max: int = setting("contrailAutoTopicsMax", 1000, lowest=0)
    auto_topics_per_second_max: int = setting("contrailAutoTopicsPerSecond", 10, lowest=0)
    auto_group_count_max: int = setting("contrailAutoGroupsMax", 10_000, lowest=0)
    auto_create_share: int = setting("contrailAutoCreateShare", 25, lowest=1, highest=100)
    auto_groups_per_second_max: int = setting("contrailAutoGroupsPerSecond", 1000, lowest=0)
    dead_letter_perm: int = setting("contrailDeadLetterPerm", 6, lowest=0, highest=6)
    cluster_topic_enabled: bool = setting("clusterTopicEnable", True)
    broker_topic_enabled: bool = setting("brokerTopicEnable", True)
    trace_topic_enabled: bool = setting("traceTopicEnable", False)
    trace_topic: str = setting("msgTraceTopicName", "RMQ_SYS_TRACE_TOPIC")
    trace_on: bool = setting("traceOn", True)
    broker_trace_enabled: bool = setting("contrailBrokerTraceEnable", False)
    region: str = setting("regionId", "DefaultRegion")

    property_filter: bool = setting("enablePropertyFilter", True)
    filter_support_retry: bool = setting("filterSupportRetry", False)
    lite_pull_enabled: bool = setting("litePullMessageEnable", True)
    slave_read_enabled: bool = setting("slaveReadEnable", False)
    long_polling: bool = setting("longPollingEnable", True)
    short_polling_ms: int = setting("shortPollingTimeMills", 1000, lowest=1, highest=60000)
    notify_consumer_ids_changed: bool = setting("notifyConsumerIdsChangedEnable", True)
    server_side_reset: bool = setting("useServerSideResetOffset", True)
    transfer_count_in_memory_max: int = setting(
        "maxTransferCountOnMessageInMemory", 32, lowest=1, highest=4096
    )
    transfer_bytes_in_memory_max: int = setting(
        "maxTransferBytesOnMessageInMemory", 262_144, lowest=1024, highest=8388608
    )
    transfer_count_on_disk_max: int = setting(
        "maxTransferCountOnMessageInDisk", 8, lowest=1, highest=4096
    )
    transfer_bytes_on_disk_max: int = setting(
        "maxTransferBytesOnMessageInDisk", 65_536, lowest=1024, highest=8388608
    )
    memory_ratio_max: int = setting("accessMessageInMemoryMaxRatio", 40, lowest=1, highest=100)
    transactions_rejected: bool = setting("rejectTransactionMessage", False)
    transaction_timeout_ms: int = setting("transactionTimeOut", 6000, lowest=1)
    transaction_check_count_max: int = setting("transactionCheckMax", 15, lowest=1)
    transaction_check_interval_ms: int = setting("transactionCheckInterval", 30_000, lowest=100)
    replies_stored: bool = setting("storeReplyMessageEnable", True)
    recall_enabled: bool = setting("recallMessageEnable", True)
    deletion_names_topic: bool = setting("appendTopicForTimerDeleteKey", False)

    pop_waiters_per_key_max: int = setting("popPollingSize", 1024, lowest=0)
    pop_waiters_max: int = setting("maxPopPollingSize", 100_000, lowest=0)
    pop_retry_probability: int = setting("popFromRetryProbability", 20, lowest=0, highest=100)
    pop_retry_v2: bool = setting("enableRetryTopicV2", False)
    pop_reads_retry_v1: bool = setting("retrieveMessageFromPopRetryTopicV1", True)
    pop_returns_retry_topic: bool = setting("popResponseReturnActualRetryTopic", False)
    pop_starts_in_memory: bool = setting("initPopOffsetByCheckMsgInMem", True)
    pop_grace_ms: int = setting("contrailPopGraceMs", 1000, lowest=0, highest=60000)
    pop_dead_letters: bool = setting("contrailPopDeadLetterEnable", False)
    assigns_queues: bool = setting("serverLoadBalancerEnable", True)
    default_request_mode: RequestMode = setting(  # noqa: RUF009
        "defaultMessageRequestMode", RequestMode.PULL
    )
    default_pop_share_count: int = setting("defaultPopShareQueueNum", -1, lowest=-1)

    sink_retention_ms: int = setting("contrailSinkRetentionMs", 30 * 86_400_000, lowest=1)

    send_wait_ms_max: int = setting("waitTimeMillsInSendQueue", 200, lowest=1)
    pull_wait_ms_max: int = setting("waitTimeMillsInPullQueue", 5000, lowest=1)
    fast_failure: bool = setting("brokerFastFailureEnable", True)
    fast_path: FastPath = setting("contrailFastPath", FastPath.ON)  # noqa: RUF009
    parked_pulls_max: int = setting("contrailParkedPullsMax", 100_000, lowest=0)
    register_interval_ms: int = setting(
        "registerNameServerPeriod", 30_000, lowest=10000, highest=60000
    )
    register_timeout_ms: int = setting("registerBrokerTimeoutMills", 24_000, lowest=100)
    register_compressed: bool = setting("compressedRegister", False)
    force_register: bool = setting("forceRegister", True)
    flush_consumer_offset_ms: int = setting("flushConsumerOffsetInterval", 5000, lowest=100)
    channel_expired_ms: int = setting("channelExpiredTimeout", 120_000, lowest=1000)
    accept_sends_after_ms: int = setting("startAcceptSendRequestTimeStamp", 0, lowest=0)

    metrics_exporter: MetricsExporter = setting(  # noqa: RUF009
        "metricsExporterType", MetricsExporter.PROM
    )
    metrics_address: str = setting("metricsPromExporterHost", "127.0.0.1")
    metrics_port: int = setting("metricsPromExporterPort", 5557, lowest=0, highest=65535)
    metrics_labels: str = setting("metricsLabel", "")
    queue_lag_metrics: bool = setting("contrailQueueLagMetrics", False)

    def __post_init__(self) -> None:
        require_sound(self)
        parse_labels("metricsLabel", self.metrics_labels)
        _require_id_of_role(self.broker_id, self.role)
        if self.dead_letter_perm % 2:
            raise ConfigError(
                f"contrailDeadLetterPerm={self.dead_letter_perm} is refused: it must be 6 (read "
                "and written), 4 (read), 2 (written) or 0 (neither)"
            )
        names = {
            "brokerName": self.broker_name,
            "brokerClusterName": self.cluster_name,
            "regionId": self.region,
        }
        for name, text in names.items():
            if not NAME_PATTERN.fullmatch(text):
                raise ConfigError(f"{name}={text!r} may hold only letters, digits and % | _ -")


def _require_id_of_role(broker_id: int, role: BrokerRole) -> None:
    if role.leads and broker_id > 0:
        raise ConfigError(
            f"brokerId={broker_id} with brokerRole={role} is refused: a master has brokerId=0; "
            "for a slave set brokerRole=SLAVE"
        )
    if not role.leads and broker_id == 0:
        raise ConfigError(
            "brokerId=0 with brokerRole=SLAVE is refused: 0 is the master's; give each slave of "
            "a brokerName an id of its own, from 1 on"
        )
