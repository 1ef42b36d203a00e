"""Where each thread of this process is, for an operator who asks why a consumer stands still."""

from __future__ import annotations

import sys
import threading
import traceback
from types import FrameType

_CHARACTERS_MAX = 100_000


def thread_stacks() -> str:
    """The stacks of all threads, each under its name, the innermost call last."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    texts = [
        _stack(names.get(ident, str(ident)), frame)
        for ident, frame in sys._current_frames().items()
    ]
    return "\n".join(sorted(texts))[:_CHARACTERS_MAX]


def _stack(name: str, frame: FrameType) -> str:
    return f"{name}\n{''.join(traceback.format_stack(frame))}"
