"""The identity provider's userinfo endpoint (OpenID Connect Core 5.3)."""

import asyncio
import hmac
import logging
import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import quote_plus

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
from tenantry.integrations.oidc.checks import ACCESS_TOKEN, CLAIM_CHECKS, HEADER_CHECKS, DecodedToken, first_failure
from tenantry.integrations.oidc.claims import Claims, OidcConfig, verified_email
from tenantry.integrations.oidc.jwks import FetchError, ProviderMetadata, fetch, is_secure, post_form
from tenantry.integrations.oidc.keys import KeySet
from tenantry.integrations.oidc.tokens import TokenVerifier

_log = logging.getLogger(__name__)


class _Answer(msgspec.Struct, frozen=True):
    sub: str
    email: Any = None
    email_verified: Any = None


class UserInfo:
    """Asks the provider about the user that a token was issued to."""

    def __init__(
        self,
        config: OidcConfig,
        keys: KeySet,
        http_client: httpx2.AsyncClient,
        *,
        timeout: float = DEFAULT_TIMEOUTS.identity_provider,
    ) -> None:
        """``timeout`` bounds each question, in seconds."""
        self._config = config
        self._keys = keys
        self._client = http_client
        self._timeout = timeout

    async def userinfo_email(self, access_token: str, subject: str) -> str | None:
        """The verified e-mail address of ``subject``, whose verified token this is.

        None when the provider has none, is away, answers for another subject, or has no userinfo endpoint that is
        safe to send a token to.
        """
        endpoint = self._keys.metadata.userinfo_endpoint if self._keys.metadata else None
        if endpoint is None:
            return None
        try:
            async with asyncio.timeout(self._timeout):
                body = await fetch(
                    self._client,
                    endpoint,
                    allow_http=self._config.allow_http,
                    headers={"Authorization": f"Bearer {access_token}"},
                )
            answer = msgspec.json.decode(body, type=_Answer)
        except (httpx2.HTTPError, FetchError, TimeoutError, OSError, *NOT_JSON) as error:
            _log.warning("the identity provider's userinfo could not be read: %s", type(error).__name__)
            return None
        # OpenID Connect Core 5.3.2: an answer for another subject must not be used.
        return verified_email(answer.email, answer.email_verified) if answer.sub == subject else None


# Signing people in with a browser: OpenID Connect's authorization code flow, with PKCE, state and nonce


SCOPE: Final = "openid profile email"
MOST_REDEMPTIONS: Final = 20
"""Authorization codes that a process redeems at once."""
_MOST_NAME: Final = 100
_ERROR_CODE: Final = re.compile(r"[a-z_]{1,40}")
_ID_TOKEN_CHECKS: Final = tuple(check for check in CLAIM_CHECKS if check is not ACCESS_TOKEN)
# OpenID Connect Core 3.1.2.6: somebody has to be asked.
_NEEDS_A_PERSON: Final = frozenset(
    {"login_required", "interaction_required", "account_selection_required", "consent_required"}
)


class SignInFailedError(Exception):
    """The provider did not sign the person in; the message is safe to show."""


class InteractionRequiredError(SignInFailedError):
    """The provider will not vouch for the person without asking them."""


class TooManySignInsError(Exception):
    """The process redeems as many codes as it may; the message is safe to show."""


class PendingSignIn(msgspec.Struct, frozen=True):
    """A sign-in that the browser has been sent on; to be kept with the browser, sealed, until it comes back."""

    state: str
    nonce: str
    verifier: str
    silent: bool


class SignedInUser(msgspec.Struct, frozen=True):
    """Whom the provider vouches for."""

    claims: Claims
    name: str | None


class _Tokens(msgspec.Struct, frozen=True):
    """What the token endpoint gives for a code (OpenID Connect Core 3.1.3.3)."""

    access_token: str
    id_token: str


class _Refusal(msgspec.Struct, frozen=True):
    """Why it gives nothing (RFC 6749 section 5.2)."""

    error: str


