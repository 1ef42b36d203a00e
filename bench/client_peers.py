"""Other clients, and Apache's broker with its proxy: fetched once, each run in its own process.

A peer that cannot be had is ``Absent`` with the reason, and its rows are left out.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeVar

import pytest

from bench.client_parts import BODY_BYTES
from bench.harness import CHILD_TIMEOUT_S, REPOSITORY, BenchError, Figures
from bench.wire_parts import pinned, tail
from tests.interop.apache_cluster import _BROKER_PROPERTIES, ApacheCluster
from tests.interop.clients.cpp import VERSION as CPP_VERSION
from tests.interop.clients.fetched import built_once, call, fetch
from tests.interop.peers import JavaPeer, PeerFailed, java_peer, own_environment
from tests.interop.private_network import PrivateNetwork

T = TypeVar("T")
