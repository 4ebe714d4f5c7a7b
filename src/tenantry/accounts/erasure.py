"""Erase one person: replace the ids and addresses of theirs, wherever the database has them."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

from tenantry.accounts import erasure_store as store
from tenantry.accounts.erasure_store import AS_OWNER, BODIES, PAGES_AT_ONCE, PLACES, Erasure, Place
from tenantry.accounts.invitations import InvitationService
from tenantry.accounts.memberships.members import MemberService
from tenantry.audit.trail import RecordedChange
from tenantry.common.clock import Clock
from tenantry.common.encoding import new_id
from tenantry.db.connection import Connection
from tenantry.db.database import Database
from tenantry.domain.api_keys import Pepper
from tenantry.domain.audit import BY_OPERATOR, Action
from tenantry.domain.erased_ids import ALIAS
from tenantry.domain.erasure import ErasedPerson, Person, erased_person
from tenantry.domain.errors import (
    IdempotencyInFlightError,
    InvitationClosedError,
    LastOwnerError,
    NotFoundError,
    ScopeEscalationError,
    ValidationError,
)
from tenantry.domain.mail_addresses import comparable_address, spellings
from tenantry.domain.members import User
from tenantry.domain.permissions import operator_principal

_MOST_PASSES: Final = 5
_ADVICE: Final = {
    "owner": "transfer it to another member, or end it with `tenantry admin end-tenant`",
    "address": "it sends billing mail to that address: give it another one",
    "id": "its id is the person's: end it, and repeat this when it is deleted, 30 days later",
}
_NOT_OWNER: Final = (
    "Only the owner of the tables may do this: use the DATABASE_URL of `tenantry migrate`."
)


class Progress:
    """Receives how far an erasure has come. `is_stopped` asks it to stop after the batch in
    flight.
    """

    def began(self, pages: int) -> None:
        """A pass over so many pages begins."""

    def advanced(self, pages: int) -> None:
        """So many of them are done."""

    def is_stopped(self) -> bool:
        return False


@dataclass
class ErasureReport:
    """What an erasure changed, or would: rows by place."""

    id: str
    person: Person
    counts: Counter[str] = field(default_factory=Counter)
    tenants: set[str] = field(default_factory=set)
    is_complete: bool = False


@dataclass(frozen=True)
class PersonErasure:
    """Erases people. Of ``peppers`` the first is the newest. While services run, ``settling`` is
    how many seconds they may collect what a person did before their access ended.
    """

    database: Database
    peppers: Sequence[Pepper]
    members: MemberService
    invitations: InvitationService
    clock: Clock
    settling: float = 0.0

    async def find_by_address(self, email: str) -> Person:
        """Return the person of an address: the users whom it was verified for, or who accepted an
        invitation to it, and all addresses of these. Raises `ValidationError` for what is no
        address, such as an empty variable of a script: it would be found in every text.
        """
        if comparable_address(email) is None:
            raise ValidationError(("--email", "is not an email address"))
        async with self._transaction() as connection:
            users = await store.users_by_address(connection, spellings(email))
            return await self._person(connection, users, [email])

    async def find_by_id(self, user_id: str) -> Person:
        """Return the person with a user id; with several issuers it is the issuer, a blank and the
        id. Raises `ValidationError` for an id that is empty, that users of several issuers have, or
        that only users of other issuers have.
        """
        issuer, _, subject = user_id.rpartition(" ")
        if not subject:
            raise ValidationError(("--user", "is empty"))
        async with self._transaction() as connection:
            found = await store.users_by_subject(connection, subject)
            users = [user for user in found if issuer in ("", user.issuer)]
            if len(users) > 1 or (found and not users):
                known = ", ".join(user.issuer for user in found)
                fault = f"is a user of other or several issuers ({known}): pass 'ISSUER {subject}'"
                raise ValidationError(("--user", fault))
            return await self._person(connection, users or [User(issuer, subject)], [])

    async def preview(self, person: Person) -> ErasureReport:
        """Count what `erase` would change, and write nothing. Raises `LastOwnerError`."""
        erasure = Erasure(f"{ALIAS}_preview", person)
        report = ErasureReport(erasure.id, person)
        await self._check(person)
        async with self._transaction() as connection:
            report.counts["memberships"] = len(await store.memberships_of(connection, person))
            report.counts["user_profiles"] = len(await store.profiles_of(connection, person))
            report.counts["dashboard_sessions"] = await store.count_sessions(connection, person)
        for place in PLACES:
            await self._scan(erasure, report, place, Progress(), dry_run=True)
        report.is_complete = True
        return report

    async def unfinished(self) -> Erasure | None:
        """Return the erasure that was interrupted."""
        async with self._transaction() as connection:
            return await store.under_way(connection)

    async def erase(self, person: Person, progress: Progress) -> ErasureReport:
        """Erase a person. An interrupted erasure must be resumed first. Raises `LastOwnerError`,
        and `IdempotencyInFlightError` while another one is under way.
        """
        await self._check(person)
        async with self._transaction() as connection:
            own = await store.memberships_of(connection, person)
            rejected = tuple(each.id for each in own if each.is_removed)
            person = Person(person.users, person.addresses, rejected)
            erasure = Erasure(new_id(ALIAS), person)
            await self._begin(connection, erasure)
        return await self.resume(erasure, progress)

    async def resume(self, erasure: Erasure, progress: Progress) -> ErasureReport:
        """Do what is left of an erasure. Each step can be repeated."""
        report = ErasureReport(erasure.id, erasure.person)
        await self._end_access(erasure, report)
        await asyncio.sleep(self.settling)
        await self._rename(erasure, report)
        places: Sequence[Place] = PLACES
        for _ in range(_MOST_PASSES):
            progress.began(await self._pages_of(places))
            changed = 0
            for place in places:
                changed += await self._scan(erasure, report, place, progress, dry_run=False)
            if progress.is_stopped():
                return report
            # rows of other tables may have moved, while they were read, to pages before those
            places = tuple(place for place in PLACES if not place.is_inserted_only)
            if not changed:
                break
        await self._rename(erasure, report)
        async with self._transaction() as connection:
            await store.end(connection, erasure, self.clock())
        report.is_complete = True
        return report

    async def find_again(self, erased: ErasedPerson) -> Person | None:
        """Find an erased person in a restored database; None if it has nothing of theirs."""
        async with self._transaction() as connection:
            await connection.execute("SET LOCAL statement_timeout = 0")
            subjects = await store.all_subjects(connection)
            addresses = set(await store.all_addresses(connection))
            pages = await store.page_count(connection, BODIES)
            for first in range(0, pages, PAGES_AT_ONCE):
                addresses.update(await store.addresses_in_bodies(connection, first))
            users = [user for each in subjects for user in erased.finds_user(each, self.peppers)]
            found = {each.lower() for each in addresses if erased.finds_address(each, self.peppers)}
            if not (users or found):
                return None
            return Person(tuple(users), tuple(sorted(found)))

    async def is_done(self, erasure_id: str) -> bool:
        """Whether the database has an erasure that has ended."""
        async with self._transaction() as connection:
            return await store.is_known(connection, erasure_id)

    async def erase_again(
        self, erasure_id: str, person: Person, ended: Sequence[str]
    ) -> ErasureReport:
        """Repeat an erasure in a restored database. The memberships that ``ended`` with it do not
        reject the person.
        """
        if (left := await self.unfinished()) is not None and left.id == erasure_id:
            return await self.resume(left, Progress())  # the backup was made meanwhile
        await self._check(person)
        async with self._transaction() as connection:
            own = await store.memberships_of(connection, person)
            rejected = tuple(each.id for each in own if each.is_removed and each.id not in ended)
            erasure = Erasure(erasure_id, Person(person.users, person.addresses, rejected))
            await self._begin(connection, erasure)
        return await self.resume(erasure, Progress())

    async def _begin(self, connection: Connection, erasure: Erasure) -> None:
        if not await store.begin(connection, erasure, self.clock()):
            raise IdempotencyInFlightError("Another erasure is under way: wait for its end.")

    async def _person(
        self, connection: Connection, users: Sequence[User], addresses: Sequence[str]
    ) -> Person:
        found = await store.addresses_of(connection, users)
        return Person(tuple(users), tuple(dict.fromkeys([*addresses, *found])))

    async def _check(self, person: Person) -> None:
        """Raise `LastOwnerError` for a person without whom a tenant would be left alone."""
        async with self._transaction() as connection:
            found = await store.obstacles(connection, person)
        if found:
            lines = [f"  {each.org_id}: {_ADVICE[each.why]}" for each in found]
            raise LastOwnerError(
                "\n".join(["Nothing was erased. First, for each of these:", *lines])
            )

    async def _end_access(self, erasure: Erasure, report: ErasureReport) -> None:
        """End the memberships, invitations and sessions of a person, as the operator does."""
        async with self._transaction() as connection:
            report.counts["dashboard_sessions"] += await store.end_sessions(
                connection, erasure.person
            )
            own = await store.memberships_of(connection, erasure.person)
            invited = await store.open_invitations(connection, erasure.person)
        for membership in own:
            if not membership.is_removed:
                with suppress(NotFoundError):  # of an ended tenant, or a former issuer
                    operator = operator_principal(membership.org_id)
                    await self.members.remove(operator, BY_OPERATOR, membership.id)
        for org_id, invitation_id in invited:
            with suppress(NotFoundError, InvitationClosedError):
                operator = operator_principal(org_id)
                await self.invitations.withdraw(operator, BY_OPERATOR, invitation_id)

    async def _rename(self, erasure: Erasure, report: ErasureReport) -> None:
        """Rename the person in memberships and profiles."""
        person = erasure.person
        aliases = dict(
            zip(erasure.replacements.subjects, erasure.replacements.aliases, strict=True)
        )
        async with self._transaction() as connection:
            own = await store.memberships_of(connection, person)
            profiles = await store.profiles_of(connection, person)
        tenants = sorted({*profiles, *(each.org_id for each in own)})
        if not tenants:
            return
        ended = defaultdict[str, list[str]](list)
        async with self._changing() as connection:
            await store.lock_tenants(connection, tenants)
            for membership in own:
                rejects = membership.id in person.rejected
                if not rejects:
                    ended[membership.org_id].append(membership.id)
                await store.rename_membership(
                    connection,
                    membership,
                    aliases[membership.subject],
                    self.peppers[0] if rejects else None,
                )
            report.counts["memberships"] += len(own)
            report.counts["user_profiles"] += len(await store.erase_profiles(connection, erasure))
            for org_id in tenants:
                await self._record(connection, erasure, org_id, ended)
        report.tenants.update(tenants)

    async def _scan(
        self,
        erasure: Erasure,
        report: ErasureReport,
        place: Place,
        progress: Progress,
        *,
        dry_run: bool,
    ) -> int:
        """Count or replace what a place has of a person, in short transactions; return the number
        of rows.
        """
        async with self._transaction() as connection:
            pages = await store.page_count(connection, place)
        number = 0
        for first in range(0, pages, PAGES_AT_ONCE):
            if progress.is_stopped():
                break
            async with self._changing() as connection:
                found = await store.scan_pages(connection, place, erasure, first, dry_run=dry_run)
                tenants = {org_id for org_id in found if org_id is not None}
                if not dry_run:
                    for org_id in sorted(tenants):
                        await self._record(connection, erasure, org_id, {})
            number += len(found)
            report.tenants |= tenants
            progress.advanced(min(PAGES_AT_ONCE, pages - first))
        report.counts[place.table] += number
        return number

    async def _pages_of(self, places: Sequence[Place]) -> int:
        async with self._transaction() as connection:
            return sum([await store.page_count(connection, place) for place in places])

    async def _record(
        self,
        connection: Connection,
        erasure: Erasure,
        org_id: str,
        ended: dict[str, list[str]],
    ) -> None:
        """Record the erasure in a tenant's trail, once, without the person."""
        if not await store.is_tenant(connection, org_id):
            return
        if await store.has_entry(connection, org_id, erasure.id):
            return
        change = RecordedChange(connection, BY_OPERATOR, org_id, self.clock())
        after = erased_person(erasure.person, self.peppers[0], ended, org_id)
        await change.record(Action.PERSON_ERASED, erasure.id, after=after, event=None)

    @asynccontextmanager
    async def _transaction(self) -> AsyncIterator[Connection]:
        """Run the block as the owner of the tables. Raises `ScopeEscalationError`."""
        async with self.database.transaction(AS_OWNER) as connection:
            await _check_owner(connection)
            yield connection

    @asynccontextmanager
    async def _changing(self) -> AsyncIterator[Connection]:
        async with self.database.change(AS_OWNER) as connection:
            yield connection


async def _check_owner(connection: Connection) -> None:
    if not await store.may_erase(connection):
        raise ScopeEscalationError(_NOT_OWNER)
