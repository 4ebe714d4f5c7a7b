"""Re-apply revocations after a backup was restored, from the audit trail that was exported before
the loss.
"""

from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec

from tenantry.accounts import invitations_store as invitations
from tenantry.accounts import projects_store as projects
from tenantry.accounts.erasure import PersonErasure
from tenantry.accounts.invitations import InvitationService
from tenantry.accounts.memberships.members import MemberService
from tenantry.accounts.tenants import TenantService
from tenantry.audit import trail_store as audit
from tenantry.auth import sessions_store as sessions
from tenantry.auth.api_keys import ApiKeyService
from tenantry.billing.grants import GrantService
from tenantry.common.clock import Clock
from tenantry.db.connection import ACROSS_TENANTS, OF_PEOPLE, of_tenant
from tenantry.db.database import Database
from tenantry.db.tenants_store import TenantRow, get_tenant
from tenantry.domain.api_keys import KeyChanges
from tenantry.domain.audit import BY_OPERATOR, Action, AuditEvent
from tenantry.domain.erasure import ErasedPerson
from tenantry.domain.errors import DomainError, NotFoundError, ValidationError
from tenantry.domain.invitations import InvitationStatus
from tenantry.domain.members import Member, MemberStatus
from tenantry.domain.permissions import OWNER_ALIAS, AccessLevel, Mode, operator_principal
from tenantry.notifications import mails_store as mails
from tenantry.outbound.publishing import begin_epoch

HELD_BACK: Final = "held back by the operator after a restore"
_REMOVALS: Final = (Action.MEMBER_REMOVED, Action.MEMBER_DECLINED, Action.MEMBER_LEFT)
_ADDITIONS: Final = (Action.MEMBER_ADDED, Action.MEMBER_INVITED)
_KEY_ENDS: Final = (Action.KEY_REVOKED, Action.KEY_LEAKED)
_SUSPENSION: Final = {"suspended", "suspensionReason"}
"""The fields of a tenant's suspension; a change of its reason alone has the second."""
_NO_CHANGES: Final = (
    Action.BILLING_CHECKOUT,
    Action.BILLING_PORTAL,
    Action.BILLING_SEATS,
    Action.TENANT_EXPORTED,
)
"""They change nothing here: there is nothing to redo, and they supersede nothing."""
_CHANGES: Final = (
    Action.GRANT_SET,
    Action.KEY_UPDATED,
    Action.MEMBER_UPDATED,
    Action.PROJECT_UPDATED,
    Action.TENANT_UPDATED,
)


class RestoreOutcome(StrEnum):
    """What happened to a lost change; the values are shown to the operator."""

    REDONE = "redone"
    ALREADY_DONE = "already done"
    MISSING = "missing"
    """Its target was created after the backup, and does not exist."""
    MANUAL = "manual"
    """The operator must check it."""


async def _nothing() -> None:
    pass


class Verdict(NamedTuple):
    """The outcome of a change, the reason unless it is obvious, and what redoes the change."""

    outcome: RestoreOutcome
    why: str = ""
    redo: Callable[[], Awaitable[object]] = _nothing


def _already_done(why: str = "") -> Verdict:
    return Verdict(RestoreOutcome.ALREADY_DONE, why)


def _redone(redo: Callable[[], Awaitable[object]], why: str = "") -> Verdict:
    return Verdict(RestoreOutcome.REDONE, why, redo)


class LostChange(NamedTuple):
    """A change that the restored database lacks, and what happened to it."""

    entry: AuditEvent
    outcome: RestoreOutcome
    why: str = ""


class LostEntries(NamedTuple):
    """The entries that the restored database lacks, oldest first, and what supersedes them.

    ``newest`` is the time of the newest change of each kind that the database has, by organization
    and target; ``last_suspensions`` the id of the exported trail's last change of a suspension, by
    organization.
    """

    entries: list[AuditEvent]
    newest: Mapping[tuple[str, str], Mapping[Action, datetime]]
    last_suspensions: Mapping[str, str]


