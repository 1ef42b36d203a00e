"""Bodies as roles see them: hidden, masked by path, cut; never more than the role may."""

from __future__ import annotations

import json

import pytest

from contrail.console.state.masks import (
    MASK,
    SHOWN_BYTES_MAX,
    MaskInvalid,
    parse_path,
    shown_body,
)
from contrail.console.state.roles import Role

BODY = json.dumps({"card": {"number": "4111"}, "items": [{"name": "tea", "price": 3}]}).encode()


@pytest.mark.proves("console.security.bodies")
def test_viewers_see_no_body_and_readers_do() -> None:
    assert shown_body(BODY, Role.VIEWER, []).is_hidden
    assert shown_body(BODY, Role.VIEWER, []).text is None
    assert shown_body(BODY, Role.READER, []).text == BODY.decode()


@pytest.mark.proves("console.security.bodies")
@pytest.mark.parametrize(
    ("path", "left"),
    [
        ("$.card.number", {"card": {"number": MASK}, "items": [{"name": "tea", "price": 3}]}),
        ("$.card", {"card": MASK, "items": [{"name": "tea", "price": 3}]}),
        ("$.items[*].name", {"card": {"number": "4111"}, "items": [{"name": MASK, "price": 3}]}),
        ("$.*.number", {"card": {"number": MASK}, "items": [{"name": "tea", "price": 3}]}),
    ],
)
def test_masks_hide_parts_from_all_but_admins(path: str, left: object) -> None:
    masks = [parse_path(path)]
    for role in (Role.READER, Role.OPERATOR):
        told = shown_body(BODY, role, masks)
        assert told.is_masked and json.loads(told.text or "") == left
    assert shown_body(BODY, Role.ADMIN, masks).text == BODY.decode()


def test_a_body_that_is_no_json_is_hidden_whole_where_masks_are_set() -> None:
    told = shown_body(b"card=4111", Role.READER, [parse_path("$.card")])
    assert told.is_hidden and told.text is None and told.base64 is None


def test_other_bytes_are_told_in_base64_and_long_bodies_are_cut_between_characters() -> None:
    assert shown_body(b"\xff\xfe", Role.READER, []).base64 == "//4="
    told = shown_body("é".encode() * SHOWN_BYTES_MAX, Role.READER, [])
    assert told.is_cut and told.text is not None and set(told.text) == {"é"}
    odd = b"a" + "é".encode() * SHOWN_BYTES_MAX
    cut = shown_body(odd, Role.READER, [])
    assert cut.is_cut and cut.text is not None and cut.text.endswith("é")


@pytest.mark.parametrize("text", ["card", "$", "$.a[0]", "$..a", "$.a[", ""])
def test_a_text_that_is_no_path_is_refused(text: str) -> None:
    with pytest.raises(MaskInvalid):
        parse_path(text)
