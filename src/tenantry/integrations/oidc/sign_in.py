"""Sign-in with a browser: the authorization code flow of OpenID Connect with PKCE, state and nonce;
and userinfo.
"""

import asyncio
import hmac
import logging
import secrets
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import KW_ONLY, dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final, NoReturn
from urllib.parse import quote_plus, urlsplit

import httpx2
import msgspec
from authlib.oauth2.auth import ClientAuth
from authlib.oauth2.rfc6749.parameters import prepare_grant_uri, prepare_token_request
from authlib.oauth2.rfc7636 import create_s256_code_challenge
from authlib.oidc.core import CodeIDToken
from joserfc.errors import JoseError

from tenantry.common.clock import DEFAULT_TIMEOUTS, Clock
from tenantry.common.encoding import NOT_JSON
from tenantry.common.secret import Secret
from tenantry.domain.errors import AuthUnavailableError, InvalidCredentialError
from tenantry.domain.issuers import Issuers
from tenantry.integrations.http_client import FetchError, fetch, is_secure, request
from tenantry.integrations.oidc.claim_checks import ACCESS_TOKEN, CLAIM_CHECKS, DecodedToken, check
from tenantry.integrations.oidc.claims import (
    STANDARD_AUDIENCE,
    Claims,
    OidcConfig,
    first_text,
    verified_email,
)
from tenantry.integrations.oidc.keys import IssuerMetadata, KeySet
from tenantry.integrations.oidc.tokens import TokenVerifier

_log = logging.getLogger(__name__)

SCOPE: Final = "openid profile email"
RESPONSE_PARAMETERS: Final = ("state", "iss", "error", "code")
"""What `SignIn.finish` reads of the provider's response (RFC 6749 section 4.1.2, RFC 9207)."""
MOST_REDEMPTIONS: Final = 20  # authorization codes that a process redeems at once
_LEEWAY: Final = timedelta(seconds=30)  # between two clocks
_REJECTED: Final = {"invalid_client": "this service's client id and secret"}
_FORM: Final = {"Content-Type": "application/x-www-form-urlencoded"}
_ID_TOKEN_CHECKS: Final = tuple(each for each in CLAIM_CHECKS if each is not ACCESS_TOKEN)
# OpenID Connect Core 3.1.2.6: the provider must show a page to the user.
_INTERACTION_ERRORS: Final = frozenset(
    {"login_required", "interaction_required", "account_selection_required", "consent_required"}
)


class SignInFailedError(Exception):
    """The sign-in failed; the message is safe to show."""


class InteractionRequiredError(SignInFailedError):
    """The provider must show a page to the user."""


class TooManySignInsError(Exception):
    """The process redeems as many codes as it may; the message is safe to show."""


class PendingSignIn(msgspec.Struct, frozen=True):
    """A sign-in in progress; the browser keeps it, sealed."""

    state: str
    nonce: str
    verifier: str
    silent: bool
    max_age: int | None = None
    """How many seconds ago the provider may have authenticated the user."""


class SignedInUser(msgspec.Struct, frozen=True):
    """The user's claims and display name, and when the provider authenticated them, if it says."""

    claims: Claims
    name: str | None
    authenticated_at: datetime | None = None


class _UserInfoResponse(msgspec.Struct, frozen=True):
    sub: str
    email: Any = None
    email_verified: Any = None


class _TokenResponse(msgspec.Struct, frozen=True):  # OpenID Connect Core 3.1.3.3
    access_token: str
    id_token: str


class _ErrorResponse(msgspec.Struct, frozen=True):  # RFC 6749 section 5.2
    error: Annotated[str, msgspec.Meta(pattern=r"^[a-z_]{1,40}\Z")]


