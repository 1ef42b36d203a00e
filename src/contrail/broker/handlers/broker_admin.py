"""Requests about the broker itself: settings, runtime info, statistics, and tables as a whole."""

from __future__ import annotations

import dataclasses
import logging
import re
from collections.abc import Callable

from contrail.broker.handlers.saved_answers import SavedAnswer
from contrail.broker.replication_config import ReplicationConfig
from contrail.broker.services.runtime_report import RuntimeReport
from contrail.broker.services.setting_changes import Changed, SettingChanges
from contrail.broker.services.slave_tables import LOG_END_FIELD
from contrail.broker.services.stored_tables import consumer_offset_table
from contrail.broker.state.consumer_offsets import ConsumerOffsets
from contrail.broker.state.runtime_settings import RuntimeSettings, setting_text
from contrail.broker.state.stats import DAY, HOUR, MINUTE, BrokerStats
from contrail.clock import Clock
from contrail.errors import RequestRejected
from contrail.protocol.bodies.properties_text import decode_settings, render_properties
from contrail.protocol.bodies.runtime_info import encode_runtime_info
from contrail.protocol.bodies.stats import encode_stats
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import Request, Response
from contrail.protocol.fields import HeaderFields
from contrail.protocol.json_style import encode_body, rendered_object
from contrail.store import CONSUMER_OFFSETS, DELAY_OFFSETS, DelayOffsetTable, StoreConfig
from contrail.wire.peer import Answer, Handler, Peer
from contrail.wire.sliced_requests import InSlices, Steps, in_one_go

_audit = logging.getLogger("contrail.audit")

PERMISSION = "brokerPermission"
_LOG_PATHS = "storePathCommitLog"
_SECRET = re.compile(r"secret|password|credential|_key\b")


class BrokerAdminHandlers:
    """Answers the requests of administrators about the broker."""

    def __init__(
        self,
        settings: RuntimeSettings,
        stats: BrokerStats,
        offsets: ConsumerOffsets,
        report: RuntimeReport,
        store_config: StoreConfig,
        *,
        clock: Clock,
        delay_offsets: Callable[[], DelayOffsetTable] = DelayOffsetTable,
        log_end: Callable[[], int] = lambda: 0,
        on_permission_changed: Callable[[int], None] = lambda now_ms: None,
        in_slices: InSlices = in_one_go,
        changes: SettingChanges | None = None,
        replication: ReplicationConfig | None = None,
    ) -> None:
        """``on_permission_changed`` must give the topics a new version and register the broker."""
        self._replication = replication or ReplicationConfig()
        self._changes = changes or SettingChanges(settings)
        self._settings = settings
        self._stats = stats
        self._offsets = offsets
        self._report = report
        self._store_config = store_config
        self._clock = clock
        self._delay_offsets = delay_offsets
        self._log_end = log_end
        self._on_permission_changed = on_permission_changed
        self._in_slices = in_slices

    def table(self) -> dict[int, Handler]:
        return {
            RequestCode.UPDATE_BROKER_CONFIG: self.handle_update_settings,
            RequestCode.GET_BROKER_CONFIG: self.handle_get_settings,
            RequestCode.GET_BROKER_RUNTIME_INFO: self.handle_runtime_info,
            RequestCode.VIEW_BROKER_STATS_DATA: self.handle_stats,
            RequestCode.GET_ALL_CONSUMER_OFFSET: self._in_slices(self._consumer_offsets),
            RequestCode.GET_ALL_DELAY_OFFSET: self.handle_delay_offsets,
        }

    def handle_update_settings(self, request: Request, peer: Peer) -> Answer:
        """Change settings of the closed list: all named ones or, if one is refused, none.

        They are in force, and answered, once their file is durable.
        """
        properties, address = decode_settings(request.body), peer.address
        if not properties:
            return Response()
        now_ms = self._clock.now_ms()

        def tell(changed: Changed) -> None:
            for name, (old, new) in changed.items():
                _audit.info("%s changed %s from %s to %s", address, name, old, new)
            if PERMISSION in changed:
                self._on_permission_changed(now_ms)

        saved = SavedAnswer(request, peer, "none of the settings")
        try:
            self._changes.change(properties, now_ms, on_changed=tell, done=saved.done)
        except RequestRejected as refusal:
            _audit.warning("a change by %s was refused: %s", address, refusal.remark)
            raise
        return saved.answer()

    def handle_get_settings(self, request: Request, peer: Peer) -> Response:
        """Every setting of the broker, its store and replication; secrets are left out."""
        named = {
            str(field.metadata["apache"]): setting_text(getattr(config, field.name))
            for config in (self._settings.config, self._store_config, self._replication)
            for field in dataclasses.fields(config)
            if not _SECRET.search(field.name)
        }
        named[_LOG_PATHS] = setting_text(self._store_config.log_folders)
        version = encode_body(self._settings.data_version.to_fields()).decode()
        text = render_properties(dict(sorted(named.items())))
        return Response(fields={"version": version}, body=text.encode())

    def handle_runtime_info(self, request: Request, peer: Peer) -> Response:
        return Response(body=encode_runtime_info(self._report.values(self._clock.now_ms())))

    def handle_stats(self, request: Request, peer: Peer) -> Response:
        """One stat item in its three windows."""
        fields = HeaderFields(request)
        name, key = fields.text("statsName"), fields.text("statsKey")
        item = self._stats.find(name, key)
        if item is None:
            raise RequestRejected(
                ResponseCode.SYSTEM_ERROR, f"there is no stat {name} of {key!r}: nothing happened"
            )
        return Response(body=encode_stats(item.window(MINUTE), item.window(HOUR), item.window(DAY)))

    def _consumer_offsets(self, request: Request, peer: Peer) -> Steps:
        """The table of committed offsets: its file, and the offsets that are only in memory."""
        copy, pulled = consumer_offset_table(self._offsets), self._offsets.pulled()
        yield
        table = CONSUMER_OFFSETS.encode(copy)
        for name, value in [*table.items(), ("pullOffsetTable", pulled)]:
            if isinstance(value, dict):
                table[name] = yield from rendered_object(value)
        return Response(body=encode_body(table))

    def handle_delay_offsets(self, request: Request, peer: Peer) -> Response:
        """With the end of the log: a slave believes the table once its log is as long."""
        return Response(
            fields={LOG_END_FIELD: str(self._log_end())},
            body=encode_body(DELAY_OFFSETS.encode(self._delay_offsets())),
        )
