"""``contrail console`` as a process over a cluster of ours: log-in, lists, a dead broker."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from contrail import Admin, Message, Producer, PushConsumer
from contrail.testing import LocalCluster, eventually

COMMAND = [sys.executable, "-m", "contrail.cli", "console"]
HOSTILE = "<script>alert(1)</script>"


@dataclass
class Page:
    """A browser's tab: the address, the cookie and the token of the session."""

    url: str
    headers: dict[str, str] = field(default_factory=dict)

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any, Any]:
        data = None if body is None else json.dumps(body).encode()
        headers = {**self.headers, **({} if body is None else {"Content-Type": "application/json"})}
        request = urllib.request.Request(f"{self.url}{path}", data, headers=headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, answer.headers, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.headers, error.read()

    def get(self, path: str) -> Any:
        status, _, body = self.ask("GET", f"/api/v1{path}")
        assert status == 200, body
        return json.loads(body)

    def log_in(self, account: str, password: str) -> int:
        login = {"account": account, "password": password}
        status, headers, body = self.ask("POST", "/api/v1/session", login)
        if status == 200:
            self.headers["Cookie"] = headers["Set-Cookie"].partition(";")[0]
            self.headers["X-Contrail-Csrf"] = json.loads(body)["csrf"]
        return status


@contextmanager
def running(namesrv: str, folder: Path) -> Iterator[dict[str, Any]]:
    """A console; the facts of its first line."""
    command = [
        *COMMAND,
        "-n",
        namesrv,
        "--port",
        "0",
        "--folder",
        str(folder),
        "--interval",
        "1",
        "--json",
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=2) as made:
        with Admin(made.namesrv) as admin:
            admin.create_topic("orders", queues=2)
            admin.create_group("billing")
        with Producer("shop", made.namesrv) as producer:
            for number in range(4):
                producer.send(Message("orders", b"coffee", keys=[f"o-{number}"]))
        yield made


@pytest.mark.proves("console.running.command", "console.api.resources", "console.sampler.sampler")
def test_an_operator_logs_in_and_sees_the_cluster(cluster: LocalCluster, tmp_path: Path) -> None:
    with running(cluster.namesrv, tmp_path) as facts:
        page = Page(facts["url"])
        assert page.ask("GET", "/api/v1/topics")[0] == 401
        assert page.log_in("admin", "a guess of theirs") == 401
        assert page.log_in("admin", facts["first_password"]) == 200
        with PushConsumer("billing", cluster.namesrv, consume_from_where="first") as consumer:
            consumer.subscribe("orders")
            for count, message in enumerate(consumer, 1):
                message.ack()
                if count == 4:
                    break

            def is_told() -> bool:
                rows = page.get("/groups?q=bill")["rows"]
                return bool(rows) and rows[0]["members"] == 1 and rows[0]["lag"] == 0

            eventually(is_told, "the group with its member and no lag", timeout_s=60)
            told = page.get("/groups/billing")
            assert [one["brokers"] for one in told["members"]] == [["broker-a", "broker-b"]]
        told = page.get("/groups/billing")
        assert sum(int(one["consumer_offset"]) for one in told["queues"]) == 4
        assert (told["lag"], told["members"]) == (0, [])
        topics = page.get("/topics")
        assert [(one["topic"], one["messages"], one["queues"]) for one in topics["rows"]] == [
            ("orders", 4, 4)
        ]
        ends = [int(one["queue_offset_max"]) for one in page.get("/topics/orders")["queues"]]
        assert sum(ends) == 4
        assert page.get("/overview")["totals"]["topics"] == 1
        assert [one["error"] for one in page.get("/brokers")["rows"]] == [None, None]
        assert page.ask("GET", f"/api/v1/topics/{urllib.request.quote(HOSTILE, safe='')}")[0] == 404
        _answers_fit_the_contract(page)
        _scripts_use_a_token(facts["url"], tmp_path)
        assert page.ask("DELETE", "/api/v1/session")[0] == 204
        assert page.ask("GET", "/api/v1/topics")[0] == 401
    with running(cluster.namesrv, tmp_path) as facts:
        assert facts["first_password"] is None, "it is told once"


def _scripts_use_a_token(url: str, folder: Path) -> None:
    """The examples of docs/operate/console.md."""
    command = [*COMMAND, "user", "token", "admin", "--folder", str(folder)]
    token = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    script = Page(url, {"Authorization": f"Bearer {token}"})
    groups = script.get("/groups?sort=-lag&limit=5")
    assert [one["group"] for one in groups["rows"]] == ["billing"]
    request = urllib.request.Request(f"{url}/api/v1/events", headers=script.headers)
    with urllib.request.urlopen(request, timeout=60) as stream:
        assert stream.readline() == b": hello\n"


def _answers_fit_the_contract(page: Page) -> None:
    document = page.get("/openapi.json")
    places = {"{topic}": "orders", "{group}": "billing", "{broker}": "broker-a"}
    # They need the id of a message, a run or a key, or a dead letter, which is not here.
    left_out = ("{message_id}", "{run_id}", "/history", "/dlq/{group}", "/traces", ":find")
    for path, operations in document["paths"].items():
        answer = operations.get("get", {}).get("responses", {}).get("200", {}).get("content", {})
        if "application/json" not in answer or any(one in path for one in left_out):
            continue
        for place, name in places.items():
            path = path.replace(place, name)
        told = page.get(path.removeprefix("/api/v1"))
        schema = {**answer["application/json"]["schema"], "components": document["components"]}
        Draft202012Validator(schema).validate(told)


@pytest.mark.proves("console.facts.missing", "console.api.events")
def test_a_broker_that_is_killed_is_named_and_the_stream_tells_of_the_next_sample(
    tmp_path: Path,
) -> None:
    with LocalCluster(brokers=2) as cluster, running(cluster.namesrv, tmp_path) as facts:
        with Admin(cluster.namesrv) as admin:
            admin.create_topic("orders", queues=2)
        page = Page(facts["url"])
        assert page.log_in("admin", facts["first_password"]) == 200
        eventually(
            lambda: page.get("/topics")["rows"][:1] and not page.get("/topics")["partial"],
            "a sample of both brokers",
            timeout_s=60,
        )
        cluster.brokers[1].kill()
        request = urllib.request.Request(f"{page.url}/api/v1/events", headers=page.headers)
        with urllib.request.urlopen(request, timeout=60) as stream:
            missing = 0
            while not missing:
                line = stream.readline()
                if line.startswith(b"data: "):
                    missing = json.loads(line[6:])["missing_count"]
        told = page.get("/topics")
        assert [one["broker"] for one in told["partial"]] == ["broker-b"]
        assert told["partial"][0]["error"]
        (row,) = told["rows"]
        assert row["brokers"] == ["broker-a"], "its queues are not counted as empty"


@pytest.mark.proves("console.running.command")
def test_accounts_are_made_on_the_command_line(tmp_path: Path) -> None:
    def user(*words: str, password: str | None = None) -> subprocess.CompletedProcess[str]:
        given = {} if password is None else {"CONTRAIL_CONSOLE_PASSWORD": password}
        command = [*COMMAND, "user", *words, "--folder", str(tmp_path)]
        environment = {**os.environ, **given}
        return subprocess.run(command, capture_output=True, text=True, env=environment)

    assert "(told this once)" in user("add", "ada", "--role", "admin").stdout
    made = user("add", "bob", "--role", "viewer", "--json", password="a password of his")
    assert json.loads(made.stdout) == {"account": "bob", "role": "viewer", "password": None}
    listed = json.loads(user("list", "--json").stdout)
    assert listed == [{"account": "ada", "role": "admin"}, {"account": "bob", "role": "viewer"}]
    assert len(user("token", "bob").stdout.strip()) == 43
    assert user("remove", "bob").returncode == 0
    refused = user("remove", "ada")
    assert refused.returncode == 2 and "last admin" in refused.stderr
    refused = user("add", "eve", "--role", "root")
    assert refused.returncode == 2 and "no role" in refused.stderr
