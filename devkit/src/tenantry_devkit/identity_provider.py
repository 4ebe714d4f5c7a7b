"""A small OpenID provider for development: any client can sign in as any of its users."""

import base64
import hmac
import logging
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl, unquote_plus, urlencode, urlsplit

import msgspec
from authlib.oauth2.rfc7636 import create_s256_code_challenge
from litestar import HttpMethod, Litestar, Request, Response, get, post, route
from litestar.config.allowed_hosts import AllowedHostsConfig
from litestar.di import NamedDependency, Provide
from litestar.exceptions import HTTPException
from litestar.types import ControllerRouterHandler, Scope

from tenantry.common.clock import Clock
from tenantry.common.secret import Secret
from tenantry.domain.scopes import is_scope
from tenantry_devkit.html import COMPANION_PAGES, Pages, form_action_to, redirect
from tenantry_devkit.identity_tokens import (
    ACCESS_TOKEN_LIFETIME,
    DemoUser,
    Grant,
    TokenIssuer,
    user_claims,
)

DEVICE_GRANT: Final = "urn:ietf:params:oauth:grant-type:device_code"
OIDC_SCOPES: Final = ("openid", "profile", "email", "offline_access")
CODE_LIFETIME: Final = timedelta(seconds=60)
REFRESH_LIFETIME: Final = timedelta(days=30)
DEVICE_LIFETIME: Final = timedelta(minutes=10)
DEVICE_INTERVAL: Final = timedelta(seconds=1)
_CODE: Final = "code"
_REFRESH_TOKEN: Final = "refresh token"  # noqa: S105  # a kind
_LETTERS: Final = "BCDFGHJKLMNPQRSTVWXZ"
"""Without vowels: no words, and no letters that look alike (RFC 8628 section 6.1)."""
_MAX_REQUEST_BYTES: Final = 64 * 1024
_MAX_PARAMETERS: Final = 50
_NO_STORE: Final = {"Cache-Control": "no-store", "Pragma": "no-cache"}
_GET_OR_POST: Final = [HttpMethod.GET, HttpMethod.POST]
# RFC 8252 section 7.3: any port of a loopback address. No fragment, no user part, and no backslash,
# which browsers treat as a slash.
_LOOPBACK_URI: Final = re.compile(
    r"https?://(?:localhost|127(?:\.\d{1,3}){3}|\[::1\])(?::\d{1,5})?(?:[/?][^#\\\"<>^`{|}\s\x00-\x20\x7f-\U0010ffff]*)?"
)
_CODE_CHALLENGE: Final = re.compile(r"[A-Za-z0-9_-]{43}")  # RFC 7636 section 4.2
_SECONDS: Final = re.compile(r"[0-9]{1,9}")

_log = logging.getLogger(__name__)

AnyRequest = Request[Any, Any, Any]
Parameters = NamedDependency[dict[str, str]]


class OAuthError(Exception):
    """An error response of RFC 6749 section 5.2, with its ``error`` code and a description."""

    def __init__(self, code: str, description: str) -> None:
        super().__init__(description)
        self.code = code


class _OneTimeToken(msgspec.Struct, frozen=True):
    """An authorization code or a refresh token (``kind``)."""

    kind: str
    grant: Grant
    expires_at: datetime
    redirect_uri: str = ""
    code_challenge: str = ""


class _Device(msgspec.Struct):
    user_code: str
    scopes: tuple[str, ...]
    expires_at: datetime
    grant: Grant | None = None
    is_denied: bool = False


E = TypeVar("E", _OneTimeToken, _Device)


