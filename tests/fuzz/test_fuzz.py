"""Every decoder against hostile input: seconds here, minutes and a guided fuzzer in torture."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.fuzz.campaign import fuzz, has_fuzzer, twin_differences
from tests.fuzz.checks import Checker, Finding
from tests.fuzz.hostile import large, mutations
from tests.fuzz.targets import TARGETS, Target
from tests.seeds import seed_asked_for

EVERY = pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS.keys())
FUZZ_SECONDS = int(os.environ.get("CONTRAIL_FUZZ_SECONDS", "20"))


@EVERY
def test_the_seeds_are_accepted(target: Target) -> None:
    """A seed that the decoder refuses would not help the fuzzer."""
    with Checker(target) as checker:
        checker.run_all(target.seeds)
    assert checker.accepted >= 1


@pytest.mark.proves("wire.hostile.nothing-uncaught")
@EVERY
def test_mutated_input_is_decoded_or_refused_as_documented(target: Target) -> None:
    with Checker(target) as checker:
        checker.run_all(mutations(target, seed=1, count=400))
    assert checker.inputs == 400


@pytest.mark.proves("wire.hostile.fuzzed")
@EVERY
def test_compiled_and_pure_see_mutated_input_alike(target: Target) -> None:
    assert twin_differences(mutations(target, seed=2, count=100)) == []


LARGE = [
    pytest.param(TARGETS[name], data, id=f"{name}: {kind}")
    for name in TARGETS
    for kind, data in large(name).items()
]


@pytest.mark.proves("wire.hostile.time", "wire.hostile.memory")
@pytest.mark.parametrize(("target", "data"), LARGE)
def test_large_input_takes_neither_time_nor_memory(target: Target, data: bytes) -> None:
    with Checker(target) as checker:
        checker.run(data)


@pytest.mark.proves("wire.hostile.fuzzed")
@pytest.mark.torture
@pytest.mark.timeout(0)
@EVERY
def test_a_guided_fuzzer_finds_nothing(target: Target, tmp_path: Path) -> None:
    if not has_fuzzer():
        pytest.skip("atheris is not installed: pip install 'contrail-mq[fuzz]'")
    figures = fuzz(target, tmp_path, seconds=FUZZ_SECONDS, seed=seed_asked_for(1))
    print(f"{target.name}: {figures.tried:,} inputs tried, {figures.kept} kept and replayed")
    assert figures.findings == []
    assert figures.tried > figures.kept > len(target.seeds)


# The checks themselves.


def _slow(data: bytes) -> None:
    sum(range(100_000))


def _hungry(data: bytes) -> None:
    assert len(bytes(9 << 20) + data) > 0


def _broken(data: bytes) -> None:
    raise KeyError("not documented")


@pytest.mark.proves("wire.hostile.time")
@pytest.mark.parametrize(
    ("decode", "finding"),
    [(_slow, Finding), (_hungry, Finding), (_broken, KeyError)],
    ids=["time", "memory", "exception"],
)
def test_a_decoder_that_breaks_a_rule_is_found(
    decode: object, finding: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.fuzz.checks.SECONDS_MAX", 0.0001 if decode is _slow else 100)
    target = Target("bad", decode, (ValueError,), ())  # type: ignore[arg-type]
    with Checker(target) as checker, pytest.raises(finding):
        checker.run(b"x")
