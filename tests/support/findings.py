"""Assertions about the findings of `tenantry doctor`."""

import socket
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from tenantry.cli.doctor import Finding, Level
from tenantry.cli.doctor.billing_checks import BillingTerms
from tenantry.domain.billing.state import BillingPolicy
from tenantry.domain.plans import Catalog
from tests.support.facts import CATALOG


def billing_terms(catalog: Catalog = CATALOG, *, livemode: bool | None = None, **fields: Any) -> BillingTerms:
    """The settings of billing; by default the API can be asked, and tenants are not compared."""
    usual = {
        "asks_provider": True,
        "period_news": timedelta(hours=24),
        "compared_every": None,
        "bodies_kept": timedelta(days=90),
    }
    return BillingTerms(policy=BillingPolicy(catalog=catalog, livemode=livemode), **{**usual, **fields})


def levels(findings: Sequence[Finding]) -> set[Level]:
    return {finding.level for finding in findings}


def only(findings: Sequence[Finding], level: Level, *, remedied: bool = True) -> Finding:
    """The one finding of this level; a problem always says why it matters and what to do."""
    [found] = [finding for finding in findings if finding.level is level]
    assert bool(found.remedy) is bool(found.why) is remedied
    return found


def free_port() -> int:
    """A port without a listener."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])
