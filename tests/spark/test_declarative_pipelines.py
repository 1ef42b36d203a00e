"""The example of a declarative pipeline, run by ``spark-pipelines`` as a user would."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from contrail import Admin, Message
from contrail.testing import LocalCluster
from tests.spark.traffic import make_topic, send_rows

_EXAMPLE = Path(__file__).parents[2] / "examples" / "pipelines"
# Half a minute on a quiet machine takes minutes on a busy one.
_RUN_TIMEOUT_S = 800
_NEEDED = ("grpc", "grpc_status", "google.rpc", "yaml", "zstandard")


def _missing() -> list[str]:
    found = []
    for name in _NEEDED:
        try:
            spec = find_spec(name)
        except ModuleNotFoundError:
            spec = None
        if spec is None:
            found.append(name)
    return found


pytestmark = pytest.mark.skipif(
    bool(_missing()), reason=f"spark-pipelines needs {_missing()}: pip install pyspark[pipelines]"
)


@pytest.mark.proves("spark.jobs.declarative", "spark.clusters.pipelines-twice")
@pytest.mark.timeout(1_700)
def test_the_example_reads_a_topic_and_writes_to_another_and_goes_on_when_run_again(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    make_topic(cluster, "orders", queues=2)
    make_topic(cluster, "large-orders", queues=1)
    send_rows(cluster, [_order(number) for number in range(10)])
    project = _project(tmp_path)
    _run(project, cluster)
    table = pq.read_table(project / "spark-warehouse" / "orders")
    assert sorted(table["id"].to_pylist()) == [f"o{number}" for number in range(10)]
    sales = pq.read_table(project / "spark-warehouse" / "sales").to_pylist()
    assert {row["region"]: row["count(id)"] for row in sales} == {"eu": 5, "us": 5}
    large = [("o7", "eu"), ("o8", "us"), ("o9", "eu")]
    assert _large(cluster) == large

    send_rows(cluster, [_order(number) for number in range(10, 12)])
    _run(project, cluster)
    table = pq.read_table(project / "spark-warehouse" / "orders")
    assert sorted(table["id"].to_pylist()) == sorted(f"o{number}" for number in range(12))
    sales = pq.read_table(project / "spark-warehouse" / "sales").to_pylist()
    assert {row["region"]: row["count(id)"] for row in sales} == {"eu": 6, "us": 6}
    assert _large(cluster) == sorted([*large, ("o10", "us"), ("o11", "eu")])


def _order(number: int) -> Message:
    body = {"region": "eu" if number % 2 else "us", "amount": 300 + number * 100}
    return Message("orders", json.dumps(body).encode(), keys=[f"o{number}"], tags="paid")


def _project(folder: Path) -> Path:
    """A copy of the example with its progress beside it."""
    project = folder / "project"
    shutil.copytree(_EXAMPLE, project)
    spec = project / "spark-pipeline.yml"
    text = spec.read_text(encoding="utf-8")
    own = text.replace("file:///tmp/contrail-orders-pipeline", f"file://{folder / 'storage'}")
    assert own != text
    spec.write_text(own, encoding="utf-8")
    return project


def _run(project: Path, cluster: LocalCluster) -> None:
    program, *documented = _documented_command()
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("SPARK_")},
        "NAMESRV_ADDR": cluster.namesrv,
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        # Only so does Spark's own server take a free port, instead of one that may be taken.
        "SPARK_TESTING": "1",
    }
    command = [
        *(str(Path(sys.executable).with_name(program)), *documented),
        *("--remote", "local[2]", "--conf", "spark.driver.memory=1g"),
        *("--conf", "spark.ui.enabled=false"),
        *("--conf", "spark.connect.grpc.binding.address=127.0.0.1"),
    ]
    log = project.parent / "run.log"
    with log.open("wb") as file:
        # A session of its own: the program starts others, which must end with it.
        process = subprocess.Popen(
            command,
            cwd=project,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
        try:
            code = process.wait(_RUN_TIMEOUT_S)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert code == 0, log.read_text(encoding="utf-8", errors="replace")[-6000:]


def _documented_command() -> list[str]:
    """How the example is run, as its page says."""
    page = (_EXAMPLE / "README.md").read_text(encoding="utf-8")
    (line,) = re.findall(r"^spark-pipelines run.*$", page, re.MULTILINE)
    return shlex.split(line)


def _large(cluster: LocalCluster) -> list[tuple[str, str]]:
    with Admin(cluster.namesrv) as admin:
        (queue,) = admin.queues("large-orders")
        messages = admin.messages_from(queue, 0, 32)
    bodies = [json.loads(message.body) for message in messages]
    assert [message.tags for message in messages] == ["large"] * len(messages)
    return sorted((body["id"], body["region"]) for body in bodies)
