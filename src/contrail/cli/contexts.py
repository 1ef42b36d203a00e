"""Named clusters: where the command line finds a cluster without being told its address.

They are kept in one JSON file of the user, written whole and replaced in one step. A context may
name any cluster, Contrail's or Apache's.
"""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from contrail.cli.exits import NotFound
from contrail.errors import ConfigError

# Names another file, such as one of a test.
FILE_VARIABLE = "CONTRAIL_CONTEXTS"
_FIELDS = ("namesrv", "tls", "tls_ca")


@dataclass(frozen=True, slots=True)
class Context:
    """One cluster, and how it is spoken to."""

    namesrv: str
    tls: bool = False
    # A file of certificates that servers are checked against, instead of the system's.
    tls_ca: str | None = None


@dataclass(frozen=True, slots=True)
class Contexts:
    """All named clusters, and the one in use."""

    by_name: Mapping[str, Context] = field(default_factory=dict)
    current: str | None = None

    def named(self, name: str, *, may_be_added: bool = True) -> Context:
        """Raises ``NotFound`` for an unknown name."""
        if name not in self.by_name:
            known = ", ".join(sorted(self.by_name)) or "none yet"
            hint = f"; add it with: contrail ctx add {name} HOST:9876" if may_be_added else ""
            raise NotFound(f"there is no context {name!r}: there are {known}{hint}")
        return self.by_name[name]

    def with_context(self, name: str, context: Context) -> Contexts:
        return replace(self, by_name={**self.by_name, name: context}, current=self.current or name)

    def without(self, name: str) -> Contexts:
        self.named(name, may_be_added=False)
        kept = {other: one for other, one in self.by_name.items() if other != name}
        return Contexts(kept, None if self.current == name else self.current)

    def using(self, name: str) -> Contexts:
        self.named(name)
        return replace(self, current=name)


def contexts_path() -> Path:
    """The file: that of the environment, else the one in the user's configuration folder."""
    given = os.environ.get(FILE_VARIABLE)
    if given:
        return Path(given)
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(home) / "contrail" / "contexts.json"


def load_contexts(path: Path) -> Contexts:
    """The contexts of the file; none without a file.

    Raises:
        ConfigError: it is not a file of contexts.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return Contexts()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    try:
        return _decoded(json.loads(text))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(f"{path} is no file of contexts: mend or delete it ({error})") from error


def save_contexts(path: Path, contexts: Contexts) -> None:
    """Replace the file in one step; it is private to the user, as it may hold addresses.

    Raises:
        ConfigError: it cannot be written.
    """
    text = json.dumps(
        {
            "current": contexts.current,
            "contexts": {name: asdict(one) for name, one in sorted(contexts.by_name.items())},
        },
        indent=2,
    )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", dir=path.parent, prefix=path.name, delete=False
        ) as made:
            made.write(text + "\n")
        os.replace(made.name, path)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error


def change_contexts(path: Path, change: Callable[[Contexts], Contexts]) -> Contexts:
    """Read the file, change it and write it back, one shell at a time.

    Raises:
        ConfigError: it cannot be read or written.
    """
    with _locked(path):
        changed = change(load_contexts(path))
        save_contexts(path, changed)
    return changed


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = path.with_name(f".{path.name}.lock").open("w")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _decoded(found: Mapping[str, object]) -> Contexts:
    contexts = {}
    for name, values in dict(found["contexts"]).items():  # type: ignore[call-overload]
        given = {key: value for key, value in dict(values).items() if key in _FIELDS}
        if not isinstance(given.get("namesrv"), str):
            raise ValueError(f"context {name!r} has no namesrv")
        contexts[str(name)] = Context(**given)
    current = found.get("current")
    return Contexts(contexts, current if isinstance(current, str) and current in contexts else None)
