"""Keeps one link to every other member of a group: the member with the smaller id dials.

A link that is lost is dialed again soon; members that hear nothing from each other for some seconds
end their link. Pings say that a link lives, and compare the wall clocks.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Mapping
from typing import Protocol

from contrail.clock import Clock
from contrail.errors import CallFailed, ConfigError, RemoteProtocolError
from contrail.protocol.group_frames import Batch, Decoded, MemberHello, Ping
from contrail.protocol.group_messages import Fetch, Fetched, Message
from contrail.protocol.handshake import MEMBER, NONCE_BYTES
from contrail.replication.config import GroupConfig
from contrail.replication.services.member_link import MemberLink, MemberRefused
from contrail.wire.cluster_port import ClusterPort, Dial, Link, dial

RESTORED = "restored"
"""The reason by which a member with an older disk is sent away."""
_SWEEP_S = 0.05
_PING_INTERVAL_MS = 1_000
_SILENCE_MS_MAX = 5_000
_GREETING_MS_MAX = 5_000
_REDIAL_MS_FIRST = 50
_REDIAL_MS_MAX = 1_000
_WARNING_INTERVAL_MS = 10_000
# Members that start together find each other within this time.
_PATIENCE_MS = 3_000
_log = logging.getLogger(__name__)


Received = Message | Batch | Fetch | Fetched


class MemberLinksUser(Protocol):
    """The events of links, on the event loop's thread."""

    def hello(self) -> MemberHello:
        """This member's word about itself."""
        ...

    def opened(self, self_id: str, peer: MemberHello) -> None: ...
    def received(self, self_id: str, message: Received) -> None: ...
    def lost(self, self_id: str) -> None: ...
    def refused(self, self_id: str, reason: str, text: str) -> None:
        """A member that proved the secret ended the link and said why."""
        ...


class _Peer:
    """A configured member, and how to reach it."""

    def __init__(self, self_id: str, address: str) -> None:
        self.self_id = self_id
        self.address = address
        self.link: MemberLink | None = None
        self.dialing: asyncio.Task[None] | None = None
        self.dial_at_ms = 0
        self.dial_pause_ms = _REDIAL_MS_FIRST
        self.problem = ""
        self.warn_at_ms = 0
        # The peer's wall clock less this one's, as of its last ping.
        self.skew_ms = 0


