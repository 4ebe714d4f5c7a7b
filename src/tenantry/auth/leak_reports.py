"""Revoke API keys that are reported as leaked."""

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Annotated, Final, Literal

import msgspec

from tenantry.audit import trail as audit
from tenantry.auth import api_keys_store as api_keys
from tenantry.auth.authentication_store import KeyQuery, find_keys
from tenantry.common.clock import Clock
from tenantry.common.encoding import doc
from tenantry.db.connection import ACROSS_TENANTS, of_tenant
from tenantry.db.database import Database
from tenantry.db.tenants_store import find_tenant
from tenantry.domain import api_keys as rules
from tenantry.domain.api_keys import KeyStatus, Pepper, RevocationReason
from tenantry.domain.audit import Action, Author
from tenantry.domain.errors import NotFoundError, ValidationError
from tenantry.domain.owner_mails import key_leaked
from tenantry.notifications.owner_mails import MailOutbox, notify

_AT_ONCE: Final = 2
"""Reports need no credential. However many arrive, most database connections stay free for other requests."""


class EndedKey(msgspec.Struct, frozen=True, rename="camel"):
    """A revoked key."""

    id: Annotated[str, doc("The key's id.", "key_01975c3a51c2a1b3c5d7e9f10213a5b7")]
    status: Annotated[Literal["revoked"], doc("Always `revoked`.", "revoked")]
    revoked_at: Annotated[datetime, doc("When it was revoked.", "2026-11-05T16:20:00Z")]


class LeakReportService:
    """Accepts reports of leaked keys without a credential: a client with the secret could do worse."""

    def __init__(
        self,
        database: Database,
        peppers: Sequence[Pepper],
        outbox: MailOutbox,
        clock: Clock,
        revoked: Callable[[RevocationReason, int], None] = lambda _reason, _number: None,
    ) -> None:
        """``revoked`` receives the reason and number of revoked keys."""
        self._revoked = revoked
        self._database = database
        self._peppers = tuple(peppers)
        self._outbox = outbox
        self._clock = clock
        self._turn = asyncio.Semaphore(_AT_ONCE)

    async def report(self, author: Author, secret: str) -> EndedKey:
        """Revoke the key with this secret, and mail its tenant's owner if the key was active.

        Does nothing for a revoked key. Raises `ValidationError` for text that is not a key, without a query;
        `NotFoundError` and `DatabaseUnavailableError`.
        """
        presented = secret.strip().encode(errors="replace")
        if not rules.is_well_formed(presented):
            raise ValidationError(("secret", "is not an API key: it has not the form of one, or its checksum is wrong"))
        async with self._turn, self._database.transaction(ACROSS_TENANTS) as connection:
            now = self._clock()
            digests = [pepper.digest(presented) for pepper in self._peppers]
            [row] = await find_keys(connection, [KeyQuery(digests)], now)
            if row and row.revoked_at is not None:  # without the lock, which a stream of reports would hold
                return EndedKey(row.id, "revoked", row.revoked_at)
            if row is None:
                raise NotFoundError("API key")
            async with connection.within(of_tenant(row.org_id)):
                tenant = await find_tenant(connection, row.org_id, lock=True)
                key = await api_keys.find(connection, row.org_id, row.id, now, test_only=False, lock=True)
                if tenant is None or key is None:
                    raise NotFoundError("API key")
                if key.revoked_at is not None:
                    return EndedKey(key.id, "revoked", key.revoked_at)
                revoked, place = rules.revoked(key, now), (key.org_id, key.id)
                await api_keys.update(connection, revoked)
                await audit.record(connection, author, Action.KEY_LEAKED, place, now, before=key, after=revoked)
            if key.status is KeyStatus.ACTIVE:
                notice = key_leaked(key, now, author.address)
                await notify(connection, self._outbox, key.org_id, tenant.owner_address, notice, now)
        self._revoked(RevocationReason.LEAKED, 1)
        return EndedKey(key.id, "revoked", now)
