"""API keys: the format of the secret, its digest, and the rules for changes."""

import hashlib
import hmac
import re
import zlib
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any, Final, NamedTuple, Protocol

import msgspec
from msgspec import UNSET, UnsetType

from tenantry.common.encoding import doc
from tenantry.domain.errors import (
    ApiKeyDisabledError,
    ApiKeyExpiredError,
    ApiKeyRevokedError,
    KeyNotActiveError,
    ModeMismatchError,
    ScopeEscalationError,
    ValidationError,
)
from tenantry.domain.imported_keys import HashAlgorithm
from tenantry.domain.key_addresses import AllowedAddresses, address_faults, normalized
from tenantry.domain.key_addresses import covers as covers_addresses
from tenantry.domain.key_metadata import ExternalId, Metadata, external_id_faults, metadata_faults
from tenantry.domain.names import Name
from tenantry.domain.permissions import AccessLevel, Mode, PrincipalKind, RequestPrincipal
from tenantry.domain.rate_limits import (
    RequestsPerMinute,
    is_faster,
    request_rate_faults,
)
from tenantry.domain.scopes import Scopes, covers

DEFAULT_PREFIX: Final = "svc"
"""Every deployment accepts keys with this prefix (SPEC 2.1)."""
RANDOM_BYTES: Final = 32
_RANDOM_DIGITS: Final = 43
_CHECKSUM_DIGITS: Final = 6
_SECRET_DIGITS: Final = _RANDOM_DIGITS + _CHECKSUM_DIGITS
_SHOWN_LENGTH: Final = 4
_LONGEST_HINT: Final = 21
"""Characters behind the mode."""
_PREFIX: Final = re.compile("[a-z0-9]{2,16}")
_ANY_SECRET: Final = re.compile(rb"[a-z0-9]{2,16}_(?:live|test)_[0-9A-Za-z]{49}")
_KEY_ID: Final = re.compile("key_[0-9A-Za-z_-]{1,60}")
_SHOWN_DIGITS: Final = re.compile("[0-9a-z]{4}")
_SHOWN_PARTS: Final = re.compile(
    r"(?=.*[0-9a-z])"
    r"(?P<start> (?P<head> [0-9a-z]{2,16}_(?:live|test)_ )? [0-9a-z]{4} )?"
    r"(?: (?:\.{3}|\u2026) (?P<last4> [0-9a-z]{4} )? )?",
    re.VERBOSE,
)
"""The shown characters at both ends of a secret, in lower case; the end comes after dots."""
_BASE62: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_PAIRS: Final = tuple((first + second).encode() for first in _BASE62 for second in _BASE62)
MAX_OVERLAP_SECONDS: Final = 604_800
SOON: Final = timedelta(days=14)
"""An active key that expires within this time needs attention."""
REVOKED: Final = "The API key has been revoked."
LEAK_SHOWN_FOR: Final = timedelta(days=30)
"""A leaked key without a replacement needs attention for this time."""


class KeyStatus(StrEnum):
    ACTIVE = "active"
    REVOKED = "revoked"
    EXPIRED = "expired"


ExpiresAt = Annotated[datetime, msgspec.Meta(tz=True, description="When the key ends (RFC 3339).")]


class KeyState(StrEnum):
    """The states by which the dashboard filters. Unlike `KeyStatus`, they separate rotated from
    active keys.
    """

    ACTIVE = "active"
    """Works and has no successor; a plan limits the number of these."""
    EXPIRING = "expiring"
    """Active, and expires within `SOON`."""
    REPLACED = "replaced"
    """Works until the end of its overlap, beside its successor; a plan counts it separately."""
    EXPIRED = "expired"
    REVOKED = "revoked"
    LEAKED = "leaked"
    """Revoked because of a leak report."""
    IMPORTED = "imported"
    """Active, imported from another system, and not used since."""


class RevocationReason(StrEnum):
    """By a caller, by a rotation without an overlap, by a leak report, or with its tenant."""

    REVOKED = "revoked"
    ROTATED = "rotated"
    LEAKED = "leaked"
    TENANT_ENDED = "tenant_ended"


