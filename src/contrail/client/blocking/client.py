"""The parts of every blocking client: an asyncio twin, and the loop that runs it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from types import TracebackType
from typing import Any, Generic, ParamSpec, Protocol, Self, TypeVar

from contrail.client.background import background_loop

T = TypeVar("T")
P = ParamSpec("P")


class _Twin(Protocol):
    async def start(self) -> None: ...
    async def close(self) -> None: ...
    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
        /,
    ) -> None: ...


A = TypeVar("A", bound=_Twin)


class BlockingClient(Generic[A]):
    """A client whose calls wait. Safe to share between threads, not over a fork."""

    def __init__(self, twin: A) -> None:
        self._twin = twin
        self._background = background_loop()

    def _run(
        self, work: Callable[P, Coroutine[Any, Any, T]], /, *given: P.args, **named: P.kwargs
    ) -> T:
        return self._background.run(work, *given, **named)

    def _iterate(self, items: AsyncIterator[T]) -> Iterator[T]:
        while True:
            try:
                yield self._run(_next, items)
            except StopAsyncIteration:
                return

    def start(self) -> None:
        """Join the process's client for the cluster; ``with`` does it for you."""
        self._background.open_clients.add(self._twin)
        self._run(self._twin.start)

    def close(self) -> None:
        """Finish work under way and leave; ``with`` and the interpreter's exit do it for you.

        In a child of a fork it does nothing: the client is its parent's.
        """
        if not self._background.is_gone:
            self._run(self._twin.close)
            self._background.open_clients.discard(self._twin)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self._background.is_gone:
            self._run(self._twin.__aexit__, kind, error, traceback)
            self._background.open_clients.discard(self._twin)


async def _next(items: AsyncIterator[T]) -> T:
    return await anext(items)
