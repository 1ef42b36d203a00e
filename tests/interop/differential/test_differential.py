"""The same requests to Apache's servers and to ours: answers differ nowhere without a reason.

Ours are asked twice: a broker with the fast path, and one without it.
"""

from __future__ import annotations

import os
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from tests.interop.apache_cluster import CLUSTER_NAME, ApacheCluster
from tests.interop.differential.comparison import SUCCESS, Difference, differences
from tests.interop.differential.explained import RULES
from tests.interop.differential.generator import generate, generate_later
from tests.interop.differential.normal import Normal, normalise
from tests.interop.differential.requests import Facts, Request
from tests.interop.differential.runner import Side
from tests.interop.differential.specs_kinds import ALL_SPECS, DELAY_LEVELS
from tests.interop.target import TARGET, Cluster, open_cluster
from tests.interop.ways import FAST_PATH

SEED = int(os.environ.get("CONTRAIL_DIFFERENTIAL_SEED", "20240229"))
REQUEST_COUNT_MIN = 2_000
BINARY_COUNT_MIN = 150
BINARY_CODES_MIN = 40
ONE_WAY_COUNT_MIN = 10
# These requests have no argument to refuse: they list all, or forget what may be missing.
NEVER_REFUSED = frozenset(
    {26, 28, 35, 43, 45, 60, 61, 106, 206, 304, 305, 306, 311, 312, 313, 316, 317, 319, 328, 329}
)
SHOWN_MAX = 60
REQUEST_CODE_NOT_SUPPORTED = 3
# The same on both sides, so that the answers about settings can be compared.
SETTINGS = {
    "mappedFileSizeCommitLog": str(32 << 20),
    "mappedFileSizeConsumeQueue": str(20 * 10_000),
    "maxHashSlotNum": "10000",
    "maxIndexNum": "40000",
    "diskMaxUsedSpaceRatio": "90",
    "brokerFastFailureEnable": "false",
    "mappedFileSizeTimerLog": str(4 << 20),
    "timerFlushIntervalMs": "10000",
    "messageDelayLevel": DELAY_LEVELS,
    "recallMessageEnable": "true",
    # Nobody is asked about a transaction while the run lasts.
    "transactionTimeOut": "3600000",
    "transactionCheckInterval": "3600000",
}
# A reader may be early on one side: registrations and queues settle a moment later.
_SETTLE_S = 30.0
_SETTLE_TOTAL_S = 90.0
_READING = frozenset(
    {11, 361, 12, 14, 101, 29, 30, 31, 32, 33, 38, 105, 106, 202, 203, 204, 206, 208}
)
_ALSO_READING = frozenset({21, 43, 201, 224, 300, 303, 304, 305, 311, 312, 313, 315, 317, 321, 328})
_STILL_READING = frozenset({322, 343, 351, 352, 901, 45, 61})

ONLY_OURS = pytest.mark.skipif(
    TARGET == "apache", reason="CONTRAIL_INTEROP_TARGET=apache compares Apache with itself"
)

# A busy machine needs minutes for the run.
pytestmark = pytest.mark.timeout(900)

WAYS = ("on", "off")
Run = list[tuple[Request, Normal, Normal]]


class Sides:
    """Apache's and ours, asked alike; an answer that only time makes different is asked again."""

    def __init__(self, theirs: Side, ours: Iterable[Side], threads: Executor) -> None:
        self._sides = (theirs, *ours)
        self._threads = threads
        self._settle_left_s = _SETTLE_TOTAL_S

    def perform(self, request: Request) -> list[Normal]:
        """The answers, Apache's first."""
        answers = self._ask(request)
        deadline = time.monotonic() + min(_SETTLE_S, self._settle_left_s)
        began = time.monotonic()
        while self._may_settle(request, *answers) and time.monotonic() < deadline:
            time.sleep(0.02)
            answers = self._ask(request)
        self._settle_left_s -= time.monotonic() - began
        return answers

    def _ask(self, request: Request) -> list[Normal]:
        # Together: a request without an answer is waited for half a second on each side.
        return list(
            self._threads.map(
                lambda side: normalise(side, request, side.perform(request)), self._sides
            )
        )

    def _may_settle(self, request: Request, theirs: Normal, *ours: Normal) -> bool:
        if request.code not in _READING | _ALSO_READING | _STILL_READING:
            return False
        return any(one.row is None for each in ours for one in differences(request, theirs, each))


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Side]:
    folder = tmp_path_factory.mktemp("theirs")
    apache = ApacheCluster(brokers=1, folder=folder, properties=SETTINGS)
    with apache as cluster, _side(cluster) as side:
        yield side


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Side]]:
    """Ours, by the way that its broker takes."""
    with ExitStack() as stack:
        started = {}
        for way in WAYS:
            settings = SETTINGS if TARGET == "apache" else SETTINGS | {FAST_PATH: way}
            folder = tmp_path_factory.mktemp(f"ours-{way}")
            cluster = stack.enter_context(open_cluster(folder, brokers=1, properties=settings))
            started[way] = stack.enter_context(_side(cluster))
        yield started


