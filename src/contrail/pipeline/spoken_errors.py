"""Errors as Spark shows them: the error's text first, without a traceback."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

from contrail.errors import ContrailError

# Spark's Python processes leave the traceback out of a failure when this is set.
_HIDE_TRACEBACK = "SPARK_HIDE_TRACEBACK"
# Set in every Python process that Spark starts, and in no program of a user.
_WORKER_MARK = "SPARK_AUTH_SOCKET_TIMEOUT"

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")


def spoken(work: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Have Spark show the text of a Contrail error first, without its traceback.

    The process ends with the failure, and the setting with it.
    """

    @wraps(work)
    def speaking(self: S, /, *arguments: P.args, **named: P.kwargs) -> R:
        try:
            return work(self, *arguments, **named)
        except ContrailError:
            if _WORKER_MARK in os.environ:
                os.environ[_HIDE_TRACEBACK] = "1"
            raise

    return speaking
