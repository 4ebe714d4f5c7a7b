"""After a backup was restored: what had been taken away since the backup is there again, and is taken away once more.

What the restored database does not know any more is told by the audit trail, as it was exported before the loss.
"""

from collections import defaultdict
from collections.abc import AsyncGenerator, Iterable, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final, NamedTuple

import msgspec

from tenantry.accounts import projects_store as projects
from tenantry.accounts.members import MemberService
from tenantry.accounts.tenants import TenantService, TenantWishes
from tenantry.audit import trail_store as audit
from tenantry.auth import sessions_store as sessions
from tenantry.auth.api_keys import ApiKeyService, operator_principal
from tenantry.billing import replay_store as replay
from tenantry.common.clock import Clock
from tenantry.db.connection import ACROSS_TENANTS, OF_PEOPLE, of_tenant
from tenantry.db.database import Database
from tenantry.db.tenants_store import TenantRow, find_tenant
from tenantry.domain.access import OWNER_ALIAS, AccessLevel, Mode, Role, lower_role
from tenantry.domain.audit import BY_OPERATOR, Action, AuditEvent
from tenantry.domain.errors import DomainError, NotFoundError
from tenantry.domain.members import Member, MemberStatus
from tenantry.notifications import mails_store as mails

HELD_BACK: Final = "held back by the operator after a restore"
_YOUNG: Final = "it was made after the backup"
_TENANTS_AT_A_TIME: Final = 100
_MADE: Final = (Action.KEY_CREATED, Action.PROJECT_CREATED, Action.TENANT_CREATED)
_ENDED: Final = (Action.MEMBER_REMOVED, Action.MEMBER_DECLINED, Action.MEMBER_LEFT)
_BEGUN: Final = (Action.MEMBER_ADDED, Action.MEMBER_INVITED)
_CHANGED: Final = (Action.KEY_UPDATED, Action.MEMBER_UPDATED, Action.PROJECT_UPDATED, Action.TENANT_UPDATED)


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


