"""Exits with 0 if the server of this container answers: a broker at 5557, a NameServer at 5558."""

import sys
import urllib.error
import urllib.request

PORTS = (5557, 5558)
TIMEOUT_S = 3


def answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(
            f"http://127.0.0.1:{port}/healthz", timeout=TIMEOUT_S
        ) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


if __name__ == "__main__":
    sys.exit(0 if any(answers(port) for port in PORTS) else 1)