class ApiKey(msgspec.Struct, frozen=True, rename="camel"):
    """The record of a key, with only the first and last characters of its secret."""

    id: Annotated[
        str,
        doc(
            "The key's id, for changing, rotating and revoking it.",
            "key_01975c3a51c2a1b3c5d7e9f10213a5b7",
        ),
    ]
    org_id: Annotated[str, doc("The tenant that it belongs to.", "acme")]
    name: Annotated[str, doc("The display name.", "CI deploys")]
    scopes: Annotated[
        tuple[str, ...],
        doc(
            "What the holder may do: `<resource>:<action>`, where either part may be `*`.",
            ["projects:read", "projects:write"],
        ),
    ]
    access_level: Annotated[
        AccessLevel, doc("`OWNER` may do everything; `SCOPED` what its scopes say.", "SCOPED")
    ]
    mode: Annotated[
        Mode, doc("Live or test. Objects of one mode are invisible to the other.", "live")
    ]
    expires_at: Annotated[
        datetime | None, doc("When the key expires; null for never.", "2099-11-01T00:00:00Z")
    ]
    status: Annotated[KeyStatus, doc("Only an active key is accepted.", "active")]
    start: Annotated[
        str,
        doc(
            "The prefix, the mode and the first 4 random characters, to tell keys apart; for an imported key what the "
            "import sent, which may be empty.",
            "svc_live_4fGh",
        ),
    ]
    last4: Annotated[
        str, doc("The last 4 characters of the secret; for an imported key as `start`.", "x9Qz")
    ]
    created_at: Annotated[datetime, doc("When it was created.", "2026-11-02T09:31:00Z")]
    created_by: Annotated[
        str, doc("The id of the user or key that created it, or `operator`.", "user_ada")
    ]
    last_used_at: Annotated[
        datetime | None,
        doc("When it was last used; up to a minute behind.", "2026-11-02T11:05:12Z"),
    ]
    revoked_at: Annotated[datetime | None, doc("When it was revoked; null if it was not.", None)]
    rotated_from: Annotated[str | None, doc("The key that this one replaced.", None)]
    superseded_by: Annotated[str | None, doc("The key that replaced this one.", None)]
    last_used_address: Annotated[
        str | None, doc("The IP address of the client that last used it.", "203.0.113.7")
    ] = None
    external_id: Annotated[
        str | None,
        doc("The id that another system of yours gives it; several keys may have it.", "cus_4711"),
    ] = None
    metadata: Annotated[
        dict[str, str],
        doc("What your systems store with it; empty if they store nothing.", {"team": "growth"}),
    ] = {}
    allowed_addresses: Annotated[
        tuple[str, ...],
        doc(
            "The addresses and networks from which it may be used; empty for any.", ["192.0.2.0/24"]
        ),
    ] = ()
    enabled: Annotated[
        bool,
        doc("False if it is switched off.", example=True),
    ] = True
    requests_per_minute: Annotated[
        int | None,
        doc("Its own limit of requests a minute; null for none.", 120),
    ] = None
    imported_as: Annotated[
        HashAlgorithm | None,
        doc(
            "The algorithm of the hash by which it was imported, until its first use; null for all other keys.",
            None,
        ),
    ] = None
    rotated_from_last_used_at: Annotated[
        datetime | None,
        doc(
            "When the replaced key was last used. Once all clients use the new key, it no longer changes.",
            None,
        ),
    ] = None
    leak_reported_at: Annotated[
        datetime | None,
        doc("When it was reported as leaked and revoked; null if it was not.", None),
    ] = None


class KeyTerms(
    msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True
):
    """What the maker of a key says of it. Creations and imports have these fields."""

    name: Annotated[Name, doc(example="CI deploys")]
    scopes: Annotated[
        Scopes,
        doc(
            "What the key may do: `<resource>:<action>`, where either part may be `*`. `OWNER` excludes other scopes.",
            ["projects:read", "projects:write"],
        ),
    ]
    expires_at: Annotated[
        ExpiresAt | None,
        doc(
            "When the key expires, in the future; null or absent for never.", "2099-11-01T00:00:00Z"
        ),
    ] = None
    access_level: Annotated[
        AccessLevel | None,
        doc("`OWNER` for a key that may do everything; `scopes` must be empty then."),
    ] = None
    mode: Annotated[
        Mode | None,
        doc("The caller's mode by default. A test-mode key creates test-mode keys only."),
    ] = None
    external_id: ExternalId | None = None
    metadata: Metadata | None = None
    allowed_addresses: AllowedAddresses | None = None
    enabled: Annotated[bool, doc("False to create it switched off.")] = True
    requests_per_minute: RequestsPerMinute | None = None


