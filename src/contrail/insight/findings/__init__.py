"""The findings of ``contrail doctor``: facts in, findings out; only ``gathering`` asks servers."""

from contrail.insight.findings.commands import Commands
from contrail.insight.findings.facts import ClusterFacts, GroupFacts, TopicFacts
from contrail.insight.findings.finding import Finding, Severity
from contrail.insight.findings.known import FINDINGS, findings_of

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
