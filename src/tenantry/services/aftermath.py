"""After a backup was restored: what had been taken away since the backup is there again, and is taken away once more.

What the restored database does not know any more is told by the audit trail, as it was exported before the loss.
"""

from collections import defaultdict
from collections.abc import AsyncGenerator, Iterable
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final, NamedTuple

import msgspec

from tenantry.db.database import Database
from tenantry.db.scope import ACROSS_TENANTS, OF_PEOPLE, of_tenant
from tenantry.domain.access import OWNER_ALIAS, AccessLevel, Role
from tenantry.domain.audit import BY_OPERATOR, Action, AuditEvent
from tenantry.domain.errors import DomainError, NotFoundError
from tenantry.kit.clock import Clock
from tenantry.services.api_keys import ApiKeyService, operator_principal
from tenantry.services.members import MemberService
from tenantry.services.tenants import TenantService, TenantWishes
from tenantry.store import audit, notices, replay, sessions, tenants

HELD_BACK: Final = "held back by the operator after a restore"
_YOUNG: Final = "it was made after the backup"
_TENANTS_AT_A_TIME: Final = 100
_MADE: Final = (Action.KEY_CREATED, Action.MEMBER_ADDED, Action.TENANT_CREATED)
_CHANGED: Final = (Action.KEY_UPDATED, Action.MEMBER_UPDATED, Action.TENANT_UPDATED)


class Outcome(StrEnum):
    """What became of a change that the restored database had lost."""

    REDONE = "redone"
    SO_ALREADY = "so already"
    GONE = "gone"
    """What it is about was made after the backup, and is not there."""
    BY_HAND = "by hand"
    """It is to be looked at by whoever restores."""


class Lost(NamedTuple):
    """A change that the restored database had lost, what became of it, and why where that is not plain."""

    entry: AuditEvent
    outcome: Outcome
    why: str = ""