class KeyChanges(
    msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True
):
    """What changes of a key; unset fields stay as they are."""

    name: Annotated[Name | UnsetType, doc(example="CI deploys (main)")] = UNSET
    scopes: Annotated[
        Scopes | UnsetType, doc("The complete new list of scopes.", ["projects:read"])
    ] = UNSET
    expires_at: Annotated[
        ExpiresAt | UnsetType | None, doc("When the key expires, in the future; null for never.")
    ] = UNSET
    external_id: Annotated[
        ExternalId | UnsetType | None,
        doc("The id that another system of yours gives the key; null removes it."),
    ] = UNSET
    metadata: Annotated[
        Metadata | UnsetType | None, doc("The complete new metadata; null or empty removes all.")
    ] = UNSET
    allowed_addresses: Annotated[
        AllowedAddresses | UnsetType | None,
        doc("The complete new list of addresses; null or empty for any."),
    ] = UNSET
    enabled: Annotated[
        bool | UnsetType,
        doc("False switches the key off."),
    ] = UNSET
    requests_per_minute: Annotated[
        RequestsPerMinute | UnsetType | None,
        doc("The new limit; null for none."),
    ] = UNSET


class OptionalTerm(NamedTuple):
    """A field of `KeyTerms` and `KeyChanges` that not every key has."""

    attribute: str
    name: str
    """In the API."""
    absent: object
    """The value of a key that has none."""
    faults: Callable[[Any], Iterable[str]] = lambda _value: ()
    """Yields what is wrong with a value."""
    normal: Callable[[Any], Any] = lambda value: value
    """Returns a valid value in the form in which it is stored."""


OPTIONAL_TERMS: Final = (
    OptionalTerm("external_id", "externalId", None, external_id_faults),
    OptionalTerm("metadata", "metadata", {}, metadata_faults),
    OptionalTerm("allowed_addresses", "allowedAddresses", (), address_faults, normalized),
    OptionalTerm("enabled", "enabled", absent=True),
    OptionalTerm("requests_per_minute", "requestsPerMinute", None, request_rate_faults),
)


def check_optional_terms(given: KeyTerms | KeyChanges | ApiKey) -> None:
    """Raise `ValidationError` with every fault of the optional terms."""
    faults = list[tuple[str, str]]()
    for term in OPTIONAL_TERMS:
        value = getattr(given, term.attribute)
        if value is not UNSET and value is not None:
            faults += [(term.name, fault) for fault in term.faults(value)]
    if faults:
        raise ValidationError(*faults)


def with_optional_terms(key: ApiKey, given: KeyTerms | KeyChanges) -> ApiKey:
    """Return a key with those of the optional terms that are set."""
    new = {}
    for term in OPTIONAL_TERMS:
        value = getattr(given, term.attribute)
        if value is not UNSET:
            new[term.attribute] = term.normal(term.absent if value is None else value)
    return msgspec.structs.replace(key, **new)


def _base62(number: int, digits: int) -> str:
    out = []
    for _ in range(digits):
        number, digit = divmod(number, 62)
        out.append(_BASE62[digit])
    return "".join(reversed(out))


def _checksum(body: bytes) -> bytes:
    """Return the CRC-32 in base62, two digits at a time because every request needs it."""
    upper, last = divmod(zlib.crc32(body), len(_PAIRS))
    first, middle = divmod(upper, len(_PAIRS))
    return _PAIRS[first] + _PAIRS[middle] + _PAIRS[last]


