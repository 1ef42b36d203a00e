"""Answers to changes of tables: given when the table's file has the change, or fails to."""

from __future__ import annotations

from collections.abc import Callable

from contrail.errors import RequestRejected
from contrail.protocol.codes import ResponseCode
from contrail.protocol.command import Request, Response
from contrail.runtime.durable_changes import WhenWritten
from contrail.wire.peer import LATER, Answer, Peer


class SavedAnswer:
    """One request's answer; the change calls ``done`` at its end."""

    def __init__(
        self,
        request: Request,
        peer: Peer,
        what: str,
        *,
        then: Callable[[], None] = lambda: None,
        response: Callable[[], Response] = Response,
        also: WhenWritten | None = None,
    ) -> None:
        """``what`` names the change. After it ``then`` is called, and ``response`` for the answer.

        ``also`` is for another file that must be written after the change.
        """
        self._request = request
        self._peer = peer
        self._what = what
        self._then = then
        self._response = response
        self._also = also
        self._early: Response | None = None
        self._is_late = False

    def done(self, problem: Exception | None) -> None:
        """The change is durable and carried out, or was given up."""
        if problem is not None:
            self._give(_failed(f"{self._what} was not changed", problem))
            return
        self._then()
        if self._also is None:
            self._give(self._response())
            return
        try:
            self._also(self._after_the_other)
        except RequestRejected as refusal:
            self._give(Response(refusal.code, refusal.remark))

    def _after_the_other(self, problem: Exception | None) -> None:
        if problem is None:
            self._give(self._response())
        else:
            self._give(_failed(f"{self._what} was changed, but not all of it is saved", problem))

    def _give(self, response: Response) -> None:
        if self._is_late:
            self._peer.reply(self._request, response)
        else:
            self._early = response

    def answer(self) -> Answer:
        """For the handler to return: the answer if there is one by now."""
        self._is_late = True
        return LATER if self._early is None else self._early


def _failed(what: str, problem: Exception) -> Response:
    if isinstance(problem, RequestRejected):
        return Response(problem.code, problem.remark, dict(problem.fields or {}))
    return Response(ResponseCode.SYSTEM_ERROR, f"{what}: {problem}; mend it and try again")
