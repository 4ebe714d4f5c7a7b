"""Import API keys that another system made, by their hashes."""

import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from tenantry.auth import api_keys_store
from tenantry.auth.api_keys import check_terms, key_of
from tenantry.auth.api_keys_store import ImportHolder
from tenantry.auth.changes import Changes
from tenantry.common.clock import Clock
from tenantry.db.connection import ACROSS_TENANTS, Connection, of_tenant
from tenantry.db.database import Database
from tenantry.db.tenants_store import get_tenant
from tenantry.domain.api_keys import ApiKey, Pepper, status_at
from tenantry.domain.audit import Action, Author
from tenantry.domain.errors import NotFoundError, ValidationError
from tenantry.domain.imported_keys import (
    HashAlgorithm,
    check_shown_parts,
    hashed_part,
    read_algorithm,
    read_digest,
)
from tenantry.domain.key_addresses import NO_PROXIES, TrustedProxies
from tenantry.domain.key_import import ApiKeyToImport, ImportedKey, ImportStatus
from tenantry.domain.permissions import OPERATOR
from tenantry.domain.tenants import is_tenant_id


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
    """Imports keys for the operator. The first of ``peppers`` is the newest. ``pattern`` is that of
    imported keys, where it is set.
    """

    database: Database
    peppers: Sequence[Pepper]
    clock: Clock
    pattern: re.Pattern[bytes] | None = None
    proxies: TrustedProxies = NO_PROXIES
    """The trusted ones, from which no key may be used."""

    async def import_keys(
        self, author: Author, org_id: str, algorithm: str, keys: Sequence[ApiKeyToImport]
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
            pepper_id = self.peppers[0].id
            created = await api_keys_store.insert(connection, new, pepper_id, hashed_by)
            records = {key.id: key for key in new.values() if key.id in created}
            await change.record_new(Action.KEY_IMPORTED, records)
            if len(created) < len(new):  # another tenant's import was faster
                holders = await _find_holders(connection, org_id, wanted)
        return [
            ImportedKey(key.record.external_id, key.record.id, ImportStatus.CREATED)
            if key.record.id in created
            else holders.result(key)
            for key in wanted
        ]

    async def preview(
        self, org_id: str, algorithm: str, keys: Sequence[ApiKeyToImport]
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
        self, org_id: str, algorithm: HashAlgorithm, keys: Sequence[ApiKeyToImport], now: datetime
    ) -> list[_CheckedKey]:
        """Check keys, each and among one another. Raises `ValidationError`."""
        checked = list[_CheckedKey]()
        faults = list[tuple[str, str]]()
        hashes = dict[bytes, int]()
        external_ids = dict[str, int]()
        for position, key in enumerate(keys):
            try:
                value = read_digest(algorithm, key.digest)
                check_terms(key, self.proxies)
                record = _record(org_id, algorithm, key, now)
                self._check_no_secret(algorithm, value, key)
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

    def _check_no_secret(self, algorithm: HashAlgorithm, value: bytes, key: ApiKeyToImport) -> None:
        """Raise `ValidationError` for a key that is, in plain text, another field of itself; also
        for the part of it that is hashed.
        """
        for location, texts in _stored_texts(key).items():
            given = [text.encode() for text in texts]
            parts = (
                [] if self.pattern is None else [hashed_part(self.pattern, text) for text in given]
            )
            if any(algorithm.hash(text) == value for text in (*given, *filter(None, parts))):
                raise ValidationError((location, "is the key itself: never store a secret here"))


async def _find_holders(
    connection: Connection, org_id: str, keys: Sequence[_CheckedKey]
) -> _Holders:
    digests = [digest for key in keys for digest in key.digests]
    external_ids = [key.record.external_id for key in keys if key.record.external_id]
    async with connection.within(ACROSS_TENANTS):
        found = await api_keys_store.find_imported(connection, org_id, digests, external_ids)
    return _Holders(org_id, found)


def _record(org_id: str, algorithm: HashAlgorithm, key: ApiKeyToImport, now: datetime) -> ApiKey:
    """Return the record of a key with valid terms. Raises `ValidationError`."""
    _check_no_hash(key)
    check_shown_parts(key.start, key.last4)
    created_at = _in_utc("createdAt", key.created_at) or now
    if created_at > now:
        raise ValidationError(("createdAt", "must not be in the future"))
    expires_at = _in_utc("expiresAt", key.expires_at)
    return msgspec.structs.replace(
        key_of(key, org_id, OPERATOR, created_at),
        expires_at=expires_at,
        status=status_at(now, None, expires_at),
        start=key.start,
        last4=key.last4,
        imported_as=algorithm,
    )


def _check_no_hash(key: ApiKeyToImport) -> None:
    """Raise `ValidationError` for a key whose other fields have its hash, which is stored under the
    pepper alone. Some systems make it a part of the key's id.
    """
    digest = key.digest.rstrip("=").lower()  # hex may be in upper case
    for location, texts in _stored_texts(key).items():
        if any(digest in text.lower() for text in texts):
            raise ValidationError((location, "contains the hash: leave it out"))


def _stored_texts(key: ApiKeyToImport) -> dict[str, tuple[str, ...]]:
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
