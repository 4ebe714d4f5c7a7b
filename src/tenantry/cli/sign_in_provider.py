"""The identity provider as a client without a secret sees it: its description of itself, and its endpoints."""

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Final, Self, TypeVar

import httpx2
import msgspec

from tenantry.cli.exit_codes import NOT_AUTHENTICATED, OUT_OF_REACH, CommandError
from tenantry.cli.target import checked_address, is_loopback
from tenantry.cli.text import printable
from tenantry.common.encoding import NOT_JSON
from tenantry_sdk import Secret, Token

_OK: Final = 200
_MOST_BYTES: Final = 256 * 1024
_WELL_KNOWN: Final = "/.well-known/openid-configuration"
_WITHOUT_PROXY: Final = {"all://127.0.0.1": None, "all://localhost": None, "all://[::1]": None}
"""What is sent to this machine in clear must not leave it."""

T = TypeVar("T")


class Metadata(msgspec.Struct, frozen=True):
    """What an issuer says of itself (OpenID Connect Discovery, RFC 8414)."""

    issuer: str
    token_endpoint: str
    authorization_endpoint: str | None = None
    device_authorization_endpoint: str | None = None
    revocation_endpoint: str | None = None
    authorization_response_iss_parameter_supported: bool = False


class Answer(msgspec.Struct, frozen=True):
    """An endpoint's answer; ``fields`` is empty where it is no JSON object."""

    status: int
    fields: dict[str, Any]

    @property
    def error(self) -> str | None:
        """The OAuth error (RFC 6749, 5.2), where there is one."""
        error = self.fields.get("error")
        return error if isinstance(error, str) else None

    @property
    def reason(self) -> str:
        """Why it is no success, in words for people."""
        said = self.fields.get("error_description") or self.fields.get("error") or "nothing that can be read"
        return f"{self.status}, {printable(str(said))[:300]}"


class Provider:
    """An identity provider, asked without a secret of the client's. Everything raises `CommandError`.

    Each answer may take ``seconds``.
    """

    def __init__(
        self, issuer: str, client_id: str, audience: str | None = None, *, seconds: float, stays_here: bool = False
    ) -> None:
        checked_address(issuer, "The issuer")
        self.issuer = issuer
        self.client_id = client_id
        self._audience = audience
        self._stays_here = stays_here
        self._seconds = seconds
        self._http = httpx2.Client(timeout=seconds, follow_redirects=False, mounts=_WITHOUT_PROXY)
        self.metadata = Metadata(issuer, "")

    def discover(self) -> None:
        """Ask the issuer for its endpoints."""
        answer = self._asked("GET", self.issuer.rstrip("/") + _WELL_KNOWN)
        try:
            self.metadata = msgspec.convert(answer.fields, Metadata)
        except msgspec.ValidationError as error:
            raise CommandError(f"{self.issuer} does not describe itself as OpenID providers do: {error}") from None
        if self.metadata.issuer != self.issuer:
            said = printable(self.metadata.issuer)
            raise CommandError(f"{self.issuer} calls itself {said}: the two have to be the same.")
        for name in ("token", "authorization", "device_authorization", "revocation"):
            if (endpoint := getattr(self.metadata, f"{name}_endpoint")) is not None:
                checked_address_of_endpoint(endpoint, f"{self.issuer}, {name}_endpoint")
                if self._stays_here and not is_loopback(endpoint):
                    raise CommandError(f"{self.issuer} is on this machine, and its {name}_endpoint is not: {endpoint}")

    def wishes(self, scope: str) -> dict[str, str]:
        """What every request for tokens says: for which client, what, and for whom (RFC 8707)."""
        audience = {"audience": self._audience, "resource": self._audience} if self._audience else {}
        return {"client_id": self.client_id, "scope": scope, **audience}

    def post(self, endpoint: str, form: Mapping[str, str]) -> Answer:
        """The answer to a form."""
        return self._asked("POST", endpoint, form)

    def token(self, form: Mapping[str, str]) -> Answer:
        """The token endpoint's answer to a grant."""
        audience = {"resource": self._audience} if self._audience else {}
        return self.post(self.metadata.token_endpoint, {**form, "client_id": self.client_id, **audience})

    def revoke(self, token: Token) -> bool:
        """End the refresh token (RFC 7009); whether this provider can end one."""
        if token.refresh_token is None:
            return True
        endpoint = self.metadata.revocation_endpoint
        if endpoint is None:
            return False
        refresh_token = token.refresh_token.reveal()
        form = {"token": refresh_token, "token_type_hint": "refresh_token", "client_id": self.client_id}
        answer = self.post(endpoint, form)
        if answer.status != _OK:
            raise CommandError(f"The identity provider said: {answer.reason}.")
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def _asked(self, method: str, url: str, form: Mapping[str, str] | None = None) -> Answer:
        try:
            status, content = _within(self._seconds, lambda: self._whole(method, url, form))
        except TimeoutError:
            raise CommandError(
                f"The identity provider at {url} does not answer: no whole answer within {self._seconds:g} s",
                OUT_OF_REACH,
            ) from None
        except httpx2.TransportError as error:
            reason = str(error) or type(error).__name__
            raise CommandError(f"The identity provider at {url} does not answer: {reason}", OUT_OF_REACH) from None
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise CommandError(f"The identity provider at {url} cannot be asked: {error}") from None
        try:
            fields = msgspec.json.decode(content, type=dict[str, Any])
        except NOT_JSON:
            fields = {}
        return Answer(status, fields)

    def _whole(self, method: str, url: str, form: Mapping[str, str] | None) -> tuple[int, bytes]:
        ends = time.monotonic() + self._seconds
        with self._http.stream(method, url, data=form, headers={"Accept": "application/json"}) as response:
            content = bytearray()
            for chunk in response.iter_bytes():
                content += chunk
                if len(content) > _MOST_BYTES:
                    raise CommandError(f"{url} answers with more than {_MOST_BYTES // 1024} KiB.")
                if time.monotonic() > ends:
                    raise TimeoutError  # whoever asked is gone
        return response.status_code, bytes(content)


