"""Changes of settings by an operator: in force once their file has them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from contrail.broker.state.runtime_settings import RuntimeSettings
from contrail.runtime.durable_changes import Done, DurableChanges, ignore

SettingsChanges = DurableChanges[str, str]
"""The texts of settings by their names."""
Changed = Mapping[str, tuple[str, str]]
"""Old and new texts by name."""


class SettingChanges:
    """Checks changes of settings, and makes them when they are durable."""

    def __init__(self, settings: RuntimeSettings, changes: SettingsChanges | None = None) -> None:
        self.settings = settings
        self.changes: SettingsChanges = changes or DurableChanges()

    def change(
        self,
        properties: Mapping[str, str],
        now_ms: int,
        *,
        on_changed: Callable[[Changed], None] = lambda changed: None,
        done: Done = ignore,
    ) -> None:
        """Have all of ``properties`` in force or, if one is refused, none.

        Raises:
            RequestRejected: a setting is not changeable, unknown, or its value wrong.
        """
        texts = self.settings.checked(properties)
        self.changes.submit(
            texts, now_ms, lambda: on_changed(self.settings.change(properties, now_ms)), done
        )
