"""Marks on tests are read as pytest counts them, and one that would not count is told of."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.proofs import complaint_about, proofs_in

SAMPLE = """
import pytest
@pytest.mark.proves("a.b.real")
def test_real(): assert 1
@pytest.mark.proves("a.b.case", case="java4")
@pytest.mark.parametrize("client", CLIENTS)
async def test_case(client): assert 1
@pytest.mark.proves("a.b.marked")
@pytest.mark.skip(reason="later")
def test_marked(): ...
@pytest.mark.proves("a.b.called")
def test_called():
    pytest.skip("later")
@pytest.mark.proves("a.b.sometimes")
@pytest.mark.skipif(BIG, reason="small machine")
def test_sometimes(): assert 1
@pytest.mark.proves("a.b.group")
class TestGroup:
    @pytest.mark.proves("a.b.member", "a.b.real")
    def test_member(self): assert 1
    def test_another(self): assert 1
@pytest.mark.skip(reason="later")
class TestSkipped:
    @pytest.mark.proves("a.b.within")
    def test_member(self): assert 1
"""


def test_proofs_are_named_by_test_class_or_file() -> None:
    text = f'pytestmark = [pytest.mark.proves("a.b.file"), pytest.mark.slow]\n{SAMPLE}'
    found = proofs_in("tests/test_sample.py", text)
    proofs = {str(proof): proof for proof in found.proofs}
    assert found.complaints == []
    assert list(proofs)[:3] == [
        "tests/test_sample.py",
        "tests/test_sample.py::test_real",
        "tests/test_sample.py::test_case[java4]",
    ]
    group = proofs["tests/test_sample.py::TestGroup"]
    assert [test.name for test in group.tests] == [
        "TestGroup::test_member",
        "TestGroup::test_another",
    ]
    assert group.tests[1].marks == {"proves", "slow"}
    assert len(proofs["tests/test_sample.py"].tests) == 8


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("test_it.py", '@pytest.mark.proves("a.b.c")\ndef helper(): ...'),
        ("test_it.py", '@pytest.mark.proves("a.b.c")\nclass TestNothing: ...'),
        ("test_it.py", "@pytest.mark.proves()\ndef test_it(): ..."),
        ("test_it.py", "@pytest.mark.proves\ndef test_it(): ..."),
        ("test_it.py", "@pytest.mark.proves(CLAUSE)\ndef test_it(): ..."),
        ("test_it.py", '@pytest.mark.proves("a.b.c", cases="x")\ndef test_it(): ...'),
        ("test_it.py", 'CASES = [pytest.param(1, marks=pytest.mark.proves("a.b.c"))]'),
        ("shared.py", '@pytest.mark.proves("a.b.c")\ndef test_it(): ...'),
    ],
)
def test_a_mark_that_would_not_count_is_told(file: str, text: str) -> None:
    found = proofs_in(f"tests/{file}", text)
    assert found.proofs == []
    assert len(found.complaints) == 1


def test_a_test_that_a_page_names_is_there_and_runs(tmp_path: Path) -> None:
    file = "tests/test_sample.py"
    (tmp_path / "tests").mkdir()
    (tmp_path / file).write_text(SAMPLE)
    assert complaint_about(f"{file}::test_case[java4]", tmp_path) == ""
    assert complaint_about(f"{file}::TestGroup::test_member", tmp_path) == ""
    assert "has no test_member" in complaint_about(f"{file}::test_member", tmp_path)
    assert "always skipped" in complaint_about(f"{file}::test_called", tmp_path)
    assert "there is no" in complaint_about("tests/absent.py::test_real", tmp_path)
    assert "is not tests/" in complaint_about("trust me", tmp_path)
