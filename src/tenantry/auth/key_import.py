"""Import API keys that another system made, by their hashes."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any, NamedTuple

import msgspec

from tenantry.audit import trail as audit
from tenantry.auth import api_keys_store
from tenantry.auth.api_keys import OPERATOR, normalize
from tenantry.auth.api_keys_store import ImportHolder
from tenantry.auth.changes import Changes
from tenantry.common.clock import Clock
from tenantry.common.encoding import doc, new_id
from tenantry.db.connection import ACROSS_TENANTS, Connection, of_tenant
from tenantry.db.database import Database
from tenantry.db.tenants_store import get_tenant
from tenantry.domain.api_keys import ApiKey, Pepper, status_at
from tenantry.domain.audit import Action, Author
from tenantry.domain.errors import NotFoundError, ValidationError
from tenantry.domain.imported_keys import (
    HashAlgorithm,
    check_shown_parts,
    read_algorithm,
    read_digest,
)
from tenantry.domain.key_metadata import check_key_metadata
from tenantry.domain.names import check_name
from tenantry.domain.permissions import AccessLevel, Mode
from tenantry.domain.tenants import is_tenant_id


class KeyToImport(msgspec.Struct, frozen=True):
    """A key of another system; ``digest`` is its hash as text."""

    digest: str
    name: str
    scopes: tuple[str, ...] = ()
    access_level: AccessLevel | None = None
    mode: Mode = Mode.LIVE
    expires_at: datetime | None = None
    created_at: datetime | None = None
    external_id: str | None = None
    metadata: dict[str, str] | None = None
    start: str = ""
    last4: str = ""


class ImportStatus(StrEnum):
    CREATED = "created"
    EXISTS = "exists"
    """The tenant has an imported key with this external id, or without one with this hash."""
    DIGEST_TAKEN = "digest_taken"
    """Another key was imported with this hash."""


class ImportedKey(msgspec.Struct, frozen=True, rename="camel"):
    """The result for one key of an import."""

    external_id: Annotated[str | None, doc("The `externalId` that was sent.", "cus_4711")]
    id: Annotated[
        str,
        doc(
            "The id of the new key, or of the key that was there before.",
            "key_01975c3a51c2a1b3c5d7e9f10213a5b7",
        ),
    ]
    status: Annotated[
        ImportStatus,
        doc(
            "`exists`: the tenant's key with this `externalId` was imported before, and is unchanged. "
            "`digest_taken`: another key, of any tenant, was imported with this hash.",
            "created",
        ),
    ]


class _CheckedKey(NamedTuple):
    """A key to import: the record that it becomes, and its hash as stored under each pepper, the
    newest first.
    """

    record: ApiKey
    digests: Sequence[bytes]


class _Holders:
    """The imported keys that may be in the way of new ones."""

    def __init__(self, org_id: str, found: Sequence[ImportHolder]) -> None:
        self._org_id = org_id
        self._by_digest = {holder.digest: holder for holder in found}
        self._by_external_id: dict[str | None, ImportHolder] = {
            holder.external_id: holder
            for holder in reversed(found)
            if holder.org_id == org_id and holder.external_id is not None
        }

    def find(self, key: _CheckedKey) -> ImportHolder | None:
        same = self._by_external_id.get(key.record.external_id)
        if same is not None:
            return same
        return next(filter(None, map(self._by_digest.get, key.digests)), None)

    def result(self, key: _CheckedKey) -> ImportedKey:
        """Return the result for a key that was not stored, because another one is in its way."""
        holder = self.find(key)
        if holder is None:
            raise LookupError("no imported key has this hash or external id")
        external_id = key.record.external_id
        is_same = holder.org_id == self._org_id and holder.external_id == external_id
        status = ImportStatus.EXISTS if is_same else ImportStatus.DIGEST_TAKEN
        return ImportedKey(external_id, holder.key_id, status)


@dataclass(frozen=True)
class KeyImportService:
    """Imports keys for the operator. The first of ``peppers`` is the newest."""

    database: Database
    peppers: Sequence[Pepper]
    clock: Clock

    async def import_keys(
        self, author: Author, org_id: str, algorithm: str, keys: Sequence[KeyToImport]
    ) -> list[ImportedKey]:
        """Import keys into a tenant, also a suspended one: all of them, or none if there is a
        fault.

        Repeating an import changes nothing. No limit of the plan applies.

        Raises `ValidationError` with the faults of each key, and `NotFoundError`.
        """
        if not is_tenant_id(org_id):
            raise NotFoundError("tenant")
        now = self.clock()
        hashed_by = read_algorithm(algorithm)
        wanted = self._check_all(org_id, hashed_by, keys, now)

        changes = Changes(self.database, self.clock)
        async with changes.begin_in_tenant(org_id, author) as change:
            connection = change.connection
            holders = await _find_holders(connection, org_id, wanted)
            new = {key.digests[0]: key.record for key in wanted if holders.find(key) is None}
            created = await api_keys_store.insert_imported(
                connection,
                org_id,
                hashed_by,
                new,
                self.peppers[0].id,
            )
            records = {key.id: key for key in new.values() if key.id in created}
            await audit.record_new(connection, author, Action.KEY_IMPORTED, org_id, records, now)
            if len(created) < len(new):  # another tenant's import was faster
                holders = await _find_holders(connection, org_id, wanted)
        return [
            ImportedKey(key.record.external_id, key.record.id, ImportStatus.CREATED)
            if key.record.id in created
            else holders.result(key)
            for key in wanted
        ]

    async def preview(
        self, org_id: str, algorithm: str, keys: Sequence[KeyToImport]
    ) -> list[ImportStatus]:
        """Return what an import would do with each key, and write nothing. Raises as
        `import_keys`.
        """
        now = self.clock()
        wanted = self._check_all(org_id, read_algorithm(algorithm), keys, now)
        async with self.database.transaction(of_tenant(org_id)) as connection:
            await get_tenant(connection, org_id)
            holders = await _find_holders(connection, org_id, wanted)
        return [
            holders.result(key).status if holders.find(key) else ImportStatus.CREATED
            for key in wanted
        ]

    def _check_all(
        self, org_id: str, algorithm: HashAlgorithm, keys: Sequence[KeyToImport], now: datetime
    ) -> list[_CheckedKey]:
        """Check keys, each and among one another. Raises `ValidationError`."""
        checked = list[_CheckedKey]()
        faults = list[tuple[str, str]]()
        hashes = dict[bytes, int]()
        external_ids = dict[str, int]()
        for position, key in enumerate(keys):
            try:
                value = read_digest(algorithm, key.digest)
                record = _record(org_id, algorithm, key, now)
                _check_no_secret(algorithm, value, key)
                _check_unique("digest", value, hashes, position)
                _check_unique("externalId", key.external_id, external_ids, position)
            except ValidationError as error:
                faults += [(f"keys[{position}].{where}", what) for where, what in error.faults]
                continue
            digests = [pepper.digest_of_hash(algorithm, value) for pepper in self.peppers]
            checked.append(_CheckedKey(record, digests))
        if faults:
            raise ValidationError(*faults)
        return checked


async def _find_holders(
    connection: Connection, org_id: str, keys: Sequence[_CheckedKey]
) -> _Holders:
    digests = [digest for key in keys for digest in key.digests]
    external_ids = [key.record.external_id for key in keys if key.record.external_id]
    async with connection.within(ACROSS_TENANTS):
        found = await api_keys_store.find_imported(connection, org_id, digests, external_ids)
    return _Holders(org_id, found)


def _record(org_id: str, algorithm: HashAlgorithm, key: KeyToImport, now: datetime) -> ApiKey:
    """Return the record of a key. Raises `ValidationError`."""
    check_name(key.name)
    check_key_metadata(key.external_id, key.metadata)
    _check_no_hash(key)
    check_shown_parts(key.start, key.last4)
    scopes, level = normalize(key.scopes, key.access_level)
    created_at = _in_utc("createdAt", key.created_at) or now
    if created_at > now:
        raise ValidationError(("createdAt", "must not be in the future"))
    expires_at = _in_utc("expiresAt", key.expires_at)
    return ApiKey(
        id=new_id("key"),
        org_id=org_id,
        name=key.name,
        scopes=scopes,
        access_level=level,
        mode=key.mode,
        expires_at=expires_at,
        status=status_at(now, None, expires_at),
        start=key.start,
        last4=key.last4,
        created_at=created_at,
        created_by=OPERATOR,
        last_used_at=None,
        revoked_at=None,
        rotated_from=None,
        superseded_by=None,
        external_id=key.external_id,
        metadata=key.metadata or {},
        imported_as=algorithm,
    )


def _check_no_hash(key: KeyToImport) -> None:
    """Raise `ValidationError` for a key whose other fields have its hash, which is stored under the
    pepper alone. Some systems make it a part of the key's id.
    """
    digest = key.digest.rstrip("=").lower()  # hex may be in upper case
    for location, texts in _stored_texts(key).items():
        if any(digest in text.lower() for text in texts):
            raise ValidationError((location, "contains the hash: leave it out"))


def _check_no_secret(algorithm: HashAlgorithm, value: bytes, key: KeyToImport) -> None:
    """Raise `ValidationError` for a key that is, in plain text, another field of itself."""
    for location, texts in _stored_texts(key).items():
        if any(algorithm.hash(text.encode()) == value for text in texts):
            raise ValidationError((location, "is the key itself: never store a secret here"))


def _stored_texts(key: KeyToImport) -> dict[str, tuple[str, ...]]:
    """Return the texts of a key that are stored as they are, by their fields."""
    metadata = key.metadata or {}
    return {
        "name": (key.name,),
        "externalId": (key.external_id or "",),
        "metadata": (*metadata, *metadata.values()),
    }


def _in_utc(location: str, moment: datetime | None) -> datetime | None:
    try:
        return moment and moment.astimezone(UTC)
    except OverflowError as error:  # the first and last hours of the calendar
        raise ValidationError((location, "is too far away")) from error


def _check_unique(
    location: str, value: Hashable | None, seen: dict[Any, int], position: int
) -> None:
    """Remember the first position of a value. Raises `ValidationError` for a second one."""
    first = position if value is None else seen.setdefault(value, position)
    if first != position:
        raise ValidationError((location, f"is that of keys[{first}] too"))
