"""Signing in to the dashboard, staying signed in, and signing out."""

import hashlib
import secrets
from collections.abc import Collection
from datetime import datetime
from typing import Final

import msgspec

from tenantry.accounts import members_store as memberships
from tenantry.accounts.members_store import User
from tenantry.auth import sessions_store as sessions
from tenantry.auth.sessions_store import Claimed, TenantOfUser
from tenantry.common.clock import Clock
from tenantry.db.connection import OF_PEOPLE, of_tenant
from tenantry.db.database import Database
from tenantry.domain import sessions as rules
from tenantry.domain.access import Role
from tenantry.domain.pages import Page
from tenantry.domain.sessions import Session, SessionSecret
from tenantry.domain.tenants import is_tenant_id
from tenantry.integrations.oidc.claims import Claims

_MOST_AGENT: Final = 200
MOST_AT_HAND: Final = 20
"""So many of a user's tenants come with each visit."""


class Visit(msgspec.Struct, frozen=True):
    """Somebody who is signed in, and tenants that they may look at, by name: `MOST_AT_HAND` at most of ``total``."""

    session: Session
    claims: Claims
    tenants: list[TenantOfUser]
    total: int
    invitations: int
    """How many wait for the user, up to a hundred."""


class Opened(msgspec.Struct, frozen=True):
    """A session that was just begun. ``token`` goes into the cookie, and is in no other place."""

    session: Session
    token: str


class SessionService:
    """Sessions of one deployment, in its database: each process knows all of them, and an ended one nowhere counts."""

    def __init__(self, database: Database, secret: SessionSecret, issuer: str | None, clock: Clock) -> None:
        """``issuer`` is the identity provider's; sessions of another, from before it was changed, are over."""
        self._database = database
        self._issuer = issuer
        self._secret = secret
        self._clock = clock

    async def use_state(self, state: str) -> bool:
        """Use a sign-in's ``state``; False where any process has used it before."""
        digest = hashlib.sha256(state.encode()).hexdigest()
        async with self._database.transaction(OF_PEOPLE) as connection:
            return await sessions.use_state(connection, digest, self._clock())

    async def begin(
        self, claims: Claims, name: str | None, *, address: str | None, agent: str | None, before: str | None
    ) -> Opened:
        """Begin a session of a user whom the identity provider has just vouched for.

        Its token is always a new one. ``before`` is the token that the browser had, whose session ends here.
        """
        random = secrets.token_bytes(rules.RANDOM_BYTES)
        now = self._clock()
        session = msgspec.structs.replace(
            self._session(self._secret.digest_of(random), claims, name, now),
            address=address,
            agent=agent and agent[:_MOST_AGENT],
        )
        old = None if before is None else self._secret.digest(before)
        async with self._database.transaction(OF_PEOPLE) as connection:
            if old is not None:
                previous = await sessions.find(connection, old)
                await sessions.delete(connection, old)
                if previous is not None and (previous.issuer, previous.subject) == (claims.issuer, claims.subject):
                    session = msgspec.structs.replace(session, tenant_id=previous.tenant_id)
            await sessions.insert(connection, session)
        return Opened(session, self._secret.token(random))

    async def renew(self, token: str, claims: Claims, name: str | None) -> bool:
        """Take in what the provider says now of the user of a session; whether it still is that user's.

        Its token stays, for nobody is anybody else by it: other pages of the browser may be under way with it.
        """
        digest = self._secret.digest(token)
        if digest is None:
            return False
        now = self._clock()
        said = self._session(digest, claims, name, now)
        async with self._database.transaction(OF_PEOPLE) as connection:
            return await sessions.renew(connection, said, since=now - rules.ABSOLUTE, unused_since=now - rules.IDLE)

    async def visit(self, token: str, tenant_id: str | None, *, is_use: bool = True) -> Visit | None:
        """Who a cookie is of, looking at this tenant; None where nobody is signed in with it (any more).

        The tenant is among the visit's if it is the user's, and so are the one of last time and the token's.
        What is not a use of the session, but a page keeping itself up to date, does not put off its end.
        """
        digest = self._secret.digest(token)
        if digest is None:
            return None
        now = self._clock()
        async with self._database.transaction(OF_PEOPLE) as connection:
            session = await sessions.find(connection, digest)
            if session is None:
                return None
            if session.is_over(now) or session.issuer != self._issuer:
                await sessions.delete(connection, digest)
                return None
            claims = msgspec.json.decode(session.claims, type=Claims)
            asked = tenant_id if tenant_id is not None and is_tenant_id(tenant_id) else None
            user = User(session.issuer, session.subject)
            tenants, total = await sessions.few_of_user(
                connection, user, _claimed(claims), first=(asked, session.tenant_id, claims.org_id), most=MOST_AT_HAND
            )
            invitations = await memberships.count_invitations(connection, user)
            known = tenant_id if any(one.id == tenant_id and not one.suspended for one in tenants) else None
            if is_use and (now >= session.used_at + rules.WRITE_EVERY or (known and known != session.tenant_id)):
                await sessions.touch(connection, digest, now, known)
                if known is not None and session.name is not None:
                    await sessions.keep_name(connection, known, session, now)
        return Visit(session, claims, tenants, total, invitations)

    async def tenants_named(
        self, session: Session, claims: Claims, text: str, limit: int, after: str | None
    ) -> Page[TenantOfUser]:
        """A page of the tenants that a session's user may look at, by name: those with ``text`` in their name or as
        their id. ``after`` is the id of the last one of the page before, as is the page's ``next_cursor``.
        """
        async with self._database.transaction(OF_PEOPLE) as connection:
            user = User(session.issuer, session.subject)
            rows = await sessions.named_of_user(connection, user, _claimed(claims), text=text, after=after, limit=limit)
        return Page(rows[:limit], rows[limit - 1].id if len(rows) > limit else None)

    async def end(self, token: str) -> None:
        """Sign out: the cookie is good for nothing from now on, wherever a copy of it may be."""
        digest = self._secret.digest(token)
        if digest is not None:
            async with self._database.transaction(OF_PEOPLE) as connection:
                await sessions.delete(connection, digest)

    async def of_user(self, session: Session) -> list[Session]:
        """All sessions of a session's user that are not over, the latest used first."""
        now = self._clock()
        async with self._database.transaction(OF_PEOPLE) as connection:
            found = await sessions.of_user(connection, session.issuer, session.subject, now - rules.ABSOLUTE)
        return [one for one in found if not one.is_over(now)]

    async def names_of(self, session: Session, tenant_id: str, subjects: Collection[str]) -> dict[str, str]:
        """What users are called whom a session's provider knows, as far as they have looked at the tenant."""
        async with self._database.transaction(of_tenant(tenant_id)) as connection:
            return await sessions.names(connection, tenant_id, session.issuer, subjects)

    async def end_others(self, session: Session) -> int:
        """End all other sessions of a session's user; returns how many there were."""
        async with self._database.transaction(OF_PEOPLE) as connection:
            return await sessions.delete_of_user(connection, session.issuer, session.subject, but=session.digest)

    def _session(self, digest: bytes, claims: Claims, name: str | None, now: datetime) -> Session:
        return Session(
            digest=digest,
            issuer=claims.issuer,
            subject=claims.subject,
            claims=msgspec.json.encode(claims).decode(),
            name=name,
            tenant_id=None,
            address=None,
            agent=None,
            proved_at=now,
            started_at=now,
            used_at=now,
        )


def _claimed(claims: Claims) -> Claimed:
    return Claimed(claims.org_id, claims.role == Role.OWNER)
