"""Reports of leaked API keys: revoke the key, and mail its tenant's owner."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Literal

import msgspec

from tenantry.auth.api_keys import find_key, save
from tenantry.auth.authentication_store import KeyQuery, find_keys
from tenantry.auth.changes import Change
from tenantry.auth.credentials import CredentialFinder
from tenantry.common.clock import Clock
from tenantry.common.encoding import doc
from tenantry.db.connection import ACROSS_TENANTS, of_tenant
from tenantry.db.database import Database, few_at_once
from tenantry.db.outbox import Outbox
from tenantry.db.tenants_store import get_tenant
from tenantry.domain import api_keys as rules
from tenantry.domain import errors
from tenantry.domain.api_keys import (
    ApiKey,
    KeyStatus,
    Pepper,
    RevocationReason,
)
from tenantry.domain.audit import Action, Author
from tenantry.domain.owner_mails import KeyLeakedData
from tenantry.domain.telemetry import SILENT, Telemetry


class EndedKey(msgspec.Struct, frozen=True, rename="camel"):
    """A revoked key."""

    id: Annotated[str, doc("The key's id.", "key_01975c3a51c2a1b3c5d7e9f10213a5b7")]
    status: Annotated[Literal["revoked"], doc("Always `revoked`.", "revoked")]
    revoked_at: Annotated[datetime, doc("When it was revoked.", "2026-11-05T16:20:00Z")]


@dataclass(frozen=True)
class LeakReportService:
    """Accepts reports of leaked keys without a credential: a client with the secret could do
    worse.
    """

    database: Database
    peppers: Sequence[Pepper]
    outbox: Outbox
    clock: Clock
    telemetry: Telemetry = SILENT
    credentials: CredentialFinder = field(default_factory=CredentialFinder)
    turn: asyncio.Semaphore = field(default_factory=few_at_once, init=False)

    async def report(self, author: Author, secret: str) -> EndedKey:
        """Revoke the key with this secret, and mail its tenant's owner if the key was active.

        Does nothing for a revoked key. Raises `ValidationError` for text that is not a key, without
        a query; `NotFoundError` and `DatabaseUnavailableError`.
        """
        presented = secret.strip().encode(errors="replace")
        digests = self.credentials.digests(presented, self.peppers)
        if digests is None:
            raise errors.ValidationError(
                (
                    "secret",
                    "is not an API key: it has not the form of one, or its checksum is wrong",
                )
            )
        async with self.database.change(ACROSS_TENANTS, turn=self.turn) as connection:
            now = self.clock()
            [found] = await find_keys(connection, [KeyQuery(digests)], now)
            if found is None:
                raise errors.NotFoundError("API key")
            # without the lock, which a stream of reports would hold
            if found.revoked_at is not None:
                return EndedKey(found.id, "revoked", found.revoked_at)
            async with connection.within(of_tenant(found.org_id)):
                tenant = await get_tenant(connection, found.org_id, lock=True, even_ended=True)
                change = Change(connection, author, now, tenant)
                key = await find_key(change, found.id, test_only=False)
                if key.revoked_at is not None:
                    return EndedKey(key.id, "revoked", key.revoked_at)
                revoked = rules.revoked(key, now)
                shown = msgspec.structs.replace(revoked, leak_reported_at=now)
                await save(change, Action.KEY_LEAKED, key, revoked, shown=shown)
            if key.status is KeyStatus.ACTIVE:
                await self._notify(change, key)
        self.telemetry.keys_revoked(RevocationReason.LEAKED, 1)
        return EndedKey(key.id, "revoked", now)

    async def _notify(self, change: Change, key: ApiKey) -> None:
        notice = KeyLeakedData(
            key.id, key.name, key.start, key.last4, change.now, change.author.address
        )
        await change.mails(self.outbox).notify(change.tenant.owner_address, notice)
