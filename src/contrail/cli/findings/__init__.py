"""The findings of ``contrail doctor``: facts in, findings out; only ``gathering`` asks servers."""

from contrail.cli.findings.commands import Commands
from contrail.cli.findings.facts import ClusterFacts, GroupFacts, TopicFacts
from contrail.cli.findings.finding import Finding, Severity
from contrail.cli.findings.known import FINDINGS, findings_of

__all__ = [
    "FINDINGS",
    "ClusterFacts",
    "Commands",
    "Finding",
    "GroupFacts",
    "Severity",
    "TopicFacts",
    "findings_of",
]
