"""Requests about consumer groups: create, change, delete, list, and forbid topics to them."""

from __future__ import annotations

import logging

from contrail.broker.handlers.saved_answers import SavedAnswer
from contrail.broker.handlers.topics import fitted, read_page
from contrail.broker.services.groups import Groups
from contrail.broker.state.consumer_offsets import ConsumerOffsets
from contrail.broker.state.stats import BrokerStats
from contrail.clock import Clock
from contrail.protocol.bodies.groups import (
    decode_group,
    decode_group_list,
    encode_group,
    encode_group_readable,
    group_table_steps,
)
from contrail.protocol.codes import RequestCode
from contrail.protocol.command import Request, Response
from contrail.protocol.fields import HeaderFields
from contrail.runtime.durable_changes import WhenWritten, at_once
from contrail.wire.peer import Answer, Handler, Peer
from contrail.wire.sliced_requests import InSlices, Steps, in_one_go

_log = logging.getLogger(__name__)


class GroupHandlers:
    """Answers the requests of administrators about groups."""

    def __init__(
        self,
        groups: Groups,
        offsets: ConsumerOffsets,
        stats: BrokerStats,
        *,
        clock: Clock,
        in_slices: InSlices = in_one_go,
        offsets_written: WhenWritten = at_once,
    ) -> None:
        self._in_slices = in_slices
        self._offsets_written = offsets_written
        self._groups = groups
        self._offsets = offsets
        self._stats = stats
        self._clock = clock

    def table(self) -> dict[int, Handler]:
        return {
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: self.handle_update,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: self.handle_update_list,
            RequestCode.DELETE_SUBSCRIPTIONGROUP: self.handle_delete,
            RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: self.handle_get,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self._in_slices(self._all_groups),
            RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: self.handle_forbidden,
        }

    def handle_update(self, request: Request, peer: Peer) -> Answer:
        """Create a group or change its settings; without a body nothing is asked for."""
        if not request.body:
            return Response()
        config, address = decode_group(request.body), peer.address
        saved = SavedAnswer(
            request,
            peer,
            f"group {config.group!r}",
            then=lambda: _log.info("group %r was set by %s", config.group, address),
        )
        self._groups.update([config], self._clock.now_ms(), saved.done)
        return saved.answer()

    def handle_update_list(self, request: Request, peer: Peer) -> Answer:
        """Create or change several groups, or none if one is refused."""
        requested, address = decode_group_list(request.body), peer.address
        count = len(requested)
        saved = SavedAnswer(
            request,
            peer,
            f"the list of {count} groups",
            then=lambda: _log.info("%d groups were set by %s", count, address),
        )
        self._groups.update(requested, self._clock.now_ms(), saved.done)
        return saved.answer()

    def handle_delete(self, request: Request, peer: Peer) -> Answer:
        """Delete a group's settings and, if asked, its offsets; an unknown group is no error."""
        fields = HeaderFields(request)
        group = fields.text("groupName")
        cleans, address = fields.boolean("cleanOffset"), peer.address

        def forget() -> None:
            if cleans:
                self._offsets.remove_group(group)
            self._stats.group_deleted(group)

        saved = SavedAnswer(
            request,
            peer,
            f"group {group!r}",
            then=lambda: _log.info("group %r was deleted by %s", group, address),
            also=self._offsets_written if cleans else None,
        )
        self._groups.delete(group, self._clock.now_ms(), on_deleted=forget, done=saved.done)
        return saved.answer()

    def handle_get(self, request: Request, peer: Peer) -> Response:
        group = HeaderFields(request).text("group")
        found = self._groups.require(group, self._clock.now_ms(), client=peer.address)
        return Response(body=encode_group(found))

    def _all_groups(self, request: Request, peer: Peer) -> Steps:
        """All groups as they are now, or a page of them for a caller that asks for pages."""
        table = self._groups.table
        page = read_page(request, "groupSeq", "maxGroupNum")
        forbidden = table.forbidden_table()
        if page is None:
            chosen = dict(table.groups)
        else:
            chosen = table.page(*fitted(page, table.data_version, len(table.groups)))
            forbidden = {group: topics for group, topics in forbidden.items() if group in chosen}
        total = len(table.groups)
        body = yield from group_table_steps(chosen, forbidden, table.data_version)
        return Response(fields={"totalGroupNum": str(total)}, body=body)

    def handle_forbidden(self, request: Request, peer: Peer) -> Answer:
        """Allow or forbid a group to read a topic, or only say which it is."""
        fields = HeaderFields(request)
        group, topic = fields.text("group"), fields.text("topic")
        readable = fields.optional_boolean("readable")
        if readable is None:
            return self._readable(group, topic)
        address = peer.address
        saved = SavedAnswer(
            request,
            peer,
            f"what group {group!r} may read",
            then=lambda: _log.info(
                "group %r on %r: readable=%s by %s", group, topic, readable, address
            ),
            response=lambda: self._readable(group, topic),
        )
        self._groups.set_readable(group, topic, readable, self._clock.now_ms(), saved.done)
        return saved.answer()

    def _readable(self, group: str, topic: str) -> Response:
        answer = not self._groups.is_read_forbidden(group, topic)
        return Response(remark="", body=encode_group_readable(group, topic, answer))
