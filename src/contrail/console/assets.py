"""The page's files: read once, compressed once, served from memory.

They are built from ``ui`` and lie in ``static`` beside this file; an installation may lack them.
Names of scripts and styles carry a hash of their content: browsers may keep those.
"""

from __future__ import annotations

import gzip
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from contrail.console.problems import Problem

STATIC = Path(__file__).parent / "static"
_INDEX = "index.html"
_HASHED = "app-"
_MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}


@dataclass(frozen=True, slots=True)
class _Asset:
    plain: bytes
    packed: bytes
    media_type: str
    cache: str


class Assets:
    """The files of the page by name; none where it was not built."""

    def __init__(self, folder: Path = STATIC) -> None:
        self._assets = {
            path.name: _asset(path)
            for path in (sorted(folder.iterdir()) if folder.is_dir() else ())
            if path.suffix in _MEDIA_TYPES
        }

    @property
    def has_page(self) -> bool:
        return _INDEX in self._assets

    async def page(self, request: Request) -> Response:
        """The page is one document; which of its views is shown is its address's business."""
        return self._answer(_INDEX, request)

    async def file(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in self._assets or name == _INDEX:
            raise Problem(HTTPStatus.NOT_FOUND, f"there is no file {name!r}")
        return self._answer(name, request)

    def _answer(self, name: str, request: Request) -> Response:
        asset = self._assets[name]
        headers = {"cache-control": asset.cache, "vary": "accept-encoding"}
        if "gzip" in request.headers.get("accept-encoding", ""):
            headers["content-encoding"] = "gzip"
            return Response(asset.packed, headers=headers, media_type=asset.media_type)
        return Response(asset.plain, headers=headers, media_type=asset.media_type)


def _asset(path: Path) -> _Asset:
    data = path.read_bytes()
    kept = "max-age=31536000, immutable" if path.name.startswith(_HASHED) else "no-store"
    return _Asset(data, gzip.compress(data, 9, mtime=0), _MEDIA_TYPES[path.suffix], kept)