class KeyFormat:
    """How the secrets of a deployment's keys look.

    New keys begin with ``prefix``. Accepted are keys with it, with a ``former`` one, and with
    `DEFAULT_PREFIX`. A secret is ``<prefix>_<mode>_``, 32 random bytes as a big-endian number in 43
    base62 digits (``0-9A-Za-z``), and the CRC-32 of all before it in 6 base62 digits.
    """

    __slots__ = ("_heads", "_starts", "credential_starts", "prefix", "prefixes")

    def __init__(self, prefix: str = DEFAULT_PREFIX, former: Iterable[str] = ()) -> None:
        self.prefix: Final = prefix
        self.prefixes: Final = tuple(dict.fromkeys((prefix, *former, DEFAULT_PREFIX)))
        """The accepted ones."""
        self.credential_starts: Final = tuple(f"{each}_".encode() for each in self.prefixes)
        """A credential that begins so is an API key and nothing else."""
        self._starts = tuple(f"{each}_{mode}_" for each in self.prefixes for mode in Mode)
        self._heads = frozenset(start.encode() for start in self._starts)

    def compose(self, mode: Mode, random: bytes) -> str:
        """Return a new key's secret from 32 random bytes, in ASCII."""
        if len(random) != RANDOM_BYTES:
            raise ValueError(f"a key is made from {RANDOM_BYTES} random bytes")
        number = _base62(int.from_bytes(random), _RANDOM_DIGITS)
        body = f"{self.prefix}_{mode}_{number}"
        return body + _checksum(body.encode()).decode()

    def is_well_formed(self, secret: bytes) -> bool:
        """Whether these bytes have the form of an accepted key and a valid checksum."""
        return (
            secret[:-_SECRET_DIGITS] in self._heads
            and secret[-_CHECKSUM_DIGITS:] == _checksum(secret[:-_CHECKSUM_DIGITS])
            and secret[-_SECRET_DIGITS:].isalnum()
        )

    def is_secret(self, text: str) -> bool:
        """Whether a text has more of an accepted key's secret than its shown characters."""
        start = next(filter(text.startswith, self._starts), None)
        return start is not None and len(text) - len(start) > _LONGEST_HINT

    def without_secret(self, text: str) -> str:
        """Return a search text; of a whole secret only what logs show: ``svc_live_AbCd...wxyz``."""
        if not self.is_secret(text):
            return text
        start = next(filter(text.startswith, self._starts))
        return f"{text[: len(start) + _SHOWN_LENGTH]}...{text[-_SHOWN_LENGTH:]}"

    def check_search(self, text: str) -> None:
        """Raise `ValidationError` for a whole secret, which belongs into no search."""
        if self.is_secret(text):
            raise ValidationError(
                ("search", "is a whole secret: give its first or last four characters alone")
            )

    def find_hint(self, text: str) -> "KeyHint | None":
        """Parse a key's id, four characters of an end of its secret, or what logs show:
        ``svc_live_AbCd...wxyz``.

        Returns None for a text that has none of these forms.
        """
        shown = text.lower()
        if _SHOWN_DIGITS.fullmatch(shown):
            return KeyHint(starts=self._with_starts(shown), last4=shown, either=True)
        parts = _SHOWN_PARTS.fullmatch(shown)
        if parts is None:
            return KeyHint(key_id=text) if _KEY_ID.fullmatch(text) else None
        start = parts["start"]
        if start is None:
            return KeyHint(last4=parts["last4"])
        starts = self._with_starts(start) if parts["head"] is None else (start,)
        return KeyHint(starts=starts, last4=parts["last4"])

    def _with_starts(self, digits: str) -> tuple[str, ...]:
        return tuple(start + digits for start in self._starts)


DEFAULT_FORMAT: Final = KeyFormat()
"""The format without a setting: ``svc_live_...`` and ``svc_test_...``."""


def is_prefix(text: str) -> bool:
    """Whether keys may have this prefix: 2 to 16 of ``a-z0-9``."""
    return _PREFIX.fullmatch(text) is not None


def is_secret_of_any(text: str) -> bool:
    """Whether a text has a word with the form of a whole secret, of this deployment or another."""
    return any(
        DEFAULT_FORMAT.is_secret(word) or _ANY_SECRET.fullmatch(word.encode()) is not None
        for word in text.split()
    )


class Pepper:
    """The deployment's secret for hashing the secrets of keys. Only its id is stored."""

    __slots__ = ("_mac", "id")

    def __init__(self, value: bytes) -> None:
        self._mac = hmac.new(value, digestmod=hashlib.sha256)
        self.id = hmac.digest(value, b"tenantry pepper id", hashlib.sha256).hex()[:16]

    def digest(self, secret: bytes) -> bytes:
        """Return the HMAC-SHA256 of a key's secret, which is stored."""
        mac = self._mac.copy()  # the pepper is hashed once: it is half of the cost
        mac.update(secret)
        return mac.digest()

    def digest_of_hash(self, algorithm: HashAlgorithm, value: bytes) -> bytes:
        """Return the HMAC-SHA256 of a hash that another system made of a key.

        The name before it, with a byte that no credential contains, keeps it apart from the digest
        of a key that consists of the same bytes as the hash.
        """
        return self.digest(algorithm.encode() + b"\0" + value)