@dataclass(frozen=True)
class Restore:
    """The steps between a restore and the start of the service. Each can be repeated."""

    database: Database
    keys: ApiKeyService
    members: MemberService
    tenants: TenantService
    grants: GrantService
    invitations: InvitationService
    erasure: PersonErasure
    clock: Clock

    async def lost_entries(self, trail: Iterable[AuditEvent]) -> LostEntries:
        """Find the entries of an exported trail that the database lacks. They may be duplicate and
        in any order.
        """
        unique = {entry.id: entry for entry in trail}
        entries = sorted(unique.values(), key=lambda entry: (entry.at, entry.id))
        known: set[str] = set()
        newest: dict[tuple[str, str], dict[Action, datetime]] = {}
        for org_id, own in _by_organization(entries).items():
            targets = {entry.target_id for entry in own}
            async with self.database.transaction(of_tenant(org_id)) as connection:
                known |= await audit.existing_ids(connection, org_id, [entry.id for entry in own])
                changes = await audit.newest_by_target(connection, org_id, targets)
            newest |= {(org_id, target): ways for target, ways in changes.items()}
        lost = [entry for entry in entries if entry.id not in known]
        return LostEntries(lost, newest, _last_suspensions(entries))

    async def begin_epoch(self) -> None:
        """Let the versions of the feed's later events follow those of the lost ones."""
        await begin_epoch(self.database)

    async def reapply_revocations(
        self, lost: LostEntries, *, dry_run: bool
    ) -> AsyncGenerator[LostChange, None]:
        """Redo lost changes, oldest first, each in its own transactions.

        Revokes and changes keys, removes members and lowers roles, withdraws invitations, ends
        grants, ends and suspends tenants.
        Creations, and changes that extend access, resume a tenant or transfer it, are only
        reported. ``dry_run`` examines each change separately, and does not foresee errors.
        """
        for entry in lost.entries:
            try:
                verdict = await self._examine(entry, lost)
                if not dry_run:
                    await verdict.redo()
            except NotFoundError:
                verdict = Verdict(RestoreOutcome.MISSING, "it was created after the backup")
            except DomainError as error:
                verdict = Verdict(RestoreOutcome.MANUAL, error.detail)
            yield LostChange(entry, verdict.outcome, verdict.why)

    async def end_sessions(self) -> int:
        """End all dashboard sessions, because ended ones exist again; return how many."""
        async with self.database.transaction(OF_PEOPLE) as connection:
            return await sessions.delete_all(connection)

    async def hold_mail(self) -> int:
        """Drop the queued mails, most of which were sent after the backup; return how many."""
        async with self.database.transaction(ACROSS_TENANTS) as connection:
            return await mails.give_up(connection, HELD_BACK)

    async def _examine(self, entry: AuditEvent, lost: LostEntries) -> Verdict:
        """Say what must be done about a change. Raises `NotFoundError` if its target was created
        after the backup.
        """
        if since := _superseded_by(entry, lost.newest.get((entry.org_id, entry.target_id), {})):
            return _already_done(since)
        async with self.database.transaction(of_tenant(entry.org_id)) as connection:
            tenant = await get_tenant(connection, entry.org_id, even_ended=True)
        if entry.action in _NO_CHANGES:
            return _already_done("it changed nothing here")
        if entry.action is Action.PERSON_ERASED:
            return await self._examine_erasure(entry, lost)
        kind = entry.action.partition(".")[0]
        if entry.before is None:
            raise NotFoundError(kind)  # a creation
        if tenant.deleted:
            return _already_done("the tenant has ended")
        if kind == "tenant":
            is_last_suspension = lost.last_suspensions.get(entry.org_id) == entry.id
            return self._examine_tenant(entry, tenant, is_last_suspension=is_last_suspension)
        examine = {
            "api_key": self._examine_key,
            "member": self._examine_member,
            "project": self._examine_project,
            "grant": self._examine_grant,
            "invitation": self._examine_invitation,
        }[kind]
        return await examine(entry)

    async def _examine_erasure(self, entry: AuditEvent, lost: LostEntries) -> Verdict:
        """Erase a person again, once for the entries of all tenants."""
        if await self.erasure.is_done(entry.target_id):
            return _already_done()
        entries = [each.after for each in lost.entries if each.target_id == entry.target_id]
        erased = [msgspec.convert(after, ErasedPerson) for after in entries]
        person = await self.erasure.find_again(erased[0])
        if person is None:
            return _already_done("nothing of the person is left")
        ended = [member_id for each in erased for member_id in each.ended]
        return _redone(partial(self.erasure.erase_again, entry.target_id, person, ended))

    async def _examine_project(self, entry: AuditEvent) -> Verdict:
        """Report a project's change or deletion, which is never redone."""
        async with self.database.transaction(of_tenant(entry.org_id)) as connection:
            found = [
                await projects.find(connection, entry.org_id, mode, entry.target_id)
                for mode in Mode
            ]
        if any(found):
            return Verdict(RestoreOutcome.MANUAL, "the project is as it was at the backup")
        if entry.action is Action.PROJECT_DELETED:
            return _already_done()
        raise NotFoundError("project")

    async def _examine_grant(self, entry: AuditEvent) -> Verdict:
        """End a grant again; report a change of its terms, which is never redone."""
        in_force = {grant.name for grant in await self.grants.list_all(entry.org_id)}
        is_in_force = entry.target_id in in_force
        if entry.action is Action.GRANT_ENDED:
            end = partial(self.grants.end, BY_OPERATOR, entry.org_id, entry.target_id)
            return _redone(end) if is_in_force else _already_done()
        if is_in_force:
            return Verdict(RestoreOutcome.MANUAL, "the grant has its former terms")
        if _is_past(_time_in(entry.after or {}, "until"), self.clock()):
            return _already_done()
        return Verdict(RestoreOutcome.MANUAL, "the grant does not count, by its former terms")

    async def _examine_invitation(self, entry: AuditEvent) -> Verdict:
        """Withdraw an invitation that was withdrawn, or accepted: its user may have been removed
        since.
        """
        org_id = entry.org_id
        async with self.database.transaction(of_tenant(org_id)) as connection:
            found = await invitations.get(connection, org_id, entry.target_id, self.clock())
        is_open = found.invitation.status is InvitationStatus.OPEN
        if entry.action is Action.INVITATION_RESENT or not is_open:
            return _already_done()
        operator = operator_principal(org_id)
        withdraw = partial(self.invitations.withdraw, operator, BY_OPERATOR, entry.target_id)
        was_accepted = entry.action is Action.INVITATION_ACCEPTED
        return _redone(withdraw, "withdrawn, it was accepted" if was_accepted else "")

    async def _examine_key(self, entry: AuditEvent) -> Verdict:
        operator = operator_principal(entry.org_id)
        key = await self.keys.get(operator, entry.target_id)
        if key.revoked_at is not None:
            return _already_done()
        after = entry.after or {}
        ends_at = _time_in(after, "expiresAt")
        if entry.action in _KEY_ENDS or "revokedAt" in after or _is_past(ends_at, self.clock()):
            return _redone(partial(self.keys.revoke, operator, BY_OPERATOR, key.id, force=True))
        update = partial(
            self.keys.update,
            operator,
            BY_OPERATOR,
            key.id,
            _key_changes_in(after),
        )
        return _redone(update)

    async def _examine_member(self, entry: AuditEvent) -> Verdict:
        operator = operator_principal(entry.org_id)
        member = await self.members.get(operator, entry.target_id)
        if entry.action in _ADDITIONS or entry.action is Action.MEMBER_ACCEPTED:
            return _examine_addition(entry.action, member)
        # the change made the membership binding for a user whose token claims the role owner
        binds = bool((entry.after or {}).get("bindsOwner"))
        is_removal = entry.action in _REMOVALS
        if member.status is MemberStatus.REMOVED and not (is_removal and binds):
            return _already_done("the member is removed")
        if not is_removal:
            return self._examine_role(entry, member, binds=binds)
        return _redone(partial(self.members.remove, operator, BY_OPERATOR, member.id, binds=binds))

    def _examine_role(self, entry: AuditEvent, member: Member, *, binds: bool) -> Verdict:
        role = (entry.after or {}).get("role", member.role)
        roles = self.members.catalog.roles
        if role == member.role and not binds:
            return _already_done()
        if role not in roles:
            return Verdict(RestoreOutcome.MANUAL, f"the role {role} is not in the plan catalog")
        if not roles.find(member.role).includes(roles.find(role)):
            reason = f"the member has the former role {member.role} instead of {role}"
            return Verdict(RestoreOutcome.MANUAL, reason)
        operator = operator_principal(entry.org_id)
        change = self.members.change_role
        return _redone(partial(change, operator, BY_OPERATOR, member.id, role, binds=binds))

    def _examine_tenant(
        self, entry: AuditEvent, tenant: TenantRow, *, is_last_suspension: bool
    ) -> Verdict:
        if entry.action is Action.TENANT_TRANSFERRED:
            return Verdict(RestoreOutcome.MANUAL, "the tenant has its former owner")
        if entry.action is Action.TENANT_ENDED:
            return _redone(partial(self.tenants.delete, BY_OPERATOR, entry.org_id))
        if is_last_suspension and (verdict := self._examine_suspension(entry, tenant)):
            return verdict
        changed = ", ".join(name for name in entry.after or {} if name not in _SUSPENSION)
        if changed:
            return Verdict(RestoreOutcome.MANUAL, f"it has its former {changed}")
        return _already_done()

    def _examine_suspension(self, entry: AuditEvent, tenant: TenantRow) -> Verdict | None:
        """Suspend a tenant again, for the reason of then, or report that it was resumed; None if it
        is as it was.
        """
        after = entry.after or {}
        reason = after.get("suspensionReason")
        if after.get("suspended", reason is not None):
            if tenant.suspension == (reason or ""):
                return None
            author = BY_OPERATOR.because(reason)
            suspend = partial(self.tenants.suspend, author, entry.org_id, suspended=True)
            return _redone(suspend, "only the suspension")
        if not tenant.suspended:
            return None
        changed = ", ".join(name for name in after if name != "suspensionReason")
        return Verdict(RestoreOutcome.MANUAL, f"it has its former {changed}")


