"""How far a leader has got with one other member."""

from __future__ import annotations

from contrail.replication.state.progress import Progress


def test_a_probe_waits_for_its_answer_and_then_batches_follow_each_other() -> None:
    progress = Progress(next_end=100)
    assert progress.may_send(1_000)
    progress.sent(200)
    assert not progress.may_send(1_000)
    assert progress.next_end == 100
    progress.matched(100)
    progress.sent(200)
    progress.sent(300)
    assert progress.next_end == 300
    assert progress.may_send(1_000)


def test_bytes_in_flight_are_bounded() -> None:
    progress = Progress(next_end=0)
    progress.matched(0)
    progress.sent(500)
    assert progress.may_send(501)
    assert not progress.may_send(500)


def test_a_refusal_goes_back_to_probing_but_never_below_the_last_agreement() -> None:
    progress = Progress(next_end=0)
    progress.matched(80)
    progress.sent(500)
    progress.disagreed(50)
    assert progress.next_end == 80
    assert not progress.is_streaming


def test_an_older_answer_moves_neither_agreement_nor_time_back() -> None:
    progress = Progress(next_end=0)
    progress.matched(80)
    progress.matched(60)
    progress.answered(20)
    progress.answered(10)
    assert (progress.matched_end, progress.answered_sent_ms) == (80, 20)


def test_after_a_lost_connection_sending_goes_on_behind_the_last_agreement() -> None:
    progress = Progress(next_end=0)
    progress.matched(80)
    progress.sent(500)
    progress.disconnected()
    assert progress.next_end == 80
    assert progress.may_send(1)