def digests_of_imported(secret: bytes, hashed: bytes, peppers: Sequence[Pepper]) -> list[bytes]:
    """Return the digests that an imported key may be stored as: of its secret, since its first use,
    and of the hash of its ``hashed`` part by each algorithm, before it; each under all peppers.
    """
    digests = [pepper.digest(secret) for pepper in peppers]
    for algorithm in HashAlgorithm:
        value = algorithm.hash(hashed)
        digests += [pepper.digest_of_hash(algorithm, value) for pepper in peppers]
    return digests


def shown_parts(secret: str) -> tuple[str, str]:
    """Return the first and last characters of a secret, which identify the key to people."""
    digits = secret.rindex("_") + 1
    return secret[: digits + _SHOWN_LENGTH], secret[-_SHOWN_LENGTH:]


class KeyHint(msgspec.Struct, frozen=True):
    """What a person knows of a key: its id, or shown characters of its secret, in lower case.

    ``starts`` are the possible values of `ApiKey.start`, and ``last4`` is that of `ApiKey.last4`.
    With ``either`` one of them must match, otherwise each that is given.
    """

    key_id: str | None = None
    starts: tuple[str, ...] = ()
    last4: str | None = None
    either: bool = False


def status_at(now: datetime, revoked_at: datetime | None, expires_at: datetime | None) -> KeyStatus:
    """Return the status of a key; a revoked key that has also expired is revoked."""
    if revoked_at is not None:
        return KeyStatus.REVOKED
    if expires_at is not None and expires_at <= now:
        return KeyStatus.EXPIRED
    return KeyStatus.ACTIVE


class StoredKey(Protocol):
    """What decides whether a key is accepted."""

    @property
    def revoked_at(self) -> datetime | None: ...
    @property
    def expires_at(self) -> datetime | None: ...
    @property
    def enabled(self) -> bool: ...


def check_accepted(key: StoredKey, now: datetime) -> None:
    """Raise one of `KEY_REFUSALS` for a key that is not accepted."""
    status = status_at(now, key.revoked_at, key.expires_at)
    if status is KeyStatus.REVOKED:
        raise ApiKeyRevokedError(REVOKED)
    if status is KeyStatus.EXPIRED:
        raise ApiKeyExpiredError("The API key has expired.")
    if not key.enabled:
        raise ApiKeyDisabledError("The API key is switched off.")


def check_changeable(key: ApiKey) -> None:
    """Raise `KeyNotActiveError` for a key that ended."""
    if key.status is not KeyStatus.ACTIVE:
        raise KeyNotActiveError(f"The key is {key.status.value}.")


def check_rotatable(key: ApiKey) -> None:
    """Raise `KeyNotActiveError` for a key that no other key may replace."""
    check_changeable(key)
    if not key.enabled:
        raise KeyNotActiveError("The key is switched off: enable it, then rotate it.")
    if key.superseded_by is not None:
        raise KeyNotActiveError(
            "The key has been rotated before; rotate the key that took its place."
        )


def revoked(key: ApiKey, now: datetime) -> ApiKey:
    """Return the key, revoked now."""
    return msgspec.structs.replace(key, revoked_at=now, status=KeyStatus.REVOKED)


def replacing(key: ApiKey, old: ApiKey) -> ApiKey:
    """Return a new key as the successor of an old one."""
    return msgspec.structs.replace(
        key, rotated_from=old.id, rotated_from_last_used_at=old.last_used_at
    )


def successor(old: ApiKey, key_id: str, created_by: str, now: datetime) -> ApiKey:
    """Return a new key with everything that was said of an active old one, for another secret."""
    new = msgspec.structs.replace(
        old,
        id=key_id,
        created_at=now,
        created_by=created_by,
        last_used_at=None,
        last_used_address=None,
        imported_as=None,
    )
    return replacing(new, old)


