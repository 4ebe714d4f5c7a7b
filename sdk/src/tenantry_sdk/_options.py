"""What one call may change of its client's settings, and the headers of its requests. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, TypedDict, get_args

import msgspec

from tenantry_sdk._request import Call, visible
from tenantry_sdk._retry import RetrySettings
from tenantry_sdk._secret import Secret
from tenantry_sdk._tokens import Token
from tenantry_sdk._version import __version__
from tenantry_sdk.types import Mode

_TIMES: Final = frozenset({"timeout", "attempt_timeout", "retries"})
_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_VALUE: Final = re.compile(r"[\x21-\x7e](?:[\x20-\x7e\t]*[\x21-\x7e])?")
_RESERVED: Final = frozenset(
    {
        "authorization",
        "content-length",
        "content-type",
        "host",
        "idempotency-key",
        "transfer-encoding",
    }
)
_ORGANIZATION: Final = "x-organization-id"
_ACT_AS: Final = "x-act-as-organization"
_ACT_IN_MODE: Final = "x-act-in-mode"
_ON_BEHALF_OF: Final = "x-on-behalf-of"
_ACTING: Final = frozenset({_ACT_AS, _ACT_IN_MODE, _ON_BEHALF_OF})
_HEADERS: Final = {"Accept": "application/json", "User-Agent": f"tenantry-sdk/{__version__}"}


class CallOptions(TypedDict, total=False):
    """Options that every method takes, as named arguments; `with_options` sets them for all calls
    of a copy.
    """

    timeout: float
    """Seconds that the call takes at most, retries included."""
    attempt_timeout: float
    """Seconds that each attempt takes at most."""
    retries: int
    """How often the request is repeated at most, if it can be; 0 means never."""
    headers: Mapping[str, str]
    """Further headers, such as ``X-Request-Id``. They are added to those of the client, which are
    for its own requests: a check of another caller sends none of the client's.
    """


class Acting(msgspec.Struct, frozen=True):
    """The tenant for which the operator acts, and the operator's user who wants it."""

    tenant_id: str
    mode: Mode
    on_behalf_of: str | None

    def __post_init__(self) -> None:
        visible(self.tenant_id, "tenant_id")
        if self.mode not in get_args(Mode):
            raise ValueError(f"mode is live or test, not {self.mode!r}")
        if self.on_behalf_of is not None:
            visible(self.on_behalf_of, "on_behalf_of")

    @property
    def headers(self) -> dict[str, str | None]:
        """The headers that say so."""
        return {
            _ACT_AS: self.tenant_id,
            _ACT_IN_MODE: "test" if self.mode == "test" else None,
            _ON_BEHALF_OF: self.on_behalf_of,
        }


class Options(msgspec.Struct, frozen=True):
    """The retry settings, the organization and the further headers of calls; for the operator's
    client the tenant for which it is ``acting``.
    """

    retry: RetrySettings
    organization: str | None = None
    headers: Mapping[str, str] = {}
    acting: Acting | None = None

    def __post_init__(self) -> None:
        if self.organization is not None:
            visible(self.organization, "organization")

    def with_changes(self, changes: CallOptions, organization: str | None = None) -> Options:
        """Return these options with changes. Raises `TypeError` and `ValueError` for invalid
        ones.
        """
        if unknown := changes.keys() - CallOptions.__annotations__.keys():
            raise TypeError(f"unexpected keyword argument {min(unknown)!r}")
        times = {name: value for name, value in changes.items() if name in _TIMES}
        headers = checked_headers(changes.get("headers", {}))
        return msgspec.structs.replace(
            self,
            retry=msgspec.structs.replace(self.retry, **times),
            organization=self.organization if organization is None else organization,
            headers={**self.headers, **headers},
        )

    def headers_of(self, call: Call, token: Token | None) -> dict[str, str | None]:
        """Return the headers of a call's requests. One that is None must not be sent, though the
        HTTP client, which may be the caller's, has it.
        """
        authorization = call.authorization
        if token is not None:
            authorization = Secret(f"Bearer {token.access_token.reveal()}")
        secrets = {"Authorization": authorization, **call.secret_headers}
        headers: dict[str, str | None] = {
            **_HEADERS,
            **({} if call.is_by_caller else self.headers),
            _ORGANIZATION: None if call.is_anonymous else self.organization,
        }
        if self.acting is not None and not call.is_anonymous:
            headers |= self.acting.headers
        if call.body is not None:
            headers["Content-Type"] = "application/json"
        if call.idempotency_key is not None:
            headers["Idempotency-Key"] = call.idempotency_key
        headers |= call.headers
        for name, secret in secrets.items():
            headers[name] = None if secret is None else secret.reveal()
        return headers


def with_headers(call: Call, options: CallOptions) -> Call:
    """Return a caller's request with the headers of its options. Raises `ValueError`."""
    if "headers" not in options:
        return call
    headers = {**checked_headers(options["headers"]), **call.headers}
    return msgspec.structs.replace(call, headers=headers)


def checked_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return headers with names in lower case. Raises `ValueError`, without the value, which may be
    a secret.
    """
    checked = {name.lower(): value for name, value in headers.items()}
    for name, value in checked.items():
        if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
            raise ValueError(f"the header {name!r} has characters that no header can carry")
        if name == _ORGANIZATION:
            raise ValueError("pass organization= instead of a header")
        if name in _ACTING:
            raise ValueError("call client.tenant() instead of a header")
        if name in _RESERVED:
            raise ValueError(f"the client sets the header {name!r} itself")
    return checked