@dataclass(frozen=True)
class UserInfo:
    """The provider's userinfo endpoint (OpenID Connect Core 5.3). ``timeout`` bounds each call, in
    seconds.
    """

    config: OidcConfig
    keys: KeySet
    http_client: httpx2.AsyncClient
    timeout: float = DEFAULT_TIMEOUTS.identity_provider

    async def userinfo_email(self, access_token: str, subject: str) -> str | None:
        """Return the verified e-mail address of ``subject``, whose verified token this is, if it is
        available.
        """
        endpoint = self.keys.metadata.userinfo_endpoint if self.keys.metadata else None
        if endpoint is None:
            return None
        headers = {"Authorization": f"Bearer {access_token}"}
        try:
            async with asyncio.timeout(self.timeout):
                body = await fetch(
                    self.http_client, endpoint, allow_http=self.config.allow_http, headers=headers
                )
            response = msgspec.json.decode(body, type=_UserInfoResponse)
        except (httpx2.HTTPError, FetchError, TimeoutError, OSError, *NOT_JSON) as error:
            _log.warning(
                "fetching the identity provider's userinfo failed: %s", type(error).__name__
            )
            return None
        # OpenID Connect Core 5.3.2: a response for another subject must not be used.
        if response.sub == subject:
            return verified_email(response.email, response.email_verified)
        return None


