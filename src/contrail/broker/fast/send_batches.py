"""Tidy batches: those of one tick are split, written, counted and answered together.

A batch is tidy when nothing has to be decided about it (``SendAdmission.splitting_topics``) and its
messages can be stored as they came (``kernels.batch_sends``). Anything else, and whatever goes
wrong on the way, is for the general way, ``handlers.send``.
"""

from __future__ import annotations

from collections.abc import Callable

from contrail.broker.fast.send_answers import RowAnswers
from contrail.broker.services.send_admission import PLAIN_FLAGS, SendAdmission
from contrail.broker.state.stats import BrokerStats
from contrail.errors import StoreError
from contrail.kernels.batch_sends import count_batches
from contrail.kernels.send_runs import Item
from contrail.store import MessageStore
from contrail.wire.connection import Connection


class SendBatches:
    """The tidy batches of a tick."""

    def __init__(
        self,
        admission: SendAdmission,
        store: MessageStore,
        stats: BrokerStats,
        answers: RowAnswers,
        *,
        take_singly: Callable[[Connection, Item], None],
    ) -> None:
        """``take_singly`` is for a batch that is not tidy, or not any more."""
        self._admission = admission
        self._store = store
        self._stats = stats
        self._answers = answers
        self._take_singly = take_singly
        # Collected, and not appended yet.
        self.sent: list[tuple[Connection, Item]] = []

    def count(self, items: list[Item], at: int) -> int:
        """How many sends from there on are batches that may be collected."""
        return count_batches(items, at, self._admission.splitting_topics, PLAIN_FLAGS)

    def take(self, peer: Connection, items: list[Item]) -> None:
        """Collect batches of one connection."""
        self.sent += [(peer, item) for item in items]

    def append(self) -> None:
        """Append everything collected so far and answer, or park the answers."""
        if not self.sent:
            return
        sent, self.sent = self.sent, []
        drafts = [item[11] for _, item in sent]
        try:
            appended = self._store.append_batches(drafts)
        except StoreError:
            # It happens again on the general way, which tells everybody.
            appended = None
        except Exception as error:
            self._answers.refuse_failed_batches(sent, error)
            return
        if appended is None:
            for peer, item in sent:
                self._take_singly(peer, item)
            return
        self._stats.stored_batches(drafts, appended.places, appended.physical_end)
        self._answers.promise_batches(sent, appended)
