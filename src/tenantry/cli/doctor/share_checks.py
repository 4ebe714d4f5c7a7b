"""Checks of the server on this host: how many checks of keys and tokens its standbys answer."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import httpx2
from prometheus_client.parser import text_string_to_metric_families

from tenantry.common.http import local_origin
from tenantry.domain.standby_checks import CheckSource
from tenantry.installation.findings import Finding, Level, ok, problem
from tenantry.integrations.http_client import new_http_client
from tenantry.settings import Settings

_SUBJECT: Final = "standbys"
_CHECKS: Final = "tenantry_checks_total"
_USUAL_SHARE: Final = 0.9


async def check_share(settings: Settings) -> list[Finding]:
    """Check which part of its checks the server of these settings has answered at a standby."""
    if settings.database_checks_url is None:
        return []
    address = local_origin(settings.host, settings.port)
    try:
        async with new_http_client() as client:
            answer = await client.get(address + "/metrics")
        return [judge_share(read_checks(answer.text))]
    except (httpx2.HTTPError, ValueError):  # `ValueError`: something else answers there
        text = f"the share of checks is not known: no `tenantry serve` answers at {address}"
        return [Finding(Level.INFO, _SUBJECT, text)]


def read_checks(metrics: str) -> Counter[str]:
    """Return the number of checks by their source, as `CheckSource`. Raises `ValueError` for a text
    that is not Prometheus'.
    """
    checks: Counter[str] = Counter()
    for family in text_string_to_metric_families(metrics):
        for sample in family.samples:
            if sample.name == _CHECKS:
                checks[sample.labels["source"]] += int(sample.value)
    return checks


def judge_share(checks: Mapping[str, int]) -> Finding:
    """Judge whether standbys answer nearly all checks."""
    total = sum(checks.values())
    if total == 0:
        return Finding(Level.INFO, _SUBJECT, "the server has had no checks yet")
    at_standbys = checks.get(CheckSource.STANDBY, 0)
    text = f"{at_standbys / total:.1%} of {total} checks were answered by a standby"
    if at_standbys >= _USUAL_SHARE * total:
        return ok(_SUBJECT, text)
    return problem("standbys.seldom", share=text, others=_listed(checks))


def _listed(checks: Mapping[str, int]) -> str:
    others: Sequence[str] = [
        f"{source}: {number}"
        for source, number in sorted(checks.items())
        if source != CheckSource.STANDBY
    ]
    return ", ".join(others)
