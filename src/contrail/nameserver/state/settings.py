"""The NameServer's current settings: a closed list may be changed while it runs."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping

from contrail.errors import ConfigError, RequestRejected
from contrail.nameserver.config import NameServerConfig
from contrail.protocol.codes import ResponseCode

# By RocketMQ's property name. No path, address, port, class or command may ever be listed here: a
# remote request must not set where the server writes or which peers may connect.
CHANGEABLE = frozenset(
    {
        "orderMessageEnable",
        "returnOrderTopicConfigToBroker",
        "enableAllTopicList",
        "enableTopicList",
        "supportActingMaster",
        "needWaitForService",
        "waitSecondsForService",
        "deleteTopicWithBrokerRegistration",
    }
)

_SHIELDED_WORDS = frozenset(
    {
        "acl",
        "addr",
        "address",
        "allow",
        "auth",
        "bind",
        "black",
        "class",
        "command",
        "dir",
        "folder",
        "home",
        "host",
        "ip",
        "key",
        "listen",
        "password",
        "path",
        "plugin",
        "port",
        "script",
        "secret",
        "shell",
        "tls",
    }
)
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_KNOWN = frozenset(str(f.metadata["apache"]) for f in dataclasses.fields(NameServerConfig))


class RuntimeSettings:
    """Holds the current ``NameServerConfig``."""

    def __init__(self, config: NameServerConfig) -> None:
        self.config = config

    def change(self, properties: Mapping[str, str]) -> dict[str, tuple[str, str]]:
        """Apply all of ``properties`` or, if one is refused, none; returns old and new texts.

        Raises:
            RequestRejected: a setting is not changeable, unknown, or its value wrong.
        """
        config, old = self._plan(properties), self.config.to_properties()
        self.config = config
        new = config.to_properties()
        return {name: (old[name], new[name]) for name in properties}

    def checked(self, properties: Mapping[str, str]) -> dict[str, str]:
        """The texts of ``properties`` for the settings file; raises as ``change``."""
        new = self._plan(properties).to_properties()
        return {name: new[name] for name in properties}

    def _plan(self, properties: Mapping[str, str]) -> NameServerConfig:
        # Refuse names of files and connections first, whatever other names the request has.
        for name in sorted(properties, key=lambda name: not _is_shielded(name)):
            _require_changeable(name)
        try:
            return NameServerConfig.from_properties(self.config.to_properties() | dict(properties))
        except ConfigError as error:
            raise RequestRejected(ResponseCode.SYSTEM_ERROR, str(error)) from error


def _require_changeable(name: str) -> None:
    if name in CHANGEABLE:
        return
    if _is_shielded(name):
        raise RequestRejected(
            ResponseCode.NO_PERMISSION,
            f"{name[:80]} cannot be changed while the NameServer runs; "
            "set it in its file and restart",
        )
    raise RequestRejected(
        ResponseCode.SYSTEM_ERROR,
        f"{name[:80]} is no setting of this NameServer; check its spelling",
    )


def _is_shielded(name: str) -> bool:
    """Whether a setting may only be set at start: the fixed ones, and names that sound unsafe."""
    if name in CHANGEABLE:
        return False
    words = {word.lower() for word in _WORD.findall(name)}
    return name in _KNOWN or not words.isdisjoint(_SHIELDED_WORDS)
