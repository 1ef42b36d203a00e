"""The physical offset from which a record without a CRC is damaged."""

from __future__ import annotations

from contrail.store.state.record_crc import IGNORED, REQUIRED, WHERE_PRESENT, RecordCrcRule


def test_a_record_crc_that_is_switched_off_is_never_checked() -> None:
    rule = RecordCrcRule(IGNORED, 100)
    assert rule.mode(500) == IGNORED
    assert rule.after_start(600).present_from is None


def test_a_record_crc_is_required_from_the_offset_where_every_record_has_one() -> None:
    rule = RecordCrcRule(WHERE_PRESENT).after_start(1000)
    assert (rule.mode(999), rule.mode(1000)) == (WHERE_PRESENT, REQUIRED)
    assert rule.after_start(5000) == rule, "a later start knows of the earlier records"


def test_a_log_cut_below_that_offset_moves_the_offset_down() -> None:
    rule = RecordCrcRule(WHERE_PRESENT, 1000).after_start(700)
    assert rule.present_from == 700


def test_a_record_crc_required_by_the_settings_is_required_everywhere() -> None:
    assert RecordCrcRule(REQUIRED).mode(0) == REQUIRED
