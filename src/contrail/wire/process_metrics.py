"""A server's own process as Prometheus reads it, under the names that all programs use for it."""

from __future__ import annotations

import asyncio
from platform import python_version

from contrail.kernels import interpreted_kernels
from contrail.protocol.prometheus_text import Labels, Metric, MetricKind, head_lines, sample_line
from contrail.runtime.build import contrail_version
from contrail.runtime.process_figures import ProcessFigures, process_figures

_GAUGE, _COUNTER = MetricKind.GAUGE, MetricKind.COUNTER

CPU = Metric("process_cpu_seconds_total", _COUNTER, "User and system CPU time spent in seconds")
STARTED = Metric(
    "process_start_time_seconds", _GAUGE, "Start time of the process since unix epoch in seconds"
)
VIRTUAL = Metric("process_virtual_memory_bytes", _GAUGE, "Virtual memory size in bytes")
RESIDENT = Metric("process_resident_memory_bytes", _GAUGE, "Resident memory size in bytes")
OPEN_FDS = Metric("process_open_fds", _GAUGE, "Number of open file descriptors")
MAX_FDS = Metric("process_max_fds", _GAUGE, "Maximum number of open file descriptors")
BUILD = Metric(
    "contrail_build_info",
    _GAUGE,
    "Always 1; its labels tell what runs here",
    ("version", "python_version", "kernels"),
)
METRICS: tuple[Metric, ...] = (CPU, STARTED, VIRTUAL, RESIDENT, OPEN_FDS, MAX_FDS, BUILD)


async def process_lines(labels: Labels) -> str:
    """The families of this process, without those that the system has no figures for."""
    figures = await asyncio.to_thread(process_figures)
    lines = [_family(labels, metric, value) for metric, value in _values(figures)]
    lines.append(_family(labels, BUILD, 1, build_labels()))
    return "".join(lines)


def build_labels() -> tuple[str, str, str]:
    """The version of Contrail and of Python, and how the kernels run."""
    kernels = "interpreted" if interpreted_kernels() else "compiled"
    return contrail_version(), python_version(), kernels


def _values(figures: ProcessFigures) -> list[tuple[Metric, float | None]]:
    return [
        (CPU, round(figures.cpu_seconds, 6)),
        (STARTED, figures.started_s),
        (VIRTUAL, figures.virtual_bytes),
        (RESIDENT, figures.resident_bytes),
        (OPEN_FDS, figures.open_fds),
        (MAX_FDS, figures.max_fds),
    ]


def _family(
    labels: Labels, metric: Metric, value: float | None, values: tuple[str, ...] = ()
) -> str:
    if value is None:
        return ""
    return head_lines(metric) + sample_line(metric.name, labels.text(metric.labels, values), value)
