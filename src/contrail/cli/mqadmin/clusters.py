"""Clusters: their brokers, and how fast they take messages."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta, timezone

from contrail.cli.exits import CommandFailed, NotFound
from contrail.cli.mqadmin.java_text import truth
from contrail.cli.mqadmin.options import Call, Command, may, switch
from contrail.cli.mqadmin.sending import open_producer, send_rounds
from contrail.client.admin_values import BrokerRuntime
from contrail.client.blocking.admin import Admin
from contrail.clock import SystemClock
from contrail.errors import ClientError

_HOUR_MS = 3_600_000
# Apache writes the log of clusterRT in the time of Shanghai, wherever it runs.
_LOG_ZONE = timezone(timedelta(hours=8))
_BASE = (
    "{:<22}  {:<22}  {:<4}  {:<22} {:<16}  {:>16}  {:>30}  {:<22}  {:>11}  {:<12}  {:<8}  {:>10}"
)
_BASE_HEADS = (
    *("#Cluster Name", "#Broker Name", "#BID", "#Addr", "#Version", "#InTPS(LOAD)"),
    *("#OutTPS(LOAD)", "#Timer(Progress)", "#PCWait(ms)", "#Hour", "#SPACE", "#ACTIVATED"),
)
_MORE = "{:<16}  {:<32} {:>14} {:>14} {:>14} {:>14}"
_MORE_HEADS = (
    *("#Cluster Name", "#Broker Name", "#InTotalYest"),
    *("#OutTotalYest", "#InTotalToday", "#OutTotalToday"),
)


def cluster_list(call: Call, admin: Admin) -> None:
    interval_s = call.number("i")
    while True:
        _print_cluster(call, admin)
        if not call.has("i"):
            return
        time.sleep(interval_s)


def _print_cluster(call: Call, admin: Admin) -> None:
    with_totals = call.has("m")
    brokers = admin.brokers(cluster=call.maybe("c") or None)
    print(_MORE.format(*_MORE_HEADS) if with_totals else _BASE.format(*_BASE_HEADS))
    silent: list[str] = []
    for broker in brokers:
        try:
            runtime = admin.broker_runtime(broker.address)
        except ClientError:
            # The broker is shown all the same, without figures.
            runtime = BrokerRuntime(broker, {})
            silent.append(broker.address)
        print(_totals_line(runtime) if with_totals else _base_line(runtime))
    if silent:
        raise CommandFailed(f"no answer from {', '.join(silent)}: see whether these brokers run")


def _base_line(runtime: BrokerRuntime) -> str:
    broker, values = runtime.broker, runtime.values
    return _BASE.format(
        broker.cluster,
        broker.broker_name,
        broker.broker_id,
        broker.address,
        runtime.version,
        f"{runtime.put_per_second:9.2f}({_load(values, 'send')})",
        f"{runtime.get_per_second:9.2f}({_load(values, 'pull')}|{_load(values, 'ack')})",
        _timer_text(runtime),
        values.get("pageCacheLockTimeMills", ""),
        f"{_hours(values):.2f}",
        f"{runtime.disk_used_ratio:.4f}",
        truth(values.get("brokerActive") == "true"),
    )


def _load(values: Mapping[str, str], pool: str) -> str:
    """How many requests of a kind wait, and for how long the first of them."""
    absent = "" if not values else "N" if pool == "ack" else "null"
    size = values.get(f"{pool}ThreadPoolQueueSize", absent)
    return f"{size},{values.get(f'{pool}ThreadPoolQueueHeadWaitTimeMills', absent)}ms"


def _timer_text(runtime: BrokerRuntime) -> str:
    behind = [int(runtime.first_figure(name)) for name in ("timerReadBehind", "timerOffsetBehind")]
    waiting = runtime.first_figure("timerCongestNum") / 10_000
    rates = [runtime.first_figure(name) for name in ("timerEnqueueTps", "timerDequeueTps")]
    return f"{behind[0]}-{behind[1]}({waiting:.1f}w, {rates[0]:.1f}, {rates[1]:.1f})"


def _hours(values: Mapping[str, str]) -> float:
    earliest_ms = values.get("earliestMessageTimeStamp", "")
    return (SystemClock().now_ms() - int(earliest_ms)) / _HOUR_MS if earliest_ms else 0.0


def _totals_line(runtime: BrokerRuntime) -> str:
    return _MORE.format(
        runtime.broker.cluster,
        runtime.broker.broker_name,
        runtime.put_count_yesterday,
        runtime.get_count_yesterday,
        runtime.put_count_today,
        runtime.get_count_today,
    )


def cluster_rt(call: Call, admin: Admin) -> None:
    """Sends to the topic that every broker has under its own name, again and again."""
    names = _cluster_brokers(call, admin)
    amount, body = call.number("a", 100), b"a" * call.number("s", 128)
    as_log, room = call.truth("p"), call.maybe("m") or "noname"
    if not as_log:
        heads = ("#Cluster Name", "#Broker Name", "#RT", "#successCount", "#failCount")
        print("{:<24}  {:<24}  {:<4}  {:<8}  {:<8}".format(*heads))
    with open_producer(call) as producer:
        while True:
            for cluster, broker in names:
                spent_ms, sent_count = send_rounds(producer, broker, body, amount)
                if as_log:
                    print(f"{_log_time()}|{room}|{cluster}|{broker}|{spent_ms:.0f}")
                else:
                    counts = f"{sent_count:<16}  {amount - sent_count:<16}"
                    print(f"{cluster:<24}  {broker:<24}  {f'{spent_ms:.2f}':<8}  {counts}")
            time.sleep(call.number("i", 10))


def _cluster_brokers(call: Call, admin: Admin) -> list[tuple[str, str]]:
    clusters, wanted = admin.cluster_info().clusters, call.maybe("c")
    if wanted is not None and wanted not in clusters:
        known = ", ".join(sorted(clusters)) or "none"
        raise NotFound(f"there is no cluster {wanted!r}; the NameServer knows: {known}")
    return list(_pairs({wanted: clusters[wanted]} if wanted else clusters))


def _pairs(clusters: Mapping[str, frozenset[str]]) -> Iterator[tuple[str, str]]:
    for cluster, names in sorted(clusters.items()):
        for name in sorted(names):
            yield cluster, name


def _log_time() -> str:
    return f"{datetime.fromtimestamp(SystemClock().now_ms() / 1000, _LOG_ZONE):%Y-%m-%d %H:%M:%S}"


COMMANDS = (
    Command(
        "clusterList",
        "Every broker with its load; with -m how many messages it had today and yesterday.",
        cluster_list,
        (
            switch("m", "moreStats", "totals instead of load"),
            may("i", "interval", "print again after this many seconds, until interrupted"),
            may("c", "clusterName", "this cluster only"),
        ),
        (106, 28),
    ),
    Command(
        "clusterRT",
        "How long brokers take for a message; again and again until interrupted.",
        cluster_rt,
        (
            may("a", "amount", "messages for each broker (100)"),
            may("s", "size", "bytes of a message (128)"),
            may("c", "cluster", "this cluster only"),
            may("p", "print log", "true for lines with | between the columns (false)"),
            may("m", "machine room", "named in these lines (noname)"),
            may("i", "interval", "seconds between rounds (10)"),
        ),
        (106, 105, 310),
    ),
)
