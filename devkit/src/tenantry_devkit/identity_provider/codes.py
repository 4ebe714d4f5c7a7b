"""Requests for authorization codes and device codes, and the grants that they lead to."""

import base64
import hashlib
import hmac
import re
import secrets
from datetime import datetime, timedelta
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit

import msgspec
from litestar import HttpMethod, Request

from tenantry.common.clock import Clock
from tenantry.domain.access import is_scope
from tenantry_devkit.identity_provider.tokens import DemoUser

OIDC_SCOPES: Final = ("openid", "profile", "email", "offline_access")
MAX_PARAMETERS: Final = 50
# RFC 8252 section 7.3: http on a loopback address, on any port. No fragment, no user part, and no backslash, which
# browsers take for a slash.
_loopback = re.compile(
    r"https?://(?:localhost|127(?:\.\d{1,3}){3}|\[::1\])(?::\d{1,5})?(?:[/?][^#\\\"<>^`{|}\s\x00-\x20\x7f-\U0010ffff]*)?"
)
# RFC 7636 section 4.2: base64url of a SHA-256 digest, without padding.
_s256 = re.compile(r"[A-Za-z0-9_-]{43}")


def with_query(uri: str, fields: dict[str, str]) -> str:
    """``uri``, which has no fragment, with ``fields`` appended to its query."""
    return f"{uri}{'&' if '?' in uri else '?'}{urlencode(fields)}" if fields else uri


class RefusedRequestError(Exception):
    """An authorization request whose client or redirect address is not trusted: its sender is told, nobody else."""


class RedirectedError(Exception):
    """An authorization request that is answered to the client with an error (RFC 6749 section 4.1.2.1)."""

    def __init__(self, code: str, description: str) -> None:
        super().__init__(description)
        self.code = code
        self.description = description


class Client(msgspec.Struct, frozen=True):
    """Where an answer of the authorization endpoint goes."""

    redirect_uri: str
    state: str | None

    def location(self, issuer: str, **answer: str) -> str:
        """The redirect address with ``answer`` in its query, and the issuer beside it (RFC 9207)."""
        fields = {**answer, **({} if self.state is None else {"state": self.state}), "iss": issuer}
        return with_query(self.redirect_uri, fields)

    @property
    def origin(self) -> str:
        """Scheme, host and port of the redirect address."""
        parts = urlsplit(self.redirect_uri)
        return f"{parts.scheme}://{parts.netloc}"


class AuthorizationRequest(msgspec.Struct, frozen=True):
    """What a client asks a user for."""

    scopes: tuple[str, ...]
    nonce: str | None
    code_challenge: str


def read_parameters(raw: bytes) -> dict[str, str]:
    """The parameters in a query or a form; those without a value are left out (RFC 6749 section 3.1).

    Raises `OAuthError` ``invalid_request`` for one that is there twice, for too many, and for what is not UTF-8.
    """
    try:
        pairs = parse_qsl(raw.decode(), keep_blank_values=True, errors="strict", max_num_fields=MAX_PARAMETERS)
    except ValueError:
        raise OAuthError("invalid_request", "The parameters cannot be read.") from None
    if len({name for name, _ in pairs}) != len(pairs):
        raise OAuthError("invalid_request", "A parameter is there twice.")
    return {name: text for name, text in pairs if text}


def granted_scopes(scope: str) -> tuple[str, ...]:
    """The entries of ``scope`` that mean something here: OpenID's, and those of the form ``<resource>:<action>``."""
    wanted = dict.fromkeys(scope.split(" "))
    return tuple(entry for entry in wanted if entry in OIDC_SCOPES or is_scope(entry))


def is_loopback(uri: str) -> bool:
    """Whether ``uri`` is an http(s) address on this machine that a browser reads in the same way."""
    return _loopback.fullmatch(uri) is not None


def read_client(parameters: dict[str, str], client_id: str) -> Client:
    """Who asks; raises `RefusedRequestError` for another client and for a redirect address beyond loopback."""
    if parameters.get("client_id") != client_id:
        raise RefusedRequestError(f"client_id is not {client_id}.")
    redirect_uri = parameters.get("redirect_uri", "")
    if not is_loopback(redirect_uri):
        raise RefusedRequestError("redirect_uri is not an http address on loopback, such as http://127.0.0.1:3001/...")
    return Client(redirect_uri, parameters.get("state"))


def read_authorization_request(parameters: dict[str, str]) -> AuthorizationRequest:
    """What is asked for; raises `RedirectedError`."""
    if "request" in parameters:
        raise RedirectedError("request_not_supported", "Request objects are not supported.")
    if "request_uri" in parameters:
        raise RedirectedError("request_uri_not_supported", "Request objects are not supported.")
    if parameters.get("response_type") != "code":
        raise RedirectedError("unsupported_response_type", "response_type must be code.")
    if parameters.get("response_mode", "query") != "query":
        raise RedirectedError("invalid_request", "response_mode must be query.")
    if parameters.get("code_challenge_method") != "S256":
        raise RedirectedError("invalid_request", "PKCE is required: code_challenge_method must be S256.")
    code_challenge = parameters.get("code_challenge", "")
    if _s256.fullmatch(code_challenge) is None:
        raise RedirectedError("invalid_request", "PKCE is required: code_challenge must be a SHA-256 in base64url.")
    return AuthorizationRequest(granted_scopes(parameters.get("scope", "")), parameters.get("nonce"), code_challenge)


