"""The faults of a chaos campaign: how each begins and ends.

A fault that begins must end before the next one does. Killed members are started by its end.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from tests.chaos.group import ChaosGroup, ChaosMember

_HOUR_MS = 3_600_000
_SKEWS_MS = (-8 * 24 * _HOUR_MS, -_HOUR_MS, -20_000, 20_000, _HOUR_MS, 8 * 24 * _HOUR_MS)
_SLOWNESS_MS = (50, 300, 1_000, 3_000)


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind of fault; ``end`` gets what ``begin`` returned."""

    name: str
    begin: Callable[[ChaosGroup, ChaosMember, random.Random], object]
    end: Callable[[ChaosGroup, ChaosMember], None]
    # Whether a leader that is hit cannot stay the leader.
    deposes: bool = True
    # Whether the member reaches nobody meanwhile, as the checker asks.
    isolates: bool = False


def _kill(group: ChaosGroup, member: ChaosMember, chance: random.Random) -> None:
    member.broker.kill()


def _start(group: ChaosGroup, member: ChaosMember) -> None:
    member.broker.start()


def _stop(group: ChaosGroup, member: ChaosMember, chance: random.Random) -> None:
    member.broker.pause()


def _go_on(group: ChaosGroup, member: ChaosMember) -> None:
    member.broker.resume()


def _cut(group: ChaosGroup, member: ChaosMember, chance: random.Random) -> None:
    member.node.cut()


def _mend(group: ChaosGroup, member: ChaosMember) -> None:
    member.node.mend()


def _mute(group: ChaosGroup, member: ChaosMember, chance: random.Random) -> None:
    """The others hear nothing from it; it hears them. Clients are heard and answered."""
    member.node.lose_to(*(other.node for other in group.others(member)))


def _unmute(group: ChaosGroup, member: ChaosMember) -> None:
    member.node.reach(*(other.node for other in group.others(member)))


def _deafen(group: ChaosGroup, member: ChaosMember, chance: random.Random) -> None:
    """It hears nothing from the others; they hear it."""
    for other in group.others(member):
        other.node.lose_to(member.node)


def _undeafen(group: ChaosGroup, member: ChaosMember) -> None:
    for other in group.others(member):
        other.node.reach(member.node)


def _slow_disk(group: ChaosGroup, member: ChaosMember, chance: random.Random) -> None:
    member.disk.slow_down(chance.choice(_SLOWNESS_MS))


def _usual_disk(group: ChaosGroup, member: ChaosMember) -> None:
    member.disk.slow_down(0)


def _full_disk(group: ChaosGroup, member: ChaosMember, chance: random.Random) -> None:
    member.disk.fill()


def _room_again(group: ChaosGroup, member: ChaosMember) -> None:
    member.disk.empty()


def _skew(group: ChaosGroup, member: ChaosMember, chance: random.Random) -> None:
    member.clock.step(chance.choice(_SKEWS_MS))


def _right_time(group: ChaosGroup, member: ChaosMember) -> None:
    member.clock.step(0)


KILL = Fault("kill", _kill, _start)
STOP = Fault("stop", _stop, _go_on)
CUT = Fault("cut", _cut, _mend, isolates=True)
MUTE = Fault("one-way cut, unheard", _mute, _unmute)
DEAF = Fault("one-way cut, hears nobody", _deafen, _undeafen)
SLOW_DISK = Fault("slow disk", _slow_disk, _usual_disk, deposes=False)
FULL_DISK = Fault("full disk", _full_disk, _room_again)
SKEW = Fault("clock skew", _skew, _right_time, deposes=False)
ALL = (KILL, STOP, CUT, MUTE, DEAF, SLOW_DISK, FULL_DISK, SKEW)
