"""The requests about users and rights, 3001 to 3010, as Apache's tools send them.

No answer carries a password. Only a Super makes, changes or deletes a Super.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from contrail.access.state.rights import (
    Entry,
    PolicyType,
    Resource,
    RightsInvalid,
    by_name,
)
from contrail.access.state.users import (
    AccessRefused,
    User,
    UserStatus,
    UserTable,
    UserType,
    name_of_subject,
    parse_policies,
    policies_fields,
    user_fields,
)
from contrail.broker.handlers.saved_answers import SavedAnswer
from contrail.broker.services.access_table import AccessTable, Work
from contrail.broker.services.audit_trail import DONE, AuditTrail
from contrail.clock import Clock
from contrail.errors import RequestRejected
from contrail.model.fastjson import JsonValue
from contrail.protocol.codes import RequestCode, ResponseCode
from contrail.protocol.command import Request, Response
from contrail.protocol.fields import HeaderFields
from contrail.protocol.json_style import body_errors, decode_body, encode_body
from contrail.protocol.signing import ACCESS_KEY
from contrail.runtime.durable_changes import Done
from contrail.wire.peer import Answer, Handler, Peer

_audit = logging.getLogger("contrail.audit")


class AccessAdminHandlers:
    """Answers administrators of users; every request was admitted by the gate."""

    def __init__(
        self,
        access: AccessTable,
        *,
        clock: Clock,
        leader: Callable[[], str | None] = lambda: None,
        when_known: Callable[[Done], Done] = lambda done: done,
        trail: AuditTrail | None = None,
    ) -> None:
        """``leader`` is the broker whose table counts, None for this one. ``when_known`` has the
        end of a change wait for replicas.
        """
        self._access = access
        self._clock = clock
        self._leader = leader
        self._when_known = when_known
        self._trail = trail

    def table(self) -> dict[int, Handler]:
        return {
            RequestCode.AUTH_CREATE_USER: self.handle_create_user,
            RequestCode.AUTH_UPDATE_USER: self.handle_update_user,
            RequestCode.AUTH_DELETE_USER: self.handle_delete_user,
            RequestCode.AUTH_GET_USER: self.handle_get_user,
            RequestCode.AUTH_LIST_USER: self.handle_list_users,
            # Apache's broker merges for both.
            RequestCode.AUTH_CREATE_ACL: self.handle_merge_rights,
            RequestCode.AUTH_UPDATE_ACL: self.handle_merge_rights,
            RequestCode.AUTH_DELETE_ACL: self.handle_delete_rights,
            RequestCode.AUTH_GET_ACL: self.handle_get_rights,
            RequestCode.AUTH_LIST_ACL: self.handle_list_rights,
        }

    # Users.

    def handle_create_user(self, request: Request, peer: Peer) -> Answer:
        name, given = _named(request), _UserGiven(request)
        if given.kind is UserType.SUPER and not self._asker_is_super(request):
            raise RequestRejected(ResponseCode.SYSTEM_ERROR, "only a Super may make a Super user")

        def create(table: UserTable) -> None:
            table.create_user(
                name,
                given.password or "",
                given.kind or UserType.NORMAL,
                given.status or UserStatus.ENABLE,
            )

        return self._change(request, peer, create, f"created user {name!r} as {given}")

    def handle_update_user(self, request: Request, peer: Peer) -> Answer:
        name, given = _named(request), _UserGiven(request)
        if given.kind is UserType.SUPER and not self._asker_is_super(request):
            raise RequestRejected(ResponseCode.SYSTEM_ERROR, "only a Super may make a user a Super")
        self._require_may_touch(request, name)

        def update(table: UserTable) -> None:
            table.update_user(name, password=given.password, kind=given.kind, status=given.status)

        return self._change(request, peer, update, f"changed user {name!r}: {given}")

    def handle_delete_user(self, request: Request, peer: Peer) -> Answer:
        name = _named(request)
        self._require_may_touch(request, name)
        return self._change(
            request, peer, lambda table: table.delete_user(name), f"deleted user {name!r}"
        )

    def handle_get_user(self, request: Request, peer: Peer) -> Response:
        user = self._table.users.get(_named(request))
        return Response() if user is None else Response(body=encode_body(user_fields(user)))

    def handle_list_users(self, request: Request, peer: Peer) -> Response:
        wanted = HeaderFields(request).text("filter", "")
        found = [user_fields(user) for user in self._users() if wanted in user.name]
        return Response(body=encode_body(found)) if found else Response()

    # Rights.

    def handle_merge_rights(self, request: Request, peer: Peer) -> Answer:
        with _refusals():
            name = name_of_subject(HeaderFields(request).text("subject", ""))
            policies = _policies_of(request.body)
        self._require_may_touch(request, name)
        text = ", ".join(
            f"{entry.decision.value} {'|'.join(sorted(a.value for a in entry.actions))} on "
            f"{entry.resource}"
            for rows in policies.values()
            for entry in rows
        )
        return self._change(
            request, peer, lambda table: table.merge(name, policies), f"gave user {name!r} {text}"
        )

    def handle_delete_rights(self, request: Request, peer: Peer) -> Answer:
        fields = HeaderFields(request)
        text = fields.text("resource", "")
        with _refusals():
            name = name_of_subject(fields.text("subject", ""))
            resource = Resource.parse(text) if text.strip() else None
        policy_type = by_name(PolicyType, fields.text("policyType", "")) or PolicyType.CUSTOM
        self._require_may_touch(request, name)
        return self._change(
            request,
            peer,
            lambda table: table.remove(name, policy_type, resource),
            f"took from user {name!r} {text or 'all rights'}",
        )

    def handle_get_rights(self, request: Request, peer: Peer) -> Response:
        with _refusals():
            user = self._table.require(name_of_subject(HeaderFields(request).text("subject", "")))
        return Response(body=encode_body(_rights(user))) if user.policies else Response()

    def handle_list_rights(self, request: Request, peer: Peer) -> Response:
        fields = HeaderFields(request)
        subject, resource = fields.text("subjectFilter", ""), fields.text("resourceFilter", "")
        found = [
            rights
            for user in self._users()
            if subject in user.subject and (rights := _rights(user, resource))["policies"]
        ]
        return Response(body=encode_body(found)) if found else Response()

    # Parts.

    @property
    def _table(self) -> UserTable:
        return self._access.table

    def _users(self) -> list[User]:
        return sorted(self._table.users.values(), key=lambda user: user.name)

    def _asker_is_super(self, request: Request) -> bool:
        asker = self._table.users.get(request.fields.get(ACCESS_KEY, ""))
        return asker is not None and asker.is_super

    def _require_may_touch(self, request: Request, name: str) -> None:
        user = self._table.users.get(name)
        if user is not None and user.is_super and not self._asker_is_super(request):
            raise RequestRejected(
                ResponseCode.NO_PERMISSION, f"user {name!r} is a Super: only a Super changes it"
            )

    def _change(self, request: Request, peer: Peer, work: Work, text: str) -> Answer:
        """Answer once the change is durable and in effect."""
        leader = self._leader()
        if leader is not None:
            raise RequestRejected(
                ResponseCode.SERVICE_NOT_AVAILABLE,
                "users and rights are changed at the broker that leads this one: "
                + (leader or "it is not known now, ask again soon"),
            )
        asker, address = request.fields.get(ACCESS_KEY, ""), peer.address
        saved = SavedAnswer(
            request,
            peer,
            "the table of users",
            then=lambda: self._note(asker, address, text),
        )
        with _refusals():
            self._access.change(work, self._clock.now_ms(), self._when_known(saved.done))
        return saved.answer()

    def _note(self, asker: str, address: str, text: str) -> None:
        _audit.info("%s at %s %s", asker, address, text)
        if self._trail is not None:
            self._trail.write(self._clock.now_ms(), DONE, asker, address, text)


class _UserGiven:
    """The parts of a user that a request gives; blank ones are not given."""

    def __init__(self, request: Request) -> None:
        what = "a user"
        fields = decode_body(request.body, what)
        with body_errors(what):
            self.password = _known(fields.text("password", ""))
            kind, status = fields.text("userType", ""), fields.text("userStatus", "")
        self.kind = by_name(UserType, kind)
        self.status = by_name(UserStatus, status)
        for text, member, names in (
            (kind, self.kind, "Super or Normal"),
            (status, self.status, "enable or disable"),
        ):
            if text.strip() and member is None:
                raise RequestRejected(
                    ResponseCode.INVALID_PARAMETER, f"{text[:40]!r} is none of {names}"
                )

    def __str__(self) -> str:
        parts = [
            "a new password" if self.password else "",
            self.kind.value if self.kind else "",
            self.status.value if self.status else "",
        ]
        return ", ".join(filter(None, parts)) or "nothing"


def _policies_of(body: bytes) -> dict[PolicyType, tuple[Entry, ...]]:
    what = "a user's rights"
    fields = decode_body(body, what)
    with body_errors(what):
        return parse_policies(fields.array("policies"))


def _known(text: str) -> str | None:
    return text if text.strip() else None


def _named(request: Request) -> str:
    name = HeaderFields(request).text("username", "")
    if not name.strip():
        raise RequestRejected(ResponseCode.INVALID_PARAMETER, "the username is blank")
    return name


def _rights(user: User, resource: str = "") -> dict[str, JsonValue]:
    policies = {
        kind: [entry for entry in rows if resource in str(entry.resource)]
        for kind, rows in user.policies.items()
    }
    shown = policies_fields({kind: rows for kind, rows in policies.items() if rows})
    return {"subject": user.subject, "policies": shown}  # type: ignore[dict-item]


@contextmanager
def _refusals() -> Iterator[None]:
    """Answer with the table's refusal."""
    try:
        yield
    except (AccessRefused, RightsInvalid) as refusal:
        raise RequestRejected(ResponseCode.NO_PERMISSION, str(refusal)) from refusal
