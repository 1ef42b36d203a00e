"""The result of a job: its outcome, a few facts, and a table bounded by queues or files."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Literal

Outcome = Literal["done", "planned", "stopped"]


@dataclass(frozen=True)
class Summary:
    """``planned`` is a dry run; ``stopped`` can be resumed from its checkpoint."""

    job: str
    outcome: Outcome
    facts: dict[str, object] = field(default_factory=dict)
    table: list[dict[str, object]] = field(default_factory=list)

    def as_json(self) -> str:
        """One object; values without a JSON form are written as text."""
        return json.dumps(asdict(self), indent=2, default=str)
