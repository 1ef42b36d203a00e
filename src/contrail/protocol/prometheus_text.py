"""Metrics as Prometheus reads them: the text format 0.0.4.

A family is a ``# HELP`` line, a ``# TYPE`` line and one line per sample. A histogram has a line for
each bound, counting all values up to it, then ``_sum`` and ``_count``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from itertools import accumulate
from typing import NamedTuple

from contrail.errors import ConfigError

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

LABEL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_TO_ESCAPE = re.compile(r'[\\"\n]')
_ESCAPED = {"\\": r"\\", '"': r"\"", "\n": r"\n"}


class MetricKind(StrEnum):
    """The type of a family."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class MetricsExporter(StrEnum):
    """Whether a server shows its metrics."""

    PROM = "PROM"
    DISABLE = "DISABLE"


class Metric(NamedTuple):
    """A family: its name as it is written, and the labels of its own."""

    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()
    # The upper bounds of a histogram's classes; the last class has none.
    bounds: tuple[int, ...] = ()


def parse_labels(setting: str, text: str) -> dict[str, str]:
    """Labels for every sample, written as ``name:value,name:value``.

    Raises:
        ConfigError: a piece is not of that form, or is no valid label name.
    """
    labels = {}
    for piece in filter(None, (piece.strip() for piece in text.split(","))):
        name, colon, value = piece.partition(":")
        if not colon or ":" in value or not LABEL_NAME.fullmatch(name) or name.startswith("__"):
            raise ConfigError(f"{setting}={text!r} is refused: write name:value,name:value")
        labels[name] = value
    return labels


class Labels:
    """The labels of all families, rendered once, in front of each sample's own labels."""

    def __init__(self, everywhere: Mapping[str, str]) -> None:
        self._prefix = "".join(f"{_pair(name, value)}," for name, value in everywhere.items())

    def text(self, names: Sequence[str], values: Sequence[str]) -> str:
        """The text between a sample's braces."""
        pairs = ",".join(map(_pair, names, values))
        return self._prefix + pairs if pairs else self._prefix[:-1]


def head_lines(metric: Metric) -> str:
    """The two lines that a family begins with."""
    text = metric.help.replace("\\", r"\\").replace("\n", r"\n")
    return f"# HELP {metric.name} {text}\n# TYPE {metric.name} {metric.kind.value}\n"


def sample_line(name: str, labels: str, value: float) -> str:
    """One sample, with labels from ``Labels.text``."""
    return f"{name}{{{labels}}} {value}\n" if labels else f"{name} {value}\n"


def histogram_lines(metric: Metric, labels: str, counts: Sequence[int], total: float) -> str:
    """A histogram: ``counts`` are the counts of its classes, the last without an upper bound."""
    return "".join(_histogram_lines(metric, labels, counts, total))


def _histogram_lines(
    metric: Metric, labels: str, counts: Sequence[int], total: float
) -> Iterator[str]:
    name, before = metric.name, f"{labels}," if labels else ""
    running = list(accumulate(counts))
    # As Apache writes them: for Prometheus, 1 and 1.0 may be two series.
    bounds = (*map(float, metric.bounds), "+Inf")
    for bound, count in zip(bounds, running, strict=True):
        yield f'{name}_bucket{{{before}le="{bound}"}} {count}\n'
    yield sample_line(f"{name}_sum", labels, total)
    yield sample_line(f"{name}_count", labels, running[-1])


def _pair(name: str, value: str) -> str:
    if _TO_ESCAPE.search(value):
        value = _TO_ESCAPE.sub(lambda found: _ESCAPED[found[0]], value)
    return f'{name}="{value}"'