@dataclass(eq=False)
class SignIn:
    """The dashboard as a client of one identity provider. ``timeout`` bounds the redemption of a
    code, in seconds.
    """

    config: OidcConfig
    keys: KeySet
    http_client: httpx2.AsyncClient
    _: KW_ONLY
    client_id: str
    client_secret: Secret | None
    redirect_uri: str
    clock: Clock
    timeout: float = DEFAULT_TIMEOUTS.token_endpoint

    def __post_init__(self) -> None:
        self._access_tokens = TokenVerifier(self.config, self.keys, clock=self.clock)
        self._redemptions = asyncio.Semaphore(MOST_REDEMPTIONS)

    async def begin(
        self, *, silent: bool = False, login_hint: str | None = None, max_age: int | None = None
    ) -> tuple[str, PendingSignIn]:
        """Return the provider's URL for the browser, and what to keep until it returns.

        With ``silent`` the provider signs in its current user without showing a page. With
        ``max_age`` it authenticates a user again whom it authenticated longer ago, in seconds.
        Raises `AuthUnavailableError`.
        """
        metadata = await self._metadata()
        pending = PendingSignIn(
            secrets.token_urlsafe(24),
            secrets.token_urlsafe(24),
            secrets.token_urlsafe(48),
            silent,
            max_age,
        )
        options = self._requested_api()
        if silent:
            options["prompt"] = "none"
        if login_hint is not None:
            options["login_hint"] = login_hint
        if max_age is not None:
            options["max_age"] = str(max_age)
        url: str = prepare_grant_uri(
            metadata.authorization_endpoint or "",  # checked by `_metadata`
            client_id=self.client_id,
            response_type="code",
            redirect_uri=self.redirect_uri,
            scope=SCOPE,
            state=pending.state,
            nonce=pending.nonce,
            code_challenge=create_s256_code_challenge(pending.verifier),  # type: ignore[no-untyped-call]
            code_challenge_method="S256",
            **options,
        )
        return url, pending

    def is_away(self) -> bool:
        """Whether the last fetch of the provider's keys failed."""
        return self.keys.trouble is not None

    def redemption(self) -> AbstractAsyncContextManager[None]:
        """Reserve one of `MOST_REDEMPTIONS` for `finish`. Raises `TooManySignInsError`."""
        if self._redemptions.locked():
            raise TooManySignInsError(
                "Too many users are signing in. Reload this page in a moment."
            )
        return self._redemptions

    async def finish(self, pending: PendingSignIn, parameters: Mapping[str, str]) -> SignedInUser:
        """Return the user. Raises `InteractionRequiredError`, `SignInFailedError` and
        `AuthUnavailableError`.
        """
        metadata = await self._metadata()
        _check_origin(parameters, pending, metadata, self.config.issuers)
        code = _code(parameters)
        tokens = await self._redeem(metadata, code, pending)
        person = await self._verify_id_token(tokens, pending)
        claims = person.claims
        if parameters.get("iss", claims.issuer) != claims.issuer:
            raise SignInFailedError("The response is not the identity provider's.")
        found = await self._with_access_token(tokens.access_token, claims)
        return msgspec.structs.replace(person, claims=found)

    def end_session_url(self, back: str) -> str | None:
        """Return where a user signs out of the provider (RP-Initiated Logout 1.0), if it supports
        that.
        """
        endpoint = self.keys.metadata.end_session_endpoint if self.keys.metadata else None
        if endpoint is None or not self._is_secure(endpoint):
            return None
        parameters = {"client_id": self.client_id, "post_logout_redirect_uri": back}
        return str(httpx2.URL(endpoint).copy_merge_params(parameters))

    async def _metadata(self) -> IssuerMetadata:
        await self.keys.ensure_fetched()
        metadata = self.keys.metadata
        if metadata is None or self.is_away():
            raise AuthUnavailableError("The identity provider cannot be reached.")
        if not self._is_secure(metadata.authorization_endpoint, metadata.token_endpoint):
            raise AuthUnavailableError(
                "The identity provider has no secure endpoint for signing in."
            )
        return metadata

    def _is_secure(self, *endpoints: str | None) -> bool:
        allow_http = self.config.allow_http
        return all(is_secure(endpoint or "", allow_http=allow_http) for endpoint in endpoints)

    async def _redeem(
        self, metadata: IssuerMetadata, code: str, pending: PendingSignIn
    ) -> _TokenResponse:
        form: str = prepare_token_request(
            "authorization_code",
            redirect_uri=self.redirect_uri,
            code=code,
            code_verifier=pending.verifier,
            **self._resource(),
        )
        auth = self._client_auth(metadata)
        url, headers, form = auth.prepare("POST", metadata.token_endpoint, {}, form)  # type: ignore[no-untyped-call]
        try:
            async with asyncio.timeout(self.timeout):
                status, body = await request(
                    self.http_client,
                    "POST",
                    url,
                    {**_FORM, **headers},
                    form,
                    allow_http=self.config.allow_http,
                )
            if status != httpx2.codes.OK:
                _raise_redemption_error(status, body)
            return msgspec.json.decode(body, type=_TokenResponse)
        except (FetchError, *NOT_JSON) as error:
            raise SignInFailedError(
                "Sign-in failed: the identity provider's response is invalid."
            ) from error
        except (httpx2.HTTPError, TimeoutError, OSError) as error:
            raise AuthUnavailableError("The identity provider cannot be reached.") from error

    def _requested_api(self) -> dict[str, str]:
        """Name the API that the access token is for: ``audience`` is some providers' name for
        ``resource``.
        """
        api = self.config.resource
        return {} if api is None else {"audience": api, **self._resource()}

    def _resource(self) -> dict[str, str]:
        """Return RFC 8707's parameter, which is an absolute URI; some providers reject it
        otherwise.
        """
        api = self.config.resource
        if api is not None and urlsplit(api).scheme:
            return {"resource": api}
        return {}

    def _client_auth(self, metadata: IssuerMetadata) -> ClientAuth:
        """Authenticate this client (RFC 6749 section 2.3.1)."""
        if self.client_secret is None:
            return ClientAuth(self.client_id, None, "none")
        secret = self.client_secret.reveal()
        if "client_secret_post" in (metadata.token_endpoint_auth_methods_supported or ()):
            return ClientAuth(self.client_id, secret, "client_secret_post")
        # The header requires form encoding, which authlib leaves to its caller.
        return ClientAuth(quote_plus(self.client_id), quote_plus(secret), "client_secret_basic")

    async def _verify_id_token(
        self, tokens: _TokenResponse, pending: PendingSignIn
    ) -> SignedInUser:
        """Return the ID token's claims, the user's name or address, and when they authenticated
        (OpenID Connect Core 3.1.3.7).
        """
        config = msgspec.structs.replace(
            self.config, audiences=(self.client_id,), audience_claim=STANDARD_AUDIENCE
        )
        decoded = DecodedToken(tokens.id_token, config, self.keys)
        failure = await check(decoded, self.clock, _ID_TOKEN_CHECKS)
        if failure is not None:
            raise SignInFailedError(
                f"The identity provider's ID token is not valid: {failure.reason}."
            )
        expected = {
            "nonce": pending.nonce,
            "client_id": self.client_id,
            "access_token": tokens.access_token,
        }
        id_token = CodeIDToken(decoded.members, {"alg": decoded.header.alg}, params=expected)
        try:
            id_token.validate_nonce()
            id_token.validate_azp()
            id_token.validate_at_hash()
        except JoseError as error:
            raise SignInFailedError(
                "The identity provider's ID token is for another sign-in."
            ) from error
        claims = decoded.claims()
        authenticated_at = _authenticated_at(decoded, self.clock())
        if not _is_recent(authenticated_at, pending.max_age, self.clock()):
            raise SignInFailedError(
                "The identity provider did not say that it asked you to sign in again."
            )
        name = claims.name or first_text(decoded.members, "email")
        return SignedInUser(claims, name, authenticated_at)

    async def _with_access_token(self, access_token: str, claims: Claims) -> Claims:
        """Prefer the claims of an access token that the API accepts: a provider may put
        organization and role there.

        Raises `SignInFailedError` if the two tokens are for different users.
        """
        try:
            found = await self._access_tokens.verify(access_token)
        except InvalidCredentialError:
            return claims  # opaque, or for another API
        if found.user != claims.user:
            raise SignInFailedError("The identity provider's two tokens are for different users.")
        return msgspec.structs.replace(
            found,
            email=found.email or claims.email,
            operator_role=found.operator_role or claims.operator_role,
        )


