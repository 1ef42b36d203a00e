"""An object store for tests: moto's S3 in a process of its own, which can kill its client.

``python -m tests.e2e.s3_server`` prints its port. ``GET /_arm?pid=P&at=N&when=before`` makes it
kill process P at the Nth write from now, or at the first whose path ends with N, before the write
is carried out or behind it; ``GET /_writes`` answers the writes since.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qs
from urllib.request import urlopen

_WRITES = ("PUT", "POST", "DELETE")


class Killing:
    """Counts the writes that pass to an application, and kills a process at one of them."""

    def __init__(self, application: Callable[..., Iterable[bytes]]) -> None:
        self._application = application
        self._writes: list[str] = []
        self._pid, self._at, self._when = 0, "", ""

    def __call__(self, request: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        path = request["PATH_INFO"]
        if path in ("/_arm", "/_writes"):
            said = parse_qs(request["QUERY_STRING"])
            answer = "\n".join(self._writes)
            if path == "/_arm":
                self._pid, self._at = int(said["pid"][0]), said.get("at", [""])[0]
                self._when, self._writes = said["when"][0], []
            start("200 OK", [("Content-Type", "text/plain")])
            return [answer.encode()]
        is_write = request["REQUEST_METHOD"] in _WRITES
        if is_write:
            self._writes.append(f"{request['REQUEST_METHOD']} {path}")
        is_last = is_write and self._pid and self._is_meant(path)
        if is_last and self._when == "before":
            os.kill(self._pid, signal.SIGKILL)
            start("503 Slow Down", [("Content-Length", "0")])
            return [b""]
        done = list(self._application(request, start))
        if is_last:
            os.kill(self._pid, signal.SIGKILL)
        return done

    def _is_meant(self, path: str) -> bool:
        return path.endswith(self._at) if "." in self._at else len(self._writes) == int(self._at)


class S3:
    """The running server, as a test sees it."""

    def __init__(self, port: int) -> None:
        self.endpoint = f"http://127.0.0.1:{port}"
        self.environment = {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": "contrail",
            "AWS_SECRET_ACCESS_KEY": "contrail",
            "AWS_REGION": "us-east-1",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
        }

    def arm(self, pid: int, at: str, when: str) -> None:
        """Kill the process at its write of this number or name."""
        urlopen(f"{self.endpoint}/_arm?pid={pid}&at={at}&when={when}").read()

    def writes(self) -> list[str]:
        """The writes since the server was armed."""
        text: str = urlopen(f"{self.endpoint}/_writes").read().decode()
        return text.splitlines()


@contextmanager
def running_s3() -> Iterator[S3]:
    """An empty object store with the bucket ``lake``."""
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.e2e.s3_server"], stdout=subprocess.PIPE, text=True
    )
    assert server.stdout is not None
    try:
        yield S3(int(server.stdout.readline()))
    finally:
        server.kill()
        server.wait()
        server.stdout.close()


def main() -> None:
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
    application = Killing(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, application, threaded=True)
    print(server.server_port, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
