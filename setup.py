"""Build the kernels and the console's page; all else about the distribution is in pyproject.toml.

``CONTRAIL_KERNELS`` steers the build: ``auto`` compiles when a C compiler works and says so when
none does, ``pure`` never compiles, ``required`` fails rather than fall back.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

KERNELS_FOLDER = Path("src/contrail/kernels")
MODES = ("auto", "pure", "required")
DIRECTIVES = {
    "language_level": 3,
    "annotation_typing": False,
    "boundscheck": True,
    # Kernels count forward only: a negative index is a bug, and raises like any other bad one.
    "wraparound": False,
    "initializedcheck": False,
}
INSTALL_HINT = "apt-get install build-essential python3-dev"


class BuildKernels(build_ext):
    """Translates to C only when something is really built, not each time pip asks for metadata."""

    def finalize_options(self) -> None:
        from Cython.Build import cythonize

        self.distribution.ext_modules = cythonize(
            self.distribution.ext_modules,
            build_dir="build/cython",
            include_path=["src"],
            compiler_directives=DIRECTIVES,
        )
        super().finalize_options()


class BuildPage(build_py):
    """Builds the console's page where it is missing: an sdist has it, a clone may not."""

    def run(self) -> None:
        script = Path("scripts/console_page.py")
        if script.exists():
            subprocess.run([sys.executable, str(script)], check=True)
        super().run()


def kernel_extensions() -> list[Extension]:
    """One extension for each kernel that has its C types beside it."""
    sources = [path for path in sorted(KERNELS_FOLDER.glob("*.py")) if _has_c_types(path)]
    # Without -g0 some Pythons add debug information, which makes an extension five times as large.
    flags = ["-O3", "-g0"]
    return [
        Extension(f"contrail.kernels.{path.stem}", [str(path)], extra_compile_args=flags)
        for path in sources
    ]


def _has_c_types(path: Path) -> bool:
    return path.with_suffix(".pxd").exists()


def wants_compilation() -> bool:
    """Decide from ``CONTRAIL_KERNELS`` and the machine; explains itself when the answer is no."""
    mode = os.environ.get("CONTRAIL_KERNELS") or "auto"
    if mode not in MODES:
        sys.exit(f"contrail: CONTRAIL_KERNELS={mode!r} is not one of {', '.join(MODES)}")
    if mode == "pure":
        return False
    complaint = compiler_complaint()
    if complaint and mode == "required":
        sys.exit(f"contrail: kernels must be compiled, but {complaint}\n  {INSTALL_HINT}")
    if complaint:
        print(f"contrail: kernels will run interpreted, because {complaint}\n  {INSTALL_HINT}")
    return not complaint


def compiler_complaint() -> str:
    """Compile a file that needs Python.h; empty when that works."""
    compiler = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    with tempfile.TemporaryDirectory() as folder:
        probe = Path(folder, "probe.c")
        probe.write_text("#include <Python.h>\nint main(void) { return 0; }\n")
        include = sysconfig.get_path("include")
        command = [*shlex.split(compiler), f"-I{include}", "-c", str(probe), "-o", f"{probe}.o"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as error:
            return f"the C compiler {compiler!r} did not start: {error}"
    if done.returncode == 0:
        return ""
    said = (done.stderr.strip().splitlines() or ["no output"])[0]
    return f"the C compiler {compiler!r} cannot build an extension: {said}"


extensions = kernel_extensions() if wants_compilation() else []
setup(
    ext_modules=extensions,
    cmdclass={"build_py": BuildPage, **({"build_ext": BuildKernels} if extensions else {})},
)
