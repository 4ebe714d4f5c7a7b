"""``tenantry admin explain-token``: explains why a bearer token is accepted or rejected."""

import asyncio
import json
import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack
from typing import Any, BinaryIO, Final

import click
import msgspec

from tenantry.auth import token_explanation
from tenantry.auth.token_explanation import AccessExplanation, ExplainedAccess
from tenantry.cli.database import database, operator_values, settings_errors
from tenantry.common import logs
from tenantry.db.database import Database
from tenantry.domain.errors import AuthUnavailableError
from tenantry.domain.issuers import DIRECTORY_CLAIM
from tenantry.integrations.http_client import new_http_client
from tenantry.integrations.oidc.claims import OidcConfig, claim_at, format_json, format_time
from tenantry.integrations.oidc.keys import KeySet
from tenantry.integrations.oidc.tokens import (
    CheckResult,
    CheckStep,
    TokenExplanation,
    TokenVerifier,
)
from tenantry.server.problems import STATUSES
from tenantry.settings import Settings
from tenantry_cli.options import json_option
from tenantry_cli.output import (
    NOT_AUTHENTICATED,
    OUT_OF_REACH,
    CommandError,
    aligned,
    printable,
    say,
    shown,
)

_TIMES: Final = ("iat", "nbf", "exp")
_STDIN: Final = "-"
_SCHEME: Final = "bearer "
_LARGEST_EXACT: Final = 2**53


@click.command("explain-token")
@click.argument("source", metavar="[-]", default=_STDIN)
@click.option(
    "--token-file",
    type=click.File("rb"),
    help="The file that holds the token, instead of standard input.",
)
@click.option("--org", "org_id", metavar="ORG", help="What the request sends as X-Organization-Id.")
@json_option("Checks, claims and outcome as one JSON document.")
def explain_token(
    source: str,
    *,
    token_file: BinaryIO | None,
    org_id: str | None,
    as_json: bool,
) -> None:
    """Run the service's checks on a token, and show for each what the token says and what is
    expected.

    Pass the token on standard input or in a file, because other users can see the command line. It
    is never shown. The command fetches the keys of the identity provider in the settings
    (OIDC_ISSUER and the others). With a database it also checks the tenant and the membership. It
    writes nothing.

    Exits with 0 if the token is accepted, with 4 if it is rejected, and with 6 if the identity
    provider is out of reach.

    \b
      tenantry admin explain-token <token.txt
    """
    if source != _STDIN:
        # the message does not repeat it: it may be the token
        raise click.UsageError(
            "The token comes on standard input or with --token-file, not on the command line."
        )
    logs.configure("console", logging.CRITICAL)  # the output contains what the checks log
    values, demo = operator_values()
    config = _oidc_config(values)
    token = _read(token_file)
    with ExitStack() as stack:
        has_database = demo or bool(values.get("DATABASE_URL", "").strip())
        conninfo = stack.enter_context(database(values)) if has_database else None
        explanation = asyncio.run(
            _explain(
                config,
                token,
                org_id,
                conninfo,
            )
        )
    shown_lines = [as_document(explanation, config)] if as_json else lines(explanation, config)
    click.echo("\n".join(shown_lines))
    sys.exit(_exit_code(explanation))


def _oidc_config(values: dict[str, str]) -> OidcConfig:
    with settings_errors():
        config = Settings(values).oidc
    if config is None:
        raise CommandError(
            "No identity provider is set, so the service rejects every token with 401. Set OIDC_ISSUER."
        )
    return config


def _exit_code(explanation: AccessExplanation) -> int:
    if explanation.refusal is None:
        return 0
    is_unavailable = isinstance(explanation.refusal, AuthUnavailableError)
    return OUT_OF_REACH if is_unavailable else NOT_AUTHENTICATED


def _read(file: BinaryIO | None) -> str:
    """Read the token, without whitespace around it and an authentication scheme before it."""
    stream = sys.stdin.buffer if file is None else file
    if stream.isatty():
        say("Paste the token, then press Return and Ctrl-D.")
    text = stream.read(4 * 1024 * 1024).decode("utf-8", "surrogateescape").strip()
    token = text[len(_SCHEME) :].lstrip() if text.lower().startswith(_SCHEME) else text
    if not token:
        raise click.UsageError("There is no token on standard input or in the file.")
    return token


