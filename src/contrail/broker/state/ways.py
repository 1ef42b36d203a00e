"""How many requests went which way between socket and log.

A field is the kind of request and the way, as metrics and ``contrail broker status`` name them.
``broker/fast/README.md`` describes each way. Fields are added to once for many requests
where these go together.
"""

from __future__ import annotations

from collections.abc import Iterator


class Ways:
    """Counts since the start; all ways but those that are called general are the fast path."""

    __slots__ = (
        "end_general",
        "end_recent",
        "pull_far",
        "pull_filtered",
        "pull_general",
        "pull_held",
        "pull_known",
        "pull_refused",
        "pull_template",
        "pull_template_held",
        "pull_woken",
        "send_batches",
        "send_general",
        "send_rows",
        "send_tickless",
    )

    def __init__(self) -> None:
        self.send_tickless = self.send_rows = self.send_batches = self.send_general = 0
        self.pull_template = self.pull_template_held = self.pull_known = self.pull_refused = 0
        self.pull_filtered = self.pull_held = self.pull_far = self.pull_woken = 0
        self.pull_general = 0
        self.end_recent = self.end_general = 0

    def rows(self) -> Iterator[tuple[str, str, int]]:
        """The kind of request, the way and the count, of each."""
        for name in self.__slots__:
            kind, _, way = name.partition("_")
            yield kind, way, getattr(self, name)
