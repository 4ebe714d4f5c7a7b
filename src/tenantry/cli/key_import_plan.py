"""The keys of a file, checked and in batches for the import."""

import re
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from tenantry.api.parameters import in_words
from tenantry.auth.credentials import TOKEN_DOTS
from tenantry.cli.exported_keys import ExportedKey
from tenantry.cli.key_sources import KeySource, SkippedKeyError, translate
from tenantry.domain.errors import ValidationError
from tenantry.domain.imported_keys import (
    LONGEST_IMPORTED_KEY,
    LONGEST_LAST4,
    LONGEST_START,
    MAX_IMPORTED_KEYS,
    HashAlgorithm,
    hashed_part,
    read_algorithm,
    read_digest,
)
from tenantry.domain.key_import import ApiKeyToImport
from tenantry.domain.tenants import is_tenant_id
from tenantry.server.problems import fault_of
from tenantry_cli.output import USAGE, CommandError

_MOST_FAULTS: Final = 20
_SHOWN_SHARE: Final = 4
"""At most one in so many characters of a key is shown."""
_LEAST_FOR_BOTH_ENDS: Final = 24
_KEY: Final = re.compile(f"[!-~]{{1,{LONGEST_IMPORTED_KEY}}}")
_LONGEST_FIELD_NAME: Final = 30


class ImportOptions(NamedTuple):
    """How to read a file. ``scopes`` replace those in the file; ``org_id`` is the tenant of all
    keys, ``org_field`` the field that names each key's.
    """

    source: KeySource
    org_id: str | None
    org_field: str | None
    scopes: Sequence[str]
    is_plaintext: bool
    pattern: re.Pattern[bytes] | None
    """What keys in plain text must match; None for anything."""


class PlannedKey(NamedTuple):
    """A key to import, and its place in the file."""

    place: str
    org_id: str
    algorithm: HashAlgorithm
    key: ApiKeyToImport


class ImportBatch(NamedTuple):
    """Keys of one tenant and algorithm, as many as one import takes."""

    org_id: str
    algorithm: HashAlgorithm
    keys: Sequence[PlannedKey]


class ImportPlan(NamedTuple):
    """What to import, and the number of keys that are left out, by reason."""

    batches: Sequence[ImportBatch]
    skipped: Counter[str]


