"""``tenantry login``, ``logout`` and ``whoami``."""

import contextlib
import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

import click
import msgspec

from tenantry_cli.api_command import ApiCommand, ApiContext, ServiceCommand, failure_of
from tenantry_cli.client_configuration import (
    ClientConfiguration,
    ServiceOptions,
    SourcedValue,
    Target,
    wait_times,
)
from tenantry_cli.demo_folder import Demo, demo_here
from tenantry_cli.output import (
    FAILED,
    NOT_AUTHENTICATED,
    USAGE,
    CommandError,
    report,
    say,
)
from tenantry_cli.sign_in_storage import SignInStorage, StoredSignIn
from tenantry_cli.status import expiry_words, plan_rows, principal_words, scope_words
from tenantry_sdk import Token, Whoami
from tenantry_sdk.errors import AuthenticationError, TenantryError

if TYPE_CHECKING:
    from tenantry_cli.oauth_client import IdentityProvider

_NOT_RENEWABLE: Final = (
    "The identity provider gave no refresh token: you are signed in until the token expires."
)
SCOPE: Final = "openid offline_access"
"""The default scope: it asks for a refresh token, and does not narrow the user's role."""


@click.command(
    "login",
    cls=ServiceCommand,
    service_options=("base_url", "profile", "org"),
    json_help="Who is signed in, as one JSON document.",
)
@click.option("--device", is_flag=True, help="Show a code to enter in a browser on another device.")
@click.option("--no-browser", is_flag=True, help="Print the address; do not open a browser.")
@click.option("--issuer", metavar="URL", help="The identity provider. [TENANTRY_ISSUER]")
@click.option("--client-id", metavar="ID", help="This client's id there. [TENANTRY_CLIENT_ID]")
@click.option("--scope", metavar="SCOPES", help=f"The scopes to request. [{SCOPE}]")
@click.option(
    "--audience", metavar="AUDIENCE", help="The token's audience, if the provider needs it."
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    metavar="PORT",
    help="The port of the redirect address. [any]",
)
@click.option(
    "--timeout",
    type=click.IntRange(1, 3600),
    default=300,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for the sign-in.",
)
def login(
    service: ServiceOptions,
    *,
    as_json: bool,
    device: bool,
    no_browser: bool,
    issuer: str | None,
    client_id: str | None,
    scope: str | None,
    audience: str | None,
    port: int,
    timeout: int,
) -> None:
    """Sign in at the identity provider, so that the other commands need no API key.

    The browser opens, and the identity provider redirects it to this command (RFC 8252, with PKCE).
    With --device you need no browser on this machine. The command stores the tokens for the
    profile, in a file that only you can read or in the keyring, and renews them. It sends them only
    to the service at this address.

    Exits with 0 if you are signed in, with 4 if not, and with 6 if the identity provider is out of
    reach.

    \b
      tenantry login --base-url https://accounts.example.com \\
        --issuer https://login.example.com --client-id tenantry-cli
      tenantry login --device --profile work
    """
    from tenantry_cli.oauth_client import IdentityProvider, sign_in_with_browser, sign_in_with_code  # noqa: PLC0415

    configuration = ClientConfiguration(service, os.environ, signs_in=True)
    waits = wait_times()
    storage = configuration.storage
    profile = configuration.profile
    address, sign_in, is_of_demo = _plan_sign_in(configuration, issuer, client_id)
    storage.check(keyring=sign_in.keyring)
    scope = scope or profile.scope or SCOPE
    provider = IdentityProvider(
        sign_in.issuer,
        sign_in.client_id,
        audience or profile.audience,
        seconds=waits.provider,
        local_only=is_of_demo,
    )
    with contextlib.closing(provider):
        if device:
            token = sign_in_with_code(
                provider,
                scope,
                timeout=timeout,
                poll=waits.poll,
                tell=say,
            )
        else:
            token = sign_in_with_browser(
                provider,
                scope,
                port=port,
                opens=not no_browser,
                timeout=timeout,
                tell=say,
            )
        key = token.access_token
        target = Target(
            configuration.name,
            address,
            sign_in.org,
            key,
            None,
            "",
        )
        who, doubt = _store(
            provider,
            storage,
            sign_in,
            token,
            target,
        )
    document = {
        "service": sign_in.base_url,
        "issuer": sign_in.issuer,
        "profile": configuration.name,
        "renewable": token.refresh_token is not None,
        "whoami": who,
        "doubt": doubt,
    }
    outcome = f", but: {doubt}" if who is None else f" as {who.id} of {who.org_id}."
    text = f"Signed in to {sign_in.base_url}{outcome}"
    if token.refresh_token is None:
        text += f"\n{_NOT_RENEWABLE}"
    report(document, text, as_json=as_json)
    _warn_of_key(service)


