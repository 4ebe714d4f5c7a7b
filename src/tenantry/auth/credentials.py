"""Find the credential of a request: in ``Authorization``, or in the header of `API_KEY_HEADER`."""

import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from typing import Final

import msgspec

from tenantry.common.redaction import redact
from tenantry.domain import errors
from tenantry.domain.api_keys import DEFAULT_FORMAT, KeyFormat, Pepper, digests_of_imported
from tenantry.domain.imported_keys import LONGEST_IMPORTED_KEY, hashed_part, hashes_part
from tenantry.domain.key_addresses import (
    Address,
    TrustedProxies,
    is_allowed,
    read_address,
)
from tenantry.integrations.oidc.claim_checks import MAX_TOKEN_BYTES

_BEARER: Final = b"bearer "
_API_KEY: Final = b"api-key "
TOKEN_DOTS: Final = 2
"""Of a user's token, a JWT in compact form."""
UNKNOWN: Final = "unknown"
"""In ``X-Forwarded-For``: the sender does not know its client's address (RFC 7239, section 6.2),
such as an SDK's check without ``client_address``.
"""
_NO_CREDENTIAL: Final = "The credential is neither an API key nor a token."

HeaderReader = Callable[[bytes], bytes | None]
"""Returns the value of a request's header, whose name is in lower case; several are joined."""


class Unproven(StrEnum):
    """What would make the client's address certain."""

    CLIENT = "client_address"
    """Any address at all: the connection is a Unix socket, or its sender does not say it."""
    FORWARDED = "x_forwarded_for"
    """A usable ``X-Forwarded-For`` of the trusted proxy."""
    PROXY = "trusted_proxy"
    """The sender of ``X-Forwarded-For`` among the trusted proxies, or no such header."""


class Sender(msgspec.Struct, frozen=True):
    """What a request says of its sender."""

    header: HeaderReader
    address: str | None = None
    """The client's, as the server knows it."""
    is_forwarded: bool = False
    """Whether the server took the address from the ``X-Forwarded-For`` of a trusted proxy."""
    is_told: bool = False
    """Whether the application says the address, whatever the headers say."""


def digest_of(text: str) -> str:
    """Return what is stored in place of a text that may hold a credential."""
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


class CredentialKind(StrEnum):
    """What the form of a credential says that it is; whether it is valid is another question."""

    API_KEY = "api_key"
    TOKEN = "token"  # noqa: S105  # a kind
    OTHER = "other"
    """Neither of them, such as an operator token."""


class Credential(msgspec.Struct, frozen=True):
    """The credential of a request, as its client sent it."""

    kind: CredentialKind
    value: bytes


