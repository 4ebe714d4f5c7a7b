"""Checks of the settings and the plan catalog, which need nobody else."""

from collections.abc import Sequence
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from tenantry.cli.doctor.finding import Finding, error, ok, warning
from tenantry.common.secret import Secret
from tenantry.domain.plans import FREE, Catalog

SHORTEST: Final = 16
_ADDRESS: Final = "BASE_URL"
_SECRETS: Final = "secrets"
_MAKE_ONE: Final = "Make a secret with `openssl rand -hex 32` and keep it: the same one for every process."
_REMEDIES: Final = {
    "PROVIDER_WEBHOOK_SECRET": "Copy the endpoint's signing secret (whsec_...) from the payment provider's dashboard, "
    "or from the tool that forwards events to a local address.",
    "DATABASE_URL": "Set it in the environment or in .env.",
    "API_KEY_PEPPER": _MAKE_ONE,
    "SESSION_SECRET": _MAKE_ONE,
    "OPERATOR_TOKEN": _MAKE_ONE,
    "TENANTRY_PLANS": "Correct the plan catalog, or unset TENANTRY_PLANS for the package's own.",
}


def judge_settings(faults: Sequence[str]) -> list[Finding]:
    """One finding for each faulty setting (``NAME: what is wrong``)."""
    findings = []
    for fault in faults:
        name, _, message = fault.partition(": ")
        remedy = _REMEDIES.get(name, f"Correct {name} in the environment or in .env.")
        findings.append(error(name, message, remedy, why="The service does not start."))
    return findings or [ok("settings", "complete and well-formed")]


def judge_address(base_url: str, *, is_demo: bool) -> list[Finding]:
    """Whether people and the provider can reach BASE_URL, with nobody listening in."""
    parts = urlsplit(base_url)
    if is_demo:
        return []
    if _is_loopback(parts.hostname or ""):
        return [ok(_ADDRESS, f"{base_url} is for people on this machine alone")]
    if parts.scheme == "https":
        return [ok(_ADDRESS, base_url)]
    return [
        warning(
            _ADDRESS,
            f"{base_url} is not https",
            "Put a proxy with a certificate in front (TRUSTED_PROXIES), and set BASE_URL to its https address.",
            why="Keys, tokens and the dashboard's cookies can be read on the way.",
        )
    ]


def judge_secrets(secrets: Sequence[tuple[str, Secret]]) -> list[Finding]:
    """Whether each secret, given with its variable, is one of its own and long enough to stay one."""
    names: dict[Secret, list[str]] = {}
    for name, secret in secrets:
        names.setdefault(secret, []).append(name)
    shared = [_judge_shared(list(dict.fromkeys(alike))) for alike in names.values() if len(alike) > 1]
    short = [
        warning(
            _SECRETS,
            f"{name} is shorter than {SHORTEST} characters",
            "Make a longer one where it is given out, and set it here.",
            why="It can be guessed.",
        )
        for name, secret in dict.fromkeys(secrets)
        if len(secret.reveal()) < SHORTEST
    ]
    return [*shared, *short] or [ok(_SECRETS, "each is another one, and long")]


def _judge_shared(names: Sequence[str]) -> Finding:
    """What is wrong with a secret that is given more than once, in these variables."""
    if len(names) == 1:
        return warning(
            _SECRETS,
            f"{names[0]} holds the same secret twice",
            "Leave one out; in a rotation put the new secret in its place. configuration.md says how it is rotated.",
            why="It counts once: a rotation that was meant by it has not begun.",
        )
    return warning(
        _SECRETS,
        f"{' and '.join(names)} hold the same secret",
        "Give each its own (`openssl rand -hex 32`); configuration.md says how each is rotated.",
        why="Who comes by one has the other too, and one cannot be changed without the other.",
    )


def judge_traces(*, are_wanted: bool, can_be_made: bool) -> list[Finding]:
    """Whether traces that are asked for are made."""
    if not are_wanted or can_be_made:
        return []
    return [
        warning(
            "traces",
            "are asked for by OTEL_... variables, and cannot be made",
            "pip install 'tenantry[otel]', or set OTEL_SDK_DISABLED=true.",
            why="The service works, and sends none.",
        )
    ]


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def judge_catalog(catalog: Catalog) -> list[Finding]:
    """What the plan catalog offers; a plan without a price cannot be bought."""
    findings = [
        warning(
            "plans",
            f"the plan {plan.id} has no price: no subscription leads to it",
            "Give it a stripe_price_id in the plan catalog (TENANTRY_PLANS).",
            why="Nobody can buy it.",
        )
        for plan in catalog.plans
        if not plan.stripe_price_ids and plan.id != FREE
    ]
    return findings or [ok("plans", ", ".join(plan.id for plan in catalog.plans))]
