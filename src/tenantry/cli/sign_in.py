"""``tenantry login``, ``logout`` and ``whoami``."""

import contextlib
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

import click
import msgspec

from tenantry.cli.api_client import Api, failure_of, waits
from tenantry.cli.api_command import ApiCommand, ServiceCommand
from tenantry.cli.demo_folder import Demo, demo_here
from tenantry.cli.exit_codes import FAILED, NOT_AUTHENTICATED, USAGE, CommandError
from tenantry.cli.sessions import FaultySessionError, Removed, Session, Sessions
from tenantry.cli.target import ClientConfiguration, Flags, Given, Target
from tenantry.cli.text import printable, shown
from tenantry_sdk import Token, Whoami
from tenantry_sdk.errors import AuthenticationError, TenantryError


def end(token: Token, session: Session | None) -> bool:
    """End the refresh token (RFC 7009); whether its identity provider can end one. Raises `CommandError`.

    ``session`` says where tokens are from that do not say it themselves.
    """
    from tenantry.cli.sign_in_provider import Provider  # noqa: PLC0415  # slow to import

    if token.refresh_token is None:
        return True
    issuer = token.issuer or (session.issuer if session else None)
    client_id = token.client_id or (session.client_id if session else None)
    if not issuer or not client_id:
        raise CommandError("Nothing says which identity provider it is from.")
    with Provider(issuer, client_id, seconds=waits().provider) as provider:
        provider.discover()
        return provider.revoke(token)


SCOPE = "openid offline_access"
"""What is asked for where nothing else is said: a refresh token, and all that the user's role gives."""


class _Options(NamedTuple):
    issuer: str | None
    client_id: str | None
    scope: str | None
    audience: str | None


class _LoginCommand(ServiceCommand):
    service_options = ("base_url", "profile", "organization")


@click.command("login", cls=_LoginCommand, json_help="Who is signed in, as one JSON document.")
@click.option("--device", is_flag=True, help="Show a code to enter in a browser on another device.")
@click.option("--no-browser", is_flag=True, help="Only print the address, and open nothing.")
@click.option("--issuer", metavar="URL", help="The identity provider. [TENANTRY_ISSUER]")
@click.option("--client-id", metavar="ID", help="This client's id there. [TENANTRY_CLIENT_ID]")
@click.option("--scope", metavar="SCOPES", help=f"What to ask for. [{SCOPE}]")
@click.option("--audience", metavar="AUDIENCE", help="For whom the token is, where the provider wants to be told.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, metavar="PORT", help="Where the browser answers. [any]"
)
@click.option(
    "--timeout",
    "patience",
    type=click.IntRange(1, 3600),
    default=300,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait.",
)
def login(
    flags: Flags, *, as_json: bool, device: bool, no_browser: bool, port: int, patience: int, **asked: str | None
) -> None:
    """Sign in at the identity provider, so that the other commands need no API key.

    The browser opens, and answers to this command on this machine (RFC 8252, with PKCE). With --device nothing has to
    open here. The tokens are kept for the profile, in a file that only you may read or in the keyring, and renewed by
    themselves. They are for the service at this address, and are sent to no other.

    Exits with 0 if you are signed in, with 4 if not, and with 6 if the identity provider is out of reach.
    """
    from tenantry.cli.sign_in_flows import sign_in_with_browser, sign_in_with_code  # noqa: PLC0415
    from tenantry.cli.sign_in_provider import Provider, checked_token  # noqa: PLC0415

    around = ClientConfiguration(flags, os.environ, signs_in=True)
    address, demo = around.address()
    options = _Options(**asked)
    session = _session(around, address, options, demo)
    around.sessions.try_out(keyring=session.keyring)
    before = Removed([], [], [])
    audience = options.audience or around.profile.audience
    from_folder = not _known_issuer(around, address, options)
    with Provider(
        session.issuer, session.client_id, audience, seconds=waits().provider, stays_here=from_folder
    ) as provider:
        provider.discover()
        scope = options.scope or around.profile.scope or SCOPE
        if device:
            token = sign_in_with_code(provider, scope, patience=patience, poll=waits().poll, tell=_say)
        else:
            token = sign_in_with_browser(provider, scope, port=port, opens=not no_browser, patience=patience, tell=_say)
        try:
            token = msgspec.structs.replace(checked_token(token), issuer=session.issuer, client_id=session.client_id)
            who, doubt = _who(_target(around, address, session, token))
            with around.sessions.alone():
                before = around.sessions.remove(keyring=session.keyring)
                around.sessions.keep(session, token)
        except BaseException:
            with contextlib.suppress(CommandError):
                provider.revoke(token)
            raise
        finally:
            _end(before, token, around.session)
    _tell(session, around.name, token, who, doubt, as_json=as_json)
    _tell_of_keys(flags)


