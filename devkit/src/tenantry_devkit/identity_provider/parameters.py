"""Reading requests: parameters, scopes, redirect addresses, and the whole authorization request."""

import re
from typing import Final
from urllib.parse import parse_qsl, urlencode, urlsplit

import msgspec

from tenantry.domain.access import is_scope
from tenantry_devkit.identity_provider.grants import OAuthError

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
