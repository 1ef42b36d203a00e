"""Shows the figures of a session's streaming queries to Prometheus, from the driver."""

from __future__ import annotations

import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from contrail.pipeline.stream_figures import OffsetsBehindLatest, StreamFigures
from contrail.protocol.prometheus_text import CONTENT_TYPE

_PATH = "/metrics"
# A scraper that sends no request for so long is left.
_PATIENCE_S = 10


class StreamMetrics(StreamingQueryListener):
    """Listens to the queries of a session. ``start`` it, and ``close`` it when done."""

    def __init__(self, spark: SparkSession, *, host: str, port: int) -> None:
        self._spark = spark
        self._lock = threading.Condition()
        self._figures = StreamFigures()
        self._server = ThreadingHTTPServer((host, port), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="contrail-stream-metrics", daemon=True
        )

    @property
    def address(self) -> str:
        """Where the figures are shown: ``host:port``."""
        host, port = self._server.server_address[:2]
        return f"{host!s}:{port}"

    def start(self) -> None:
        """Listen from now on, and show the figures."""
        self._thread.start()
        self._spark.streams.addListener(self)

    def close(self) -> None:
        """Listen no more, and close the port."""
        self._spark.streams.removeListener(self)
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def text(self) -> str:
        """The figures as Prometheus reads them."""
        with self._lock:
            return self._figures.text()

    def behind(self, query: str) -> dict[str, OffsetsBehindLatest]:
        """The lag of each topic of a query, by its name or id; ``KeyError`` for an unknown one."""
        with self._lock:
            return self._figures.behind(query)

    def wait_for_end(self, query: str, *, timeout_s: float = 60) -> bool:
        """Wait until Spark has told the end of a query; it tells listeners a little later."""
        with self._lock:
            return self._lock.wait_for(lambda: self._figures.has_ended(query), timeout_s)

    # Calls of Spark's.

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        with self._lock:
            self._figures.started(str(event.id), event.name)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        progress = event.progress
        told: dict[str, Any] = {
            "id": progress.id,
            "batchId": progress.batchId,
            "batchDuration": progress.batchDuration,
            "sources": progress.sources,
            "sink": progress.sink,
        }
        with self._lock:
            self._figures.progressed(told)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """An idle query stays as its last progress showed it."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        with self._lock:
            self._figures.ended(str(event.id))
            self._lock.notify_all()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        metrics = self

        class Handler(BaseHTTPRequestHandler):
            """Answers one path."""

            timeout = _PATIENCE_S

            def do_GET(self) -> None:
                if self.path != _PATH:
                    self.send_error(HTTPStatus.NOT_FOUND)
                    return
                body = metrics.text().encode()
                self.send_response(HTTPStatus.OK)
                self.send_header("Content-Type", CONTENT_TYPE)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Scrapes are not logged."""

        return Handler