def check_may_ask(parameters: dict[str, str], *, known: bool) -> None:
    """Raise `RedirectedError` where nobody may be asked (``prompt=none``), and who signs in is not ``known``."""
    if not known and "none" in parameters.get("prompt", "").split(" "):
        raise RedirectedError("login_required", "Nobody is signed in here, and login_hint names no user.")


NO_STORE: Final = {"Cache-Control": "no-store", "Pragma": "no-cache"}
AnyRequest = Request[Any, Any, Any]


async def parameters_of(request: AnyRequest) -> dict[str, str]:
    """The parameters in the query, or in the form of any other request than GET. Raises `OAuthError`."""
    if request.method == HttpMethod.GET:
        return read_parameters(request.scope["query_string"])
    if request.content_type[0] != "application/x-www-form-urlencoded":
        raise OAuthError("invalid_request", "The body must be application/x-www-form-urlencoded.")
    return read_parameters(await request.body())


def comes_from_elsewhere(request: AnyRequest) -> bool:
    """Whether a page of another site has sent it."""
    return request.headers.get("sec-fetch-site", "same-origin") not in {"same-origin", "none"}


CODE_LIFETIME: Final = timedelta(seconds=60)
REFRESH_LIFETIME: Final = timedelta(days=30)


class OAuthError(Exception):
    """An error answer of RFC 6749 section 5.2: its ``error`` code and a description that holds nothing secret."""

    def __init__(self, code: str, description: str) -> None:
        super().__init__(description)
        self.code = code
        self.description = description


class Grant(msgspec.Struct, frozen=True):
    """What one sign-in allows."""

    user: DemoUser
    scopes: tuple[str, ...]
    nonce: str | None
    authenticated_at: datetime


class _Code(msgspec.Struct):
    grant: Grant
    redirect_uri: str
    code_challenge: str
    expires_at: datetime
    is_spent: bool = False


class _RefreshToken(msgspec.Struct):
    grant: Grant
    sign_in: str
    expires_at: datetime
    is_spent: bool = False


