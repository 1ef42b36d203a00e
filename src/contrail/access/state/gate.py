"""The decision on one request: who signed it, and whether that user may do what it asks.

Every request is judged by its own signature: nothing is remembered for a connection. Decisions are
remembered by user, needs and address until the table of users changes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from contrail.access.state.needs import PUB, Facts, Needs, needs_of, topic_need
from contrail.access.state.quotas import LogInLimit
from contrail.access.state.rights import Action
from contrail.access.state.users import User, UserTable
from contrail.errors import RequestRejected
from contrail.protocol.codes import ResponseCode, describe_code
from contrail.protocol.command import Request
from contrail.protocol.signing import ACCESS_KEY, SIGNATURE, SigningKey, is_signed_by

DECISIONS_MAX = 10_000
SEND_TOPIC_FIELD = "b"
SignedSend = tuple[int, bytes, bytes, bytes, bytearray]
"""Where a send ends, its access key, its signature, its topic, and the content that was signed."""
# A name that nobody has costs as much as a wrong signature.
_NOBODY = SigningKey("nobody")


class Whitelists(NamedTuple):
    """Codes that need no signature, and codes that need no rights."""

    anonymous: frozenset[int] = frozenset()
    free: frozenset[int] = frozenset()


class LogIns(NamedTuple):
    """The limit of failed log-ins, and the clock that it counts by."""

    limit: LogInLimit
    elapsed_ms: Callable[[], int]


class AccessGate:
    """Judges requests by one table of users."""

    def __init__(
        self,
        table: UserTable,
        facts: Facts,
        *,
        whitelists: Whitelists | None = None,
        on_refused: Callable[[Request, str, str], None] = lambda request, address, remark: None,
        log_ins: LogIns | None = None,
        distrust: Callable[[str], str] = lambda name: "",
    ) -> None:
        """``on_refused`` gets a refused request, its sender's address and the remark.

        ``distrust`` says why the table is not believed now about a user, if it is not.
        """
        self.table = table
        self._facts = facts
        self._whitelists = whitelists or Whitelists()
        self._on_refused = on_refused
        self._log_ins = log_ins
        self._distrust = distrust
        self._decisions: dict[tuple[str, Needs, str], str | None] = {}
        # The keys of users that may send to a topic, by code, name, topic and address.
        self._senders: dict[tuple[int, bytes, bytes, str], SigningKey] = {}
        self._change_count = table.change_count
        # While the table is not believed about some users, sends are judged by ``require``.
        self.is_in_doubt = False
        self.counts: Counter[str] = Counter()

    def require(self, request: Request, peer_address: str) -> None:
        """Judge a request that has just arrived from ``ip:port``.

        Raises:
            RequestRejected: it is not signed, its signature is wrong, its user is disabled or has
                no right to it; or it names nothing that rights could be asked for.
        """
        try:
            if request.code in self._whitelists.anonymous:
                self._require_free(request)
                return
            user = self._signer(request, _host(peer_address))
            self._require_rights(user, request, _host(peer_address))
        except RequestRejected as refusal:
            if refusal.code == ResponseCode.NO_PERMISSION:
                self.counts["refused"] += 1
                self._on_refused(request, peer_address, refusal.remark)
            raise

    def passes(self, code: int, signed: SignedSend, peer_address: str) -> bool:
        """Whether a send passes, judged by its bytes; False leaves it to ``require``.

        ``signed`` is what ``kernels.signed_values`` found in it.
        """
        _, name, signature, topic, content = signed
        if self.is_in_doubt:
            return False
        if self._change_count != self.table.change_count or len(self._senders) >= DECISIONS_MAX:
            self._forget()
        sender = (code, name, topic, peer_address)
        key = self._senders.get(sender)
        if key is not None:
            return key.has_signed(content, signature)
        text = name.decode("ascii")
        if self._log_ins is not None and self._log_ins.limit.wait_ms(
            text, _host(peer_address), self._log_ins.elapsed_ms()
        ):
            return False
        user = self.table.users.get(text)
        key = _NOBODY if user is None else user.key
        if not key.has_signed(content, signature) or user is None or not user.is_enabled:
            return False
        if code in self._whitelists.anonymous:
            return False
        request = Request(code, 0, {SEND_TOPIC_FIELD: topic.decode("ascii")}, b"")
        try:
            self._require_rights(user, request, _host(peer_address))
        except RequestRejected:
            return False
        self._senders[sender] = user.key
        return True

    def _forget(self) -> None:
        """Users or rights have changed, or too much is remembered."""
        self._decisions.clear()
        self._senders.clear()
        self._change_count = self.table.change_count

    def require_still(self, request: Request, peer_address: str) -> None:
        """Judge a request again that was held, by its user's rights of now.

        Raises:
            RequestRejected: its user is gone, disabled, or has lost the right.
        """
        if request.code not in self._whitelists.anonymous:
            self._require_rights(self._known_user(request), request, _host(peer_address))

    def may_use(
        self, request: Request, peer_address: str, topic: str, actions: tuple[Action, ...]
    ) -> None:
        """Judge what an admitted request has found: a record of this topic.

        Raises:
            RequestRejected: the user has none of the rights on the topic.
        """
        if request.code in self._whitelists.free:
            return
        user = self._known_user(request)
        self._require(user, (topic_need(topic, actions),), _host(peer_address))

    def may_publish(self, user_name: str, code: int, peer_address: str, topic: str) -> bool:
        """Whether a user that announced itself by requests of ``code`` may publish to a topic.

        Of a code that needs no signature nothing tells the user.
        """
        user = self.table.users.get(user_name)
        if user is None or not user.is_enabled or code in self._whitelists.anonymous:
            return False
        try:
            self._require(user, (topic_need(topic, PUB),), _host(peer_address))
        except RequestRejected:
            return False
        return True

    # The signer.

    def _require_free(self, request: Request) -> None:
        """An anonymous request has no rights, whatever name it carries."""
        if request.code not in self._whitelists.free:
            raise _refusal(
                f"request {describe_code(request.code)} is anonymous here and has no rights: "
                "name its code in authorizationWhitelist, too"
            )

    def _signer(self, request: Request, host: str) -> User:
        name = request.fields.get(ACCESS_KEY)
        if not name or SIGNATURE not in request.fields:
            raise _refusal(
                f"request {describe_code(request.code)} is not signed: this broker has access "
                "control; give the client an access key and a secret key"
            )
        self._require_patience(name, host)
        user = self.table.users.get(name)
        key = _NOBODY if user is None else user.key
        is_signed = is_signed_by(key, request.fields, request.body, request.version)
        if user is None or not is_signed:
            if self._log_ins is not None:
                self._log_ins.limit.failed(host, self._log_ins.elapsed_ms())
            raise _refusal(
                f"the signature of {name[:80]!r} is wrong: check its access key and secret key"
            )
        if not user.is_enabled:
            raise _refusal(f"{user.subject} is disabled")
        distrust = self._distrust(name)
        if distrust:
            raise _refusal(distrust)
        if self._log_ins is not None:
            self._log_ins.limit.succeeded(name, host)
        return user

    def _require_patience(self, name: str, host: str) -> None:
        """Signatures of an address that fails too often are not looked at for a while."""
        if self._log_ins is None:
            return
        limit, elapsed_ms = self._log_ins
        wait_ms = limit.wait_ms(name, host, elapsed_ms())
        if wait_ms:
            self.counts["not looked at"] += 1
            raise _refusal(
                f"too many wrong signatures came from {host}: none of {name[:80]!r} is looked at "
                f"for {wait_ms} ms (contrailFailedLogInsPerSecond)"
            )

    def _known_user(self, request: Request) -> User:
        """The user of a request whose signature was checked when it came."""
        user = self.table.users.get(request.fields.get(ACCESS_KEY, ""))
        if user is None or not user.is_enabled:
            raise _refusal("the user of this request was deleted or disabled")
        return user

    # The rights.

    def _require_rights(self, user: User, request: Request, host: str) -> None:
        if user.is_super or request.code in self._whitelists.free:
            return
        needs = needs_of(request, self._facts)
        if needs is None:
            raise _refusal(
                f"{user.subject} has no right to request {describe_code(request.code)}: only a "
                "Super may ask it"
            )
        self._require(user, needs, host)

    def _require(self, user: User, needs: Needs, host: str) -> None:
        if self._change_count != self.table.change_count or len(self._decisions) >= DECISIONS_MAX:
            self._forget()
        key = (user.name, needs, host)
        try:
            remark = self._decisions[key]
        except KeyError:
            remark = self._decisions[key] = user.refusal(needs, host)
        if remark is not None:
            raise _refusal(remark)


def _refusal(remark: str) -> RequestRejected:
    return RequestRejected(ResponseCode.NO_PERMISSION, remark)


def _host(peer_address: str) -> str:
    return peer_address.rpartition(":")[0].strip("[]")
