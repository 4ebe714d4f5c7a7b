"""Webhooks: the endpoints of the plan catalog, and the signatures of messages to them.

The signatures are those of Standard Webhooks 1.0 (https://www.standardwebhooks.com).
"""

import base64
import binascii
import hmac
import re
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final
from urllib.parse import SplitResult, urlsplit

import msgspec

from tenantry.common.secret import Secret, is_known_default
from tenantry.domain.errors import ValidationError
from tenantry.domain.outbound_events import TypeFilter
from tenantry.domain.public_addresses import is_private_literal

MAX_ENDPOINTS: Final = 10
_MAX_SECRETS: Final = 2
_MAX_URL_LENGTH: Final = 2000
_URL_FORM: Final = (
    f"url must be an address of at most {_MAX_URL_LENGTH:,} visible ASCII characters, such as "
    "https://example.com/webhooks"
)
_SECRET_PREFIX: Final = "whsec_"  # noqa: S105  # how secrets begin
_SECRET_BYTES: Final = range(24, 65)
_name: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}", re.ASCII)


class WebhookEndpoint(msgspec.Struct, frozen=True):
    """Where the events of ``types`` are sent to.

    Each of the ``secrets`` signs: there are two while one replaces the other. With
    ``allow_private`` the address may be in a network that is not public.
    """

    name: str
    url: str
    types: TypeFilter
    secrets: tuple[Secret, ...]
    allow_private: bool = False

    def __repr__(self) -> str:
        return f"WebhookEndpoint(name={self.name!r})"

    @property
    def shown_url(self) -> str:
        """The URL without its query, which may contain a secret of the receiver."""
        path, question_mark, _ = self.url.partition("?")
        return f"{path}?..." if question_mark else path


def signed_headers(
    endpoint: WebhookEndpoint, webhook_id: str, now: datetime, body: bytes
) -> dict[str, str]:
    """Return the headers that sign a message: its id, the time of the attempt, and a signature by
    each secret.

    The id has no full stop and stays the same at each attempt, so that receivers detect duplicates.
    """
    timestamp = str(int(now.timestamp()))
    signed = b".".join((webhook_id.encode(), timestamp.encode(), body))
    signatures = [_signature(secret, signed) for secret in endpoint.secrets]
    return {
        "webhook-id": webhook_id,
        "webhook-timestamp": timestamp,
        "webhook-signature": " ".join(signatures),
    }


def _signature(secret: Secret, signed: bytes) -> str:
    key = _key_of(secret.reveal())
    return "v1," + base64.b64encode(hmac.digest(key, signed, "sha256")).decode()


def _key_of(secret: str) -> bytes:
    """Return the key that a secret contains. Raises `ValueError` without a part of the secret."""
    fault = (
        f"must be {_SECRET_PREFIX} and base64 of {_SECRET_BYTES[0]} to {_SECRET_BYTES[-1]} bytes"
    )
    if not secret.startswith(_SECRET_PREFIX):
        raise ValueError(fault)
    try:
        key = base64.b64decode(secret.removeprefix(_SECRET_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raise ValueError(fault) from None
    if len(key) not in _SECRET_BYTES:
        raise ValueError(fault)
    return key


def _check_secret(secret: str) -> None:
    """Raise `ValueError` without a part of the secret."""
    _key_of(secret)
    if is_known_default(secret):
        raise ValueError(
            f"is a well-known example: make a new one ({_SECRET_PREFIX} and openssl rand -base64 32)"
        )


# The table [[webhooks]] of the catalog


class WebhookEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An endpoint of the catalog. No message about a fault contains a part of its URL or of a
    secret.
    """

    name: str
    url: str
    types: tuple[str, ...]
    secrets: tuple[str, ...] = ()
    secrets_file: str = ""
    allow_private: bool = False

    def __post_init__(self) -> None:
        if not _name.fullmatch(self.name):
            raise ValueError(
                "name must be 1 to 64 letters, digits, '_' and '-', and begin with a letter or digit"
            )
        _check_url(self.url, allow_private=self.allow_private)
        _check_types(self.types)
        if bool(self.secrets) is bool(self.secrets_file):
            raise ValueError("give either secrets or secrets_file")
        if self.secrets:
            _check_secrets("secrets", self.secrets)
        if self.secrets_file.startswith(_SECRET_PREFIX):
            raise ValueError("secrets_file must be the path of a file, and is a secret")

    def __repr__(self) -> str:
        return f"WebhookEntry(name={self.name!r})"

    def to_endpoint(self, read_file: Callable[[str], str]) -> WebhookEndpoint:
        """Return the endpoint that this entry describes. ``read_file`` returns the text of its file
        of secrets.

        Raises `ValueError` for a file that cannot be read, and for faulty secrets in it.
        """
        return WebhookEndpoint(
            self.name,
            self.url,
            TypeFilter(self.types),
            tuple(map(Secret, self.secrets or self._secrets_in_file(read_file))),
            self.allow_private,
        )

    def _secrets_in_file(self, read_file: Callable[[str], str]) -> Sequence[str]:
        try:
            secrets = read_file(self.secrets_file).split()
        except ValueError as error:
            raise ValueError(f"secrets_file: {error}") from error
        _check_secrets(f"secrets_file {self.secrets_file}", secrets)
        return secrets


def number_fault(entries: Sequence[WebhookEntry]) -> str | None:
    """Return what is wrong with the number of endpoints, if anything."""
    if len(entries) <= MAX_ENDPOINTS:
        return None
    return f"webhooks: {len(entries)} endpoints, and there may be {MAX_ENDPOINTS}"


def _check_url(url: str, *, allow_private: bool) -> None:
    """Raises `ValueError` for an address to which no events are sent."""
    parts = _parts_of(url)
    if parts.scheme == "http" and not allow_private:
        raise ValueError("url must be https; http needs allow_private = true")
    if parts.scheme not in {"https", "http"}:
        raise ValueError("url must be https")
    if "@" in parts.netloc:
        raise ValueError("url must not have a user or password: the signature authenticates")
    if "#" in url:
        raise ValueError("url must not have a fragment (#)")
    if not allow_private and is_private_literal(parts.hostname or ""):
        raise ValueError("url is of a network that is not public: that needs allow_private = true")


def _parts_of(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        is_address = bool(parts.hostname) and parts.port != 0
    except ValueError:
        raise ValueError(_URL_FORM) from None
    # urlsplit removes tabs and line breaks
    is_visible = url.isascii() and url.isprintable() and not set(url) & set(' \\"<>')
    if not is_address or not is_visible or len(url) > _MAX_URL_LENGTH:
        raise ValueError(_URL_FORM)
    return parts


def _check_types(patterns: Sequence[str]) -> None:
    if not patterns:
        raise ValueError("types must name at least one type of event, such as 'tenant.*'")
    try:
        TypeFilter(patterns)
    except ValidationError as error:
        [(_, message)] = error.faults
        raise ValueError(f"types: {message}") from None


def _check_secrets(source: str, secrets: Sequence[str]) -> None:
    """Raise `ValueError` without a part of a secret; its message begins with ``source``."""
    if not 1 <= len(secrets) <= _MAX_SECRETS:
        raise ValueError(f"{source}: give one secret, or two while one replaces the other")
    for number, secret in enumerate(secrets, start=1):
        try:
            _check_secret(secret)
        except ValueError as error:
            raise ValueError(f"{source}: number {number} {error}") from None
    if len(set(secrets)) < len(secrets):
        raise ValueError(f"{source}: both are the same")
