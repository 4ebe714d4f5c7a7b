"""Dashboard sessions: sign in, renew, look up, sign out."""

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import msgspec

from tenantry.auth import sessions_store as sessions
from tenantry.auth.sessions_store import OrganizationOfUser, TenantOfUser
from tenantry.auth.user_profiles_store import record_visits, visit_of
from tenantry.common.clock import Clock
from tenantry.db.connection import OF_PEOPLE, Connection
from tenantry.db.database import Database
from tenantry.db.pagination import Page
from tenantry.domain import sessions as rules
from tenantry.domain.issuers import Issuers
from tenantry.domain.sessions import Session, SessionSecret
from tenantry.domain.tenants import is_tenant_id
from tenantry.integrations.oidc.claims import Claims

_MOST_AGENT: Final = 200
MAX_LISTED_TENANTS: Final = 20
"""The number of a user's tenants that `ActiveSession` lists."""


class ActiveSession(msgspec.Struct, frozen=True):
    """A signed-in user with up to `MAX_LISTED_TENANTS` of their ``total`` tenants, sorted by
    name.
    """

    session: Session
    claims: Claims
    tenants: list[TenantOfUser]
    total: int
    invitations: int
    """Open invitations, counted up to a hundred."""


@dataclass(frozen=True)
class SessionService:
    """The sessions of a deployment, stored in its database: an ended session is rejected by every
    process.

    Sessions of an identity provider that ``issuers`` no longer trusts are expired.
    """

    database: Database
    secret: SessionSecret
    issuers: Issuers | None
    clock: Clock

    async def use_state(self, state: str) -> bool:
        """Use a sign-in's ``state`` once; return False if any process has used it before."""
        return await self._use_once("state", hashlib.sha256(state.encode()).hexdigest())

    async def use_secret(self, key_id: str) -> bool:
        """Use the one display of a new key's secret; return False if any process has shown it
        before.
        """
        return await self._use_once("secret", key_id)

    async def _use_once(self, purpose: str, name: str) -> bool:
        async with self.database.transaction(OF_PEOPLE) as connection:
            return await sessions.use_once(connection, purpose, name, self.clock())

    async def begin(
        self,
        claims: Claims,
        name: str | None,
        *,
        address: str | None,
        agent: str | None,
        before: str | None,
        authenticated_at: datetime | None = None,
    ) -> str:
        """Start a session after a sign-in; return the token for the cookie, which is stored
        nowhere.

        ``before`` is the browser's former token, which ends. ``authenticated_at`` is when the
        provider authenticated the user, if it said so.
        """
        random = secrets.token_bytes(rules.RANDOM_BYTES)
        now = self.clock()
        session = Session(
            digest=self.secret.digest_of(random),
            issuer=claims.issuer,
            subject=claims.subject,
            claims=msgspec.json.encode(claims).decode(),
            name=name,
            tenant_id=None,
            address=address,
            agent=agent and agent[:_MOST_AGENT],
            proved_at=now,
            started_at=now,
            used_at=now,
            authenticated_at=authenticated_at,
        )
        old = None if before is None else self.secret.digest(before)
        async with self.database.transaction(OF_PEOPLE) as connection:
            if old is not None:
                session = await _continued(connection, session, old)
            await sessions.insert(connection, session)
        return self.secret.token(random)

    async def renew(self, token: str, claims: Claims, name: str | None) -> bool:
        """Store the provider's current claims of a session's user; return whether the session is
        still that user's.

        The token stays, because other pages of the browser may be using it.
        """
        digest = self.secret.digest(token)
        if digest is None:
            return False
        content = msgspec.json.encode(claims).decode()
        async with self.database.transaction(OF_PEOPLE) as connection:
            return await sessions.renew(
                connection,
                digest,
                claims.user,
                content,
                name,
                self.clock(),
            )

    async def look_up(
        self, token: str, tenant_id: str | None, *, is_use: bool = True
    ) -> ActiveSession | None:
        """Return the user of a cookie, viewing a tenant; None for an invalid or expired session.

        The listed tenants include that tenant if it is the user's, the last viewed one and the
        token's. Without ``is_use``, as for a page that updates itself, the session's idle time
        continues.
        """
        digest = self.secret.digest(token)
        if digest is None:
            return None
        now = self.clock()
        async with self.database.transaction(OF_PEOPLE) as connection:
            session = await self._find_valid(connection, digest, now)
            if session is None:
                return None
            claims = msgspec.json.decode(session.claims, type=Claims)
            requested = tenant_id if is_tenant_id(tenant_id or "") else None
            tenants, total = await sessions.tenants_of_user(
                connection,
                claims,
                first=(requested, session.tenant_id, claims.org_id),
                most=MAX_LISTED_TENANTS,
            )
            invitations = await sessions.count_invitations(connection, session.user)
            if is_use:
                opened = _opened(tenants, tenant_id)
                await _record_use(connection, session, claims, opened, now)
        return ActiveSession(
            session,
            claims,
            tenants,
            total,
            invitations,
        )

    async def _find_valid(
        self, connection: Connection, digest: bytes, now: datetime
    ) -> Session | None:
        """Find a session that is still valid; delete one that has expired."""
        session = await sessions.find(connection, digest)
        if session is None:
            return None
        is_trusted = self.issuers is not None and self.issuers.trusts(session.issuer)
        if is_trusted and not session.is_expired(now):
            return session
        await sessions.delete(connection, digest)
        return None

    async def search_tenants(
        self, claims: Claims, text: str, limit: int, after: str | None
    ) -> Page[OrganizationOfUser]:
        """Search the tenants of a user by a part of the name or the whole id, sorted by name.

        ``after`` is the id of the last tenant of the former page, as is ``next_cursor``.
        """
        async with self.database.transaction(OF_PEOPLE) as connection:
            rows = await sessions.search_tenants(
                connection,
                claims,
                text=text,
                after=after,
                limit=limit,
            )
        return Page(rows[:limit], rows[limit - 1].id if len(rows) > limit else None)

    async def end(self, token: str) -> None:
        """Sign out: reject the cookie and all its copies from now on."""
        digest = self.secret.digest(token)
        if digest is not None:
            async with self.database.transaction(OF_PEOPLE) as connection:
                await sessions.delete(connection, digest)

    async def of_user(self, session: Session) -> list[Session]:
        """Read all sessions of a session's user that have not expired, the last used first."""
        now = self.clock()
        async with self.database.transaction(OF_PEOPLE) as connection:
            found = await sessions.of_user(connection, session.user, now - rules.ABSOLUTE)
        return [one for one in found if not one.is_expired(now)]

    async def end_others(self, session: Session) -> int:
        """End all other sessions of a session's user; return how many."""
        async with self.database.transaction(OF_PEOPLE) as connection:
            return await sessions.delete_others(connection, session)


async def _continued(connection: Connection, session: Session, old: bytes) -> Session:
    """End the browser's former session; a new one of the same user keeps its tenant."""
    previous = await sessions.find(connection, old)
    await sessions.delete(connection, old)
    if previous is None or previous.user != session.user:
        return session
    return msgspec.structs.replace(session, tenant_id=previous.tenant_id)


def _opened(tenants: Sequence[TenantOfUser], tenant_id: str | None) -> str | None:
    """Return the viewed tenant if it is the user's and not suspended."""
    return next((one.id for one in tenants if one.id == tenant_id and not one.suspended), None)


async def _record_use(
    connection: Connection, session: Session, claims: Claims, opened: str | None, now: datetime
) -> None:
    """Record that a session is used, and the tenant that it has opened; not at every request."""
    is_other = opened is not None and opened != session.tenant_id
    if now < session.used_at + rules.WRITE_EVERY and not is_other:
        return
    await sessions.touch(connection, session.digest, now, opened)
    if opened is not None:
        await record_visits(connection, [visit_of(claims, opened, session.name, now)])
