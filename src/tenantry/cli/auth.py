"""``tenantry auth``: explains why a bearer token is accepted or rejected."""

import asyncio
import json
import logging
import math
import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack
from typing import Any, BinaryIO, Final

import click
import msgspec
from rich.console import Console
from rich.text import Text

from tenantry.auth.explain_token import AccessExplanation, ExplainedAccess, explain_token
from tenantry.cli.database import command_values, database, fail_on_settings
from tenantry.cli.output import NOT_AUTHENTICATED, OUT_OF_REACH, fail, printable, shown
from tenantry.common import logs
from tenantry.common.clock import system_clock
from tenantry.db.database import Database
from tenantry.domain.errors import AuthUnavailableError
from tenantry.integrations.http_client import new_http_client
from tenantry.integrations.oidc.claims import OidcConfig, claim_at, format_json, format_time
from tenantry.integrations.oidc.explain import CheckResult, CheckStep
from tenantry.integrations.oidc.keys import KeySet
from tenantry.integrations.oidc.tokens import TokenVerifier
from tenantry.server.problems import STATUSES
from tenantry.settings import SettingsError, load_identity

_STYLES: Final = {CheckResult.OK: "green", CheckResult.FAILED: "bold red", CheckResult.NOT_REACHED: "dim"}
_WIDTH: Final = max(len(result) for result in CheckResult)
_TIMES: Final = ("iat", "nbf", "exp")
_LARGEST_INTEGER: Final = 2**53


def show(explanation: AccessExplanation, config: OidcConfig) -> None:
    """Print all checks, the claims, and what they come to."""
    console = Console(highlight=False, soft_wrap=True)
    for line in lines(explanation, config):
        console.print(line)


def lines(explanation: AccessExplanation, config: OidcConfig) -> Iterator[Text]:
    """The lines that `show` prints."""
    names = max(len(step.name) for step in explanation.steps)
    for step in explanation.steps:
        yield _check(step, names)
    yield Text()
    yield from _claims(explanation, config)
    if explanation.access is not None:
        yield from _standing(explanation.access)
    yield Text(_verdict(explanation), "bold red" if explanation.refusal else "bold green")


def as_document(explanation: AccessExplanation, config: OidcConfig) -> str:
    """The same as one JSON document."""
    refusal, standing = explanation.refusal, explanation.access
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


def _check(step: CheckStep, names: int) -> Text:
    said = f"{printable(step.said)} " if step.said else ""
    reason = f": {printable(step.reason)}" if step.reason else ""
    return Text.assemble(
        (f"{step.result:{_WIDTH}}", _STYLES[step.result]),
        "  ",
        (f"{step.name:{names}}", "bold"),
        "  ",
        f"{said}(expected: {printable(step.expected)}){reason}",
    )


def _claims(explanation: AccessExplanation, config: OidcConfig) -> Iterator[Text]:
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
        yield Text(f"  {printable(name):{width}}  {format_time(value, told.now) if is_time else format_json(value)}")
    yield Text()


def _shown(members: dict[str, Any], config: OidcConfig) -> dict[str, Any]:
    """The claims that have a meaning here; whatever else is in the token is the user's own."""
    names = ("iss", "aud", "sub", *_TIMES, config.org_claim, config.role_claim, "scope", "scp")
    found = {name: claim_at(members, name) for name in names}
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
            return format_json(value)


def _standing(standing: ExplainedAccess) -> Iterator[Text]:
    yield Text("What that gives" if standing.tenant_known else "What that gives, unless a membership lowers it", "bold")
    yield Text(f"  tenant  {shown(standing.org_id)}{_terms(standing)}")
    yield Text(f"  role    {standing.role}{', as OWNER' if standing.access_level == 'OWNER' else ''}")
    yield Text(f"  scopes  {' '.join(map(printable, standing.scopes)) or 'none'}")
    yield Text()


