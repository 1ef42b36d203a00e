"""Each route of the console: its role, its input, its errors, its headers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from contrail.console.assets import Assets
from contrail.console.contract import EVENTS, PREFIX, Route, openapi
from contrail.console.services.sampler import Sample
from contrail.console.state.roles import Role
from contrail.insight.lists import GroupRow
from tests.unit.console.asking import HOST, NOW_MS, Desk

OWN = "http://127.0.0.1:9870"
SAMPLE_PATHS = {
    "{topic}": "orders",
    "{group}": "billing",
    "{broker}": "a",
    "{message_id}": "0A000001" * 4,
    "{transaction_id}": "t-1",
    "{plan_id}": "no-such-plan",
    "{run_id}": "no-such-run",
}
QUERIES = {
    "/history": "?series=in",
    "/traces": "?key=o-1",
    "/topics/{topic}/messages:find": "?key=o-1",
}


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def path_of(route: Route) -> str:
    path = route.path
    for place, name in SAMPLE_PATHS.items():
        path = path.replace(place, name)
    return PREFIX + path + QUERIES.get(route.path, "")


def routes_with_roles(desk: Desk) -> list[Route]:
    return [one for one in desk.console.routes if one.role is not None]


@pytest.mark.proves("console.security.roles", "console.security.login")
def test_every_route_is_open_to_its_role_and_those_above_alone(desk: Desk) -> None:
    for route in routes_with_roles(desk):
        assert route.role is not None
        assert desk.ask(route.method, path_of(route)).status == 401, route.name
        for role in Role:
            if route.media_type == EVENTS and role >= route.role:
                continue  # It does not end; its own tests open it.
            told = desk.ask(route.method, path_of(route), role=role)
            if role < route.role:
                assert told.status == 403, (route.name, role)
                assert told.json["needs_role"] == route.role.word
            else:
                assert told.status not in (401, 403, 500), (route.name, role, told.body)


def test_only_the_log_in_needs_no_role(desk: Desk) -> None:
    assert [one.name for one in desk.console.routes if one.role is None] == ["log_in"]


@pytest.mark.proves("console.api.contract")
def test_every_answer_is_as_the_contract_says(desk: Desk) -> None:
    document = desk.ask("GET", f"{PREFIX}/openapi.json").json
    assert document == openapi(desk.console.routes)
    for route in desk.console.routes:
        operation = document["paths"][PREFIX + route.path][route.method.lower()]
        assert operation["operationId"] == route.name
        if route.method != "GET" or route.media_type == EVENTS:
            continue
        told = desk.ask("GET", path_of(route), role=Role.ADMIN)
        shown = operation["responses"][str(told.status)]["content"]
        schema = shown[told.headers["content-type"]]["schema"]
        checker = Draft202012Validator({**schema, "components": document["components"]})
        checker.validate(told.json)


@pytest.mark.proves("console.api.problems")
@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/nothing", None, 404),
        ("PUT", "/topics", None, 405),
        ("GET", "/topics?limit=0", None, 400),
        ("GET", "/topics?limit=1&limit=2", None, 400),
        ("GET", "/topics?colour=red", None, 400),
        ("GET", "/topics?sort=colour", None, 400),
        ("GET", "/overview?q=x", None, 400),
        ("GET", "/history?series=none", None, 404),
        ("POST", "/session", b"{", 400),
        ("POST", "/session", {"account": "a"}, 400),
        ("POST", "/session", b'{"account":"\xff","password":"p"}', 400),
        ("POST", "/session", b"x" * (1 << 17), 413),
    ],
)
def test_wrong_requests_are_answered_with_problems(
    desk: Desk, method: str, path: str, body: Any, status: int
) -> None:
    told = desk.ask(method, PREFIX + path, role=Role.ADMIN, body=body)
    assert (told.status, told.json["status"]) == (status, status)
    assert told.headers["content-type"] == "application/problem+json"
    assert told.json["detail"] and told.json["title"]


def test_a_body_is_taken_as_json_alone(desk: Desk) -> None:
    form = {"content-type": "application/x-www-form-urlencoded"}
    told = desk.ask("POST", f"{PREFIX}/session", headers=form, body=b"account=admin")
    assert told.status == 415


@pytest.mark.proves("console.api.lists")
def test_lists_tell_the_sample_the_missing_brokers_and_the_total(desk: Desk) -> None:
    told = desk.ask("GET", f"{PREFIX}/topics?q=ORD&sort=-lag&limit=1", role=Role.VIEWER).json
    assert told["sampled_ms"] == NOW_MS - 4_000
    assert told["partial"] == [{"broker": "b", "error": "no answer"}]
    assert told["total"] == 1 and [row["topic"] for row in told["rows"]] == ["orders"]
    system = desk.ask("GET", f"{PREFIX}/topics?kind=system,retry", role=Role.VIEWER).json
    assert [row["topic"] for row in system["rows"]] == ["T"]
    groups = desk.ask("GET", f"{PREFIX}/groups", role=Role.VIEWER).json
    assert [row["group"] for row in groups["rows"]] == ["billing"]
    every = desk.ask("GET", f"{PREFIX}/groups?internal=true", role=Role.VIEWER).json
    assert every["total"] == 2


# Log-ins and sessions.


@pytest.mark.proves("console.security.sessions")
def test_a_session_lives_until_it_is_idle_or_old_or_logged_out(desk: Desk) -> None:
    told = desk.log_in(Role.OPERATOR)
    assert told.status == 200 and told.json["role"] == "operator"
    assert (
        "HttpOnly" in told.headers["set-cookie"] and "SameSite=strict" in told.headers["set-cookie"]
    )
    cookie = {"cookie": told.cookie}
    for _ in range(23):
        desk.clock.advance(ms=29 * 60_000)
        assert desk.ask("GET", f"{PREFIX}/session", headers=cookie).status == 200
    desk.clock.advance(ms=29 * 60_000)
    assert desk.ask("GET", f"{PREFIX}/session", headers=cookie).status == 200
    desk.clock.advance(ms=29 * 60_000)
    assert desk.ask("GET", f"{PREFIX}/session", headers=cookie).status == 401, "12 hours"
    cookie = {"cookie": desk.log_in().cookie}
    desk.clock.advance(ms=30 * 60_000)
    assert desk.ask("GET", f"{PREFIX}/session", headers=cookie).status == 401, "idle"


def test_a_role_that_is_taken_away_counts_at_once(desk: Desk) -> None:
    cookie = {"cookie": desk.log_in(Role.ADMIN).cookie}
    assert desk.ask("GET", f"{PREFIX}/audit", headers=cookie).status == 200
    desk.parts.accounts.put("second", Role.ADMIN, "another password")
    desk.parts.accounts.put("admin", Role.VIEWER, "another password")
    assert desk.ask("GET", f"{PREFIX}/audit", headers=cookie).status == 403
    desk.parts.accounts.remove("admin")
    assert desk.ask("GET", f"{PREFIX}/session", headers=cookie).status == 401


@pytest.mark.proves("console.security.throttle")
def test_failed_log_ins_are_throttled_by_account_and_by_address(desk: Desk) -> None:
    wrong = {"account": "admin", "password": "guess"}

    def attempt(address: str, account: str = "admin") -> int:
        body = {**wrong, "account": account}
        return desk.ask("POST", f"{PREFIX}/session", body=body, address=address).status

    assert [attempt(f"10.0.0.{number}") for number in range(6)] == [401] * 6
    assert attempt("10.9.9.9") == 429, "the account, from anywhere"
    assert [attempt("10.1.1.1", f"none{number}") for number in range(6)] == [401] * 6
    assert attempt("10.1.1.1", "other") == 429, "the address, for any account"
    right = {"account": "admin", "password": "password of admin"}
    told = desk.ask("POST", f"{PREFIX}/session", body=right)
    assert told.status == 429 and told.headers["retry-after"] == "1"
    desk.clock.advance(ms=2_000)
    assert desk.ask("POST", f"{PREFIX}/session", body=right).status == 200
    lines = desk.parts.audit.newest(100)
    assert [one.outcome for one in lines[:2]] == ["done", "throttled"]
    assert not any("guess" in str(one) or "password" in str(one) for one in lines)


@pytest.mark.proves("console.security.csrf")
def test_a_change_needs_the_sessions_token_and_its_own_origin(desk: Desk) -> None:
    told = desk.log_in()
    cookie, csrf = told.cookie, told.json["csrf"]
    own = {"cookie": cookie, "x-contrail-csrf": csrf, "origin": OWN}

    def log_out(**headers: str) -> int:
        return desk.ask("DELETE", f"{PREFIX}/session", headers=headers).status

    assert log_out(cookie=cookie) == 403, "no token"
    assert log_out(**{**own, "x-contrail-csrf": csrf[:-1]}) == 403
    assert log_out(**{**own, "origin": "https://evil.example"}) == 403
    assert log_out(**{**own, "origin": "null"}) == 403
    assert log_out(**{**own, "sec-fetch-site": "cross-site"}) == 403
    assert log_out(**{**own, "sec-fetch-site": "same-site"}) == 403
    assert log_out(**{**own, "sec-fetch-site": "same-origin"}) == 204
    assert log_out(**own) == 401, "the session is over"
    foreign = {"origin": "https://evil.example"}
    body = {"account": "admin", "password": "password of admin"}
    assert desk.ask("POST", f"{PREFIX}/session", headers=foreign, body=body).status == 403


@pytest.mark.proves("console.api.tokens")
def test_a_token_is_enough_for_scripts_and_a_new_one_ends_it(desk: Desk) -> None:
    told = desk.ask("GET", f"{PREFIX}/session", role=Role.READER)
    assert told.json["role"] == "reader" and told.json["csrf"] is None
    assert desk.ask("DELETE", f"{PREFIX}/session", role=Role.READER).status == 204
    desk.parts.accounts.new_token("reader")
    assert desk.ask("GET", f"{PREFIX}/session", role=Role.READER).status == 401


@pytest.mark.proves("console.security.host")
def test_other_hosts_are_refused(desk: Desk) -> None:
    for path in ("/", f"{PREFIX}/topics", f"{PREFIX}/openapi.json", "/enter/x"):
        told = desk.ask("GET", path, role=Role.ADMIN, headers={"host": "evil.example:9870"})
        assert told.status == 421, path
    assert (
        desk.ask("GET", "/", headers={"host": HOST.replace("127.0.0.1", "localhost")}).status == 200
    )


def test_a_console_behind_a_proxy_answers_to_its_public_address(tmp_path: Path) -> None:
    public = {"public_url": "https://console.example", "behind_proxy": True}
    desk = Desk(tmp_path, {**public, "listen_address": "0.0.0.0"})
    headers = {"host": "console.example", "x-forwarded-for": "6.6.6.6, 10.2.3.4"}
    body = {"account": "admin", "password": "password of admin"}
    told = desk.ask("POST", f"{PREFIX}/session", headers=headers, body=body)
    assert "Secure" in told.headers["set-cookie"]
    assert "strict-transport-security" in told.headers
    assert desk.parts.audit.newest(1)[0].address == "10.2.3.4", "as the proxy saw it"
    assert desk.console.url == "https://console.example"


@pytest.mark.proves("console.security.csp")
def test_every_answer_carries_the_policy(desk: Desk) -> None:
    for path in ("/", "/nothing", f"{PREFIX}/topics", f"{PREFIX}/openapi.json", "/enter/x"):
        headers = desk.ask("GET", path).headers
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; ")
        assert "require-trusted-types-for 'script'" in policy and "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"


def test_a_link_logs_in_once(desk: Desk) -> None:
    link = desk.console.login_link().removeprefix(OWN)
    told = desk.ask("GET", link)
    assert (told.status, told.headers["location"]) == (303, "/")
    session = desk.ask("GET", f"{PREFIX}/session", headers={"cookie": told.cookie})
    assert session.json["account"] == "admin"
    assert desk.ask("GET", link).status == 403
    late = desk.console.login_link().removeprefix(OWN)
    desk.clock.advance(ms=15 * 60_000)
    assert desk.ask("GET", late).status == 403


@pytest.mark.proves("console.running.no-page")
def test_without_a_page_the_root_says_how_to_use_the_api(tmp_path: Path) -> None:
    desk = Desk(tmp_path, assets=Assets(tmp_path / "none"))
    told = desk.ask("GET", "/")
    assert told.headers["content-type"].startswith("text/html")
    assert b"contrail console user token" in told.body and b"<script" not in told.body


@pytest.mark.proves("console.facts.members")
def test_members_that_no_list_tells_are_asked_for_the_visible_rows_alone(desk: Desk) -> None:
    rows = [GroupRow(f"g{number}", has_settings=True, members=None) for number in range(50)]
    desk.parts.sampler.sample = Sample(NOW_MS, groups=rows)
    told = desk.ask("GET", f"{PREFIX}/groups?limit=2&first=4", role=Role.VIEWER).json
    assert [row["members"] for row in told["rows"]] == [0, 0] and told["total"] == 50
    assert desk.admin.asked_groups == ["g4", "g5"]
