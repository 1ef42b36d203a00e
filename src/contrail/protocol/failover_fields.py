"""Fields of answers by which members of a failover group tell a client where to go on.

Apache's clients skip fields that they do not know.
"""

from __future__ import annotations

LEADER_FIELD = "contrailLeader"
"""In an answer 14: the address of the member that leads, as far as the answering one knows."""

IN_DOUBT_FIELD = "contrailInDoubt"
"""``true`` in an answer 1: the request may still be carried out, or may have been."""