def _terms(standing: ExplainedAccess) -> str:
    return (
        f" (plan {shown(standing.plan)}, subscription {shown(standing.subscription_status)})"
        if standing.tenant_known
        else ""
    )


def _verdict(explanation: AccessExplanation) -> str:
    refusal = explanation.refusal
    if refusal is not None:
        return f"Refused: the service answers {STATUSES[type(refusal)].value} {refusal.code}."
    return "Valid." if explanation.access and explanation.access.tenant_known else "Valid; no tenant was looked at."


_STDIN: Final = "-"
_MOST_BYTES: Final = 4 * 1024 * 1024
_SCHEME: Final = "bearer "


@click.group()
def auth() -> None:
    """Tell why bearer tokens are let in or refused."""


@auth.command("explain-token")
@click.argument("source", metavar="[-]", default=_STDIN)
@click.option("--token-file", type=click.File("rb"), help="The file that holds the token, instead of standard input.")
@click.option("--organization", metavar="ORG", help="What the request sends as X-Organization-Id.")
@click.option("--json", "as_json", is_flag=True, help="Checks, claims and outcome as one JSON document.")
def explain_token_command(source: str, *, token_file: BinaryIO | None, organization: str | None, as_json: bool) -> None:
    """Put a token through the checks that the service makes, and tell of each what was said and what was expected.

    The token comes on standard input, or from a file: what is on the command line can be seen by others. It is not
    shown. The identity provider is that of the settings (OIDC_ISSUER and the others); its keys are fetched anew. Where
    there is a database, the tenant and the membership are looked at too. Nothing is written.

    Exits with 0 if the token is let in, with 4 if it is refused, and with 6 if the identity provider is out of reach.
    """
    if source != _STDIN:
        # Not named in the message, for it may be the token.
        raise click.UsageError("The token comes on standard input or with --token-file, not on the command line.")
    logs.configure("console", logging.CRITICAL)  # what the checks would log is in the answer
    values, demo = command_values()
    try:
        config = load_identity(values)
    except SettingsError as error:
        fail_on_settings(error)
    if config is None:
        fail("No identity provider is set, so the service refuses every token with 401. Set OIDC_ISSUER.")
    token = _read(token_file)
    with ExitStack() as stack:
        has_database = demo or bool(values.get("DATABASE_URL", "").strip())
        conninfo = stack.enter_context(database(values)) if has_database else None
        explanation = asyncio.run(_explain(config, token, organization, conninfo))
    if as_json:
        click.echo(as_document(explanation, config))
    else:
        show(explanation, config)
    sys.exit(_exit_code(explanation))


def _read(file: BinaryIO | None) -> str:
    """The token, without the blanks around it and the name of the scheme before it."""
    stream = sys.stdin.buffer if file is None else file
    if stream.isatty():
        click.echo("Paste the token, then press Return and Ctrl-D.", err=True)
    text = stream.read(_MOST_BYTES).decode("utf-8", "surrogateescape").strip()
    token = text[len(_SCHEME) :].lstrip() if text.lower().startswith(_SCHEME) else text
    if not token:
        raise click.UsageError("There is no token on standard input or in the file.")
    return token


async def _explain(config: OidcConfig, token: str, organization: str | None, conninfo: str | None) -> AccessExplanation:
    async with AsyncExitStack() as stack:
        keys = KeySet(config, await stack.enter_async_context(new_http_client()))
        stack.push_async_callback(keys.aclose)
        await keys.refresh()
        connected = None
        if conninfo is not None:
            connected = Database(conninfo, 1)
            stack.push_async_callback(connected.close)
        verifier = TokenVerifier(config, keys)
        return await explain_token(verifier, token, organization, connected, system_clock)


def _exit_code(explanation: AccessExplanation) -> int:
    match explanation.refusal:
        case None:
            return 0
        case AuthUnavailableError():
            return OUT_OF_REACH
        case _:
            return NOT_AUTHENTICATED
