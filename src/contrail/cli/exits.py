"""Exit codes, the same for every command."""

from __future__ import annotations

from enum import IntEnum

from contrail.errors import (
    BrokerRefused,
    BrokerUnknown,
    CallFailed,
    ContrailError,
    DeadLettersClosed,
    MessageDamaged,
    NameServerUnreachable,
    NoBroker,
    NoReply,
    NotOnCluster,
    RouteMissing,
    SendFailed,
    SomeFailed,
)
from contrail.protocol.codes import ResponseCode


class ExitCode(IntEnum):
    """The exit codes for scripts."""

    OK = 0
    # The command failed, or a check found a problem.
    FAILED = 1
    # The input cannot be used: an argument, a name, a file, a permission.
    UNUSABLE = 2
    # A server failed while it ran.
    SERVER_FAILED = 3
    # No NameServer, or no broker, could be reached.
    UNREACHABLE = 4
    # The requested thing does not exist.
    NOT_FOUND = 5
    INTERRUPTED = 130
    # SIGTERM ended it before it was done.
    TERMINATED = 143


_MISSING = frozenset(
    {
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
        ResponseCode.QUERY_NOT_FOUND,
        ResponseCode.CONSUMER_NOT_ONLINE,
    }
)


class NotFound(ContrailError):
    """The topic, group or message that a command names does not exist."""


class CommandFailed(ContrailError):
    """A command was carried out in part or not at all; the message says how far."""


def exit_code_of(error: ContrailError) -> ExitCode:
    """The exit code of a command that ended with this error."""
    if isinstance(error, NoBroker):
        return ExitCode.UNREACHABLE
    if isinstance(error, NotFound | NotOnCluster | RouteMissing | BrokerUnknown):
        return ExitCode.NOT_FOUND
    if isinstance(error, BrokerRefused):
        return ExitCode.NOT_FOUND if error.code in _MISSING else ExitCode.FAILED
    if isinstance(error, NameServerUnreachable | CallFailed):
        return ExitCode.UNREACHABLE
    if isinstance(error, SomeFailed) and _nobody_has_it(error):
        return ExitCode.NOT_FOUND
    if isinstance(error, DeadLettersClosed):
        return ExitCode.FAILED
    if isinstance(error, CommandFailed | MessageDamaged | SendFailed | SomeFailed | NoReply):
        return ExitCode.FAILED
    # The client's error names the server that could not be reached, and the cause.
    if isinstance(error.__cause__, CallFailed):
        return ExitCode.UNREACHABLE
    return ExitCode.UNUSABLE


def _nobody_has_it(error: SomeFailed) -> bool:
    """Whether each of several servers said that the thing does not exist."""
    codes = {exit_code_of(one) for one in error.failures.values()}
    return not error.partial and codes == {ExitCode.NOT_FOUND}