def _store(
    provider: "IdentityProvider",
    storage: SignInStorage,
    sign_in: StoredSignIn,
    token: Token,
    target: Target,
) -> tuple[Whoami | None, str | None]:
    """Ask the service who the user is, and store the sign-in in place of the previous one, whose
    refresh token is revoked. If that fails, revoke the new one.
    """
    old_tokens: list[Token] = []
    faults: list[str] = []
    try:
        found = _whoami(target)
        with storage.locked():
            old_tokens, faults = storage.remove(keyring=sign_in.keyring)
            storage.save(sign_in, token)
    except BaseException:
        if token.refresh_token is not None:
            with contextlib.suppress(CommandError):
                provider.revoke(token.refresh_token)
        raise
    finally:
        # some providers would revoke all tokens that a user has given one client, and so the new
        # one
        others = (old for old in old_tokens if not old.is_of(sign_in.issuer, sign_in.client_id))
        faults += map(str, _revoke(others)[1])
        if faults:
            say(
                f"The refresh token of the previous sign-in works until it expires. {' '.join(faults)}"
            )
    return found


def _plan_sign_in(
    configuration: ClientConfiguration, issuer_option: str | None, client_id_option: str | None
) -> tuple[SourcedValue, StoredSignIn, bool]:
    """Decide where to sign in; return the service too, and whether the demo of the folder names the
    provider.
    """
    address, _ = configuration.address()
    previous = configuration.sign_in_for(address)
    demo = _demo_at(address.value, configuration)
    issuer = configuration.setting(
        "issuer",
        issuer_option,
        previous,
        demo,
    )
    client_id = configuration.setting(
        "client_id",
        client_id_option,
        previous,
        demo,
    )
    if issuer is None or client_id is None:
        missing = ["--issuer"] * (issuer is None) + ["--client-id"] * (client_id is None)
        raise CommandError(
            f"The identity provider for {address.value} is not known: pass {' and '.join(missing)}, or set them in the "
            f"profile {configuration.name}. Ask the operator of the service for OIDC_ISSUER, and for the id of a "
            "public client (one without a secret).",
            USAGE,
        )
    sign_in = StoredSignIn(
        address.value,
        issuer.value,
        client_id.value,
        configuration.org(previous),
        configuration.profile.keyring,
    )
    return address, sign_in, demo is not None and issuer.source == demo.source


def _demo_at(address: str, configuration: ClientConfiguration) -> Demo | None:
    """Return the demo of the folder, if it has this address."""
    demo = demo_here(configuration.environment)
    return demo if demo is not None and demo.base_url == address else None


def _whoami(target: Target) -> tuple[Whoami | None, str | None]:
    """Return who the token's user is, or why that is not known. Raises `CommandError` for a
    rejected token.
    """
    try:
        with target.client() as client:
            return client.auth.whoami(), None
    except AuthenticationError as error:
        raise CommandError(
            f"The service at {target.base_url.value} rejects the identity provider's token: {error.detail} "
            "Check the issuer and the client id. (`tenantry admin explain-token` shows the operator why.) "
            "Nothing was stored.",
            NOT_AUTHENTICATED,
        ) from None
    except TenantryError as error:
        failure = failure_of(error, target)
        return None, f"{failure.detail} {failure.next_step or ''}".strip()


