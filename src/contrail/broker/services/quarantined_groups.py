"""Groups whose entries the reader of ``subscriptionGroup.json`` has put aside.

The first pull of such a group would make it again with all rights. Therefore the broker makes it
when the file is read, with the rights that its entry tells and with none that cannot be read. A
prohibition that cannot be read stays one; where its topic cannot be read either, its group may not
consume. Operators open a group by setting it: ``updateSubGroup``.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from contrail.broker.state.groups import FORBIDDEN_READ
from contrail.errors import EntryIllegal
from contrail.model.group import SubscriptionGroupConfig
from contrail.model.stored_entries import check_forbidden_entry, check_group_entry
from contrail.store import FORBIDDEN_FIELD, GroupRights, GroupTable, refused_rights

_log = logging.getLogger(__name__)


def kept_closed(stored: GroupTable) -> GroupTable:
    """``stored`` with the groups and prohibitions that its refused entries stand for."""
    groups = dict(stored.groups)
    for names, rights in refused_rights(stored.refused):
        for name in sorted(names - stored.groups.keys()):
            _make_again(groups, name, rights)
    forbidden = {group: dict(topics) for group, topics in stored.forbidden.items() if topics}
    for entry in stored.refused:
        if entry.place[0] == FORBIDDEN_FIELD:
            group, *topics = entry.place[1:]
            known = forbidden.get(group, {})
            if topics and (topics[0] in known or _forbid(forbidden, group, topics[0])):
                continue
            if topics or group not in stored.forbidden:
                _close(groups, group)
    return replace(stored, groups=groups, forbidden=forbidden)


def _make_again(groups: dict[str, SubscriptionGroupConfig], name: str, told: GroupRights) -> None:
    closed = SubscriptionGroupConfig(name, consume_enable=False, consume_broadcast_enable=False)
    made = told.within(closed)
    if not _is_legal(made):
        return
    groups[name] = made
    _log.warning(
        "group %r is made again with consumeEnable=%s and consumeBroadcastEnable=%s, as far as its "
        "quarantined entry tells; its other settings are the defaults: set it with updateSubGroup",
        name,
        str(made.consume_enable).lower(),
        str(made.consume_broadcast_enable).lower(),
    )


def _forbid(forbidden: dict[str, dict[str, int]], group: str, topic: str) -> bool:
    """Whether the group may not read the topic from now on."""
    try:
        check_forbidden_entry(group, topic, FORBIDDEN_READ)
    except EntryIllegal:
        return False
    forbidden.setdefault(group, {})[topic] = FORBIDDEN_READ
    _log.warning(
        "group %r may not read topic %r: its quarantined entry of %s cannot be read; allow it with "
        "request UPDATE_AND_GET_GROUP_FORBIDDEN",
        group,
        topic,
        FORBIDDEN_FIELD,
    )
    return True


def _close(groups: dict[str, SubscriptionGroupConfig], group: str) -> None:
    config = replace(groups.get(group, SubscriptionGroupConfig(group)), consume_enable=False)
    if _is_legal(config):
        groups[group] = config
        _log.warning(
            "group %r is closed (consumeEnable=false): which topics its quarantined entry of %s "
            "forbids cannot be read; open it with updateSubGroup",
            group,
            FORBIDDEN_FIELD,
        )


def _is_legal(config: SubscriptionGroupConfig) -> bool:
    """Whether a group of this name can exist; otherwise no request can ask for it either."""
    try:
        check_group_entry(config.group, config)
    except EntryIllegal:
        return False
    return True
