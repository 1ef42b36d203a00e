"""``python -m bench.compare BASE``: what sends and pulls cost beside another commit of this tree.

Both trees are built side by side and run in turn under the same C load; instructions are counted
as well. A row is worse when its instructions exceed 1.03x, or when the whole interval of its CPU
ratios lies above 1.00x and their median above 1.03x. Ends with 1 if a row is worse.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from bench.compare_cases import Case, cases
from bench.compare_instructions import counted_instructions
from bench.compare_rounds import Rounds, measured_rounds
from bench.compare_trees import Tree, both_trees
from bench.harness import REPOSITORY, BenchError
from bench.report import PUBLISHED, describe_machine, require_publishable

INSTRUCTIONS_MAX = 1.03
_HEADINGS = ("what", "base µs", "head µs", "CPU ratio [95 %]", "base instr", "head instr", "ratio")


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured."""

    pair_count: int
    scale: float
    run_count: int
    chunk_count: int


SIZES = {
    "full": Sizes(pair_count=40, scale=1.0, run_count=2, chunk_count=60),
    "quick": Sizes(pair_count=6, scale=0.3, run_count=1, chunk_count=30),
    "tiny": Sizes(pair_count=1, scale=0.001, run_count=1, chunk_count=1),
}


@dataclass(frozen=True, slots=True)
class Row:
    """One case in both trees; None for figures that were not measured."""

    name: str
    rounds: Rounds | None
    base_instructions: float | None
    head_instructions: float | None

    @property
    def instructions_ratio(self) -> float | None:
        if self.base_instructions is None or self.head_instructions is None:
            return None
        return self.head_instructions / self.base_instructions

    @property
    def is_worse(self) -> bool:
        ratio = self.instructions_ratio
        by_instructions = ratio is not None and ratio > INSTRUCTIONS_MAX
        return by_instructions or (self.rounds is not None and self.rounds.ratio.is_worse)

    def cells(self) -> list[str]:
        rounds, ratio = self.rounds, self.instructions_ratio
        cpu = ["-"] * 3
        if rounds is not None:
            cpu = [f"{rounds.base_us:.2f}", f"{rounds.head_us:.2f}", str(rounds.ratio)]
        instructions = ["-"] * 3
        if ratio is not None:
            counts = (self.base_instructions, self.head_instructions)
            instructions = [*(f"{count:,.0f}" for count in counts), f"{ratio:.3f}x"]
        return [self.name, *cpu, *instructions, "WORSE" if self.is_worse else "ok"]

    def as_json(self) -> dict[str, object]:
        rounds = self.rounds
        return {
            "name": self.name,
            "base_us": rounds and rounds.base_us,
            "head_us": rounds and rounds.head_us,
            "cpu_ratio": rounds and [rounds.ratio.median, rounds.ratio.low, rounds.ratio.high],
            "base_instructions": self.base_instructions,
            "head_instructions": self.head_instructions,
            "worse": self.is_worse,
        }


def main(arguments: list[str] | None = None) -> int:
    options = _options(arguments)
    try:
        return _compare(options)
    except BenchError as error:
        print(f"bench-compare: {error}", file=sys.stderr)
        return 2


def _compare(options: argparse.Namespace) -> int:
    trees = both_trees(options.base)
    sizes = SIZES[options.size]
    wanted = _wanted(options.only)
    parent = Path(options.folder)
    parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="compare-", dir=parent))
    started_s = time.monotonic()
    try:
        rows = _measured(trees, wanted, sizes, folder, options)
    finally:
        shutil.rmtree(folder)
    text = _as_text(trees, rows, time.monotonic() - started_s, describe_machine(parent))
    print(text)
    if options.json is not None:
        data = [row.as_json() for row in rows]
        Path(options.json).write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
    if options.publish:
        _publish(trees, text, options)
    return 1 if any(row.is_worse for row in rows) else 0


