"""Generated requests to a console over a live cluster: no answer is beside its contract.

By schemathesis where it is installed: it is a tool of this test alone.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from contrail import Admin, Message, Producer
from contrail.testing import LocalCluster
from tests.e2e.test_console import COMMAND, running
from tests.interop.peers import unavailable

CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,"
CHECKS += "response_schema_conformance"
# Streams do not end, and a log-out would end the others' session.
SKIPPED = ("events", "tail", "log_out", "log_in")


@pytest.mark.matrix
@pytest.mark.proves("console.api.schemathesis")
def test_no_answer_is_beside_the_contract(tmp_path: Path) -> None:
    if importlib.util.find_spec("schemathesis") is None:
        unavailable("schemathesis is not installed", "pip install 'schemathesis>=4.32,<5'")
    with LocalCluster(brokers=1) as cluster:
        with Admin(cluster.namesrv) as admin:
            admin.create_topic("orders", queues=2)
            admin.create_group("billing")
        with Producer("shop", cluster.namesrv) as producer:
            producer.send(Message("orders", b'{"total": 1}', keys=["o-1"]))
        with running(cluster.namesrv, tmp_path) as facts:
            command = [*COMMAND, "user", "token", "admin", "--folder", str(tmp_path)]
            token = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            done = subprocess.run(
                [
                    str(Path(sys.executable).with_name("schemathesis")),
                    "run",
                    f"{facts['url']}/api/v1/openapi.json",
                    "--checks",
                    CHECKS,
                    "--phases",
                    "examples,coverage,fuzzing",
                    "--max-examples",
                    "20",
                    "--seed",
                    "7",
                    "--request-timeout",
                    "30",
                    *("-H", f"Authorization: Bearer {token.strip()}"),
                    *(word for name in SKIPPED for word in ("--exclude-operation-id", name)),
                ],
                capture_output=True,
                text=True,
                cwd=tmp_path,
                env={**os.environ, "NO_COLOR": "1"},
                check=False,
            )
    assert done.returncode == 0, done.stdout[:3_000] + done.stderr[-1_000:]