def superseded(old: ApiKey, successor_id: str, overlap: timedelta, now: datetime) -> ApiKey:
    """Return the replaced key: it ends after the overlap, at the latest at its own expiry; a
    revoked one has ended.
    """
    if old.revoked_at is not None:
        return msgspec.structs.replace(old, superseded_by=successor_id)
    if not overlap:
        return msgspec.structs.replace(revoked(old, now), superseded_by=successor_id)
    end = now + overlap if old.expires_at is None else min(now + overlap, old.expires_at)
    return msgspec.structs.replace(old, expires_at=end, superseded_by=successor_id)


def expires_later(before: datetime | None, after: datetime | None) -> bool:
    """Whether a change prolongs the life of a key; None never expires."""
    return before is not None and (after is None or after > before)


def is_live_owner(key: ApiKey) -> bool:
    """Whether the key is active and can create every other key of its tenant."""
    return (
        key.access_level is AccessLevel.OWNER
        and key.mode is Mode.LIVE
        and key.status is KeyStatus.ACTIVE
        and key.enabled
    )


def check_may_create(maker: RequestPrincipal, key: ApiKey) -> None:
    """Raise unless ``maker`` may create such a key.

    A key never has more scopes, a higher level or another mode than its maker, and one with
    ``members:write`` is not made by a user whose role gives only some roles. A key cannot create
    one that outlives it, or that may be used from more addresses; a user can. Raises
    `ScopeEscalationError` or `ModeMismatchError`.
    """
    maker.require_holding(key.scopes, key.access_level)
    maker.require_key_scopes(key.scopes)
    check_mode(maker, key.mode)
    if maker.kind is PrincipalKind.API_KEY and expires_later(maker.expires_at, key.expires_at):
        raise ScopeEscalationError("A key cannot create a key that expires later than itself.")
    check_restrictions(maker, key)


def _lifts_restriction(before: ApiKey, after: ApiKey) -> bool:
    """Whether a change lets more requests through."""
    return (
        (after.enabled and not before.enabled)
        or not covers_addresses(before.allowed_addresses, after.allowed_addresses)
        or is_faster(after.requests_per_minute, before.requests_per_minute)
    )


def check_restrictions(maker: RequestPrincipal, key: ApiKey) -> None:
    """Raise `ScopeEscalationError` for a key that is less restricted than its maker."""
    if not covers_addresses(maker.allowed_addresses, key.allowed_addresses):
        raise ScopeEscalationError(
            "A key cannot make or change a key that more addresses may use than itself."
        )
    if is_faster(key.requests_per_minute, maker.requests_per_minute):
        raise ScopeEscalationError(
            "A key cannot make or change a key that may send more requests than itself."
        )


def check_may_change(maker: RequestPrincipal, before: ApiKey, after: ApiKey) -> None:
    """Raise unless ``maker`` may change a key so.

    A change that extends scopes, level, life, addresses or rate, or that enables a key, needs the
    same permissions as creating the changed key. A restricted key changes no key with fewer
    restrictions; switching off is always allowed. Every other caller that may change keys may
    restrict one, but only an OWNER changes an OWNER key.

    Raises `ScopeEscalationError` or `ModeMismatchError`.
    """
    maker.require_holding((), before.access_level)
    raises_level = (
        after.access_level is AccessLevel.OWNER and before.access_level is not AccessLevel.OWNER
    )
    adds_scopes = not all(covers(before.scopes, scope) for scope in after.scopes)
    is_later = expires_later(before.expires_at, after.expires_at)
    if raises_level or adds_scopes or is_later or _lifts_restriction(before, after):
        check_may_create(maker, after)
    if after != msgspec.structs.replace(before, enabled=False):
        check_restrictions(maker, after)


def check_mode(maker: RequestPrincipal, mode: Mode) -> None:
    """Raise `ModeMismatchError` when a test-mode principal requests live mode."""
    if maker.mode is Mode.TEST and mode is not Mode.TEST:
        raise ModeMismatchError("A test-mode key has access to test-mode objects only.")


class ApiKeyWithSecret(ApiKey, frozen=True, rename="camel", kw_only=True):
    """A new key with its secret, which is shown only once."""

    secret: Annotated[
        str, doc("The key itself. Only this answer contains it.", "svc_live_4fGhT0...x9Qz")
    ]