class Aftermath:
    """What is done between a restore and the start of the service. All of it can be done again."""

    def __init__(
        self, database: Database, keys: ApiKeyService, members: MemberService, tenants: TenantService, clock: Clock
    ) -> None:
        self._database = database
        self._keys = keys
        self._members = members
        self._tenants = tenants
        self._clock = clock

    async def take_away_again(self, trail: Iterable[AuditEvent], *, dry_run: bool) -> list[Lost]:
        """Redo those changes of an exported trail that the database does not have, oldest first.

        Keys are revoked and changed, members removed and changed, tenants ended and suspended. What was made, and what
        gives a tenant to somebody else, is only told. Entries may be there twice, in any order.
        """
        unique = {entry.id: entry for entry in trail}
        entries = sorted(unique.values(), key=lambda entry: (entry.at, entry.id))
        of_org: defaultdict[str, list[AuditEvent]] = defaultdict(list)
        for entry in entries:
            of_org[entry.org_id].append(entry)
        known: set[str] = set()
        newest: dict[tuple[str, str], datetime] = {}
        for org_id, its in of_org.items():
            async with self._database.transaction(of_tenant(org_id)) as connection:
                known |= await audit.known(connection, org_id, [entry.id for entry in its])
                changes = await audit.newest_by_target(connection, org_id, {entry.target_id for entry in its})
            newest |= {(org_id, target): at for target, at in changes.items()}
        found = []
        for entry in entries:
            if entry.id in known:
                continue
            changed = newest.get((entry.org_id, entry.target_id))
            if entry.action in _CHANGED and changed is not None and changed > entry.at:
                found.append(Lost(entry, Outcome.SO_ALREADY, "it was changed since"))
            else:
                found.append(await self._redo(entry, dry_run=dry_run))
        return found

    async def end_sessions(self) -> int:
        """End all sessions of the dashboard, since those that were ended are there again; returns how many."""
        async with self._database.transaction(OF_PEOPLE) as connection:
            return await sessions.delete_all(connection)

    async def hold_mail(self) -> int:
        """Give up the mails that wait: most of them were sent after the backup. Returns how many."""
        async with self._database.transaction(ACROSS_TENANTS) as connection:
            return await notices.give_up(connection, HELD_BACK)

    async def _redo(self, entry: AuditEvent, *, dry_run: bool) -> Lost:
        async with self._database.transaction(of_tenant(entry.org_id)) as connection:
            tenant = await tenants.find(connection, entry.org_id)
        if tenant is None:
            return Lost(entry, Outcome.GONE, _YOUNG)
        left = _left_alone(entry, tenant)
        if left is not None or dry_run:
            return left or Lost(entry, Outcome.REDONE)
        try:
            return await self._redone(entry, tenant)
        except NotFoundError:
            return Lost(entry, Outcome.GONE, _YOUNG)
        except DomainError as error:
            return Lost(entry, Outcome.BY_HAND, error.detail)

    async def _redone(self, entry: AuditEvent, tenant: tenants.TenantRow) -> Lost:
        if entry.action.startswith("api_key."):
            return await self._redo_key(entry)
        if entry.action.startswith("member."):
            return await self._redo_member(entry)
        return await self._redo_tenant(entry, tenant)

    async def _redo_key(self, entry: AuditEvent) -> Lost:
        operator, after, key_id = operator_principal(entry.org_id), entry.after or {}, entry.target_id
        if (await self._keys.get(operator, key_id)).revoked_at is not None:
            return Lost(entry, Outcome.SO_ALREADY)
        end = after.get("expiresAt")
        ends_at = None if end is None else datetime.fromisoformat(end).astimezone(UTC)
        is_over = ends_at is not None and ends_at <= self._clock()
        if entry.action in (Action.KEY_REVOKED, Action.KEY_LEAKED) or "revokedAt" in after or is_over:
            await self._keys.revoke(operator, BY_OPERATOR, key_id, force=True)
            return Lost(entry, Outcome.REDONE)
        scopes = (OWNER_ALIAS,) if after.get("accessLevel") == AccessLevel.OWNER else after.get("scopes")
        await self._keys.update(
            operator,
            BY_OPERATOR,
            key_id,
            name=after.get("name", msgspec.UNSET),
            scopes=msgspec.UNSET if scopes is None else tuple(scopes),
            expires_at=ends_at if "expiresAt" in after else msgspec.UNSET,
        )
        return Lost(entry, Outcome.REDONE)

    async def _redo_member(self, entry: AuditEvent) -> Lost:
        operator = operator_principal(entry.org_id)
        if entry.action is Action.MEMBER_REMOVED:
            await self._members.remove(operator, BY_OPERATOR, entry.target_id)
        else:
            await self._members.change_role(operator, BY_OPERATOR, entry.target_id, Role((entry.after or {})["role"]))
        return Lost(entry, Outcome.REDONE)

    async def _redo_tenant(self, entry: AuditEvent, tenant: tenants.TenantRow) -> Lost:
        if entry.action is Action.TENANT_ENDED:
            await self._tenants.delete(BY_OPERATOR, entry.org_id)
            return Lost(entry, Outcome.REDONE)
        if (entry.after or {}).get("suspended"):
            wishes = TenantWishes(name=tenant.record.name, owner_email=tenant.owner_email, suspended=True)
            await self._tenants.put(BY_OPERATOR, entry.org_id, wishes)
            return Lost(entry, Outcome.REDONE, "of what was changed, the suspension")
        return Lost(entry, Outcome.BY_HAND, f"it has its {', '.join(entry.after or {})} of before")


def _left_alone(entry: AuditEvent, tenant: tenants.TenantRow) -> Lost | None:
    """What is only told of a change, None where it is to be redone."""
    if entry.action in _MADE:
        return Lost(entry, Outcome.GONE, _YOUNG)
    if tenant.deleted:
        return Lost(entry, Outcome.SO_ALREADY, "the tenant has ended")
    if entry.action is Action.TENANT_TRANSFERRED:
        return Lost(entry, Outcome.BY_HAND, "the tenant has its owner of before")
    return None


async def export_trail(database: Database, since: datetime | None) -> AsyncGenerator[list[AuditEvent], None]:
    """The audit trail of all tenants since a moment, in parts; each tenant's oldest first."""
    after = ""
    while True:
        async with database.transaction(ACROSS_TENANTS) as connection:
            part = await replay.tenants_after(connection, after, _TENANTS_AT_A_TIME)
            entries = []
            for tenant_id in part:
                await connection.enter(of_tenant(tenant_id))
                entries += await audit.read_since(connection, tenant_id, since)
        yield entries
        if not part:
            return
        after = part[-1]
