"""Every request code has one name and one class."""

from __future__ import annotations

import pytest

from contrail.protocol.codes import (
    CODE_CLASSES,
    CodeClass,
    RequestCode,
    ResponseCode,
    describe_code,
)


@pytest.mark.proves("wire.frames.codes-by-class")
def test_every_request_code_has_exactly_one_class() -> None:
    assert set(CODE_CLASSES) == set(RequestCode)
    assert len(RequestCode) == 183


@pytest.mark.proves("wire.frames.codes-by-name")
def test_no_code_has_two_names() -> None:
    for kind in (RequestCode, ResponseCode):
        assert len(kind.__members__) == len(set(kind))


@pytest.mark.proves("wire.frames.codes-by-class")
@pytest.mark.parametrize(
    ("code", "expected"),
    [
        # Requests that stock producers and consumers need.
        *[(code, CodeClass.DATA) for code in (10, 310, 320, 11, 361, 14, 15, 29, 30, 31, 32)],
        *[(code, CodeClass.DATA) for code in (34, 35, 36, 37, 38, 41, 42, 46, 105, 200050)],
        # Requests that let an operator read, and requests that change.
        *[(code, CodeClass.READ_ADMIN) for code in (26, 28, 203, 206, 208, 319)],
        *[(code, CodeClass.WRITE_ADMIN) for code in (17, 25, 100, 205, 215, 216, 222, 318, 3001)],
        # Requests among brokers, replicas and controllers.
        *[(code, CodeClass.CLUSTER) for code in (106, 103, 104, 322, 904, 901, 21, 43, 201, 1003)],
    ],
)
def test_codes_are_in_the_class_of_their_senders(code: int, expected: CodeClass) -> None:
    assert CODE_CLASSES[RequestCode(code)] is expected


def test_no_code_that_changes_settings_or_users_is_open_to_clients() -> None:
    for code, kind in CODE_CLASSES.items():
        if any(word in code.name for word in ("UPDATE_AND", "CONFIG", "AUTH_", "DELETE", "CLEAN")):
            assert kind is not CodeClass.DATA or code is RequestCode.CHECK_CLIENT_CONFIG


def test_a_message_names_known_codes_and_numbers_unknown_ones() -> None:
    assert describe_code(11) == "PULL_MESSAGE (11)"
    assert describe_code(99_999) == "99999"
