"""A place for tables: a folder of this machine or of a mount, or a prefix of an S3 bucket.

An object store is reached as the environment says (``AWS_ENDPOINT_URL``, ``AWS_ACCESS_KEY_ID`` and
the others of its own programs), on the driver and on the executors.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING

from contrail.errors import OptionInvalid

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

_SCHEMES = ("s3", "file")


class AlreadyThere(Exception):
    """Another process made a file that may be made only once."""


class Place:
    """Files below one address, by their paths from there. Cheap to make; may be pickled."""

    def __init__(self, address: str) -> None:
        """Raises ``OptionInvalid`` for an address that is neither a folder nor ``s3://``."""
        scheme, mark, rest = address.partition("://")
        if not mark:
            scheme, rest = "file", address
        if scheme not in _SCHEMES:
            raise OptionInvalid(
                f"{address!r}: name a folder or s3://BUCKET/PREFIX, of S3 or a store that speaks it"
            )
        self.is_local = scheme == "file"
        if self.is_local:
            self.root = str(Path(rest).expanduser().absolute())
        else:
            self.root = rest.rstrip("/")
            if not self.root:
                raise OptionInvalid(f"{address!r}: name a bucket, as in s3://BUCKET/PREFIX")
        self._files: AbstractFileSystem | None = None

    def __reduce__(self) -> tuple[type[Place], tuple[str]]:
        return Place, (self.address,)

    @property
    def address(self) -> str:
        """The place for messages to users and for other programs."""
        return self.root if self.is_local else f"s3://{self.root}"

    @property
    def url(self) -> str:
        """The place with its scheme."""
        return f"file://{self.root}" if self.is_local else f"s3://{self.root}"

    def at(self, path: str) -> str:
        """The path of a file as the file system names it."""
        return f"{self.root}/{path}"

    @property
    def files(self) -> AbstractFileSystem:
        """The file system; made when it is needed.

        Raises:
            OptionInvalid: the object store's library is not installed.
        """
        if self._files is None:
            self._files = _file_system(self.is_local)
        return self._files

    def read(self, path: str) -> bytes | None:
        """The content of a file; None if there is none."""
        try:
            content: bytes = self.files.cat_file(self.at(path))
        except FileNotFoundError:
            return None
        except Exception as error:
            raise self._unreached(error) from error
        return content

    def _unreached(self, error: Exception) -> Exception:
        """The error of an object store in one line; any other error as it is."""
        is_stores = type(error).__module__.partition(".")[0] in ("aiobotocore", "botocore")
        if self.is_local or not (is_stores or isinstance(error, OSError)):
            return error
        return OptionInvalid(
            f"{self.address!r} cannot be reached ({error}): see AWS_ENDPOINT_URL and the keys in "
            "the environment"
        )

    def exists(self, path: str) -> bool:
        return bool(self.files.exists(self.at(path)))

    def names(self, folder: str) -> list[str]:
        """The names in a folder, sorted; none if it does not exist."""
        try:
            found = self.files.ls(self.at(folder), detail=False, refresh=True)
        except FileNotFoundError:
            return []
        names = {str(one).rstrip("/").rpartition("/")[2] for one in found}
        return sorted(names - {folder.rpartition("/")[2]} - {""})

    def below(self, folder: str) -> list[str]:
        """The paths of all files below a folder, however deep, sorted."""
        try:
            found = self.files.find(self.at(folder), refresh=True)
        except FileNotFoundError:
            return []
        return sorted(str(one).removeprefix(self.root).lstrip("/") for one in found)

    def create(self, path: str, content: bytes) -> None:
        """Make a whole, durable file that nobody made before.

        Raises:
            AlreadyThere: there is such a file.
        """
        if not self.is_local:
            try:
                self.files.pipe_file(self.at(path), content, mode="create")
            except FileExistsError as error:
                raise AlreadyThere(path) from error
            return
        target = Path(self.at(path))
        target.parent.mkdir(parents=True, exist_ok=True)
        written = target.with_name(f".{target.name}.{uuid.uuid4().hex}.tmp")
        try:
            _write_durably(written, content)
            # A link, because a rename would replace the file of another process.
            os.link(written, target)
        except FileExistsError as error:
            raise AlreadyThere(path) from error
        finally:
            written.unlink(missing_ok=True)
        sync(target.parent)

    def put(self, path: str, content: bytes) -> None:
        """Make or replace a file as a whole."""
        if not self.is_local:
            self.files.pipe_file(self.at(path), content)
            return
        target = Path(self.at(path))
        target.parent.mkdir(parents=True, exist_ok=True)
        written = target.with_name(f".{target.name}.{uuid.uuid4().hex}.tmp")
        _write_durably(written, content)
        os.replace(written, target)
        sync(target.parent)

    def copy(self, source: str, target: str) -> None:
        """Copy a file; a reader sees the whole copy or none."""
        if not self.is_local:
            self.files.cp_file(self.at(source), self.at(target))
            return
        content = self.read(source)
        assert content is not None
        self.put(target, content)

    def size(self, path: str) -> int:
        return int(self.files.size(self.at(path)))

    def remove(self, paths: Iterable[str]) -> None:
        """Delete files; a file that is not there is no error."""
        for path in paths:
            try:
                self.files.rm_file(self.at(path))
            except FileNotFoundError:
                continue

    def remove_folder(self, folder: str) -> None:
        """Delete a folder and all files below it."""
        try:
            self.files.rm(self.at(folder), recursive=True)
        except FileNotFoundError:
            return

    @contextmanager
    def writing(self, path: str) -> Iterator[IO[bytes]]:
        """A new file to write; whole and durable at the end of the block."""
        if not self.is_local:
            with self.files.open(self.at(path), "wb") as file:
                yield file
            return
        target = Path(self.at(path))
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("wb") as local:
            yield local
            local.flush()
            os.fsync(local.fileno())
        sync(target.parent)

    def reading(self, path: str) -> IO[bytes]:
        """A file to read."""
        opened: IO[bytes] = self.files.open(self.at(path), "rb")
        return opened


def _file_system(is_local: bool) -> AbstractFileSystem:
    try:
        import fsspec

        if is_local:
            return fsspec.filesystem("file", skip_instance_cache=True)
        return fsspec.filesystem("s3", use_listings_cache=False)
    except ImportError as error:
        raise OptionInvalid(
            "an object store needs its library: pip install contrail-mq[s3]"
            if not is_local
            else "tables need fsspec: pip install contrail-mq[iceberg] or contrail-mq[delta]"
        ) from error


def _write_durably(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync(path: Path | str) -> None:
    """Make a file of this machine, or the names in a folder, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
