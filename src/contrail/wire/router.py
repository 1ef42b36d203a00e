"""From a request code to its handler: which ports may ask, and how exceptions are answered."""

from __future__ import annotations

import ipaddress
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from contrail.errors import ConfigError, ContrailError, RequestRejected
from contrail.protocol.codes import CODE_CLASSES, CodeClass, RequestCode, ResponseCode
from contrail.protocol.command import Request, Response
from contrail.wire.connection import Connection
from contrail.wire.peer import LATER, Answer, Handler, Peer

_log = logging.getLogger(__name__)
# Clients newer than this reconnect elsewhere when they are told that a server goes away.
GO_AWAY_VERSION = 475

Networks = tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]


class RequestRouter:
    """Answers requests by a table of handlers."""

    def __init__(
        self,
        handlers: Mapping[int, Handler],
        *,
        error_codes: Mapping[type[ContrailError], int] | None = None,
        cluster_networks: Networks = (),
        admin_networks: Networks = (),
        in_flight_count_max: int = 1024,
    ) -> None:
        self._handlers = dict(handlers)
        self._error_codes = dict(error_codes or {})
        self._cluster_networks = cluster_networks
        self._admin_networks = admin_networks
        self._in_flight_count_max = in_flight_count_max
        self.is_going_away = False
        self.counts: Counter[str] = Counter()

    def handle(self, request: Request, peer: Connection) -> None:
        """Answer one request, now or later; the peer learns of every failure."""
        peer.in_hand = request.opaque
        response = self._outcome(request, peer, None)
        if response is not None:
            peer.reply(request, response)
        else:
            peer.put_off(request)

    def count_refused(self, counts: Mapping[tuple[int, int], int]) -> None:
        """Count requests that were refused without a handler, by request and response code."""
        for (_, response_code), count in counts.items():
            self.counts[f"rejected_{response_code}"] += count

    def finish(self, request: Request, peer: Peer, work: Callable[[], Answer]) -> None:
        """Answer a request that was put off with the result of ``work``, or with its error."""
        response = self._outcome(request, peer, work)
        if response is not None:
            peer.reply(request, response)

    def _served(self, request: Request, peer: Connection) -> Answer:
        self._admit(request, peer)
        handler = self._handlers.get(request.code)
        if handler is None:
            raise RequestRejected(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, _unknown(request))
        return handler(request, peer)

    def _outcome(
        self, request: Request, peer: Peer, work: Callable[[], Answer] | None
    ) -> Response | None:
        try:
            answer = self._served(request, peer) if work is None else work()  # type: ignore[arg-type]
        except RequestRejected as refusal:
            self.counts[f"rejected_{refusal.code}"] += 1
            return Response(refusal.code, refusal.remark, refusal.fields)
        except ContrailError as error:
            return Response(self._code_of(error), str(error))
        except Exception as error:
            _log.exception("request %s from %s failed", request.code, peer.address)
            self.counts["failed"] += 1
            return Response(
                ResponseCode.SYSTEM_ERROR,
                f"request {request.code} failed: {type(error).__name__}: {error}",
            )
        return None if answer is LATER else answer  # type: ignore[return-value]

    def turns_away(self, version: int) -> bool:
        """Whether a client of this version is told now that the server goes away."""
        return self.is_going_away and version > GO_AWAY_VERSION

    def room_of(self, peer: Peer) -> int:
        """How many more requests of a peer may be unanswered."""
        return self._in_flight_count_max - peer.in_flight_count

    def no_room(self) -> RequestRejected:
        """The refusal of a request that finds no such room."""
        count = self._in_flight_count_max
        return RequestRejected(
            ResponseCode.SYSTEM_BUSY,
            f"{count} requests of this connection are unanswered: no more are taken",
        )

    def _admit(self, request: Request, peer: Connection) -> None:
        if self.turns_away(request.version):
            raise RequestRejected(ResponseCode.GO_AWAY, "this server is shutting down: reconnect")
        if self.room_of(peer) <= 0:
            raise self.no_room()
        if not peer.is_this_host:
            self._admit_stranger(request, peer)

    def _admit_stranger(self, request: Request, peer: Connection) -> None:
        """From elsewhere only data codes are taken, and others from listed networks."""
        kind = code_class(request.code)
        if kind is CodeClass.DATA or kind is None:
            return
        if kind is CodeClass.CLUSTER and self._is_of_the_cluster(peer):
            return
        if is_within(self._admin_networks, peer.address):
            return
        raise RequestRejected(
            ResponseCode.NO_PERMISSION,
            f"request {request.code} is administration, which is taken from this host only; "
            "for brokers on other hosts set contrailClusterAllowList",
        )

    def _is_of_the_cluster(self, peer: Connection) -> bool:
        return is_within(self._cluster_networks, peer.address)

    def _code_of(self, error: ContrailError) -> int:
        for kind in type(error).__mro__:
            code = self._error_codes.get(kind)
            if code is not None:
                return code
        return ResponseCode.SYSTEM_ERROR


def is_within(networks: Networks, peer_address: str) -> bool:
    """Whether a peer's ``ip:port`` lies in one of the networks."""
    host = peer_address.rpartition(":")[0].strip("[]")
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return any(address in network for network in networks)


def code_class(code: int) -> CodeClass | None:
    """The class of a request code; None for one that nobody knows."""
    try:
        return CODE_CLASSES[RequestCode(code)]
    except ValueError:
        return None


def _unknown(request: Request) -> str:
    try:
        return f"request code {request.code} ({RequestCode(request.code).name}) is not served here"
    except ValueError:
        return f"request code {request.code} is unknown"


def parse_networks(text: str, setting_name: str = "contrailClusterAllowList") -> Networks:
    """Networks in CIDR form, separated by commas or semicolons.

    Raises:
        ConfigError: a piece is no network.
    """
    pieces: Iterable[str] = (piece.strip() for piece in text.replace(";", ",").split(","))
    try:
        return tuple(ipaddress.ip_network(piece, strict=False) for piece in pieces if piece)
    except ValueError as error:
        raise ConfigError(f"{setting_name}={text!r}: {error}") from error