@pytest.fixture(scope="module")
def answered(theirs: Side, sides: dict[str, Side]) -> list[tuple[Request, list[Normal]]]:
    with ThreadPoolExecutor(1 + len(sides)) as threads:
        asked = Sides(theirs, sides.values(), threads)
        return [(request, asked.perform(request)) for request in generate(SEED)]


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    """The value of `contrailFastPath` at our broker."""
    return str(request.param)


@pytest.fixture
def ours(sides: dict[str, Side], way: str) -> Side:
    return sides[way]


@pytest.fixture
def run(answered: list[tuple[Request, list[Normal]]], way: str) -> Run:
    """Each request with Apache's answer and ours."""
    place = 1 + WAYS.index(way)
    return [(request, answers[0], answers[place]) for request, answers in answered]


def _side(cluster: Cluster) -> Side:
    broker = cluster.brokers[0]
    return Side(cluster.namesrv, Facts(broker.address, broker.name, CLUSTER_NAME))


def _all_differences(run: Run) -> list[Difference]:
    return [one for request, left, right in run for one in differences(request, left, right)]


def _answers_by_code(run: Run) -> dict[tuple[str, int], Counter[object]]:
    """How often each request code of each server was answered with each response code."""
    answers: dict[tuple[str, int], Counter[object]] = defaultdict(Counter)
    for request, *both in run:
        for answer in both:
            answers[request.target, request.code][answer.get("code", answer.get("instead"))] += 1
    return answers


@pytest.mark.proves("apache.broker.requests")
@ONLY_OURS
def test_every_code_in_scope_succeeds_and_is_refused_where_it_can_be(run: Run) -> None:
    """Some are refused by our servers alone: the original takes a missing name for none."""
    answers = _answers_by_code(run)
    for code, seen in sorted(answers.items()):
        print(code, dict(seen))
    assert len(run) >= REQUEST_COUNT_MIN
    in_scope = {(spec.target, spec.code) for spec in ALL_SPECS}
    assert {code for code in in_scope if SUCCESS not in answers[code]} == set()
    assert {code[1] for code in in_scope if set(answers[code]) == {SUCCESS}} <= NEVER_REFUSED


@pytest.mark.proves("apache.broker.requests")
def test_some_requests_are_binary_and_some_have_no_answer(run: Run) -> None:
    binary = [request for request, *_ in run if request.binary]
    assert len(binary) >= BINARY_COUNT_MIN
    assert len({request.code for request in binary}) >= BINARY_CODES_MIN
    assert sum(request.one_way for request, *_ in run) >= ONE_WAY_COUNT_MIN


@pytest.mark.proves(
    "broker.send.checks", "apache.broker.differences", "broker.fast.both-ways-interop"
)
def test_no_difference_is_unexplained(run: Run) -> None:
    unexplained = [one for one in _all_differences(run) if one.row is None]
    groups = Counter((one.request.target, one.request.code, one.path) for one in unexplained)
    for (target, code, path), count in groups.most_common():
        print(f"{count:5} {target} {code} {path}")
    for one in unexplained[:SHOWN_MAX]:
        print(one)
    assert not unexplained, f"{len(unexplained)} differences in {len(run)} requests"


@ONLY_OURS
def test_codes_of_later_work_are_refused_as_unsupported(run: Run, ours: Side) -> None:
    """A code that gets built is moved into the run."""
    for request in generate_later(SEED):
        answer = ours.perform(request).answer
        assert answer is not None and answer.code == REQUEST_CODE_NOT_SUPPORTED, request


@pytest.mark.proves("apache.broker.explained")
@ONLY_OURS
def test_every_rule_explains_something(run: Run) -> None:
    used = {one.row for one in _all_differences(run)}
    assert {rule.row for rule in RULES} <= used
