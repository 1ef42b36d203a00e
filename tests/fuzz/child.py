"""The process that atheris drives: the interpreted decoders, guided by what they execute.

    CONTRAIL_KERNELS=pure python -m tests.fuzz.child TARGET CORPUS_FOLDER SECONDS [SEED]

New inputs are kept in the folder; one that is a finding is written beside it, and the exit code is
not 0. The libFuzzer statistics on standard error say how many inputs were tried.
"""

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports(include=["contrail"], enable_loader_override=True):
    from contrail.kernels import compiled_kernels
    from tests.fuzz.checks import Checker
    from tests.fuzz.targets import TARGETS

INPUT_BYTES_MAX = 4096


def main(name: str, folder: str, seconds: str, seed: str = "1") -> None:
    options = [
        f"-max_total_time={seconds}",
        f"-max_len={INPUT_BYTES_MAX}",
        f"-seed={seed}",
        f"-artifact_prefix={folder}-finding-",
        "-print_final_stats=1",
        "-timeout=20",
        # Long inputs from the beginning: seeds are whole documents.
        "-len_control=0",
        "-rss_limit_mb=0",
        "-verbosity=1",
    ]
    assert not any(compiled_kernels().values()), "only interpreted code can guide the fuzzer"
    with Checker(TARGETS[name]) as checker:
        atheris.Setup([sys.argv[0], *options, folder], checker.run)
        atheris.Fuzz()


if __name__ == "__main__":
    main(*sys.argv[1:])