class Grants:
    """Codes, refresh tokens and device codes, in memory. Each works once, for 60 s, 30 days, or ten
    minutes.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._tokens: dict[str, _OneTimeToken] = {}
        self._devices: dict[str, _Device] = {}

    def new_code(self, grant: Grant, *, redirect_uri: str, code_challenge: str) -> str:
        """Return a code for the client that knows the verifier of ``code_challenge`` (S256, RFC
        7636).
        """
        expires_at = self._clock() + CODE_LIFETIME
        return self._issue(_OneTimeToken(_CODE, grant, expires_at, redirect_uri, code_challenge))

    def redeem(self, code: str, *, redirect_uri: str, code_verifier: str) -> Grant:
        """Return the grant of a code; raises `OAuthError`, which spends the code too."""
        entry = self._spend(_CODE, code)
        if redirect_uri != entry.redirect_uri:
            raise OAuthError(
                "invalid_grant", "redirect_uri differs from that of the authorization request."
            )
        challenge: str = create_s256_code_challenge(code_verifier)  # type: ignore[no-untyped-call]
        if not hmac.compare_digest(challenge, entry.code_challenge):
            raise OAuthError("invalid_grant", "code_verifier does not match the code_challenge.")
        return entry.grant

    def new_refresh_token(self, grant: Grant) -> str:
        return self._issue(_OneTimeToken(_REFRESH_TOKEN, grant, self._clock() + REFRESH_LIFETIME))

    def refresh(self, refresh_token: str) -> Grant:
        """Return the grant of a refresh token; raises `OAuthError`."""
        return self._spend(_REFRESH_TOKEN, refresh_token).grant

    def revoke(self, token: str) -> None:
        """Revoke a token; ignore an unknown one."""
        self._tokens.pop(token, None)

    def begin_device(self, scopes: tuple[str, ...]) -> tuple[str, str]:
        """Return a device code and a user code."""
        letters = "".join(secrets.choice(_LETTERS) for _ in range(8))
        user_code, device_code = f"{letters[:4]}-{letters[4:]}", secrets.token_urlsafe(32)
        device = _Device(user_code, scopes, self._clock() + DEVICE_LIFETIME)
        self._devices = {**self._unexpired(self._devices), device_code: device}
        return device_code, user_code

    def decide_device(self, user_code: str, grant: Grant | None) -> bool:
        """Allow the device the scopes that it asked for, or deny it; return whether one was
        waiting.
        """
        for device in self._unexpired(self._devices).values():
            is_pending = not device.is_denied and device.grant is None
            if is_pending and _normalized(device.user_code) == _normalized(user_code):
                device.is_denied = grant is None
                device.grant = grant and msgspec.structs.replace(grant, scopes=device.scopes)
                return True
        return False

    def poll_device(self, device_code: str) -> Grant:
        """Return the device's grant, once. Raises `OAuthError` while it is pending, and
        afterwards (RFC 8628 section 3.5).
        """
        device = self._devices.get(device_code)
        if device is None:
            raise OAuthError("invalid_grant", "The device code is unknown or was used before.")
        if device.expires_at <= self._clock():
            raise OAuthError("expired_token", "The device code has expired.")
        if device.is_denied:
            raise OAuthError("access_denied", "The user denied the sign-in.")
        if device.grant is None:
            raise OAuthError("authorization_pending", "The user has not entered the code yet.")
        del self._devices[device_code]
        return device.grant

    def _issue(self, entry: _OneTimeToken) -> str:
        text = secrets.token_urlsafe(32)
        self._tokens = {**self._unexpired(self._tokens), text: entry}
        return text

    def _spend(self, kind: str, text: str) -> _OneTimeToken:
        entry = self._unexpired(self._tokens).get(text)
        if entry is None or entry.kind != kind:
            raise OAuthError("invalid_grant", f"The {kind} is unknown, expired or was used before.")
        del self._tokens[text]
        return entry

    def _unexpired(self, entries: Mapping[str, E]) -> dict[str, E]:
        now = self._clock()
        return {text: entry for text, entry in entries.items() if entry.expires_at > now}


def _normalized(user_code: str) -> str:
    """Ignore hyphens and case."""
    return "".join(letter for letter in user_code.upper() if letter in _LETTERS)


def create_identity_provider(
    tokens: TokenIssuer,
    users: Sequence[DemoUser],
    *,
    client_secret: Secret | None = None,
    more_routes: Sequence[ControllerRouterHandler] = (),
) -> Litestar:
    """Create an OpenID provider for one client, in which a click signs in as any of ``users``,
    which may change.

    Every http(s) address on loopback is a valid redirect address. With ``client_secret`` the client
    may authenticate. A restart ends all refresh tokens. The host name must be the issuer's or
    localhost, as a protection against DNS rebinding.
    """
    provider = _IdentityProvider(
        tokens,
        users,
        client_secret,
        Grants(tokens.clock),
        Pages(COMPANION_PAGES),
    )
    address = urlsplit(tokens.issuer)
    local = "localhost" if address.port is None else f"localhost:{address.port}"
    return Litestar(
        [*provider.routes(), *more_routes],
        after_exception=[_log_failure],
        allowed_hosts=AllowedHostsConfig(allowed_hosts=[address.netloc, local]),
        dependencies={"parameters": Provide(_parameters_of)},
        exception_handlers={OAuthError: _oauth_error},
        logging_config=None,
        openapi_config=None,
        request_max_body_size=_MAX_REQUEST_BYTES,
        response_headers=_NO_STORE,
    )


async def _log_failure(error: Exception, scope: Scope) -> None:
    if not isinstance(error, HTTPException | OAuthError):
        _log.error(
            "%s failed",
            scope["path"],
            exc_info=error,
        )


def _oauth_error(request: AnyRequest, error: OAuthError) -> Response[dict[str, str]]:
    headers = dict(_NO_STORE)
    if error.code == "invalid_client" and "authorization" in request.headers:
        headers["WWW-Authenticate"] = 'Basic realm="token"'
    body = {"error": error.code, "error_description": str(error)}
    return Response(
        body,
        status_code=401 if error.code == "invalid_client" else 400,
        headers=headers,
    )


async def _parameters_of(request: AnyRequest) -> Parameters:
    """Return the parameters of the query or the form; raises `OAuthError` for malformed and
    repeated ones.

    Parameters without a value are omitted (RFC 6749 section 3.1).
    """
    is_get = request.method == HttpMethod.GET
    raw: bytes = request.scope["query_string"] if is_get else await request.body()
    try:
        pairs = parse_qsl(
            raw.decode(),
            keep_blank_values=True,
            strict_parsing=bool(raw),
            errors="strict",
            max_num_fields=_MAX_PARAMETERS,
        )
    except ValueError:
        raise OAuthError("invalid_request", "The parameters are malformed.") from None
    if len({name for name, _ in pairs}) != len(pairs):
        raise OAuthError("invalid_request", "A parameter is repeated.")
    return {name: text for name, text in pairs if text}


def _required(parameters: Parameters, name: str) -> str:
    if name not in parameters:
        raise OAuthError("invalid_request", f"{name} is missing.")
    return parameters[name]


def _scopes_of(parameters: Parameters) -> tuple[str, ...]:
    """Return the known scopes of a request: OpenID's, and those of the form
    ``<resource>:<action>``.
    """
    wanted = dict.fromkeys(parameters.get("scope", "").split(" "))
    return tuple(entry for entry in wanted if entry in OIDC_SCOPES or is_scope(entry))


def _state(parameters: Parameters) -> dict[str, str]:
    return {"state": parameters["state"]} if "state" in parameters else {}


def _with_query(uri: str, fields: Mapping[str, str]) -> str:
    return f"{uri}{'&' if '?' in uri else '?'}{urlencode(fields)}" if fields else uri


def _basic(authorization: str) -> tuple[str, str]:
    """Decode the id and secret in a Basic header, which are form-encoded (RFC 6749 section
    2.3.1).
    """
    scheme, _, credentials = authorization.partition(" ")
    try:
        decoded = base64.b64decode(credentials).decode()
    except ValueError:
        decoded = ""
    client_id, colon, secret = decoded.partition(":")
    if scheme.lower() != "basic" or not colon:
        raise OAuthError("invalid_client", "The Authorization header is not a valid Basic header.")
    return unquote_plus(client_id), unquote_plus(secret)


def _is_silent(parameters: Parameters) -> bool:
    """Whether the client forbids a page (OpenID Connect Core 3.1.2.1)."""
    return "none" in parameters.get("prompt", "").split(" ")


def _request_error(parameters: Parameters) -> tuple[str, str] | None:
    """Return error code and description of a bad authorization request (RFC 6749 section
    4.1.2.1).
    """
    if parameters.get("response_type") != "code":
        return "unsupported_response_type", "response_type must be code."
    code_challenge = parameters.get("code_challenge", "")
    if (
        parameters.get("code_challenge_method") != "S256"
        or _CODE_CHALLENGE.fullmatch(code_challenge) is None
    ):
        return "invalid_request", "PKCE with S256 is required."
    if "max_age" in parameters and _SECONDS.fullmatch(parameters["max_age"]) is None:
        return "invalid_request", "max_age must be a number of seconds."
    return None


def _sign_in_error(
    parameters: Parameters, moment: datetime | None, *, chosen: bool
) -> tuple[str, str] | None:
    """Return error code and description where no user has signed in and no page may be shown, or
    the page did not sign one in.
    """
    if _is_silent(parameters) and (chosen or moment is None):
        return "login_required", "login_hint names no user, or one who has to sign in again."
    if chosen and moment is None:
        return "access_denied", "No user was chosen."
    return None


@dataclass(frozen=True)
class _IdentityProvider:
    tokens: TokenIssuer
    users: Sequence[DemoUser]
    client_secret: Secret | None
    grants: Grants
    pages: Pages
    signed_in_at: dict[str, datetime] = field(default_factory=dict)
    """When each user last signed in, by their ``sub``."""

    def routes(self) -> list[ControllerRouterHandler]:
        own_page_only = self._reject_other_site
        return [
            get("/.well-known/openid-configuration")(self._discovery),
            get("/jwks")(self._jwks),
            route("/authorize", http_method=_GET_OR_POST, status_code=200)(self._authorize),
            post("/authorize/choice", before_request=own_page_only)(self._choose),
            post("/token", status_code=200)(self._token),
            post("/revoke", status_code=200)(self._revoke),
            route("/userinfo", http_method=_GET_OR_POST, status_code=200)(self._userinfo),
            route("/logout", http_method=_GET_OR_POST, status_code=200)(self._logout),
            post("/device_authorization", status_code=200)(self._begin_device),
            get("/device")(self._ask_for_device),
            post("/device/choice", status_code=200, before_request=own_page_only)(
                self._decide_device
            ),
        ]

    async def _discovery(self) -> dict[str, Any]:
        issuer = self.tokens.issuer
        authentication = ["none"] if self.client_secret is None else ["none", "client_secret_basic"]
        return {
            "issuer": issuer,
            "authorization_endpoint": f"{issuer}/authorize",
            "token_endpoint": f"{issuer}/token",
            "device_authorization_endpoint": f"{issuer}/device_authorization",
            "revocation_endpoint": f"{issuer}/revoke",
            "userinfo_endpoint": f"{issuer}/userinfo",
            "jwks_uri": f"{issuer}/jwks",
            "end_session_endpoint": f"{issuer}/logout",
            "scopes_supported": list(OIDC_SCOPES),
            "response_types_supported": ["code"],
            "response_modes_supported": ["query"],
            "grant_types_supported": ["authorization_code", "refresh_token", DEVICE_GRANT],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": [self.tokens.algorithm],
            "token_endpoint_auth_methods_supported": authentication,
            "code_challenge_methods_supported": ["S256"],
            "authorization_response_iss_parameter_supported": True,
            "request_uri_parameter_supported": False,
        }

    async def _jwks(self) -> dict[str, Any]:
        key = self.tokens.signing_key
        return {
            "keys": [
                key.as_dict(
                    private=False,
                    kid=key.thumbprint(),
                    alg=self.tokens.algorithm,
                    use="sig",
                )
            ]
        }

    def _reject(self, message: str) -> Response[str]:
        return self.pages.message("Sign-in failed", message, 400)

    async def _reject_other_site(self, request: AnyRequest) -> Response[str] | None:
        if request.headers.get("sec-fetch-site", "same-origin") in {"same-origin", "none"}:
            return None
        return self._reject("The choice did not come from this provider's own page.")

    def _user(self, sub: object) -> DemoUser | None:
        return next((user for user in self.users if user.sub == sub), None)

    async def _authorize(self, parameters: Parameters) -> Response[str]:
        """Show the users, or send the client the code of the one that it names."""
        return self._answer_client(
            parameters,
            self._user(parameters.get("login_hint")),
            chosen=False,
        )

    async def _choose(self, parameters: Parameters) -> Response[str]:
        return self._answer_client(
            parameters,
            self._user(parameters.get("user")),
            chosen=True,
        )

    def _answer_client(
        self, parameters: Parameters, user: DemoUser | None, *, chosen: bool
    ) -> Response[str]:
        """Send the client the user's code or an error (RFC 6749 section 4.1), or ask for a user."""
        if (fault := self._client_fault(parameters)) is not None:
            return self._reject(fault)
        error, moment = _request_error(parameters), None
        if error is None and user is not None:
            moment = self._sign_in(parameters, user, chosen=chosen)
        if error := error or _sign_in_error(parameters, moment, chosen=chosen):
            return self._redirect_back(parameters, error=error[0], error_description=error[1])
        if user is not None and moment is not None:
            return self._redirect_back(parameters, code=self._new_code(parameters, user, moment))
        return self._ask_for_user(parameters)

    def _client_fault(self, parameters: Parameters) -> str | None:
        """Say why nothing may be sent to the address of this client; None if it may be."""
        if parameters.get("client_id") != self.tokens.client_id:
            return f"client_id is not {self.tokens.client_id}."
        if _LOOPBACK_URI.fullmatch(parameters.get("redirect_uri", "")) is None:
            return (
                "redirect_uri is not an http address on loopback, such as http://127.0.0.1:3001/..."
            )
        return None

    def _ask_for_user(self, parameters: Parameters) -> Response[str]:
        redirect_uri = parameters["redirect_uri"]
        parts = urlsplit(redirect_uri)
        return self.pages.page(
            "users.html",
            form_action=form_action_to(redirect_uri),
            client_origin=f"{parts.scheme}://{parts.netloc}",
            users=self.users,
            parameters={name: text for name, text in parameters.items() if name != "user"},
        )

    def _redirect_back(self, parameters: Parameters, **fields: str) -> Response[str]:
        """Redirect to the client; iss as in RFC 9207."""
        fields |= _state(parameters) | {"iss": self.tokens.issuer}
        return redirect(_with_query(parameters["redirect_uri"], fields))

    def _sign_in(self, parameters: Parameters, user: DemoUser, *, chosen: bool) -> datetime | None:
        """Return when the user signed in; None if that was longer ago than the client accepts
        (``max_age``).

        To be chosen is to sign in, and so is to be named by a client that neither forbids a page
        nor gives ``max_age``.
        """
        now = self.tokens.clock()
        before = self.signed_in_at.get(user.sub)
        if "max_age" in parameters and not chosen:
            allowed = timedelta(seconds=int(parameters["max_age"]))
            return before if before is not None and now - before <= allowed else None
        if chosen or before is None or not _is_silent(parameters):
            before = self.signed_in_at[user.sub] = now
        return before

    def _new_code(self, parameters: Parameters, user: DemoUser, signed_in_at: datetime) -> str:
        grant = Grant(user, _scopes_of(parameters), parameters.get("nonce"), signed_in_at)
        return self.grants.new_code(
            grant,
            redirect_uri=parameters["redirect_uri"],
            code_challenge=parameters["code_challenge"],
        )

    def _check_client(self, parameters: Parameters, request: AnyRequest) -> None:
        """Raise `OAuthError` for an unknown client, and for a wrong secret if it gives one."""
        client_id, secret = parameters.get("client_id"), None
        if "authorization" in request.headers:
            basic_id, secret = _basic(request.headers["authorization"])
            if client_id not in {None, basic_id}:
                raise OAuthError("invalid_request", "The request has two client ids.")
            client_id = basic_id
        if client_id != self.tokens.client_id:
            raise OAuthError("invalid_client", "The client is unknown.")
        expected = self.client_secret.reveal() if self.client_secret else ""
        if secret is not None and not hmac.compare_digest(secret.encode(), expected.encode()):
            raise OAuthError("invalid_client", "The client's secret is wrong.")

    async def _token(self, parameters: Parameters, request: AnyRequest) -> dict[str, Any]:
        """Return tokens (RFC 6749 section 5.1); raises `OAuthError`."""
        self._check_client(parameters, request)
        match parameters.get("grant_type"):
            case "authorization_code":
                grant = self.grants.redeem(
                    _required(parameters, "code"),
                    redirect_uri=_required(parameters, "redirect_uri"),
                    code_verifier=_required(parameters, "code_verifier"),
                )
                return self._all_tokens(grant, nonce=grant.nonce)
            case "refresh_token":
                # without nonce: OpenID Connect Core 12.2
                return self._all_tokens(self.grants.refresh(_required(parameters, "refresh_token")))
            case "urn:ietf:params:oauth:grant-type:device_code":
                return self._all_tokens(
                    self.grants.poll_device(_required(parameters, "device_code"))
                )
            case None:
                raise OAuthError("invalid_request", "grant_type is missing.")
            case _:
                raise OAuthError("unsupported_grant_type", "This grant_type is not supported.")

    def _all_tokens(self, grant: Grant, *, nonce: str | None = None) -> dict[str, Any]:
        scope = " ".join(grant.scopes)
        access_token = self.tokens.access_token(grant.user, scope=scope)
        body = {
            "access_token": access_token,
            "token_type": "Bearer",
            "expires_in": int(ACCESS_TOKEN_LIFETIME.total_seconds()),
            "scope": scope,
            "refresh_token": self.grants.new_refresh_token(grant),
        }
        if "openid" in grant.scopes:
            body["id_token"] = self.tokens.id_token(grant, access_token, nonce=nonce)
        return body

    async def _userinfo(self, request: AnyRequest) -> Response[dict[str, Any]]:
        """Answer as in OpenID Connect Core 5.3, with the errors of RFC 6750 section 3."""

        def refused(status: int, challenge: str) -> Response[dict[str, Any]]:
            return Response({}, status_code=status, headers={"WWW-Authenticate": challenge})

        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            return refused(401, "Bearer")
        claims = self.tokens.read(token.strip()) or {}
        scopes = tuple(str(claims.get("scope", "")).split(" "))
        user = self._user(claims.get("sub"))
        if claims and "openid" not in scopes:
            return refused(403, 'Bearer error="insufficient_scope", scope="openid"')
        if user is None:
            return refused(401, 'Bearer error="invalid_token"')
        return Response({"sub": user.sub, **user_claims(user, scopes)})

    async def _revoke(self, parameters: Parameters, request: AnyRequest) -> dict[str, Any]:
        self._check_client(parameters, request)
        self.grants.revoke(parameters.get("token", ""))
        return {}

    async def _logout(self, parameters: Parameters) -> Response[str]:
        """Redirect back to the client (RP-Initiated Logout); this provider has no sessions to
        end.
        """
        target = parameters.get("post_logout_redirect_uri")
        if target is None:
            return self.pages.message("Signed out", "You can close this page.")
        if (
            _LOOPBACK_URI.fullmatch(target) is None
            or parameters.get("client_id") != self.tokens.client_id
        ):
            return self._reject("post_logout_redirect_uri needs a loopback address, and client_id.")
        return redirect(_with_query(target, _state(parameters)))

    async def _begin_device(self, parameters: Parameters, request: AnyRequest) -> dict[str, Any]:
        """Begin the sign-in of a device (RFC 8628)."""
        self._check_client(parameters, request)
        device_code, user_code = self.grants.begin_device(_scopes_of(parameters))
        page = f"{self.tokens.issuer}/device"
        return {
            "device_code": device_code,
            "user_code": user_code,
            "verification_uri": page,
            "verification_uri_complete": _with_query(page, {"user_code": user_code}),
            "expires_in": int(DEVICE_LIFETIME.total_seconds()),
            "interval": int(DEVICE_INTERVAL.total_seconds()),
        }

    async def _ask_for_device(self, parameters: Parameters) -> Response[str]:
        user_code = parameters.get("user_code", "")
        return self.pages.page(
            "device.html",
            form_action="'self'",
            user_code=user_code,
            users=self.users,
        )

    async def _decide_device(self, parameters: Parameters) -> Response[str]:
        user = self._user(parameters.get("user"))
        if user is None and "deny" not in parameters:
            return self._reject("Choose a user.")
        grant = Grant(user, (), None, self.tokens.clock()) if user else None
        if not self.grants.decide_device(parameters.get("user_code", ""), grant):
            return self._reject("No device is waiting with this code.")
        title = f"The device is signed in as {user.name}" if user else "The device was denied"
        return self.pages.message(title, "You can close this page.")