def _wanted(only: list[str] | None) -> list[Case]:
    known = cases()
    if not only:
        return known
    chosen = [case for case in known if any(word in case.name for word in only)]
    if not chosen:
        names = "; ".join(case.name for case in known)
        raise BenchError(f"no row has {' or '.join(map(repr, only))} in its name: {names}")
    return chosen


def _measured(
    trees: tuple[Tree, Tree],
    wanted: list[Case],
    sizes: Sizes,
    folder: Path,
    options: argparse.Namespace,
) -> list[Row]:
    counts: dict[str, dict[str, float]] = {"base": {}, "head": {}}
    if not options.no_instructions:
        print("counting instructions ...", file=sys.stderr, flush=True)
        counts = counted_instructions(
            trees,
            folder,
            [case.name for case in wanted],
            run_count=sizes.run_count,
            chunk_count=sizes.chunk_count,
        )
    rows = []
    for case in wanted:
        rounds = None
        if not options.no_rounds:
            print(f"measuring {case.name} ...", file=sys.stderr, flush=True)
            rounds = measured_rounds(
                case, trees, folder / "rounds", pair_count=sizes.pair_count, scale=sizes.scale
            )
        row = Row(case.name, rounds, counts["base"].get(case.name), counts["head"].get(case.name))
        print("  " + "  ".join(row.cells()), file=sys.stderr, flush=True)
        rows.append(row)
    return rows


def _as_text(
    trees: tuple[Tree, Tree], rows: list[Row], elapsed_s: float, machine: dict[str, object]
) -> str:
    base, head = trees
    lines = [
        f"base {base.commit[:12]}, head {head.commit[:12]}{_dirty(head)}; {machine['cpu']}, "
        f"{machine['cores']} cores; {elapsed_s:.0f} s",
        "",
        "| " + " | ".join([*_HEADINGS, "result"]) + " |",
        "| --- | " + "---: | " * len(_HEADINGS[1:]) + "--- |",
        *("| " + " | ".join(row.cells()) + " |" for row in rows),
    ]
    return "\n".join([*lines, ""])


def _dirty(tree: Tree) -> str:
    return ", with changes that are not committed" if tree.commit.endswith("-dirty") else ""


def _publish(trees: tuple[Tree, Tree], text: str, options: argparse.Namespace) -> None:
    """An A/A run shows the spread of the measure itself; other runs the cost of a change."""
    base, head = trees
    is_itself = base.commit == head.commit
    # A tree beside itself must agree by instructions, which rounds of CPU time do not change.
    is_partial = options.only or (options.no_rounds and not is_itself)
    require_publishable("partial" if is_partial else options.size, {})
    name = "compare-itself" if is_itself else "compare"
    path = PUBLISHED / f"{name}.md"
    title = "A tree beside itself" if name == "compare-itself" else "A tree beside the one before"
    command = f"make bench-compare BASE={options.base}"
    if options.no_rounds:
        command += " ARGS=--no-rounds"
    path.write_text(f"# {title}\n\n`{command}`: {text}", "utf-8")
    print(f"published {path.relative_to(REPOSITORY)}", file=sys.stderr)


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.compare", description=__doc__)
    parser.add_argument("base", help="the commit to compare the working tree with")
    parser.add_argument("--size", choices=list(SIZES), default="full")
    parser.add_argument("--quick", dest="size", action="store_const", const="quick")
    parser.add_argument("--only", action="append", metavar="WORD", help="rows with it in the name")
    parser.add_argument("--no-rounds", action="store_true", help="count instructions only")
    parser.add_argument("--no-instructions", action="store_true", help="measure CPU only")
    parser.add_argument("--json", metavar="PATH", help="also write the rows as JSON")
    parser.add_argument("--publish", action="store_true", help="write docs/benchmarks/compare*.md")
    parser.add_argument(
        "--folder", default=str(REPOSITORY / "build" / "bench"), help="where stores are written"
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
