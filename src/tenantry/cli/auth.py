"""``tenantry auth``: why a bearer token is let in or refused."""

import asyncio
import logging
import sys
from contextlib import AsyncExitStack, ExitStack
from typing import BinaryIO, Final

import click

from tenantry.auth.explain_token import Explanation, explain_token
from tenantry.cli.environment import command_values, database, fail_on_settings
from tenantry.cli.exit_codes import NOT_AUTHENTICATED, OUT_OF_REACH, fail
from tenantry.cli.token_text import as_document, show
from tenantry.common import logs
from tenantry.common.clock import system_clock
from tenantry.db.database import Database
from tenantry.domain.errors import AuthUnavailableError
from tenantry.integrations.http_client import new_http_client
from tenantry.integrations.oidc.claims import OidcConfig
from tenantry.integrations.oidc.keys import KeySet
from tenantry.integrations.oidc.tokens import TokenVerifier
from tenantry.settings import SettingsError, load_identity

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


async def _explain(config: OidcConfig, token: str, organization: str | None, conninfo: str | None) -> Explanation:
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


def _exit_code(explanation: Explanation) -> int:
    match explanation.refusal:
        case None:
            return 0
        case AuthUnavailableError():
            return OUT_OF_REACH
        case _:
            return NOT_AUTHENTICATED
