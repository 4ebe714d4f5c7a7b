"""Assertions about the findings of `tenantry doctor`."""

from collections.abc import Sequence
from typing import Any

from tenantry.domain.billing.state import BillingPolicy
from tenantry.domain.plans import Catalog
from tenantry.installation.findings import Finding, Level
from tenantry.settings import Settings
from tests.support.catalogs import CATALOG


def checked_settings(
    catalog: Catalog = CATALOG, *, livemode: bool | None = None, **values: Any
) -> Settings:
    """Settings with a mail server and the provider's key, which compare no tenants, and without a
    pepper.
    """
    usual = {
        "SMTP_URL": "smtp://127.0.0.1",
        "MAIL_FROM": "billing@example.com",
        "PROVIDER_SECRET_KEY": "key-of-the-doctors",
        "RECONCILE_HOURS": "0",
    }
    return Settings({**usual, **values}).replace(
        billing=BillingPolicy(catalog=catalog, livemode=livemode)
    )


def levels(findings: Sequence[Finding]) -> set[Level]:
    return {finding.level for finding in findings}


def only(findings: Sequence[Finding], level: Level, *, remedied: bool = True) -> Finding:
    """The one finding of this level; a problem always says why it matters and what to do."""
    [found] = [finding for finding in findings if finding.level is level]
    assert bool(found.remedy) is bool(found.why) is remedied
    return found