def _say(message: str) -> None:
    click.echo("\n".join(map(printable, message.split("\n"))), err=True)


def _session(around: ClientConfiguration, address: Given, options: _Options, demo: Demo | None) -> Session:
    """Where to sign in: by flag or environment, profile, the last sign-in, or the demo of the folder."""
    kept = _kept(around, address)
    near = demo or demo_here(around.environment)
    here = near if near is not None and near.base_url == address.value else None
    profile = around.profile
    issuer = _known_issuer(around, address, options) or (here and here.issuer)
    client_id = options.client_id or around.set_here("TENANTRY_CLIENT_ID", profile.client_id)
    client_id = client_id or (kept and kept.client_id) or (here and here.client_id)
    missing = [name for name, value in (("--issuer", issuer), ("--client-id", client_id)) if not value]
    if not issuer or not client_id:
        raise CommandError(
            f"Where to sign in for {address.value} is not known: say {' and '.join(missing)}, or set them in the "
            f"profile {around.name}. The operator of the service knows: OIDC_ISSUER of its settings, and the id of a "
            "client without a secret.",
            USAGE,
        )
    organization = around.organization() or profile.organization or (kept.organization if kept else None)
    return Session(address.value, issuer, client_id, organization, profile.keyring)


def _known_issuer(around: ClientConfiguration, address: Given, options: _Options) -> str | None:
    """The issuer that somebody has named or signed in to before; else there is only what the folder says."""
    kept = _kept(around, address)
    named = options.issuer or around.set_here("TENANTRY_ISSUER", around.profile.issuer)
    return named or (kept.issuer if kept else None)


def _kept(around: ClientConfiguration, address: Given) -> Session | None:
    """The last sign-in, where it was for this service."""
    session = around.session
    return session if session is not None and session.base_url == address.value else None


def _target(around: ClientConfiguration, address: Given, session: Session, token: Token) -> Target:
    source = "the identity provider"
    return Target(around.name, address, session.organization, token.access_token, None, around.sessions, source)


def _who(target: Target) -> tuple[Whoami | None, str | None]:
    """Whom the service takes the token for; or else what it said. Raises `CommandError` where it refuses the token."""
    try:
        with Api(target, as_json=False, waits=waits()).client as client:
            return client.auth.whoami(), None
    except AuthenticationError as error:
        raise CommandError(
            f"The service at {target.base_url.value} does not take the identity provider's token: {error.detail} "
            "Is it the right issuer and client? (`tenantry auth explain-token` tells the operator.) Nothing was kept.",
            NOT_AUTHENTICATED,
        ) from None
    except TenantryError as error:
        failure = failure_of(error, target)
        return None, f"{failure.detail} {failure.next_step or ''}".strip()


def _end(before: Removed, token: Token, session: Session | None) -> None:
    """End the refresh tokens of the sign-in before, as far as that is possible.

    Not those that the same client had from the same provider: with one of them some providers end all that a user has
    given it, and so the new one too. They are kept no more, and end by themselves.
    """
    faults = [*before.unread, *before.left]
    for old in before.tokens:
        if old.refresh_token is None or old.is_of(token.issuer or "", token.client_id or ""):
            continue
        try:
            end(old, session)
        except CommandError as error:
            faults.append(str(error))
    if faults:
        _say(f"The refresh token of the sign-in before goes on until it ends by itself. {' '.join(faults)}")


def _tell(
    session: Session, profile: str, token: Token, who: Whoami | None, doubt: str | None, *, as_json: bool
) -> None:
    if as_json:
        document = {
            "service": session.base_url,
            "issuer": session.issuer,
            "profile": profile,
            "renewable": token.refresh_token is not None,
            "whoami": None if who is None else msgspec.to_builtins(who),
            "doubt": doubt,
        }
        click.echo(msgspec.json.format(msgspec.json.encode(document), indent=2))
        return
    if who is None:
        _say(f"Signed in to {session.base_url}, but: {doubt}")
    else:
        _say(f"Signed in to {session.base_url} as {who.id} of {who.org_id}.")
    if token.refresh_token is None:
        _say("The identity provider gave no refresh token, so this ends when the token does.")