class CredentialFinder:
    """Finds the credential of a request by the deployment's settings.

    ``api_key_header`` names the header in which clients may send an API key, and allows the scheme
    ``Api-Key`` in ``Authorization`` too. Without it, ``Authorization: Bearer`` alone counts.
    ``imported`` is the pattern of keys that other systems made. ``trusted_proxies`` are the
    networks whose ``X-Forwarded-For`` counts.
    """

    def __init__(
        self,
        key_format: KeyFormat = DEFAULT_FORMAT,
        api_key_header: str | None = None,
        imported: re.Pattern[bytes] | None = None,
        trusted_proxies: Iterable[str] = (),
    ) -> None:
        self.proxies: Final = TrustedProxies(trusted_proxies)
        self.key_format: Final = key_format
        self._imported = imported
        self.binds_keys: Final = hashes_part(imported)
        """Whether several credentials may have the hash of one imported key, until the first that
        is used binds it.
        """
        self.api_key_header: Final = api_key_header
        self.header_name: Final = (
            None if api_key_header is None else api_key_header.lower().encode()
        )
        """The name of ``api_key_header`` in lower case."""
        self.header_names: Final = frozenset(filter(None, (b"authorization", self.header_name)))
        """The names of all headers that may hold a credential, in lower case."""
        self._key_starts = key_format.credential_starts
        self._key_marks = tuple(b" " + start for start in key_format.credential_starts)
        also = "" if api_key_header is None else f", or {api_key_header}: <API key>"
        self.advice: Final = f"Send a credential: Authorization: Bearer <API key or token>{also}."

    def find(self, authorization: bytes | None, api_key: bytes | None = None) -> Credential:
        """Return the one credential of a request, given the values of its ``Authorization`` and
        its ``api_key_header``; an empty header counts as none.

        Raises `MissingCredentialError`, and `InvalidCredentialError` for two credentials, another
        scheme, and anything but an API key where only that may be.
        """
        if api_key:
            if authorization:
                raise errors.InvalidCredentialError(
                    f"Send one credential: in Authorization or in {self.api_key_header}, not in both."
                )
            return self._only_key(api_key.strip())
        if not authorization:
            raise errors.MissingCredentialError(self.advice)
        if authorization[: len(_BEARER)].lower() == _BEARER:
            return self._any(authorization[len(_BEARER) :].strip())
        if self._takes_scheme(authorization):
            return self._only_key(authorization[len(_API_KEY) :].strip())
        raise errors.InvalidCredentialError(
            "The Authorization header must be: Bearer <API key or token>."
        )

    def read_key(self, header: HeaderReader) -> bytes | None:
        """Return the value of a request's ``api_key_header``."""
        return None if self.header_name is None else header(self.header_name)

    def find_in(self, header: HeaderReader) -> Credential:
        """Return the one credential of a request. Raises as `find`."""
        return self.find(header(b"authorization"), self.read_key(header))

    def check_address(self, allowed: Sequence[str], sender: Sender) -> None:
        """Raise `AddressNotAllowedError` for a request from elsewhere with a key that has these
        allowed addresses, and for one from an unknown address.
        """
        if not allowed:
            return
        found = self._address_of(sender)
        if isinstance(found, Unproven):
            peer = read_address(sender.address)
            raise errors.AddressNotAllowedError(
                "The API key may be used from certain addresses only, and the request's is not certain.",
                address=None if peer is None else str(peer),
                needed=found,
            )
        if not is_allowed(allowed, found):
            raise errors.AddressNotAllowedError(
                "The API key may not be used from this address.", address=str(found)
            )

    def _address_of(self, sender: Sender) -> Address | Unproven:
        """Return the client's address if it is beyond doubt, else what would prove it.

        The header of a client that is no trusted proxy proves nothing, not even that the address
        of the connection is the client's.
        """
        address = read_address(sender.address)
        forwarded = None if sender.is_told else sender.header(b"x-forwarded-for")
        if address is None or (forwarded or b"").startswith(UNKNOWN.encode()):
            return Unproven.CLIENT
        is_proxy = self.proxies.have(address)
        if forwarded is None or sender.is_forwarded:
            return Unproven.FORWARDED if is_proxy else address
        if not is_proxy:
            return Unproven.PROXY
        return self.proxies.client_of(forwarded.decode("latin-1")) or Unproven.FORWARDED

    def without_secret(self, text: str) -> str:
        """Return a text of a client to store, or its digest if it may hold a credential."""
        if redact(text) == text and not self.may_be_imported(text.encode()):
            return text
        return digest_of(text)

    def digests(self, secret: bytes, peppers: Sequence[Pepper]) -> list[bytes] | None:
        """Return the digests that an API key may be stored as; None if it has the form of none.

        The first are those of the secret, under each of ``peppers``. Those of its hashes follow,
        by algorithm, for a secret that may have been imported.
        """
        if self.key_format.is_well_formed(secret):
            return [pepper.digest(secret) for pepper in peppers]
        hashed = self._hashed_part(secret)
        return None if hashed is None else digests_of_imported(secret, hashed, peppers)

    def label_of(self, header: HeaderReader) -> str:
        """Return what a request seems to have sent, as `label`."""
        return self.label(header(b"authorization"), self.read_key(header))

    def label(self, authorization: bytes | None, api_key: bytes | None = None) -> str:
        """Return what a request seems to have sent: ``api_key``, ``token`` or ``none``; for the
        metrics of rejections.
        """
        if api_key:
            return "api_key"
        if not authorization:
            return "none"
        is_key = any(mark in authorization for mark in self._key_marks)
        is_key = is_key or self.may_be_imported(authorization[len(_BEARER) :].strip())
        return "api_key" if is_key or self._takes_scheme(authorization) else "token"

    def _takes_scheme(self, authorization: bytes) -> bool:
        is_allowed = self.header_name is not None
        return is_allowed and authorization[: len(_API_KEY)].lower() == _API_KEY

    def _any(self, value: bytes) -> Credential:
        if len(value) > MAX_TOKEN_BYTES:
            raise malformed(
                "size", f"The credential is too long: at most {MAX_TOKEN_BYTES:,} bytes."
            )
        if not value.isascii() or not value:
            raise no_credential()
        return Credential(self._kind_of(value), value)

    def _only_key(self, value: bytes) -> Credential:
        kind = self._kind_of(value)
        if kind is not CredentialKind.API_KEY:
            raise errors.InvalidCredentialError("The API key is not valid.")
        return Credential(kind, value)

    def _kind_of(self, value: bytes) -> CredentialKind:
        if value.startswith(self._key_starts):
            return CredentialKind.API_KEY
        if value.count(b".") == TOKEN_DOTS:
            return CredentialKind.TOKEN
        return CredentialKind.API_KEY if self.may_be_imported(value) else CredentialKind.OTHER

    def may_be_imported(self, value: bytes) -> bool:
        """Whether the settings say that another system's key may look so; a token never does."""
        return self._hashed_part(value) is not None

    def _hashed_part(self, value: bytes) -> bytes | None:
        """Return the part of another system's key that it hashes; None for what is no such key."""
        if self._imported is None or len(value) > LONGEST_IMPORTED_KEY:
            return None
        return None if value.count(b".") == TOKEN_DOTS else hashed_part(self._imported, value)


def no_credential() -> errors.InvalidCredentialError:
    """Make the error for a credential without the form of one."""
    return malformed("form", _NO_CREDENTIAL)


def malformed(check: str, detail: str) -> errors.InvalidCredentialError:
    """Make the error for a credential that does not get as far as the verifier, with the check that
    it would fail.
    """
    return errors.InvalidCredentialError(detail, token_fault=errors.TokenFault(check, detail))
