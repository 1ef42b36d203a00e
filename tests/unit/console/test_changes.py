"""Plans by the API: who may make them, who may run them, and what the audit log tells."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from contrail.console.state.plans import PLAN_LIFE_MS
from contrail.console.state.roles import Role
from contrail.model.recall_handle import RecallHandle
from tests.unit.console.asking import Desk

HANDLE = RecallHandle("orders", "a", 1_800_000_100_001, "7F0000010001").encode()
RECALL = "/api/v1/timers/recall:plan"
DRAIN = "/api/v1/brokers/a/drain:plan"


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def run(desk: Desk, plan_id: str, role: Role = Role.OPERATOR) -> Any:
    return desk.ask("POST", f"/api/v1/plans/{plan_id}:run", role=role)


def audit(desk: Desk) -> list[tuple[str, str, str]]:
    rows = desk.ask("GET", "/api/v1/audit", role=Role.ADMIN).json["rows"]
    return [(one["account"], one["action"], one["outcome"]) for one in rows]


@pytest.mark.proves("console.api.changes", "console.security.audit")
def test_a_plan_is_run_once_by_its_account_and_leaves_audit_lines(desk: Desk) -> None:
    told = desk.ask("POST", RECALL, role=Role.OPERATOR, body={"handle": HANDLE})
    assert told.status == 200, told.body
    plan = told.json
    assert plan["command"] == f"contrail timer recall {HANDLE}"
    assert "7F0000010001" in plan["steps"][0]
    assert audit(desk) == [], "a plan changes nothing"
    assert run(desk, plan["plan_id"], Role.ADMIN).status == 404, "it is another account's"
    ran = run(desk, plan["plan_id"])
    assert [one["outcome"] for one in ran.json["outcomes"]] == ["failed"]
    assert "nothing is there" in ran.json["outcomes"][0]["detail"]
    assert run(desk, plan["plan_id"]).status == 404, "it was run"
    newest, begun = audit(desk)
    assert begun == ("operator", "recall timer", "begun")
    assert newest[2].startswith("0 done, 1 failed: ")


@pytest.mark.proves("console.api.changes")
def test_a_plan_whose_facts_have_moved_is_refused(desk: Desk) -> None:
    settings = {"brokerPermission": "6"}

    async def broker_config(broker: str) -> dict[str, str]:
        return settings

    desk.admin.broker_config = broker_config  # type: ignore[attr-defined]
    told = desk.ask("POST", DRAIN, role=Role.OPERATOR, body={"takes_messages": False})
    assert told.status == 200, told.body
    settings["brokerPermission"] = "4"
    refused = run(desk, told.json["plan_id"])
    assert (refused.status, refused.json["detail"]) == (
        409,
        "the facts have moved since the plan: plan anew",
    )
    assert audit(desk) == [("operator", "drain broker", "refused: the facts moved")]


def test_a_plan_that_is_too_old_is_not_run(desk: Desk) -> None:
    told = desk.ask("POST", RECALL, role=Role.OPERATOR, body={"handle": HANDLE})
    desk.clock.advance(ms=PLAN_LIFE_MS)
    assert run(desk, told.json["plan_id"]).status == 404


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        (RECALL, {"handle": "nonsense"}, 422),
        ("/api/v1/groups/billing/seek:plan", {"to": "somewhere"}, 400),
        ("/api/v1/groups/billing/seek:plan", {"to": "earliest", "broker": "a"}, 400),
        ("/api/v1/groups/nobody/seek:plan", {"to": "earliest"}, 404),
        ("/api/v1/topics/orders/send:plan", {"body": "a", "body_base64": "YQ=="}, 400),
        ("/api/v1/topics/orders/send:plan", {"body_base64": "!"}, 400),
        ("/api/v1/topics/orders/grow:plan", {"queues": 0}, 400),
        ("/api/v1/topics/SCHEDULE_TOPIC_XXXX/delete:plan", {}, 422),
    ],
)
def test_plans_that_make_no_sense_are_refused(
    desk: Desk, path: str, body: Any, status: int
) -> None:
    told = desk.ask("POST", path, role=Role.ADMIN, body=body)
    assert (told.status, told.headers["content-type"]) == (status, "application/problem+json")