class SignIn:
    """The dashboard's side of a sign-in at one identity provider."""

    def __init__(
        self,
        config: OidcConfig,
        keys: KeySet,
        http_client: httpx2.AsyncClient,
        *,
        client_id: str,
        client_secret: Secret | None,
        redirect_uri: str,
        clock: Clock,
        timeout: float = DEFAULT_TIMEOUTS.token_endpoint,
    ) -> None:
        """``timeout`` bounds the answer to an authorization code, in seconds."""
        self._config = config
        self._keys = keys
        self._client = http_client
        self._client_id = client_id
        self._client_secret = client_secret
        self._redirect_uri = redirect_uri
        self._clock = clock
        self._timeout = timeout
        self._access_tokens = TokenVerifier(config, keys, clock=clock)
        self._redemptions = 0

    async def begin(self, *, silent: bool = False, login_hint: str | None = None) -> tuple[str, PendingSignIn]:
        """Where to send the browser, and what to keep until it comes back.

        ``silent`` asks the provider to vouch for whoever is signed in there, without showing anything.
        Raises `AuthUnavailableError`.
        """
        metadata = await self._metadata()
        begun = PendingSignIn(secrets.token_urlsafe(24), secrets.token_urlsafe(24), secrets.token_urlsafe(48), silent)
        more = {"prompt": "none"} if silent else {}
        if login_hint is not None:
            more["login_hint"] = login_hint
        url: str = prepare_grant_uri(
            metadata.authorization_endpoint or "",  # `_metadata` has seen to that
            client_id=self._client_id,
            response_type="code",
            redirect_uri=self._redirect_uri,
            scope=SCOPE,
            state=begun.state,
            nonce=begun.nonce,
            code_challenge=create_s256_code_challenge(begun.verifier),  # type: ignore[no-untyped-call]
            code_challenge_method="S256",
            audience=self._config.audience,  # for whom the access token is to be: some providers' name for it,
            resource=self._config.audience,  # and RFC 8707's
            **more,
        )
        return url, begun

    def is_away(self) -> bool:
        """Whether the provider could not be reached when it was last asked for its keys."""
        return self._keys.trouble is not None

    @contextmanager
    def redemption(self) -> Iterator[None]:
        """Take one of the process's `MOST_REDEMPTIONS` places for `finish`. Raises `TooManySignInsError`."""
        if self._redemptions >= MOST_REDEMPTIONS:
            raise TooManySignInsError("Too many people are signing in at this moment. Reload this page in a second.")
        self._redemptions += 1
        try:
            yield
        finally:
            self._redemptions -= 1

    async def finish(self, begun: PendingSignIn, answer: Mapping[str, str]) -> SignedInUser:
        """Whom the provider vouches for, from the parameters with which it sent the browser back.

        Raises `InteractionRequiredError`, `SignInFailedError` and `AuthUnavailableError`.
        """
        metadata = await self._metadata()
        code = _code(answer, begun, metadata)
        tokens = await self._redeem(metadata, code, begun)
        claims, name = await self._id_token(tokens.id_token, tokens.access_token, begun)
        return SignedInUser(await self._claims(tokens.access_token, claims), name)

    def end_session_url(self, back: str) -> str | None:
        """Where a person ends their session at the provider too (RP-Initiated Logout 1.0), if it has such a place."""
        endpoint = self._keys.metadata.end_session_endpoint if self._keys.metadata else None
        if endpoint is None or not is_secure(endpoint, allow_http=self._config.allow_http):
            return None
        url = httpx2.URL(endpoint)
        return str(url.copy_merge_params({"client_id": self._client_id, "post_logout_redirect_uri": back}))

    async def _metadata(self) -> ProviderMetadata:
        await self._keys.settle()
        metadata = self._keys.metadata
        if metadata is None or self.is_away():
            raise AuthUnavailableError("The identity provider cannot be reached.")
        for endpoint in (metadata.authorization_endpoint, metadata.token_endpoint):
            if endpoint is None or not is_secure(endpoint, allow_http=self._config.allow_http):
                raise AuthUnavailableError("The identity provider has no place to sign in that is safe to use.")
        return metadata

    async def _redeem(self, metadata: ProviderMetadata, code: str, begun: PendingSignIn) -> _Tokens:
        """What the provider gives for its code."""
        form: str = prepare_token_request(
            "authorization_code",
            redirect_uri=self._redirect_uri,
            code=code,
            code_verifier=begun.verifier,
            resource=self._config.audience,
        )
        proof = self._client_auth(metadata)
        url, headers, form = proof.prepare("POST", metadata.token_endpoint, {}, form)  # type: ignore[no-untyped-call]
        try:
            async with asyncio.timeout(self._timeout):
                status, body = await post_form(
                    self._client, url, form, allow_http=self._config.allow_http, headers=headers
                )
        except FetchError as error:
            raise SignInFailedError("The identity provider's answer cannot be read.") from error
        except (httpx2.HTTPError, TimeoutError, OSError) as error:
            raise AuthUnavailableError("The identity provider cannot be reached.") from error
        if status != httpx2.codes.OK:
            code_of_error = _error_in(body)
            raise _not_redeemed(status, code_of_error) from FetchError(f"answered {status} {code_of_error}".rstrip())
        try:
            return msgspec.json.decode(body, type=_Tokens)
        except NOT_JSON as error:
            raise SignInFailedError("The identity provider gave no ID token.") from error

    def _client_auth(self, metadata: ProviderMetadata) -> ClientAuth:
        """How this client proves itself (RFC 6749 section 2.3.1)."""
        if self._client_secret is None:
            return ClientAuth(self._client_id, None, "none")
        secret = self._client_secret.reveal()
        if "client_secret_post" in metadata.token_endpoint_auth_methods_supported:
            return ClientAuth(self._client_id, secret, "client_secret_post")
        # in the header both are encoded as in a form, which authlib leaves to us and not all providers agree on
        return ClientAuth(quote_plus(self._client_id), quote_plus(secret), "client_secret_basic")

    async def _id_token(self, token: str, access_token: str, begun: PendingSignIn) -> tuple[Claims, str | None]:
        """What a proven ID token says (OpenID Connect Core 3.1.3.7)."""
        config = msgspec.structs.replace(self._config, audience=self._client_id)
        reading = DecodedToken(token, config, self._keys)
        failure = first_failure(HEADER_CHECKS, reading)
        if failure is None:
            reading.keys = await self._keys.key(reading.kid, reading.header.alg)
            reading.now = self._clock().timestamp()
            failure = first_failure(_ID_TOKEN_CHECKS, reading)
        if failure is not None:
            raise SignInFailedError(f"The identity provider's ID token is not valid: {failure.reason}.")
        expected = {"nonce": begun.nonce, "client_id": self._client_id, "access_token": access_token}
        id_token = CodeIDToken(reading.members, {"alg": reading.header.alg}, params=expected)
        try:
            id_token.validate_nonce()
            id_token.validate_azp()
            id_token.validate_at_hash()
        except JoseError as error:
            raise SignInFailedError("The identity provider's ID token was made for another sign-in.") from error
        return reading.claims(), _name(reading.members)

    async def _claims(self, access_token: str, claims: Claims) -> Claims:
        """What the API's own access token says of the same person, where it is one that the API would take.

        A provider may put organization and role into either. Raises `SignInFailedError` where the two are of different
        people.
        """
        try:
            said = await self._access_tokens.verify(access_token)
        except InvalidCredentialError:
            return claims  # opaque, or for another API
        if said.subject != claims.subject:
            raise SignInFailedError("The identity provider's two tokens are of different people.")
        return said if said.email is not None else msgspec.structs.replace(said, email=claims.email)


