"""The store's door: the names that other rooms use, each resolved on first use.

Importing one name does not load the others, so readers of offline logs load no services.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from contrail.store.config import StoreConfig as StoreConfig
    from contrail.store.config import apache_names as apache_names
    from contrail.store.config_files import CONFIG_FOLDER as CONFIG_FOLDER
    from contrail.store.config_files import CONSUMER_FILTERS as CONSUMER_FILTERS
    from contrail.store.config_files import CONSUMER_OFFSETS as CONSUMER_OFFSETS
    from contrail.store.config_files import DELAY_OFFSETS as DELAY_OFFSETS
    from contrail.store.config_files import FORBIDDEN_FIELD as FORBIDDEN_FIELD
    from contrail.store.config_files import GROUPS as GROUPS
    from contrail.store.config_files import TOPICS as TOPICS
    from contrail.store.config_files import ConfigFile as ConfigFile
    from contrail.store.config_files import ConsumerFilter as ConsumerFilter
    from contrail.store.config_files import ConsumerFilterTable as ConsumerFilterTable
    from contrail.store.config_files import ConsumerOffsetTable as ConsumerOffsetTable
    from contrail.store.config_files import DelayOffsetTable as DelayOffsetTable
    from contrail.store.config_files import EntryTexts as EntryTexts
    from contrail.store.config_files import GroupRights as GroupRights
    from contrail.store.config_files import GroupTable as GroupTable
    from contrail.store.config_files import TopicTable as TopicTable
    from contrail.store.config_files import checked_length as checked_length
    from contrail.store.config_files import refused_perms as refused_perms
    from contrail.store.config_files import refused_rights as refused_rights
    from contrail.store.config_files import render_groups as render_groups
    from contrail.store.config_files import render_topics as render_topics
    from contrail.store.features import GROUP_FEATURE as GROUP_FEATURE
    from contrail.store.features import read_features as read_features
    from contrail.store.features import write_features as write_features
    from contrail.store.log import Arrival as Arrival
    from contrail.store.log import MessageStore as MessageStore
    from contrail.store.services.append import AppendedChunks as AppendedChunks
    from contrail.store.services.append import AppendedRun as AppendedRun
    from contrail.store.services.emptying import empty_store as empty_store
    from contrail.store.services.emptying import require_stopped as require_stopped
    from contrail.store.services.lookup import PlacesByKey as PlacesByKey
    from contrail.store.services.queue_runs import FAR as FAR
    from contrail.store.services.queue_runs import Far as Far
    from contrail.store.services.queue_runs import FoundRun as FoundRun
    from contrail.store.services.queue_runs import QueueRuns as QueueRuns
    from contrail.store.services.queue_runs import Reach as Reach
    from contrail.store.services.reading import GetResult as GetResult
    from contrail.store.services.reading import QueueRow as QueueRow
    from contrail.store.services.residency import AbsentParts as AbsentParts
    from contrail.store.services.residency import DiskWaits as DiskWaits
    from contrail.store.services.residency import NotInMemory as NotInMemory
    from contrail.store.services.residency import OnDisk as OnDisk
    from contrail.store.services.retention import Retention as Retention
    from contrail.store.services.sifting import Sifted as Sifted
    from contrail.store.services.sifting import SiftLimits as SiftLimits
    from contrail.store.services.timer_files import CELL_COUNT as CELL_COUNT
    from contrail.store.services.timer_files import FileBatch as FileBatch
    from contrail.store.services.timer_files import FoundCheck as FoundCheck
    from contrail.store.services.timer_files import TimerCheck as TimerCheck
    from contrail.store.services.timer_files import TimerFiles as TimerFiles
    from contrail.store.state.reading import GetStatus as GetStatus
    from contrail.store.state.record_marks import RecordMarks as RecordMarks

# public name -> the module that defines it
_PUBLIC: dict[str, str] = {
    "AbsentParts": "contrail.store.services.residency",
    "AppendedChunks": "contrail.store.services.append",
    "AppendedRun": "contrail.store.services.append",
    "Arrival": "contrail.store.log",
    "CELL_COUNT": "contrail.store.services.timer_files",
    "CONFIG_FOLDER": "contrail.store.config_files",
    "CONSUMER_FILTERS": "contrail.store.config_files",
    "CONSUMER_OFFSETS": "contrail.store.config_files",
    "ConfigFile": "contrail.store.config_files",
    "ConsumerFilter": "contrail.store.config_files",
    "ConsumerFilterTable": "contrail.store.config_files",
    "ConsumerOffsetTable": "contrail.store.config_files",
    "DELAY_OFFSETS": "contrail.store.config_files",
    "DelayOffsetTable": "contrail.store.config_files",
    "DiskWaits": "contrail.store.services.residency",
    "EntryTexts": "contrail.store.config_files",
    "FAR": "contrail.store.services.queue_runs",
    "FORBIDDEN_FIELD": "contrail.store.config_files",
    "Far": "contrail.store.services.queue_runs",
    "FileBatch": "contrail.store.services.timer_files",
    "FoundCheck": "contrail.store.services.timer_files",
    "FoundRun": "contrail.store.services.queue_runs",
    "GROUPS": "contrail.store.config_files",
    "GROUP_FEATURE": "contrail.store.features",
    "GetResult": "contrail.store.services.reading",
    "GetStatus": "contrail.store.state.reading",
    "GroupRights": "contrail.store.config_files",
    "GroupTable": "contrail.store.config_files",
    "MessageStore": "contrail.store.log",
    "NotInMemory": "contrail.store.services.residency",
    "OnDisk": "contrail.store.services.residency",
    "PlacesByKey": "contrail.store.services.lookup",
    "QueueRow": "contrail.store.services.reading",
    "QueueRuns": "contrail.store.services.queue_runs",
    "Reach": "contrail.store.services.queue_runs",
    "RecordMarks": "contrail.store.state.record_marks",
    "Retention": "contrail.store.services.retention",
    "SiftLimits": "contrail.store.services.sifting",
    "Sifted": "contrail.store.services.sifting",
    "StoreConfig": "contrail.store.config",
    "TOPICS": "contrail.store.config_files",
    "TimerCheck": "contrail.store.services.timer_files",
    "TimerFiles": "contrail.store.services.timer_files",
    "TopicTable": "contrail.store.config_files",
    "apache_names": "contrail.store.config",
    "checked_length": "contrail.store.config_files",
    "refused_perms": "contrail.store.config_files",
    "refused_rights": "contrail.store.config_files",
    "empty_store": "contrail.store.services.emptying",
    "read_features": "contrail.store.features",
    "render_groups": "contrail.store.config_files",
    "render_topics": "contrail.store.config_files",
    "require_stopped": "contrail.store.services.emptying",
    "write_features": "contrail.store.features",
}

__all__ = [*_PUBLIC]


def __getattr__(name: str) -> Any:
    module = _PUBLIC.get(name)
    if module is None:
        raise AttributeError(f"module 'contrail.store' has no attribute {name!r}")
    value = getattr(import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