class MemberLinks:
    """The links of one member; belongs to the loop's thread."""

    def __init__(self, config: GroupConfig, user: MemberLinksUser, clock: Clock) -> None:
        self._config = config
        self._user = user
        self._clock = clock
        self._now_ms = clock.elapsed_ms
        # A way to the peers that a test can cut.
        self.dial: Dial = dial
        trust = config.trust
        self._port = ClusterPort(self, tls=trust.server_tls, certificate=trust.server_certificate)
        self._peers = {
            self_id: _Peer(self_id, address)
            for self_id, address in config.peers.items()
            if self_id != config.self_id
        }
        self._links: dict[Link, MemberLink] = {}
        self._runner: asyncio.Task[None] | None = None
        self._ping_at_ms = 0

    # Life.

    async def start(self) -> int:
        """Open the port for members and begin to dial; returns the port's number.

        Raises:
            ConfigError: the address cannot be bound.
        """
        config = self._config
        try:
            port = await self._port.listen(config.listen_address, config.listen_port)
        except ConfigError as error:
            raise ConfigError(
                f"the port for the failover group: {error}; it is that of {config.self_id} in "
                "dLegerPeers"
            ) from error
        self._runner = asyncio.get_running_loop().create_task(self._run(), name="member-links")
        return port

    async def stop(self) -> None:
        tasks = [peer.dialing for peer in self._peers.values() if peer.dialing is not None]
        if self._runner is not None:
            tasks.append(self._runner)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.end_all("stopped")
        await self._port.close()

    def end_all(self, reason: str) -> None:
        """End every link; they are made anew with a new word of this member."""
        for link in list(self._links):
            link.close(reason)

    def end_unsent(self, reason: str) -> None:
        """End the links that may still hold views of the log."""
        for link in list(self._links):
            if link.unsent_bytes:
                link.abort()
                _log.info("the link to %s ends: %s", link.address, reason)

    # Asked by the runner.

    def hellos(self) -> dict[str, MemberHello]:
        """The words of the members whose links are open."""
        return {
            peer.self_id: peer.link.peer
            for peer in self._peers.values()
            if peer.link is not None and peer.link.peer is not None
        }

    def skews_ms(self) -> Mapping[str, int]:
        """How far the wall clocks of connected members are ahead of this one's."""
        return {
            peer.self_id: peer.skew_ms
            for peer in self._peers.values()
            if peer.link is not None and peer.link.is_open
        }

    def problems(self) -> Mapping[str, str]:
        """Why members cannot be reached."""
        return {peer.self_id: peer.problem for peer in self._peers.values() if peer.problem}

    def link_to(self, self_id: str) -> MemberLink | None:
        """The open link to a member."""
        peer = self._peers.get(self_id)
        if peer is None or peer.link is None or not peer.link.is_open or peer.link.link.is_closed:
            return None
        return peer.link

    def refuse(self, self_id: str, reason: str, text: str) -> None:
        """End the link to a member and tell it why."""
        peer = self._peers[self_id]
        if peer.link is not None:
            self._note(peer, text)
            peer.link.refuse(reason, text)

    # Called by links.

    def opened(self, link: Link) -> None:
        self._greet(link, is_dialer=False)

    def received(self, link: Link, data: bytes) -> None:
        known = self._links.get(link)
        if known is None:
            return
        known.heard_ms = self._now_ms()
        try:
            for message in known.feed(data):
                if isinstance(message, MemberHello):
                    self._open(known, message)
                elif known.peer is not None and not link.is_closed:
                    self._take(known.peer.self_id, message)
                if link.is_closed:
                    return
        except RemoteProtocolError as error:
            peer = known.peer
            self._refused(known, error)
            if isinstance(error, MemberRefused) and peer is not None:
                self._user.refused(peer.self_id, error.reason, str(error))

    def resumed(self, link: Link) -> None:
        """A member has at most some megabytes in flight: nothing waits for room."""

    def lost(self, link: Link, reason: str) -> None:
        known = self._links.pop(link, None)
        if known is None:
            return
        for peer in self._peers.values():
            if peer.link is known:
                peer.link = None
                if known.is_open:
                    _log.info("the link to member %s is gone: %s", peer.self_id, reason)
                    self._user.lost(peer.self_id)

    # The life of links.

    def _greet(self, link: Link, *, is_dialer: bool) -> MemberLink:
        trust, config = self._config.trust, self._config
        own = trust.introduction(
            config.identity,
            MEMBER,
            secrets.token_bytes(NONCE_BYTES),
            is_protected=link.is_encrypted or link.is_this_host,
            member=config.self_id,
        )
        assert trust.secret is not None, "a group has a secret"
        known = MemberLink(link, own, trust.secret, self._user.hello(), is_dialer=is_dialer)
        known.heard_ms = self._now_ms()
        self._links[link] = known
        return known

    def _open(self, known: MemberLink, hello: MemberHello) -> None:
        peer = self._peers.get(hello.self_id)
        if peer is None:
            raise RemoteProtocolError(
                "stranger", f"{hello.self_id} is not named in dLegerPeers of this member"
            )
        if peer.link is not None and peer.link is not known:
            # The member came back before its old link was seen to end.
            former, peer.link = peer.link, None
            former.link.abort()
            if former.is_open:
                self._user.lost(peer.self_id)
        peer.link, peer.problem = known, ""
        peer.dial_pause_ms = _REDIAL_MS_FIRST
        peer.skew_ms = hello.wall_ms - self._clock.now_ms()
        _log.info("linked with member %s at %s", peer.self_id, known.link.address)
        self._user.opened(peer.self_id, hello)

    def _take(self, self_id: str, message: Decoded) -> None:
        if isinstance(message, Ping):
            self._peers[self_id].skew_ms = message.wall_ms - self._clock.now_ms()
        else:
            self._user.received(self_id, message)

    def _refused(self, known: MemberLink, error: RemoteProtocolError) -> None:
        peer = self._peer_of(known)
        if peer is not None:
            self._note(peer, str(error))
        else:
            _log.warning("the link to %s ends (%s): %s", known.link.address, error.reason, error)
        known.refuse(error.reason, str(error))

    def _peer_of(self, known: MemberLink) -> _Peer | None:
        return next((peer for peer in self._peers.values() if peer.link is known), None)

    def _note(self, peer: _Peer, problem: str) -> None:
        """Remember why there is no link; one that lasts is logged, and again now and then."""
        now_ms = self._now_ms()
        if not peer.problem:
            peer.warn_at_ms = now_ms + _PATIENCE_MS
        peer.problem = problem
        if now_ms >= peer.warn_at_ms:
            peer.warn_at_ms = now_ms + _WARNING_INTERVAL_MS
            _log.warning("member %s: %s", peer.self_id, problem)

    # Time.

    async def _run(self) -> None:
        while True:
            now_ms = self._now_ms()
            for peer in self._peers.values():
                if self._dials(peer) and now_ms >= peer.dial_at_ms:
                    peer.dialing = asyncio.get_running_loop().create_task(self._dial(peer))
            self._keep_alive(now_ms)
            await asyncio.sleep(_SWEEP_S)

    def _dials(self, peer: _Peer) -> bool:
        is_idle = peer.dialing is None or peer.dialing.done()
        return self._config.self_id < peer.self_id and peer.link is None and is_idle

    async def _dial(self, peer: _Peer) -> None:
        peer.dial_pause_ms = min(2 * peer.dial_pause_ms, _REDIAL_MS_MAX)
        try:
            dialer = _Dialer(self, peer)
            await self.dial(dialer, peer.address, tls=self._config.trust.client_tls)
        except CallFailed as error:
            self._note(peer, str(error))
        peer.dial_at_ms = self._now_ms() + peer.dial_pause_ms

    def _keep_alive(self, now_ms: int) -> None:
        is_ping_due = now_ms >= self._ping_at_ms
        if is_ping_due:
            self._ping_at_ms = now_ms + _PING_INTERVAL_MS
        for link, known in list(self._links.items()):
            silent_ms = now_ms - known.heard_ms
            if silent_ms >= (_SILENCE_MS_MAX if known.is_open else _GREETING_MS_MAX):
                link.close("silent")
            elif is_ping_due and known.is_open:
                known.send(Ping(self._clock.now_ms()))


class _Dialer:
    """The user of a link that this member dials: it is greeted at once."""

    def __init__(self, links: MemberLinks, peer: _Peer) -> None:
        self._links = links
        self._peer = peer

    def opened(self, link: Link) -> None:
        self._peer.link = self._links._greet(link, is_dialer=True)

    def received(self, link: Link, data: bytes) -> None:
        self._links.received(link, data)

    def resumed(self, link: Link) -> None:
        self._links.resumed(link)

    def lost(self, link: Link, reason: str) -> None:
        self._links.lost(link, reason)
