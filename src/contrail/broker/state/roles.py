"""The requests that a slave serves, and its answers to the others.

A slave's log and tables are its master's. Every request that would add to them is refused: a code
must be named here to be served. Sends and pulls are refused as RocketMQ 5.x refuses them (2, so
that clients try another broker), the end of a transaction by its own code (11), all else by 14.
"""

from __future__ import annotations

from contrail.protocol.codes import CODE_CLASSES, CodeClass, RequestCode, ResponseCode

PULLS = frozenset({RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE})
_SENDS = frozenset(
    {
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE_V2,
        RequestCode.CONSUMER_SEND_MSG_BACK,
    }
)
_DATA_READS = PULLS | {
    RequestCode.QUERY_MESSAGE,
    RequestCode.QUERY_CONSUMER_OFFSET,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
    RequestCode.GET_MAX_OFFSET,
    RequestCode.GET_MIN_OFFSET,
    RequestCode.GET_EARLIEST_MSG_STORETIME,
    RequestCode.VIEW_MESSAGE_BY_ID,
    RequestCode.HEART_BEAT,
    RequestCode.UNREGISTER_CLIENT,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP,
    RequestCode.CHECK_CLIENT_CONFIG,
}
# Of a broker's own: its settings, users, old files, an operator's messages to its consumers.
_OWN_CHANGES = frozenset(
    {
        RequestCode.UPDATE_BROKER_CONFIG,
        RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE,
        RequestCode.DELETE_EXPIRED_COMMITLOG,
        RequestCode.CONSUME_MESSAGE_DIRECTLY,
        RequestCode.RESET_MASTER_FLUSH_OFFSET,
        RequestCode.AUTH_CREATE_USER,
        RequestCode.AUTH_UPDATE_USER,
        RequestCode.AUTH_DELETE_USER,
        RequestCode.AUTH_CREATE_ACL,
        RequestCode.AUTH_UPDATE_ACL,
        RequestCode.AUTH_DELETE_ACL,
    }
)
_READ_CLASSES = (CodeClass.READ_ADMIN, CodeClass.CLUSTER)

SERVED_BY_SLAVES = (
    _DATA_READS
    | _OWN_CHANGES
    | {code for code, kind in CODE_CLASSES.items() if kind in _READ_CLASSES}
)
"""The requests that change neither the log nor the tables that a master gives its slaves."""


SERVED_BY_PRIMES = frozenset(
    {
        RequestCode.LOCK_BATCH_MQ,
        RequestCode.UNLOCK_BATCH_MQ,
        RequestCode.UPDATE_CONSUMER_OFFSET,
    }
)
"""Served besides by a slave that answers for its master: consumers go on there."""


def refusal_of(code: int, *, may_act: bool = False) -> ResponseCode:
    """A slave's answer to a request that it does not serve.

    ``may_act``: this is a slave with ``enableSlaveActingMaster``, which clients may take for the
    master; RocketMQ's then refuses sends as a store that takes nothing.
    """
    if code in PULLS or (code in _SENDS and not may_act):
        return ResponseCode.SYSTEM_BUSY
    if code == RequestCode.END_TRANSACTION:
        return ResponseCode.SLAVE_NOT_AVAILABLE
    return ResponseCode.SERVICE_NOT_AVAILABLE