def _by_organization(entries: Iterable[AuditEvent]) -> dict[str, list[AuditEvent]]:
    by_org: defaultdict[str, list[AuditEvent]] = defaultdict(list)
    for entry in entries:
        by_org[entry.org_id].append(entry)
    return by_org


def _last_suspensions(entries: Iterable[AuditEvent]) -> dict[str, str]:
    """Return the id of the last change of a suspension, by organization."""
    return {
        entry.org_id: entry.id
        for entry in entries
        if entry.action is Action.TENANT_UPDATED and _SUSPENSION & (entry.after or {}).keys()
    }


def _time_in(after: Mapping[str, Any], name: str) -> datetime | None:
    """Return the time that a changed field has by now."""
    time = after.get(name)
    return None if time is None else datetime.fromisoformat(time).astimezone(UTC)


def _is_past(end: datetime | None, now: datetime) -> bool:
    return end is not None and end <= now


def _key_changes_in(after: Mapping[str, Any]) -> KeyChanges:
    """Return what a recorded change set of a key."""
    names = KeyChanges.__struct_encode_fields__
    changed = {name: after[name] for name in names if name in after}
    if after.get("accessLevel") == AccessLevel.OWNER:
        changed["scopes"] = (OWNER_ALIAS,)
    try:
        return msgspec.convert(changed, KeyChanges)
    except msgspec.ValidationError as error:
        raise ValidationError(("key", f"cannot be changed as recorded: {error}")) from None


def _examine_addition(action: Action, member: Member) -> Verdict:
    is_pending = action is Action.MEMBER_ACCEPTED and member.status is MemberStatus.INVITED
    if is_pending or member.status is MemberStatus.REMOVED:
        reason = f"the user was added or accepted, but is {member.status}"
        return Verdict(RestoreOutcome.MANUAL, reason)
    return _already_done()


def _superseded_by(entry: AuditEvent, newest: Mapping[Action, datetime]) -> str:
    """Return the reason why a later change supersedes an entry; empty without one.

    Only adding a member again supersedes a removal: an interrupted run may have changed the role.
    """
    kind = entry.action.partition(".")[0]  # a grant may be called like its tenant
    later = {
        action
        for action, at in newest.items()
        if at > entry.at and action.partition(".")[0] == kind
    }
    if entry.action is Action.GRANT_ENDED:
        return "the grant was set again since" if Action.GRANT_SET in later else ""
    if entry.action in _REMOVALS:
        return "the member was added again since" if later.intersection(_ADDITIONS) else ""
    # a user may accept before the operator examines the lost changes
    relevant = later.difference((Action.MEMBER_ACCEPTED, *_NO_CHANGES))
    return "it was changed since" if entry.action in _CHANGES and relevant else ""
