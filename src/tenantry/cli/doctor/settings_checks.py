"""Checks of the settings and the plan catalog, without any connection."""

from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

from tenantry.cli.doctor.findings import Finding, Level, Problem, ok
from tenantry.common.http import is_loopback
from tenantry.common.secret import Secret
from tenantry.domain.plans import FREE, Catalog

SHORTEST: Final = 16
_GENERATE: Final = "Generate a secret with `openssl rand -hex 32` and use the same one in every process."
_REMEDIES: Final = {
    "PROVIDER_WEBHOOK_SECRET": "Copy the endpoint's signing secret (whsec_...) from the payment provider's dashboard, "
    "or from the tool that forwards events to a local address.",
    "DATABASE_URL": "Set it in the environment or in .env.",
    "API_KEY_PEPPER": _GENERATE,
    "SESSION_SECRET": _GENERATE,
    "OPERATOR_TOKEN": _GENERATE,
    "TENANTRY_PLANS": "Correct the plan catalog, or unset TENANTRY_PLANS to use the built-in one.",
}
_NOT_HTTPS: Final = Problem(
    "BASE_URL",
    "{base_url} is not https",
    "Keys, tokens and session cookies are sent unencrypted.",
    "Put a TLS proxy in front (TRUSTED_PROXIES), and set BASE_URL to its https address.",
)
_REPEATED: Final = Problem(
    "secrets",
    "{names} contains the same secret twice",
    "It counts once: the rotation has not begun.",
    "Remove one of them. To rotate, put the new secret first (see docs/configuration.md).",
)
_SHARED: Final = Problem(
    "secrets",
    "{names} hold the same secret",
    "One leak exposes both, and neither can be rotated alone.",
    "Give each its own (`openssl rand -hex 32`); docs/configuration.md describes how to rotate each.",
)
_SHORT: Final = Problem(
    "secrets",
    "{name} is shorter than {shortest} characters",
    "It can be guessed.",
    "Generate a longer one where it is issued, and set it here.",
)
_NO_TRACES: Final = Problem(
    "traces",
    "OTEL_... variables ask for traces, but OpenTelemetry is not installed",
    "The service works, but sends no traces.",
    "pip install 'tenantry[otel]', or set OTEL_SDK_DISABLED=true.",
)
_NO_PRICE: Final = Problem(
    "plans",
    "the plan {plan} has no price: no subscription leads to it",
    "No customer can buy it.",
    "Give it a stripe_price_id in the plan catalog (TENANTRY_PLANS).",
)


def judge_settings(faults: Sequence[str]) -> list[Finding]:
    """One finding for each faulty setting (``NAME: what is wrong``)."""
    findings = []
    for fault in faults:
        name, _, message = fault.partition(": ")
        remedy = _REMEDIES.get(name, f"Correct {name} in the environment or in .env.")
        findings.append(Finding(Level.ERROR, name, message, remedy, "The service does not start."))
    return findings or [ok("settings", "complete and well-formed")]


def judge_address(base_url: str, *, is_demo: bool) -> list[Finding]:
    """Whether BASE_URL is https, or an address of this machine."""
    parts = urlsplit(base_url)
    if is_demo:
        return []
    if is_loopback(parts.hostname or ""):
        return [ok("BASE_URL", f"{base_url} is reachable from this machine only")]
    return [ok("BASE_URL", base_url) if parts.scheme == "https" else _NOT_HTTPS.found(base_url=base_url)]


def judge_secrets(secrets: Sequence[tuple[str, Secret]]) -> list[Finding]:
    """Whether each secret, given with its variable, is unique and long enough."""
    names: dict[Secret, list[str]] = {}
    for name, secret in secrets:
        names.setdefault(secret, []).append(name)
    findings = [
        (_SHARED if len(set(alike)) > 1 else _REPEATED).found(names=" and ".join(dict.fromkeys(alike)))
        for alike in names.values()
        if len(alike) > 1
    ]
    findings += [
        _SHORT.found(name=name, shortest=SHORTEST)
        for name, secret in dict.fromkeys(secrets)
        if len(secret.reveal()) < SHORTEST
    ]
    return findings or [ok("secrets", "all different and long enough")]


def judge_traces(*, are_wanted: bool, can_be_made: bool) -> list[Finding]:
    """Whether requested traces can be sent."""
    return [_NO_TRACES.found()] if are_wanted and not can_be_made else []


def judge_catalog(catalog: Catalog) -> list[Finding]:
    """Which plans of the catalog can be bought."""
    findings = [
        _NO_PRICE.found(plan=plan.id) for plan in catalog.plans if not plan.stripe_price_ids and plan.id != FREE
    ]
    return findings or [ok("plans", ", ".join(plan.id for plan in catalog.plans))]