def _code(answer: Mapping[str, str], begun: PendingSignIn, metadata: ProviderMetadata) -> str:
    """The code in the provider's answer, once it is known to belong to this sign-in."""
    if not hmac.compare_digest(answer.get("state", "").encode(), begun.state.encode()):
        raise SignInFailedError("The answer belongs to another sign-in.")
    issuer = answer.get("iss")
    # RFC 9207 section 2.4: against a provider that passes another one's code on.
    if issuer != metadata.issuer and (issuer is not None or metadata.authorization_response_iss_parameter_supported):
        raise SignInFailedError("The answer is not the identity provider's.")
    error = answer.get("error")
    if error in _NEEDS_A_PERSON:
        raise InteractionRequiredError("The identity provider wants to ask first.")
    if error == "access_denied":
        raise SignInFailedError("The sign-in was cancelled.")
    code = answer.get("code")
    if error is not None or not code:
        raise SignInFailedError("The identity provider did not sign you in.")
    return code


def _error_in(body: bytes) -> str:
    """The code of an error answer (RFC 6749 section 5.2); what else a provider says there is not ours to repeat."""
    try:
        error = msgspec.json.decode(body, type=_Refusal).error
    except NOT_JSON:
        return ""
    return error if _ERROR_CODE.fullmatch(error) else ""


def _not_redeemed(status: int, error: str) -> AuthUnavailableError | SignInFailedError:
    """What it means that the token endpoint gave nothing."""
    if status >= httpx2.codes.INTERNAL_SERVER_ERROR:
        return AuthUnavailableError("The identity provider is in trouble. Try again shortly.")
    if error == "invalid_client":
        return SignInFailedError("The identity provider does not take this service's client id and secret.")
    if status < httpx2.codes.BAD_REQUEST:
        return SignInFailedError("The identity provider's answer cannot be read.")
    return SignInFailedError("The identity provider did not take back its own code.")


def _name(members: Mapping[str, Any]) -> str | None:
    """What to call the person: a name, or what else there is."""
    for claim in ("name", "preferred_username", "email"):
        said = members.get(claim)
        name = "".join(letter for letter in said if letter.isprintable()).strip() if isinstance(said, str) else ""
        if name:
            return name[:_MOST_NAME]
    return None