def _revoke(tokens: Iterable[Token]) -> tuple[bool, list[CommandError]]:
    """Revoke refresh tokens (RFC 7009); return whether their providers support that, and what
    failed.
    """
    supported = [True]
    failures = list[CommandError]()
    for token in tokens:
        try:
            supported.append(_revoke_one(token))
        except CommandError as error:
            failures.append(error)
    return all(supported), failures


def _revoke_one(token: Token) -> bool:
    from tenantry_cli.oauth_client import IdentityProvider  # noqa: PLC0415  # slow to import

    if token.refresh_token is None:
        return True
    provider = IdentityProvider(
        token.issuer or "", token.client_id or "", seconds=wait_times().provider
    )
    with contextlib.closing(provider):
        return provider.revoke(token.refresh_token)


def _warn_of_key(service: ServiceOptions) -> None:
    """Tell the user if the next commands use an API key instead of this sign-in."""
    try:
        target = ClientConfiguration(service, os.environ).target()
    except CommandError as error:
        say(f"The commands do not use this sign-in: {error}")
        return
    if target.tokens is None:
        say(f"The API key from {target.credential} takes precedence over this sign-in.")


@click.command("logout", cls=ServiceCommand, service_options=("profile",))
def logout(service: ServiceOptions, *, as_json: bool) -> None:
    """Sign out: revoke the refresh token at the identity provider, if it supports that, and remove
    the stored tokens.

    Removes the tokens in any case, unless another command is fetching one. Exits with 6 if the
    identity provider is out of reach, and with 1 if the stored tokens cannot be read: the refresh
    token then works until it expires.

    \b
      tenantry logout --profile staging
    """
    configuration = ClientConfiguration(service, os.environ)
    storage = configuration.storage
    base_url = configuration.sign_in.base_url if configuration.sign_in else None
    if not storage.exists():
        _report_logout("You are not signed in.", None, revoked=False, as_json=as_json)
        return
    with storage.locked():
        tokens, unread = storage.remove(keyring=configuration.profile.keyring)
    is_revoked, failures = _revoke(tokens)
    if unread or failures:
        if as_json:
            _report_logout("", base_url, revoked=False, as_json=True)
        raise _not_revoked(unread, failures)
    message = f"Signed out of {base_url}." if base_url else "Signed out."
    if not is_revoked:
        message += (
            " The identity provider cannot revoke the refresh token: it works until it expires."
        )
    _report_logout(message, base_url, revoked=is_revoked, as_json=as_json)


def _not_revoked(unread: list[str], failures: list[CommandError]) -> CommandError:
    faults = " ".join([*unread, *map(str, failures)])
    return CommandError(
        f"Removed here, but not revoked at the identity provider. {faults}",
        FAILED if unread else failures[0].exit_code,
    )


def _report_logout(
    message: str,
    base_url: str | None,
    *,
    revoked: bool,
    as_json: bool,
) -> None:
    if as_json:
        click.echo(msgspec.json.encode({"service": base_url, "refreshTokenEnded": revoked}))
    else:
        say(message)


@click.command("whoami", cls=ApiCommand)
def whoami(api: ApiContext) -> None:
    """Show who you are, where, and until when.

    \b
      tenantry whoami --profile staging
    """
    who = api.client.auth.whoami()
    target = api.target
    source = {
        "service": target.base_url.value,
        "credential": target.credential,
        "profile": target.profile,
    }
    api.record({**msgspec.to_builtins(who), **source}, _rows(api, who))


def _rows(api: ApiContext, who: Whoami) -> Iterator[tuple[str, str]]:
    yield "who", principal_words(who)
    yield "organization", who.org_id
    yield from plan_rows(api.client, who)
    yield "may", scope_words(who)
    yield "mode", who.mode
    yield "service", f"{api.target.base_url.value} (from {api.target.base_url.source})"
    yield "credential", f"from {api.target.credential}"
    yield "expires", expiry_words(who, api.target)
