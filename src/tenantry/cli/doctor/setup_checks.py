"""Checks of the settings and the plan catalog."""

from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

from tenantry.common.http import is_loopback
from tenantry.common.secret import Secret
from tenantry.common.tracing import is_installed
from tenantry.domain.plans import FREE, Catalog
from tenantry.installation.findings import Finding, Level, ok, problem, problem_if
from tenantry.settings import Settings

_GENERATE: Final = (
    "Generate a secret with `openssl rand -hex 32` and use the same one in every process."
)
_REMEDIES: Final = {
    "PROVIDER_WEBHOOK_SECRET": "Copy the endpoint's signing secret (whsec_...) from the payment provider's dashboard, "
    "or from the tool that forwards events to a local address.",
    "DATABASE_URL": "Set it in the environment or in .env.",
    "API_KEY_PEPPER": _GENERATE,
    "SESSION_SECRET": _GENERATE,
    "OPERATOR_TOKEN": _GENERATE,
    "TENANTRY_PLANS": "Correct the plan catalog, or unset TENANTRY_PLANS to use the built-in one.",
}


def judge_settings(faults: Sequence[str]) -> list[Finding]:
    """Report each faulty setting (``NAME: what is wrong``)."""
    findings = []
    for fault in faults:
        name, _, message = fault.partition(": ")
        remedy = _REMEDIES.get(name, f"Correct {name} in the environment or in .env.")
        findings.append(
            Finding(
                Level.ERROR,
                name,
                message,
                remedy,
                "The service does not start.",
            )
        )
    return findings or [ok("settings", "complete and well-formed")]


def check_values(settings: Settings) -> list[Finding]:
    """Check what the settings themselves show, once they are well-formed."""
    return [
        *([] if settings.demo else [judge_address(settings.base_url)]),
        *judge_secrets(settings.named_secrets()),
        *problem_if(settings.traces and not is_installed(), "traces.not_installed"),
        *problem_if(_cannot_accept(settings), "invitations.no_sign_in"),
        *judge_catalog(settings.billing.catalog),
    ]


def _cannot_accept(settings: Settings) -> bool:
    """Whether users get invitations by mail, and cannot sign in to accept them."""
    has_sign_in = settings.oidc is not None and settings.oidc.client_id is not None
    return settings.invitation_links is not None and not has_sign_in


def judge_address(base_url: str) -> Finding:
    """Judge whether BASE_URL is https, or an address of this machine."""
    if is_loopback(urlsplit(base_url).hostname or ""):
        return ok("BASE_URL", f"{base_url} is reachable from this machine only")
    if base_url.startswith("https:"):
        return ok("BASE_URL", base_url)
    return problem("BASE_URL.not_https", base_url=base_url)


def judge_secrets(secrets: Sequence[tuple[str, Secret]]) -> list[Finding]:
    """Judge whether each secret, given with its variable, is given once."""
    variables: dict[Secret, list[str]] = {}
    for name, secret in secrets:
        variables.setdefault(secret, []).append(name)
    repeated = [names for names in variables.values() if len(names) > 1]
    return [_repeated(names) for names in repeated] or [ok("secrets", "all different")]


def _repeated(names: Sequence[str]) -> Finding:
    different = list(dict.fromkeys(names))
    if len(different) > 1:
        return problem("secrets.shared", names=" and ".join(different))
    return problem("secrets.repeated", names=different[0])


def judge_catalog(catalog: Catalog) -> list[Finding]:
    unpriced = [plan.id for plan in catalog.plans if not plan.stripe_price_ids and plan.id != FREE]
    findings = [problem("plans.no_price", plan=plan) for plan in unpriced]
    return findings or [ok("plans", ", ".join(plan.id for plan in catalog.plans))]