class Restore:
    """What is done between a restore and the start of the service. All of it can be done again."""

    def __init__(
        self, database: Database, keys: ApiKeyService, members: MemberService, tenants: TenantService, clock: Clock
    ) -> None:
        self._database = database
        self._keys = keys
        self._members = members
        self._tenants = tenants
        self._clock = clock

    async def reapply_revocations(self, trail: Iterable[AuditEvent], *, dry_run: bool) -> list[Lost]:
        """Redo those changes of an exported trail that the database does not have, oldest first.

        Keys are revoked and changed, members removed and given lower roles, tenants ended and suspended. What was made,
        and what gives a member more, lets a tenant go on, or gives it to somebody else, is only told. Entries may be
        there twice, in any order. ``dry_run`` looks at each by itself, as if those before it were not redone, and
        cannot foretell what would be refused, and left to be done by hand.
        """
        unique = {entry.id: entry for entry in trail}
        entries = sorted(unique.values(), key=lambda entry: (entry.at, entry.id))
        of_org: defaultdict[str, list[AuditEvent]] = defaultdict(list)
        for entry in entries:
            of_org[entry.org_id].append(entry)
        known: set[str] = set()
        newest: dict[tuple[str, str], dict[Action, datetime]] = {}
        for org_id, its in of_org.items():
            async with self._database.transaction(of_tenant(org_id)) as connection:
                known |= await audit.known(connection, org_id, [entry.id for entry in its])
                changes = await audit.newest_by_target(connection, org_id, {entry.target_id for entry in its})
            newest |= {(org_id, target): ways for target, ways in changes.items()}
        last_words = {
            entry.org_id: entry.id
            for entry in entries
            if entry.action is Action.TENANT_UPDATED and "suspended" in (entry.after or {})
        }
        found = []
        for entry in entries:
            if entry.id in known:
                continue
            if since := _changed_since(entry, newest.get((entry.org_id, entry.target_id), {})):
                found.append(Lost(entry, Outcome.SO_ALREADY, since))
            else:
                is_last = last_words.get(entry.org_id) == entry.id
                found.append(await self._redo(entry, is_last_on_suspension=is_last, dry_run=dry_run))
        return found

    async def end_sessions(self) -> int:
        """End all sessions of the dashboard, since those that were ended are there again; returns how many."""
        async with self._database.transaction(OF_PEOPLE) as connection:
            return await sessions.delete_all(connection)

    async def hold_mail(self) -> int:
        """Give up the mails that wait: most of them were sent after the backup. Returns how many."""
        async with self._database.transaction(ACROSS_TENANTS) as connection:
            return await mails.give_up(connection, HELD_BACK)

    async def _redo(self, entry: AuditEvent, *, is_last_on_suspension: bool, dry_run: bool) -> Lost:
        async with self._database.transaction(of_tenant(entry.org_id)) as connection:
            tenant = await find_tenant(connection, entry.org_id)
        if tenant is None:
            return Lost(entry, Outcome.GONE, _YOUNG)
        left = _left_alone(entry, tenant, is_last_on_suspension=is_last_on_suspension)
        try:
            if left is None and entry.action.startswith("api_key."):
                key = await self._keys.get(operator_principal(entry.org_id), entry.target_id)
                left = None if key.revoked_at is None else Lost(entry, Outcome.SO_ALREADY)
            if left is None and entry.action.startswith("member."):
                member = await self._members.get(operator_principal(entry.org_id), entry.target_id)
                left = _member_left_alone(entry, member)
            if left is None and entry.action.startswith("project."):
                left = await self._project_left_alone(entry)
            if left is not None or dry_run:
                return left or Lost(entry, Outcome.REDONE)
            return await self._redone(entry, tenant)
        except NotFoundError:
            return Lost(entry, Outcome.GONE, _YOUNG)
        except DomainError as error:
            return Lost(entry, Outcome.BY_HAND, error.detail)

    async def _project_left_alone(self, entry: AuditEvent) -> Lost:
        """What is told of a project's change or deletion, which are never redone."""
        async with self._database.transaction(of_tenant(entry.org_id)) as connection:
            found = [await projects.find(connection, entry.org_id, mode, entry.target_id) for mode in Mode]
        is_there, is_deletion = any(found), entry.action is Action.PROJECT_DELETED
        if is_there:
            why = "the project exists again" if is_deletion else "the project is as it was at the backup"
            return Lost(entry, Outcome.BY_HAND, why)
        return Lost(entry, Outcome.SO_ALREADY) if is_deletion else Lost(entry, Outcome.GONE, _YOUNG)

    async def _redone(self, entry: AuditEvent, tenant: TenantRow) -> Lost:
        if entry.action.startswith("api_key."):
            return await self._redo_key(entry)
        if entry.action.startswith("member."):
            return await self._redo_member(entry)
        return await self._redo_tenant(entry, tenant)

    async def _redo_key(self, entry: AuditEvent) -> Lost:
        operator, after, key_id = operator_principal(entry.org_id), entry.after or {}, entry.target_id
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
        operator, after = operator_principal(entry.org_id), entry.after or {}
        binds = _binds(entry)
        if entry.action in _ENDED:
            await self._members.remove(operator, BY_OPERATOR, entry.target_id, binds=binds)
        else:
            member = await self._members.get(operator, entry.target_id)
            role = Role(after.get("role", member.role))
            await self._members.change_role(operator, BY_OPERATOR, entry.target_id, role, binds=binds)
        return Lost(entry, Outcome.REDONE)

    async def _redo_tenant(self, entry: AuditEvent, tenant: TenantRow) -> Lost:
        if entry.action is Action.TENANT_ENDED:
            await self._tenants.delete(BY_OPERATOR, entry.org_id)
            return Lost(entry, Outcome.REDONE)
        wishes = TenantWishes(
            name=tenant.record.name,
            owner_email=tenant.owner_email,
            suspended=True,
            email_verified=tenant.owner_address.is_verified,
        )
        await self._tenants.put(BY_OPERATOR, entry.org_id, wishes)
        return Lost(entry, Outcome.REDONE, "of what was changed, the suspension")