async def _explain(
    config: OidcConfig,
    token: str,
    org_id: str | None,
    conninfo: str | None,
) -> AccessExplanation:
    async with AsyncExitStack() as stack:
        keys = KeySet(config, await stack.enter_async_context(new_http_client()))
        stack.push_async_callback(keys.aclose)
        await keys.refresh()
        connected = Database(conninfo, 1) if conninfo is not None else None
        if connected is not None:
            stack.push_async_callback(connected.close)
        return await token_explanation.explain_token(
            TokenVerifier(config, keys),
            token,
            org_id,
            connected,
        )


def as_document(explanation: AccessExplanation, config: OidcConfig) -> str:
    """Format the checks, the claims and the outcome as a JSON document."""
    refusal = explanation.refusal
    claims = _claims(explanation.token, config)
    document = {
        "valid": refusal is None,
        "status": refusal and STATUSES[type(refusal)].value,
        "code": refusal and refusal.code,
        "checks": msgspec.to_builtins(explanation.steps),
        "claimsProven": explanation.token.proven,
        "claims": claims and {name: _plain(value) for name, value in claims.items()},
        "standing": msgspec.to_builtins(explanation.access),
    }
    return json.dumps(document, indent=2)


def lines(explanation: AccessExplanation, config: OidcConfig) -> Iterator[str]:
    """Format the checks, the claims and the outcome for people."""
    yield from _check_lines(explanation.steps)
    yield ""
    yield from _claim_lines(explanation.token, config)
    yield ""
    access = explanation.access
    refusal = explanation.refusal
    if access is not None:
        yield from _access_lines(access)
        yield ""
    if refusal is not None:
        yield f"Refused: the service answers {STATUSES[type(refusal)].value} {refusal.code}."
    elif access is not None:
        known = "" if access.tenant_known else "; no tenant was looked at"
        yield f"Valid{known}. The role is {access.role}: {printable(access.role_origin)}."


def _check_lines(steps: Sequence[CheckStep]) -> Iterator[str]:
    result_width = max(map(len, CheckResult))
    name_width = max(len(step.name) for step in steps)
    for step in steps:
        said = f"{printable(step.said)} " if step.said else ""
        reason = f": {printable(step.reason)}" if step.reason else ""
        detail = f"{said}(expected: {printable(step.expected)}){reason}"
        yield f"{step.result:{result_width}}  {step.name:{name_width}}  {detail}"


def _claim_lines(token: TokenExplanation, config: OidcConfig) -> Iterator[str]:
    claims = _claims(token, config)
    if claims is None:
        yield "Its claims cannot be read."
        return
    if token.proven:
        yield "What it says, proven by its signature"
    else:
        yield "What it says, which nothing proves: its signature was not found good"
    rows = [(printable(name), _claim(name, value, token.now)) for name, value in claims.items()]
    yield from (f"  {row}" for row in aligned(rows))


def _claim(name: str, value: object, now: float) -> str:
    if name in _TIMES and isinstance(value, int | float) and not isinstance(value, bool):
        return format_time(value, now)
    return format_json(value)


def _access_lines(access: ExplainedAccess) -> Iterator[str]:
    if access.tenant_known:
        subscription = shown(access.subscription_status)
        terms = f" (plan {shown(access.plan)}, subscription {subscription})"
        yield "What that gives"
    else:
        terms = ""
        yield "What that gives, unless a membership lowers it"
    yield f"  tenant  {shown(access.org_id)}{terms}"
    yield f"  role    {access.role}{', as OWNER' if access.access_level == 'OWNER' else ''}"
    yield f"  scopes  {' '.join(map(printable, access.scopes)) or 'none'}"


def _claims(token: TokenExplanation, config: OidcConfig) -> dict[str, Any] | None:
    """Return the claims that the service uses: others are private to the user. None if they cannot
    be read.
    """
    if token.members is None:
        return None
    directory = (DIRECTORY_CLAIM,) if config.issuers.is_template else ()
    configured = (config.audience_claim, config.org_claim, config.role_claim)
    names = ("iss", *directory, "aud", "sub", *_TIMES, *configured, "scope", "scp")
    values = {name: claim_at(token.members, name) for name in names}
    return {name: value for name, value in values.items() if value is not msgspec.UNSET}


def _plain(value: object) -> object:
    """Return the value, or its text if some JSON parsers could not hold it."""
    match value:
        case int() | float():
            is_plain = abs(value) < _LARGEST_EXACT  # not of NaN
        case list():
            is_plain = all(isinstance(one, str) for one in value)
        case _:
            is_plain = not isinstance(value, dict)
    return value if is_plain else format_json(value)
