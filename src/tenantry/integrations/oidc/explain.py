"""What became of a token at each check."""

from collections.abc import Iterator
from enum import StrEnum
from typing import Any

import msgspec

from tenantry.domain.errors import DomainError
from tenantry.integrations.oidc.checks import CHECKS, CheckFailure, DecodedToken
from tenantry.integrations.oidc.claims import Claims, decode


class Result(StrEnum):
    OK = "ok"
    FAILED = "failed"
    NOT_REACHED = "not reached"


class CheckStep(msgspec.Struct, frozen=True):
    """One check: what the token said (None where there is nothing to show), what was expected, why it failed."""

    name: str
    result: Result
    said: str | None
    expected: str
    reason: str | None = None


class TokenExplanation(msgspec.Struct, frozen=True):
    """Every check in its order, and the token's claims.

    ``members`` are the claims as the token has them, None where they cannot be read; ``proven`` says whether its
    signature vouches for them. ``claims`` are there only for a valid token. ``now`` is in seconds since the Unix epoch.
    ``refusal`` is what the service answers; None for a valid token. Neither the token nor its signature is in here.
    """

    refusal: DomainError | None
    steps: list[CheckStep]
    members: dict[str, Any] | None
    proven: bool
    claims: Claims | None
    now: float


def explanation(reading: DecodedToken, failure: CheckFailure | None, refusal: DomainError | None) -> TokenExplanation:
    """Tell of a token that has been through the checks, up to ``failure``."""
    steps = list(_steps(reading, failure))
    return TokenExplanation(
        refusal=refusal,
        steps=steps,
        members=_members(reading, steps),
        proven=any(step.name == "signature" and step.result is Result.OK for step in steps),
        claims=None if failure else reading.claims(),
        now=reading.now,
    )


def _steps(reading: DecodedToken, failure: CheckFailure | None) -> Iterator[CheckStep]:
    reached = True
    for check in CHECKS:
        failed = failure is not None and check is failure.check
        result = Result.FAILED if failed else Result.OK if reached else Result.NOT_REACHED
        yield CheckStep(
            check.name,
            result,
            (check.said(reading) or None) if reached else None,
            check.expected(reading),
            failure.reason if failure and failed else None,
        )
        reached = reached and not failed


def _members(reading: DecodedToken, steps: list[CheckStep]) -> dict[str, Any] | None:
    form = next(step for step in steps if step.name == "form")
    if form.result is not Result.OK:
        return None
    try:
        members = decode(reading.payload_segment)
    except (ValueError, RecursionError):
        return None
    return members if isinstance(members, dict) else None
