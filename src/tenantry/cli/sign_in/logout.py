"""``tenantry logout``."""

import os

import click
import msgspec

from tenantry.cli.api.command import ServiceCommand
from tenantry.cli.api.sessions import Session, held
from tenantry.cli.api.target import Flags, Surroundings
from tenantry.cli.exit_codes import CommandError
from tenantry_sdk import Token, TokenStore
from tenantry_sdk.errors import ConfigurationError

_OK = 200


class _LogoutCommand(ServiceCommand):
    service_options = ("profile",)


@click.command("logout", cls=_LogoutCommand)
def logout(flags: Flags, *, as_json: bool) -> None:
    """End the sign-in: the refresh token at the identity provider, where it can end one, and all that was kept here.

    What was kept is removed in any case. Exits with 6 if the identity provider is out of reach, for the refresh token
    then goes on until it ends by itself.
    """
    sessions = Surroundings(flags, os.environ, signs_in=True).sessions
    session = sessions.load()
    if session is None:
        _tell("Nobody is signed in.", "", ended=False, as_json=as_json)
        return
    store = sessions.store(keyring=session.keyring)
    try:
        with held(store):
            token = _kept(store)
            sessions.clear(session)
    except OSError as error:
        raise CommandError(f"What was kept cannot be removed: {error}") from None
    try:
        ended = _revoked(session, token)
    except CommandError as error:
        raise CommandError(f"Removed here, but not ended there. {error}", error.code) from None
    note = "" if ended else " The identity provider ends refresh tokens by itself alone."
    _tell(f"Signed out of {session.base_url}.{note}", session.base_url, ended=ended, as_json=as_json)


def _kept(store: TokenStore) -> Token | None:
    """The tokens; none where they cannot be read any more, for they are removed in any case."""
    try:
        return store.load()
    except ConfigurationError:
        return None


def _revoked(session: Session, token: Token | None) -> bool:
    """End the refresh token (RFC 7009); whether the provider did."""
    from tenantry.cli.sign_in.provider import Provider  # noqa: PLC0415  # slow to import

    if token is None or token.refresh_token is None:
        return True
    with Provider(session.issuer, session.client_id) as provider:
        provider.discover()
        endpoint = provider.metadata.revocation_endpoint
        if endpoint is None:
            return False
        answer = provider.post(
            endpoint,
            {
                "token": token.refresh_token.reveal(),
                "token_type_hint": "refresh_token",
                "client_id": session.client_id,
            },
        )
    if answer.status != _OK:
        raise CommandError(f"The identity provider said: {answer.reason}.")
    return True


def _tell(message: str, service: str, *, ended: bool, as_json: bool) -> None:
    if as_json:
        click.echo(msgspec.json.encode({"service": service or None, "refreshTokenEnded": ended}))
    else:
        click.echo(message, err=True)