def _within(seconds: float, function: Callable[[], T]) -> T:
    """What a function gives. Raises what it raises, and `TimeoutError` where it is not over by then.

    In a thread of its own: nothing else bounds the look-up of a host's name, or an answer that comes in bit by bit.
    """
    outcome: Future[T] = Future()

    def run() -> None:
        try:
            outcome.set_result(function())
        except BaseException as error:  # noqa: BLE001  # whatever it is, it is the caller's
            outcome.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return outcome.result(seconds)


def checked_address_of_endpoint(endpoint: str, source: str) -> str:
    """An endpoint, which may have a query (RFC 6749, 3.1). Raises `CommandError` for one that is not safe."""
    if not endpoint.isascii() or not endpoint.isprintable() or " " in endpoint:
        raise CommandError(f"{source}: {endpoint!a} is no http address.")
    checked_address(endpoint.partition("?")[0], source)
    return endpoint


def token_of(answer: Answer) -> Token:
    """The tokens in a token endpoint's answer (RFC 6749, 5.1), usable or not. Raises `CommandError`."""
    access_token = answer.fields.get("access_token")
    if answer.status != _OK or not isinstance(access_token, str) or not access_token:
        raise CommandError(f"The identity provider gave no token: {answer.reason}.", NOT_AUTHENTICATED)
    if str(answer.fields.get("token_type", "")).lower() != "bearer":
        raise CommandError("The identity provider gave a token of another type than Bearer.", NOT_AUTHENTICATED)
    said = answer.fields.get("expires_in")
    lifetime = float(said) if isinstance(said, int | float) and not isinstance(said, bool) and said > 0 else None
    refresh_token = answer.fields.get("refresh_token")
    return Token(
        Secret(access_token),
        None if lifetime is None else time.time() + lifetime,
        Secret(refresh_token) if isinstance(refresh_token, str) and refresh_token else None,
        lifetime,
    )


def checked_token(token: Token) -> Token:
    """A token that a header can carry. Raises `CommandError` for any other."""
    text = token.access_token.reveal().strip()
    if not text or not text.isascii() or not text.isprintable() or " " in text:
        raise CommandError("The identity provider gave a token with characters that none has.", NOT_AUTHENTICATED)
    return msgspec.structs.replace(token, access_token=Secret(text))