class PlanFaults:
    """Collects what is wrong with the keys of a file."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def add(self, place: str, faults: Sequence[tuple[str, str]]) -> None:
        self._lines += [f"{place}: {location}: {message}" for location, message in faults]

    def check(self) -> None:
        """Raise `CommandError` if there is a fault."""
        if not self._lines:
            return
        shown = self._lines[:_MOST_FAULTS]
        if more := len(self._lines) - len(shown):
            shown.append(f"... and {more:,} more")
        raise CommandError("\n".join(["Nothing was imported.", *shown]), USAGE)


def plan_import(exported: Sequence[ExportedKey], options: ImportOptions) -> ImportPlan:
    """Check the keys of a file. Raises `CommandError` with the place of each fault."""
    faults = PlanFaults()
    skipped = Counter[str]()
    planned = list[PlannedKey]()
    seen = dict[Hashable, str]()
    for entry in exported:
        try:
            key = _planned(entry, options)
            _check_unique(key, seen)
        except SkippedKeyError as why:
            skipped[str(why)] += 1
        except ValidationError as error:
            faults.add(entry.place, error.faults)
        else:
            planned.append(key)
    faults.check()
    return ImportPlan(list(_batches(planned)), skipped)


def _batches(planned: Sequence[PlannedKey]) -> Iterator[ImportBatch]:
    groups = dict[tuple[str, HashAlgorithm], list[PlannedKey]]()
    for key in planned:
        groups.setdefault((key.org_id, key.algorithm), []).append(key)
    for (org_id, algorithm), keys in groups.items():
        for start in range(0, len(keys), MAX_IMPORTED_KEYS):
            yield ImportBatch(org_id, algorithm, keys[start : start + MAX_IMPORTED_KEYS])


def _planned(entry: ExportedKey, options: ImportOptions) -> PlannedKey:
    """Raises `SkippedKeyError` and `ValidationError`."""
    fields = translate(options.source, entry.fields, options.org_field)
    org_id = _tenant_of(fields.pop("orgId", None), options)
    algorithm = read_algorithm(str(fields.pop("algorithm", HashAlgorithm.SHA256)))
    if options.scopes:
        fields["scopes"] = list(options.scopes)
    if not fields.get("scopes") and "accessLevel" not in fields:
        raise ValidationError(("scopes", "is missing: pass --scope"))
    fields = _with_digest(fields, algorithm, options)
    key = _converted(fields)
    read_digest(algorithm, key.digest)
    return PlannedKey(entry.place, org_id, algorithm, key)


def _tenant_of(named: object, options: ImportOptions) -> str:
    org_id = named or options.org_id
    if org_id is None:
        raise ValidationError(("orgId", "is missing: pass --org or --org-field"))
    if not isinstance(org_id, str) or not is_tenant_id(org_id):
        raise ValidationError(("orgId", "is no tenant id: 1 to 64 of A-Za-z0-9_-"))
    if options.org_id not in (None, org_id):
        raise ValidationError(("orgId", "is another tenant than --org"))
    return org_id


def _with_digest(
    fields: dict[str, Any], algorithm: HashAlgorithm, options: ImportOptions
) -> dict[str, Any]:
    """Return a key's fields with the digest in place of the key itself."""
    rest = {name: value for name, value in fields.items() if name != "key"}
    if not options.is_plaintext:
        if options.source is KeySource.JSONL and "key" in fields:
            raise ValidationError(("key", "pass --plaintext to hash keys in this process"))
        if "digest" not in fields:
            fault = "is missing: for a file with the keys themselves pass --plaintext"
            raise ValidationError(("digest", fault))
        return rest
    secret = _plaintext_key(fields)
    digest = algorithm.hash(_hashed_part(secret, options)).hex()
    return {**_shown_parts(secret), **rest, "digest": digest}


def _plaintext_key(fields: dict[str, Any]) -> str:
    secret = fields.get("key")
    if not isinstance(secret, str) or _KEY.fullmatch(secret) is None:
        fault = f"must be the key: 1 to {LONGEST_IMPORTED_KEY} visible ASCII characters"
        raise ValidationError(("key", fault))
    if secret.count(".") == TOKEN_DOTS:
        raise ValidationError(("key", "has two dots, as tokens have: no pattern makes it a key"))
    return secret


def _hashed_part(secret: str, options: ImportOptions) -> bytes:
    if options.pattern is None:
        return secret.encode()
    hashed = hashed_part(options.pattern, secret.encode())
    if hashed is None:
        raise ValidationError(("key", "does not match IMPORTED_KEY_PATTERN"))
    return hashed


def _shown_parts(secret: str) -> dict[str, str]:
    start = secret[: min(LONGEST_START, len(secret) // _SHOWN_SHARE)]
    shows_end = len(secret) >= _LEAST_FOR_BOTH_ENDS
    return {"start": start, "last4": secret[-LONGEST_LAST4:] if shows_end else ""}


def _converted(fields: dict[str, Any]) -> ApiKeyToImport:
    if any(len(name) > _LONGEST_FIELD_NAME for name in fields):
        # Not shown: in a file without a line of names, it may be a key.
        raise ValidationError(("key", "has a field that is none of an imported key"))
    try:
        return msgspec.convert(fields, ApiKeyToImport)
    except msgspec.ValidationError as error:
        location, message = fault_of(error)
        raise ValidationError((location, in_words(message))) from None


def _check_unique(planned: PlannedKey, seen: dict[Hashable, str]) -> None:
    """Remember the places of a key's hash and external id. Raises `ValidationError` if another key
    of the file has one of them.
    """
    digest = read_digest(planned.algorithm, planned.key.digest)
    values: list[tuple[str, Hashable]] = [("digest", digest)]
    if planned.key.external_id is not None:
        values.append(("externalId", (planned.org_id, planned.key.external_id)))
    for location, value in values:
        place = seen.setdefault(value, planned.place)
        if place != planned.place:
            raise ValidationError((location, f"is that of {place} too"))
