"""Looking through the findings of a check-up."""

import socket
from collections.abc import Sequence

from tenantry.services.checkup.finding import Finding, Level


def levels(findings: Sequence[Finding]) -> set[Level]:
    return {finding.level for finding in findings}


def only(findings: Sequence[Finding], level: Level) -> Finding:
    """The one finding of this level; it always says how to mend things."""
    [found] = [finding for finding in findings if finding.level is level]
    assert found.remedy
    return found


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])
