"""The settings machinery: every kind is read, checked and written the same way in every room."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest

from contrail.errors import ConfigError
from contrail.model.settings import names_of, properties_of, read_settings, require_sound, setting


class Taste(StrEnum):
    SWEET = "SWEET"
    SOUR = "SOUR"


def home() -> Path:
    return Path("/home")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    folder: Path = setting("folderName")  # noqa: RUF009
    home: Path = setting("homeFolder", make_default=home)  # noqa: RUF009
    folders: tuple[Path, ...] = setting("folderNames", ())
    count: int = setting("countMax", 5, lowest=1, highest=9)
    floor: int = setting("floorMin", 0, lowest=-2)
    is_on: bool = setting("onEnable", False)
    text: str = setting("someText", "")
    taste: Taste = setting("tasteType", Taste.SWEET)  # noqa: RUF009

    def __post_init__(self) -> None:
        require_sound(self)


FOLDER = {"folderName": "data"}


def test_texts_become_values_of_their_kind() -> None:
    found = read_settings(
        Settings,
        {
            "folderName": " data ",
            "folderNames": "a, b,",
            "countMax": " 9 ",
            "floorMin": "-2",
            "onEnable": "TRUE",
            "someText": "x = y",
            "tasteType": "SOUR",
            "another": "not ours",
        },
    )
    assert found == Settings(
        folder=Path("data"),
        folders=(Path("a"), Path("b")),
        count=9,
        floor=-2,
        is_on=True,
        text="x = y",
        taste=Taste.SOUR,
    )
    assert found.home == Path("/home")


def test_settings_read_back_from_their_own_properties() -> None:
    settings = Settings(folder=Path("data"), folders=(Path("a"), Path("b")), is_on=True)
    properties = properties_of(settings)
    assert properties.keys() == names_of(Settings)
    assert properties["onEnable"] == "true"
    assert read_settings(Settings, properties) == settings


@pytest.mark.parametrize(
    ("name", "text", "rule"),
    [
        ("countMax", "0", "from 1 to 9"),
        ("countMax", "10", "from 1 to 9"),
        ("floorMin", "-3", "at least -2"),
        ("countMax", "1_0", "a whole number"),
        ("countMax", "٣", "a whole number"),
        ("countMax", "", "a whole number"),
        ("countMax", "9" * 5000, "a whole number"),
        ("onEnable", "yes", "true or false"),
        ("tasteType", "sweet", "SWEET or SOUR"),
    ],
)
def test_a_wrong_text_is_refused_by_name_and_rule(name: str, text: str, rule: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}=.*{rule}"):
        read_settings(Settings, {**FOLDER, name: text})


def test_a_setting_without_a_default_must_be_given() -> None:
    with pytest.raises(ConfigError, match="folderName is missing"):
        read_settings(Settings, {})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("folder", 7),
        ("folders", 7),
        ("folders", [7]),
        ("count", True),
        ("count", "5"),
        ("is_on", 1),
        ("text", 5),
        ("taste", 1),
    ],
)
def test_a_value_of_another_kind_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match="is refused: it must be"):
        Settings(**{"folder": "data", field: value})


def test_texts_that_can_only_mean_one_thing_are_taken() -> None:
    settings = Settings(folder="data", folders=["a"], taste="SOUR")  # type: ignore[arg-type]
    assert settings == Settings(folder=Path("data"), folders=(Path("a"),), taste=Taste.SOUR)
