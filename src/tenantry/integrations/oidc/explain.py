"""Explains the result of each check of a token."""

from collections.abc import Iterator
from enum import StrEnum
from typing import Any

import msgspec

from tenantry.domain.errors import DomainError
from tenantry.integrations.oidc.checks import CHECKS, CheckFailure, DecodedToken
from tenantry.integrations.oidc.claims import Claims, decode


class CheckResult(StrEnum):
    OK = "ok"
    FAILED = "failed"
    NOT_REACHED = "not reached"


class CheckStep(msgspec.Struct, frozen=True):
    """One check: what the token said (None if there is nothing to show), what was expected, why it failed."""

    name: str
    result: CheckResult
    said: str | None
    expected: str
    reason: str | None = None


class TokenExplanation(msgspec.Struct, frozen=True):
    """All checks in order, and the token's claims. It contains neither the token nor its signature.

    ``members`` are the claims in the token, None if they cannot be decoded; ``proven`` says whether the signature is
    valid. ``claims`` are set, and ``refusal`` is None, only for a valid token. ``now`` is in seconds since the epoch.
    """

    refusal: DomainError | None
    steps: list[CheckStep]
    members: dict[str, Any] | None
    proven: bool
    claims: Claims | None
    now: float


def explanation(token: DecodedToken, failure: CheckFailure | None, refusal: DomainError | None) -> TokenExplanation:
    """Explain a token that has passed the checks up to ``failure``."""
    steps = list(_steps(token, failure))
    results = {step.name: step.result for step in steps}
    return TokenExplanation(
        refusal=refusal,
        steps=steps,
        members=_members(token) if results["form"] is CheckResult.OK else None,
        proven=results["signature"] is CheckResult.OK,
        claims=None if failure else token.claims(),
        now=token.now,
    )


def _steps(token: DecodedToken, failure: CheckFailure | None) -> Iterator[CheckStep]:
    reached = True
    for check in CHECKS:
        failed = failure is not None and check is failure.check
        result = CheckResult.FAILED if failed else CheckResult.OK if reached else CheckResult.NOT_REACHED
        said = (check.said(token) or None) if reached else None
        yield CheckStep(check.name, result, said, check.expected(token), failure.reason if failure and failed else None)
        reached = reached and not failed


def _members(token: DecodedToken) -> dict[str, Any] | None:
    try:
        members = decode(token.payload_segment)
    except (ValueError, RecursionError):
        return None
    return members if isinstance(members, dict) else None
