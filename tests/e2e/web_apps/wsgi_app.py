"""A WSGI application with a blocking producer, made where ``MADE_IN`` says.

That is at ``import``, in the ``first_request`` of a process, or in gunicorn's ``post_fork``. A
request sends its body; what the client raises is answered with status 500.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from typing import Any

from contrail import Message, Producer
from contrail.errors import ClientError

NAMESRV, TOPIC, MADE_IN = (os.environ[name] for name in ("NAMESRV", "TOPIC", "MADE_IN"))

producer: Producer | None = None


def make_producer() -> Producer:
    global producer
    producer = Producer("wsgi", NAMESRV, send_timeout_ms=60_000)
    producer.start()
    return producer


if MADE_IN == "import":
    # With an open connection, which is what a fork could spoil.
    make_producer().send(Message(TOPIC, b"import"))


def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    body = environ["wsgi.input"].read()
    try:
        found = producer or make_producer()
        found.send(Message(TOPIC, body))
        status, told = "200 OK", {"pid": os.getpid(), "client_id": found.client_id}
    except ClientError as error:
        status = "500 Internal Server Error"
        told = {"pid": os.getpid(), "error": f"{type(error).__name__}: {error}"}
    answer = json.dumps(told).encode()
    length = str(len(answer))
    start_response(status, [("Content-Type", "application/json"), ("Content-Length", length)])
    return [answer]
