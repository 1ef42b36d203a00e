"""Write the blocking twins of the asyncio classes: the same methods, without ``await``.

    .venv/bin/python scripts/make_blocking_twins.py          # write them
    .venv/bin/python scripts/make_blocking_twins.py --check  # fail when they are not up to date

Every public coroutine of a class becomes a method of the same signature and docstring that runs it
on the background loop; an async generator becomes an iterator. Methods that need more than that are
written by hand beside the files this script writes.
"""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "src" / "contrail" / "client" / "blocking"
# Written by hand in ``blocking/client.py``.
LIFE = {"start", "close"}


class Twin(NamedTuple):
    """One class to be mirrored."""

    module: str
    name: str
    file: str
    # Methods that the hand-written class replaces.
    left_out: frozenset[str] = frozenset()


TWINS = (
    Twin("contrail.client.producer", "Producer", "producer_calls.py"),
    Twin("contrail.client.pop_consumer", "PopConsumer", "pop_calls.py"),
    Twin("contrail.client.pull_consumer", "PullConsumer", "pull_calls.py"),
    Twin("contrail.client.admin", "Admin", "admin_calls.py"),
)


def rendered(twin: Twin) -> str:
    """The file of one twin."""
    kind = getattr(import_module(twin.module), twin.name)
    imports: dict[str, None] = {}
    methods: list[str] = []
    seen: set[str] = set(LIFE | twin.left_out)
    for owner in kind.__mro__[:-1]:
        tree = ast.parse(Path(str(inspect.getsourcefile(owner))).read_text(encoding="utf-8"))
        imports.update(dict.fromkeys(_imports(tree)))
        imports.update(dict.fromkeys(_own_names(tree, owner)))
        for method in _methods(tree, owner.__name__):
            if method.name not in seen and not method.name.startswith("_"):
                seen.add(method.name)
                methods.append(_method(method))
    return _HEAD.format(
        name=twin.name,
        module=twin.module,
        imports="\n".join(imports),
        methods="\n\n".join(methods),
    )


_HEAD = '''"""``{name}`` without ``await``. Made by scripts/make_blocking_twins.py, not by hand."""

from __future__ import annotations

from collections.abc import Iterator
{imports}

from contrail.client.blocking.client import BlockingClient
from {module} import {name} as _Twin


class {name}Calls(BlockingClient[_Twin]):
    """Every coroutine of ``{module}.{name}`` as a call that waits."""

{methods}
'''


def _imports(tree: ast.Module) -> list[str]:
    return [
        ast.unparse(node)
        for node in tree.body
        if isinstance(node, ast.Import | ast.ImportFrom)
        and getattr(node, "module", "") != "__future__"
    ]


def _own_names(tree: ast.Module, owner: type) -> list[str]:
    """Names that signatures may use because their module defines them."""
    names = [
        node.name
        for node in tree.body
        if isinstance(node, ast.ClassDef) and node.name != owner.__name__
    ]
    for node in tree.body:
        if isinstance(node, ast.Assign):
            names += [target.id for target in node.targets if isinstance(target, ast.Name)]
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.append(node.target.id)
    return [f"from {owner.__module__} import {name}" for name in names]


def _methods(tree: ast.Module, class_name: str) -> list[ast.AsyncFunctionDef]:
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == class_name:
            return [item for item in node.body if isinstance(item, ast.AsyncFunctionDef)]
    return []


def _method(method: ast.AsyncFunctionDef) -> str:
    returns = ast.unparse(method.returns) if method.returns is not None else "None"
    is_generator = returns.startswith("AsyncIterator[")
    if is_generator:
        returns = returns.replace("AsyncIterator[", "Iterator[", 1)
    twin, passed = f"self._twin.{method.name}", _passed_on(method.args)
    run = f"self._iterate({twin}({passed}))" if is_generator else f"self._run({twin}, {passed})"
    lines = [f"def {method.name}({_signature(method.args)}) -> {returns}:"]
    documentation = ast.get_docstring(method)
    if documentation:
        lines.append('    """' + documentation.replace("\n", "\n    ") + _ending(documentation))
    lines.append(f"    return {run}")
    return "\n".join(f"    {line}" for text in lines for line in text.split("\n"))


def _ending(documentation: str) -> str:
    return '\n    """' if "\n" in documentation else '"""'


def _signature(arguments: ast.arguments) -> str:
    return ast.unparse(arguments)


def _passed_on(arguments: ast.arguments) -> str:
    passed = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args)[1:]]
    if arguments.vararg is not None:
        passed.append(f"*{arguments.vararg.arg}")
    passed += [f"{argument.arg}={argument.arg}" for argument in arguments.kwonlyargs]
    if arguments.kwarg is not None:
        passed.append(f"**{arguments.kwarg.arg}")
    return ", ".join(passed)


def cleaned(text: str, name: str) -> str:
    """As ruff would have it, with the imports that are needed and no others."""
    for command in (["check", "--fix-only", "--quiet", "--select", "F401,I"], ["format"]):
        done = subprocess.run(
            [str(Path(sys.executable).parent / "ruff"), *command, "--stdin-filename", name, "-"],
            input=text,
            capture_output=True,
            text=True,
            check=True,
            cwd=ROOT,
        )
        text = done.stdout
    return text


def main() -> int:
    stale = []
    for twin in TWINS:
        path = FOLDER / twin.file
        text = cleaned(rendered(twin), str(path))
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(twin.file)
            if "--check" not in sys.argv:
                path.write_text(text, encoding="utf-8")
    if stale and "--check" in sys.argv:
        print(f"not up to date: {', '.join(stale)}; run scripts/make_blocking_twins.py")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
