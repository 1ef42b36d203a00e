"""Topics that a job may and may not write to."""

from __future__ import annotations

import pytest

from contrail.errors import OptionInvalid
from contrail.pipeline.jobs.targets import check_target, refuse_retry_topic

CLOSED = [
    "TBW102",
    "SCHEDULE_TOPIC_XXXX",
    "RMQ_SYS_TRANS_HALF_TOPIC",
    "rmq_sys_wheel_timer",
    "%DLQ%CID_RMQ_SYS_TRANS",
]
OPEN_OF_THE_SYSTEM = ["BenchmarkTest", "RMQ_SYS_TRACE_TOPIC"]


@pytest.mark.proves("spark.migration.dry-run-refusals")
@pytest.mark.parametrize("is_there", [True, False])
@pytest.mark.parametrize("topic", CLOSED)
def test_a_closed_topic_of_the_system_is_no_target(topic: str, is_there: bool) -> None:
    with pytest.raises(OptionInvalid, match="belongs to the system"):
        check_target(topic, 4, is_there=is_there)


@pytest.mark.parametrize("topic", OPEN_OF_THE_SYSTEM)
def test_an_open_system_topic_is_written_and_not_created(topic: str) -> None:
    check_target(topic, None, is_there=True)
    with pytest.raises(OptionInvalid, match="belongs to the system"):
        check_target(topic, 4, is_there=False)


@pytest.mark.parametrize("topic", ["", " ", "or ders", "a/b", "a" * 128, "\u00e4"])
def test_a_topic_with_an_invalid_name_is_not_created(topic: str) -> None:
    with pytest.raises(OptionInvalid):
        check_target(topic, 4, is_there=False)


def test_a_missing_topic_needs_a_width_that_a_topic_can_have() -> None:
    check_target("orders", 65_535, is_there=False)
    check_target("orders", None, is_there=True)
    with pytest.raises(OptionInvalid, match="does not exist: say with queues"):
        check_target("orders", None, is_there=False)
    for queues in (0, 65_536):
        with pytest.raises(OptionInvalid, match="1 to 65535"):
            check_target("orders", queues, is_there=False)


def test_a_retry_topic_is_no_target() -> None:
    with pytest.raises(OptionInvalid, match="brokers take no batches for a retry topic"):
        refuse_retry_topic("%RETRY%g")
    with pytest.raises(OptionInvalid, match="brokers take no batches for a retry topic"):
        check_target("%RETRY%g", None, is_there=True)
