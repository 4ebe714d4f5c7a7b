"""Ending refresh tokens that are used no more, at the identity provider that they are from."""

from tenantry.cli.api.sessions import Session
from tenantry.cli.api.waits import waits
from tenantry.cli.exit_codes import CommandError
from tenantry_sdk import Token


def end(token: Token, session: Session | None) -> bool:
    """End the refresh token (RFC 7009); whether its identity provider can end one. Raises `CommandError`.

    ``session`` says where tokens are from that do not say it themselves.
    """
    from tenantry.cli.sign_in.provider import Provider  # noqa: PLC0415  # slow to import

    if token.refresh_token is None:
        return True
    issuer = token.issuer or (session.issuer if session else None)
    client_id = token.client_id or (session.client_id if session else None)
    if not issuer or not client_id:
        raise CommandError("Nothing says which identity provider it is from.")
    with Provider(issuer, client_id, seconds=waits().provider) as provider:
        provider.discover()
        return provider.revoke(token)