def _check_origin(
    parameters: Mapping[str, str],
    pending: PendingSignIn,
    metadata: IssuerMetadata,
    issuers: Issuers,
) -> None:
    """Check that a response belongs to this sign-in, and is the provider's."""
    if not hmac.compare_digest(parameters.get("state", "").encode(), pending.state.encode()):
        raise SignInFailedError("The identity provider's response belongs to another sign-in.")
    issuer = parameters.get("iss")
    # RFC 9207 section 2.4: mix-up attack, in which another provider's code is sent.
    is_missing = issuer is None and metadata.authorization_response_iss_parameter_supported
    if is_missing or (issuer is not None and not issuers.trusts(issuer)):
        raise SignInFailedError("The response is not the identity provider's.")


def _authenticated_at(id_token: DecodedToken, now: datetime) -> datetime | None:
    """Return when the provider authenticated the user (OpenID Connect Core 2, ``auth_time``); None
    if it does not say so, or says what cannot be.
    """
    seconds = id_token.members.get("auth_time")
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        return None
    if not 0 <= seconds <= (now + _LEEWAY).timestamp():
        return None
    # a provider's fast clock must not make the sign-in count for longer
    return min(datetime.fromtimestamp(seconds, UTC), now)


def _is_recent(authenticated_at: datetime | None, max_age: int | None, now: datetime) -> bool:
    """Whether the provider authenticated the user as recently as it was asked for."""
    if max_age is None:
        return True
    return (
        authenticated_at is not None
        and now - authenticated_at <= timedelta(seconds=max_age) + _LEEWAY
    )


def _code(parameters: Mapping[str, str]) -> str:
    """Return the authorization code of a response."""
    error = parameters.get("error")
    if error in _INTERACTION_ERRORS:
        raise InteractionRequiredError("The identity provider must ask you first.")
    if error == "access_denied":
        raise SignInFailedError("The sign-in was canceled.")
    code = parameters.get("code")
    if error is not None or not code:
        raise SignInFailedError("The identity provider did not sign you in.")
    return code


def _raise_redemption_error(status: int, body: bytes) -> NoReturn:
    """Raise an error; its cause, for the log, has the response's code (RFC 6749 section 5.2) and
    nothing else of it.
    """
    try:
        code = msgspec.json.decode(body, type=_ErrorResponse).error
    except NOT_JSON:
        code = ""
    cause = FetchError(f"answered {status} {code}".rstrip())
    if status >= httpx2.codes.INTERNAL_SERVER_ERROR:
        raise AuthUnavailableError(
            "The identity provider has an internal error. Try again shortly."
        ) from cause
    rejected = _REJECTED.get(code, "the authorization code")
    raise SignInFailedError(
        f"Sign-in failed: the identity provider rejected {rejected}."
    ) from cause
