"""The log line of a starting server about its build."""

from __future__ import annotations

import pytest

import contrail
from contrail.kernels import compiled_kernels, interpreted_kernels
from contrail.runtime import build


def test_the_version_is_the_package_s() -> None:
    assert build.contrail_version() == contrail.__version__


def test_unloaded_kernels_are_reported_as_they_are_once_loaded() -> None:
    loaded = [name for name, is_compiled in compiled_kernels().items() if not is_compiled]
    assert list(interpreted_kernels()) == loaded


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["a", "b", "c"], "all kernels are interpreted"),
        (["b"], "1 of 3 kernels are interpreted"),
    ],
)
def test_interpreted_kernels_are_warned_about(
    names: list[str], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "kernel_names", lambda: ["a", "b", "c"])
    monkeypatch.setattr(build, "interpreted_kernels", lambda: names)
    warning = build.interpreted_warning()
    assert warning is not None and words in warning and "contrail version" in warning


def test_compiled_kernels_give_no_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "interpreted_kernels", list)
    assert build.interpreted_warning() is None