class Grants:
    """Codes work once, for 60 s; refresh tokens work once, for 30 days, and are replaced at each use.

    A code or refresh token that is used again was stolen, from the client or by it: every refresh token of that
    sign-in ends (RFC 6749 section 4.1.2, RFC 9700 section 4.14.2). There is one client, so all are bound to it.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._codes: dict[str, _Code] = {}
        self._refresh_tokens: dict[str, _RefreshToken] = {}

    def new_code(self, grant: Grant, *, redirect_uri: str, code_challenge: str) -> str:
        """A code that `redeem` takes from whoever knows the verifier of ``code_challenge`` (S256, RFC 7636)."""
        now = self._clock()
        self._codes = {code: entry for code, entry in self._codes.items() if entry.expires_at > now}
        code = secrets.token_urlsafe(32)
        self._codes[code] = _Code(grant, redirect_uri, code_challenge, now + CODE_LIFETIME)
        return code

    def redeem(self, code: str, *, redirect_uri: str, code_verifier: str) -> tuple[Grant, str]:
        """What ``code`` stands for, and the first refresh token. The code is spent even when this is refused.

        Raises `OAuthError` ``invalid_grant``.
        """
        entry = self._codes.get(code)
        if entry is None or entry.expires_at <= self._clock():
            raise OAuthError("invalid_grant", "The code is unknown or has expired.")
        if entry.is_spent:
            self._end_sign_in(code)
            raise OAuthError("invalid_grant", "The code was used before.")
        entry.is_spent = True
        if redirect_uri != entry.redirect_uri:
            raise OAuthError("invalid_grant", "redirect_uri is not the one that the code was sent to.")
        digest = hashlib.sha256(code_verifier.encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).rstrip(b"=")
        if not hmac.compare_digest(challenge, entry.code_challenge.encode()):
            raise OAuthError("invalid_grant", "code_verifier does not match the code_challenge.")
        return entry.grant, self._new_refresh_token(entry.grant, code)

    def rotate(self, refresh_token: str, scopes: tuple[str, ...] | None) -> tuple[Grant, str]:
        """What ``refresh_token`` stands for, and its successor; ``scopes`` must be among those granted.

        Raises `OAuthError` ``invalid_grant`` or ``invalid_scope``; the latter does not spend the token.
        """
        entry = self._refresh_tokens.get(refresh_token)
        if entry is None or entry.expires_at <= self._clock():
            raise OAuthError("invalid_grant", "The refresh token is unknown or has ended.")
        if entry.is_spent:
            self._end_sign_in(entry.sign_in)
            raise OAuthError("invalid_grant", "The refresh token was used before.")
        if scopes is not None and not set(scopes) <= set(entry.grant.scopes):
            raise OAuthError("invalid_scope", "scope asks for more than was granted.")
        entry.is_spent = True
        return entry.grant, self._new_refresh_token(entry.grant, entry.sign_in)

    def begin(self, grant: Grant, sign_in: str) -> str:
        """The first refresh token of a sign-in that needed no code of ours; ``sign_in`` names it."""
        return self._new_refresh_token(grant, sign_in)

    def revoke(self, refresh_token: str) -> None:
        """End the sign-in that this token is of; another text ends nothing."""
        entry = self._refresh_tokens.get(refresh_token)
        if entry is not None:
            self._end_sign_in(entry.sign_in)

    def end(self, sub: str) -> None:
        """End all refresh tokens of this user."""
        kept = {text: entry for text, entry in self._refresh_tokens.items() if entry.grant.user.sub != sub}
        self._refresh_tokens = kept

    def _new_refresh_token(self, grant: Grant, sign_in: str) -> str:
        now = self._clock()
        kept = {text: entry for text, entry in self._refresh_tokens.items() if entry.expires_at > now}
        token = secrets.token_urlsafe(32)
        self._refresh_tokens = {**kept, token: _RefreshToken(grant, sign_in, now + REFRESH_LIFETIME)}
        return token

    def _end_sign_in(self, sign_in: str) -> None:
        kept = {text: entry for text, entry in self._refresh_tokens.items() if entry.sign_in != sign_in}
        self._refresh_tokens = kept


DEVICE_GRANT: Final = "urn:ietf:params:oauth:grant-type:device_code"
LIFETIME: Final = timedelta(minutes=10)
INTERVAL: Final = timedelta(seconds=1)
"""How long a device has to wait between two questions: short, since there is one developer and no load."""
_SLOWER: Final = timedelta(seconds=5)
# RFC 8628 section 6.1: no vowels, so no words, and nothing that is taken for something else.
_LETTERS: Final = "BCDFGHJKLMNPQRSTVWXZ"


class _Device(msgspec.Struct):
    user_code: str
    scopes: tuple[str, ...]
    expires_at: datetime
    next_question: datetime
    interval: timedelta = INTERVAL
    grant: Grant | None = None
    is_denied: bool = False


class Devices:
    """Device codes, in memory, each for one sign-in within ten minutes."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._devices: dict[str, _Device] = {}

    def begin(self, scopes: tuple[str, ...]) -> tuple[str, str]:
        """A device code, and the user code that goes with it."""
        now = self._clock()
        self._devices = {code: device for code, device in self._devices.items() if device.expires_at > now}
        letters = "".join(secrets.choice(_LETTERS) for _ in range(8))
        user_code, device_code = f"{letters[:4]}-{letters[4:]}", secrets.token_urlsafe(32)
        self._devices[device_code] = _Device(user_code, scopes, now + LIFETIME, now + INTERVAL)
        return device_code, user_code

    def is_waiting(self, user_code: str) -> bool:
        """Whether somebody may enter this code now."""
        return self._waiting(user_code) is not None

    def decide(self, user_code: str, grant: Grant | None) -> bool:
        """Let the device act so, or deny it; whether there was one that waited. The scopes are those it asked for."""
        device = self._waiting(user_code)
        if device is None:
            return False
        device.is_denied = grant is None
        device.grant = None if grant is None else msgspec.structs.replace(grant, scopes=device.scopes)
        return True

    def ask(self, device_code: str) -> Grant:
        """What the device may do, once. Raises `OAuthError` as long as that is not decided, and ever after."""
        now, device = self._clock(), self._devices.get(device_code)
        if device is None:
            raise OAuthError("invalid_grant", "The device code is unknown or was used before.")
        if device.expires_at <= now:
            raise OAuthError("expired_token", "The device code has expired.")
        if device.is_denied:
            raise OAuthError("access_denied", "The sign-in was denied.")
        if device.grant is not None:
            del self._devices[device_code]
            return device.grant
        too_soon = now < device.next_question
        if too_soon:
            device.interval += _SLOWER
        device.next_question = now + device.interval
        if too_soon:
            raise OAuthError("slow_down", "The device asks too often.")
        raise OAuthError("authorization_pending", "Nobody has entered the code yet.")

    def _waiting(self, user_code: str) -> _Device | None:
        wanted, now = _plain(user_code), self._clock()
        for device in self._devices.values():
            decided = device.is_denied or device.grant is not None
            if _plain(device.user_code) == wanted and device.expires_at > now and not decided:
                return device
        return None


def _plain(user_code: str) -> str:
    """The letters alone: people leave the hyphen out, and type in lower case."""
    return "".join(letter for letter in user_code.upper() if letter in _LETTERS)
