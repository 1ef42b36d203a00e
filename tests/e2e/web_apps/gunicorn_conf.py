"""Hooks of gunicorn: a client for each worker, and a last word of the master.

The application is found by its name when it is needed: without ``preload_app`` the master never
loads it, and a worker has not loaded it yet in ``post_fork``.
"""

from __future__ import annotations

import importlib
import os


def post_fork(server: object, worker: object) -> None:
    if os.environ.get("MADE_IN") == "post_fork":
        importlib.import_module("wsgi_app").make_producer()


def on_exit(server: object) -> None:
    """A client that the master made when it loaded the application is still good."""
    if os.environ.get("SAYS_GOODBYE"):
        wsgi_app = importlib.import_module("wsgi_app")
        wsgi_app.producer.send(wsgi_app.Message(wsgi_app.TOPIC, b"goodbye"))
