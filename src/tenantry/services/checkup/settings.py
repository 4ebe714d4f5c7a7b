"""Checks of the settings and the plan catalog, which need nobody else."""

from collections.abc import Sequence
from typing import Final

from tenantry.domain.plans import FREE, Catalog
from tenantry.services.checkup.finding import Finding, error, ok, warning

_MAKE_ONE: Final = "Make a secret with `openssl rand -hex 32` and keep it: the same one for every process."
_REMEDIES: Final = {
    "PROVIDER_WEBHOOK_SECRET": "Copy the endpoint's signing secret (whsec_...) from the payment provider's dashboard, "
    "or from the tool that forwards events to a local address.",
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
        findings.append(error(name, message, _REMEDIES.get(name, f"Correct {name} in the environment or in .env.")))
    return findings or [ok("settings", "complete and well-formed")]


def judge_catalog(catalog: Catalog) -> list[Finding]:
    """What the plan catalog offers; a plan without a price cannot be bought."""
    findings = [
        warning(
            "plans",
            f"the plan {plan.id} has no price: no subscription leads to it",
            "Give it a stripe_price_id in the plan catalog (TENANTRY_PLANS).",
        )
        for plan in catalog.plans
        if not plan.stripe_price_ids and plan.id != FREE
    ]
    return findings or [ok("plans", ", ".join(plan.id for plan in catalog.plans))]
