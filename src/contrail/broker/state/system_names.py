"""The topics and consumer groups of the broker itself, and the data requests that may name them.

A topic of the system is closed unless clients must reach it: no data request reads it, and only
brokers of the cluster write to it. A group of the system is closed to every data request. Every
admission of data requests asks here: ``SendAdmission`` and ``PullAdmission`` before a topic or pull
becomes known to a fast way, ``handlers.system_guard`` for requests that name topics and groups in
their header, and the handlers of requests that name them in a body or by a record.

==========================  ====  =======  =================================================
topic                       read  written  because
==========================  ====  =======  =================================================
trace topics                yes   yes      producers and consumers write their traces there
``BenchmarkTest``           yes   yes      RocketMQ's benchmark programs use it
``<cluster>_REPLY_TOPIC``   yes   yes      responders address their replies to it
``%RETRY%``, ``%DLQ%``      yes   yes      a group's own, unless the group is the system's
name of cluster, of broker  no    yes      ``mqadmin clusterRT``, ``sendMsgStatus`` send there
``OFFSET_MOVED_EVENT``      no    no       heartbeats may subscribe: ``mqadmin startMonitoring``
every other                 no    no       its messages are undecided, not due, or the broker's
==========================  ====  =======  =================================================

``TBW102`` is closed too: producers need its route, which NameServers tell, and name it as the
template of a topic to be made, which is no access to the topic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from contrail.errors import RequestRejected
from contrail.model.group import is_system_group
from contrail.model.topic import (
    OFFSET_MOVED_TOPIC,
    TRANSACTION_EXHAUSTED_TOPIC,
    is_closed_topic,
)
from contrail.protocol.codes import RequestCode, ResponseCode


class Named(NamedTuple):
    """Header fields of a data request that name topics and consumer groups."""

    topics: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    writes: bool = False
    # Names in its body, or the topic of the record that it asks for: its handler looks at them.
    elsewhere: bool = False


_NOTHING = Named()
_TOPIC = Named(("topic",))
_PROGRESS = Named(("topic",), ("consumerGroup",))
_SEND = Named(("topic",), writes=True)
_SEND_V2 = Named(("b",), writes=True)
_BODY = Named(elsewhere=True)

NAMED: Mapping[RequestCode, Named] = MappingProxyType(
    {
        RequestCode.SEND_MESSAGE: _SEND,
        RequestCode.SEND_MESSAGE_V2: _SEND_V2,
        RequestCode.SEND_BATCH_MESSAGE: _SEND_V2,
        RequestCode.SEND_REPLY_MESSAGE: _SEND,
        RequestCode.SEND_REPLY_MESSAGE_V2: _SEND_V2,
        RequestCode.RECALL_MESSAGE: _SEND,
        RequestCode.CONTRAIL_SINK_SEND: _SEND,
        RequestCode.CONTRAIL_SINK_BEGIN: _BODY,
        RequestCode.PULL_MESSAGE: _PROGRESS,
        RequestCode.LITE_PULL_MESSAGE: _PROGRESS,
        RequestCode.QUERY_CONSUMER_OFFSET: _PROGRESS,
        RequestCode.UPDATE_CONSUMER_OFFSET: _PROGRESS,
        RequestCode.QUERY_MESSAGE: _TOPIC,
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: _TOPIC,
        RequestCode.GET_MAX_OFFSET: _TOPIC,
        RequestCode.GET_MIN_OFFSET: _TOPIC,
        RequestCode.GET_EARLIEST_MSG_STORETIME: _TOPIC,
        RequestCode.VIEW_MESSAGE_BY_ID: _BODY,
        RequestCode.CONSUMER_SEND_MSG_BACK: Named(groups=("group",), elsewhere=True),
        # The half message that it names was admitted when it was sent.
        RequestCode.END_TRANSACTION: _BODY,
        RequestCode.HEART_BEAT: _BODY,
        RequestCode.UNREGISTER_CLIENT: Named(groups=("consumerGroup",)),
        RequestCode.CHECK_CLIENT_CONFIG: _BODY,
        RequestCode.GET_CONSUMER_LIST_BY_GROUP: Named(groups=("consumerGroup",)),
        RequestCode.LOCK_BATCH_MQ: _BODY,
        RequestCode.UNLOCK_BATCH_MQ: _BODY,
        # A batch of a sink names the sink; its topics came with CONTRAIL_SINK_BEGIN.
        RequestCode.CONTRAIL_SINK_COMMIT: _NOTHING,
        RequestCode.CONTRAIL_SINK_ABORT: _NOTHING,
        RequestCode.CONTRAIL_SINK_STATUS: _NOTHING,
        # Not served by a broker: NameServers tell routes, the others are asked of clients.
        RequestCode.GET_ROUTEINFO_BY_TOPIC: _NOTHING,
        RequestCode.CHECK_TRANSACTION_STATE: _NOTHING,
        RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: _NOTHING,
        RequestCode.RESET_CONSUMER_CLIENT_OFFSET: _NOTHING,
        RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: _NOTHING,
        RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: _NOTHING,
        # Requests of these that are not served yet find their names here when they are.
        RequestCode.QUERY_ASSIGNMENT: _PROGRESS,
        RequestCode.POP_MESSAGE: _PROGRESS,
        RequestCode.ACK_MESSAGE: _PROGRESS,
        RequestCode.PEEK_MESSAGE: _PROGRESS,
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME: _PROGRESS,
        RequestCode.NOTIFICATION: _PROGRESS,
        RequestCode.POLLING_INFO: _PROGRESS,
        RequestCode.BATCH_ACK_MESSAGE: _BODY,
        RequestCode.POP_LITE_MESSAGE: _PROGRESS,
        RequestCode.LITE_SUBSCRIPTION_CTL: _BODY,
        RequestCode.ACK_LITE_MESSAGE: _PROGRESS,
        RequestCode.NOTIFY_UNSUBSCRIBE_LITE: _NOTHING,
    }
)
"""Every data code with the header fields by which it names topics and groups."""


class SystemNames:
    """Decides for one broker."""

    def __init__(
        self,
        *,
        open_topics: frozenset[str] = frozenset(),
        write_only: frozenset[str] = frozenset(),
        is_of_the_cluster: Callable[[str], bool] = lambda address: False,
    ) -> None:
        """``open_topics`` are the topic of traces and that of replies, by the broker's settings.

        ``write_only`` holds the names of cluster and broker.
        ``is_of_the_cluster`` tells by a peer's address whether it is a broker of the cluster.
        """
        self._open = open_topics
        self._write_only = write_only
        self._is_of_the_cluster = is_of_the_cluster

    def is_closed(self, topic: str) -> bool:
        """Whether no data request may read the topic."""
        if topic in self._write_only:
            return True
        return is_closed_topic(topic) and topic not in self._open

    def require_readable(self, topic: str) -> None:
        """Raises ``RequestRejected`` for a topic that no data request may read."""
        if self.is_closed(topic):
            raise RequestRejected(ResponseCode.NO_PERMISSION, _closed_topic(topic, "read"))

    def require_subscribable(self, topic: str) -> None:
        """As ``require_readable``, for a heartbeat: a subscription alone reads nothing."""
        if topic != OFFSET_MOVED_TOPIC:
            self.require_readable(topic)

    def require_writable(self, topic: str, address: str) -> None:
        """Raises ``RequestRejected`` for a topic that the peer at ``address`` may not write to."""
        if not self.is_closed(topic) or topic in self._write_only:
            return
        if not self._is_of_the_cluster(address):
            raise RequestRejected(ResponseCode.NO_PERMISSION, _closed_topic(topic, "written to"))

    def require_group(self, group: str) -> None:
        """Raises ``RequestRejected`` for a group of the system."""
        if is_system_group(group):
            raise RequestRejected(
                ResponseCode.NO_PERMISSION,
                f"consumer group {group!r} is the broker's own: choose another group",
            )

    def require_viewable(self, topic: str, *, by_operator: bool) -> None:
        """As ``require_readable``, for a message that is asked for by its place in the log.

        ``mqadmin resumeCheckHalfMessage`` looks at a transaction that was given up before it asks
        for another check, which is administration, as this is.
        """
        if not (by_operator and topic == TRANSACTION_EXHAUSTED_TOPIC):
            self.require_readable(topic)

    def require_named(self, code: RequestCode, fields: Mapping[str, str], address: str) -> None:
        """Refuse a request whose header names a closed topic or group."""
        named = NAMED[code]
        for name in named.groups:
            self.require_group(fields.get(name, ""))
        for name in named.topics:
            topic = fields.get(name, "")
            if named.writes:
                self.require_writable(topic, address)
            else:
                self.require_readable(topic)


def _closed_topic(topic: str, done: str) -> str:
    return (
        f"topic {topic!r} is the broker's own and is not {done} by clients; operators look at "
        "waiting messages with `contrail timer list` and `contrail tx list`"
    )