def _tell_of_keys(flags: Flags) -> None:
    """Say so where the commands after this one go on with an API key."""
    try:
        target = ClientConfiguration(flags, os.environ).target()
    except CommandError as error:
        _say(f"The commands do not use this sign-in: {error}")
        return
    if target.session is None:
        _say(f"The API key from {target.credential} goes before this sign-in.")


class _Kept(NamedTuple):
    sessions: Sessions
    session: Session | None
    is_faulty: bool = False


class _LogoutCommand(ServiceCommand):
    service_options = ("profile",)


@click.command("logout", cls=_LogoutCommand)
def logout(flags: Flags, *, as_json: bool) -> None:
    """End the sign-in: the refresh token at the identity provider, where it can end one, and all that was kept here.

    What was kept is removed in any case, unless another command is fetching a token. Exits with 6 if the identity
    provider is out of reach, and with 1 if what was kept cannot be read, for the refresh token then goes on until it
    ends by itself.
    """
    kept = _current_session(flags)
    session = kept.session
    if session is None and not kept.is_faulty and not kept.sessions.has_tokens():
        _report_logout("Nobody is signed in.", None, ended=False, as_json=as_json)
        return
    with kept.sessions.alone():
        removed = kept.sessions.remove()
    can_end, faults, code = _ended(removed, session)
    place = f" of {session.base_url}" if session is not None else ""
    if faults or removed.left:
        if as_json:
            _report_logout("", session, ended=False, as_json=True)
        here = "Removed here" if not removed.left else f"What was kept cannot be removed: {' '.join(removed.left)}"
        there = f", but not ended there. {' '.join(faults)}" if faults else ""
        raise CommandError(here + there, FAILED if removed.left else code)
    note = "" if can_end else " The identity provider ends refresh tokens by itself alone."
    _report_logout(f"Signed out{place}.{note}", session, ended=can_end, as_json=as_json)


def _current_session(flags: Flags) -> _Kept:
    try:
        around = ClientConfiguration(flags, os.environ)
        return _Kept(around.sessions, around.session)
    except FaultySessionError as error:
        return _Kept(error.sessions, None, is_faulty=True)


def _ended(removed: Removed, session: Session | None) -> tuple[bool, list[str], int]:
    """Whether the refresh tokens could be ended; what went wrong, and the exit code of that."""
    can_end, faults, code = True, list(removed.unread), FAILED
    for token in removed.tokens:
        try:
            can_end = end(token, session) and can_end
        except CommandError as error:
            code = error.code if not faults else FAILED
            faults.append(str(error))
    return can_end, faults, code


def _report_logout(message: str, session: Session | None, *, ended: bool, as_json: bool) -> None:
    if as_json:
        service = session.base_url if session is not None else None
        click.echo(msgspec.json.encode({"service": service, "refreshTokenEnded": ended}))
    else:
        click.echo(printable(message), err=True)


@click.command("whoami", cls=ApiCommand)
def whoami(api: Api) -> None:
    """Show who you are, where, and until when."""
    who = api.client.auth.whoami()
    target = api.target
    document: dict[str, Any] = msgspec.to_builtins(who)
    source = {"service": target.base_url.value, "credential": target.credential, "profile": target.profile}
    api.record({**document, **source}, _rows(api, who))


def _rows(api: Api, who: Whoami) -> Iterator[tuple[str, str]]:
    target = api.target
    yield "who", f"{who.id} ({'API key' if who.kind == 'api_key' else who.kind})"
    yield "organization", f"{who.org_id} (plan {who.plan}, subscription {who.subscription_status})"
    yield "may", "everything (OWNER)" if who.access_level == "OWNER" else " ".join(who.scopes) or "nothing"
    yield "mode", who.mode
    yield "service", f"{target.base_url.value} (from {target.base_url.source})"
    yield "credential", f"from {target.credential}"
    renewed = ", renewed by itself" if target.session is not None else ""
    yield "until", f"{shown(who.expires_at)}{renewed}" if who.expires_at else "without an end"
