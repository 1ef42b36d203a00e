"""The least a Python server can do: split the frames, answer each with ready bytes.

``python -m bench.null_server ANSWER_FILE OPAQUE_AT``: the file holds one answer frame whose opaque
has nine digits, and OPAQUE_AT is where those of a request stand. Requests that arrive in one read
are answered in one write. Prints one line of JSON when it listens on a free port of the loopback.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import signal
import sys
from itertools import chain
from pathlib import Path
from typing import cast

from bench.wire_frames import NUMBER, opaque_at
from contrail.kernels.frame_scan import split_frames

FRAME_BYTES_MAX = 1 << 24
# Joining small answers costs less than handing the kernel many pieces; large ones are not copied.
JOINED_ANSWER_BYTES_MAX = 4096


class NullProtocol(asyncio.Protocol):
    """Copies the opaque, which it expects at a fixed place, and nothing else."""

    def __init__(self, answer: bytes, opaque_start: int) -> None:
        place = opaque_at(answer)
        self._head, self._rest = answer[:place], answer[place + len(NUMBER) :]
        self._opaque_start = opaque_start
        self._opaque_end = opaque_start + len(NUMBER)
        self._pending = b""
        self._joins = len(answer) <= JOINED_ANSWER_BYTES_MAX

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports quack like asyncio's without descending from them.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._pending:
            data = self._pending + data
        spans, consumed, problem = split_frames(data, 0, FRAME_BYTES_MAX)
        assert problem == 0, "the load sends whole, small frames"
        self._pending = data[consumed:]
        if spans:
            first, last = self._opaque_start, self._opaque_end
            self._answer([data[start + first : start + last] for start in spans[::2]])

    def _answer(self, opaques: list[bytes]) -> None:
        head, rest = self._head, self._rest
        if self._joins:
            # Between two opaques stands the rest of one answer and the head of the next.
            self._transport.write(head + (rest + head).join(opaques) + rest)
        else:
            pieces = ((head + opaque, rest) for opaque in opaques)
            self._transport.writelines(list(chain.from_iterable(pieces)))


async def serve(answer: bytes, opaque_start: int) -> None:
    """Answer until the process is ended."""
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stopped.set)
    server = await loop.create_server(
        lambda: NullProtocol(answer, opaque_start), "127.0.0.1", 0, backlog=1024
    )
    port = server.sockets[0].getsockname()[1]
    print(json.dumps({"port": port, "loop": type(loop).__module__.partition(".")[0]}), flush=True)
    await stopped.wait()
    server.close()


def new_event_loop() -> asyncio.AbstractEventLoop:
    """uvloop's, or the standard one where uvloop is not installed."""
    try:
        uvloop = importlib.import_module("uvloop")
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


def main() -> None:
    answer, opaque_start = Path(sys.argv[1]).read_bytes(), int(sys.argv[2])
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(serve(answer, opaque_start))


if __name__ == "__main__":
    main()
