"""What became of a token, as text and as JSON."""

import json
import math
from collections.abc import Iterator
from typing import Any, Final

import msgspec
from rich.console import Console
from rich.text import Text

from tenantry.auth.explain_token import Explanation, Standing
from tenantry.cli.text import printable, shown
from tenantry.integrations.oidc.claims import OidcConfig, as_json, moment, reach
from tenantry.integrations.oidc.explain import Result, Step
from tenantry.server.problems import STATUSES

_STYLES: Final = {Result.OK: "green", Result.FAILED: "bold red", Result.NOT_REACHED: "dim"}
_WIDTH: Final = max(len(result) for result in Result)
_TIMES: Final = ("iat", "nbf", "exp")
_LARGEST_INTEGER: Final = 2**53


def show(explanation: Explanation, config: OidcConfig) -> None:
    """Print all checks, the claims, and what they come to."""
    console = Console(highlight=False, soft_wrap=True)
    for line in lines(explanation, config):
        console.print(line)


def lines(explanation: Explanation, config: OidcConfig) -> Iterator[Text]:
    """The lines that `show` prints."""
    names = max(len(step.name) for step in explanation.steps)
    for step in explanation.steps:
        yield _check(step, names)
    yield Text()
    yield from _claims(explanation, config)
    if explanation.standing is not None:
        yield from _standing(explanation.standing)
    yield Text(_verdict(explanation), "bold red" if explanation.refusal else "bold green")


def as_document(explanation: Explanation, config: OidcConfig) -> str:
    """The same as one JSON document."""
    refusal, standing = explanation.refusal, explanation.standing
    members = explanation.token.members
    document = {
        "valid": refusal is None,
        "status": None if refusal is None else STATUSES[type(refusal)].value,
        "code": None if refusal is None else refusal.code,
        "checks": [msgspec.to_builtins(step) for step in explanation.steps],
        "claimsProven": explanation.token.proven,
        "claims": None if members is None else {name: _plain(value) for name, value in _shown(members, config).items()},
        "standing": None if standing is None else msgspec.to_builtins(standing),
    }
    return json.dumps(document, indent=2)


def _check(step: Step, names: int) -> Text:
    said = f"{printable(step.said)} " if step.said else ""
    reason = f": {printable(step.reason)}" if step.reason else ""
    return Text.assemble(
        (f"{step.result:{_WIDTH}}", _STYLES[step.result]),
        "  ",
        (f"{step.name:{names}}", "bold"),
        "  ",
        f"{said}(expected: {printable(step.expected)}){reason}",
    )


def _claims(explanation: Explanation, config: OidcConfig) -> Iterator[Text]:
    told = explanation.token
    if told.members is None:
        yield Text("Its claims cannot be read.")
        yield Text()
        return
    proven = "proven by its signature" if told.proven else "which nothing proves: its signature was not found good"
    yield Text(f"What it says, {proven}", "bold")
    claims = _shown(told.members, config)
    width = max(map(len, claims), default=0)
    for name, value in claims.items():
        is_time = name in _TIMES and isinstance(value, int | float) and not isinstance(value, bool)
        yield Text(f"  {printable(name):{width}}  {moment(value, told.now) if is_time else as_json(value)}")
    yield Text()


def _shown(members: dict[str, Any], config: OidcConfig) -> dict[str, Any]:
    """The claims that have a meaning here; whatever else is in the token is the user's own."""
    names = ("iss", "aud", "sub", *_TIMES, config.org_claim, config.role_claim, "scope", "scp")
    found = {name: reach(members, name) for name in names}
    return {name: value for name, value in found.items() if value is not msgspec.UNSET}


def _plain(value: object) -> object:
    """The value, or its text where not every reader of JSON could hold it."""
    match value:
        case None | bool() | str():
            return value
        case int() if abs(value) < _LARGEST_INTEGER:
            return value
        case float() if math.isfinite(value):
            return value
        case list() if all(isinstance(entry, str) for entry in value):
            return value
        case _:
            return as_json(value)


def _standing(standing: Standing) -> Iterator[Text]:
    yield Text("What that gives" if standing.tenant_known else "What that gives, unless a membership lowers it", "bold")
    yield Text(f"  tenant  {shown(standing.org_id)}{_terms(standing)}")
    yield Text(f"  role    {standing.role}{', as OWNER' if standing.access_level == 'OWNER' else ''}")
    yield Text(f"  scopes  {' '.join(map(printable, standing.scopes)) or 'none'}")
    yield Text()


def _terms(standing: Standing) -> str:
    return (
        f" (plan {shown(standing.plan)}, subscription {shown(standing.subscription_status)})"
        if standing.tenant_known
        else ""
    )


def _verdict(explanation: Explanation) -> str:
    refusal = explanation.refusal
    if refusal is not None:
        return f"Refused: the service answers {STATUSES[type(refusal)].value} {refusal.code}."
    return "Valid." if explanation.standing and explanation.standing.tenant_known else "Valid; no tenant was looked at."