def _changed_since(entry: AuditEvent, newest: Mapping[Action, datetime]) -> str:
    """What was done later to what an entry is about, where that stands; empty where the entry does.

    A removal is only undone by adding the member again: the role may have been changed since by a run like this one,
    that was broken off.
    """
    if entry.action in _ENDED:
        begun = [newest[action] for action in _BEGUN if action in newest]
        return "the member was added again since" if begun and max(begun) > entry.at else ""
    # a user accepts without anybody having looked at what was lost
    later = [action for action, at in newest.items() if at > entry.at and action is not Action.MEMBER_ACCEPTED]
    is_outdated = entry.action in _CHANGED and bool(later)
    return "it was changed since" if is_outdated else ""


def _left_alone(entry: AuditEvent, tenant: TenantRow, *, is_last_on_suspension: bool) -> Lost | None:
    """What is only told of a change, None where it is to be redone, or the key or member is to be looked at."""
    if entry.action in _MADE or (entry.action in _BEGUN and entry.before is None):
        return Lost(entry, Outcome.GONE, _YOUNG)
    if tenant.deleted:
        return Lost(entry, Outcome.SO_ALREADY, "the tenant has ended")
    if entry.action.startswith("billing."):
        return Lost(entry, Outcome.SO_ALREADY, "it changed nothing here")
    if entry.action is Action.TENANT_TRANSFERRED:
        return Lost(entry, Outcome.BY_HAND, "the tenant has its owner of before")
    if entry.action is Action.TENANT_UPDATED:
        return _update_left_alone(entry, tenant, is_last_on_suspension=is_last_on_suspension)
    return None


def _update_left_alone(entry: AuditEvent, tenant: TenantRow, *, is_last_on_suspension: bool) -> Lost | None:
    """What is only told of what a tenant was made, None where it is to be suspended."""
    told = dict(entry.after or {})
    if "suspended" in told:
        if not is_last_on_suspension or told["suspended"] == tenant.suspended:
            del told["suspended"]
        elif told["suspended"]:
            return None
    if not told:
        return Lost(entry, Outcome.SO_ALREADY, "" if is_last_on_suspension else "the suspension was changed since")
    return Lost(entry, Outcome.BY_HAND, f"it has its {', '.join(told)} of before")


def _member_left_alone(entry: AuditEvent, member: Member) -> Lost | None:
    """What is only told of a member's change, None where it takes something away."""
    is_removed = member.status is MemberStatus.REMOVED
    if entry.action in _BEGUN:
        if is_removed:
            return Lost(entry, Outcome.BY_HAND, "the member was added again, and is removed")
        return Lost(entry, Outcome.SO_ALREADY)
    if entry.action is Action.MEMBER_ACCEPTED:
        if member.status is MemberStatus.ACTIVE:
            return Lost(entry, Outcome.SO_ALREADY)
        return Lost(entry, Outcome.BY_HAND, f"the user had accepted, and is {member.status}")
    if is_removed and not (entry.action in _ENDED and _binds(entry)):
        return Lost(entry, Outcome.SO_ALREADY, "the member is removed")
    return _role_left_alone(entry, member) if entry.action is Action.MEMBER_UPDATED else None


def _role_left_alone(entry: AuditEvent, member: Member) -> Lost | None:
    role = Role((entry.after or {}).get("role", member.role))
    if role is member.role:
        return None if _binds(entry) else Lost(entry, Outcome.SO_ALREADY)
    if lower_role(role, member.role) is member.role:
        return Lost(entry, Outcome.BY_HAND, f"the member has the role {member.role} of before, and had {role}")
    return None


def _binds(entry: AuditEvent) -> bool:
    """Whether the change made the membership count for a user whose token claims the role owner."""
    return bool((entry.after or {}).get("bindsOwner"))


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
