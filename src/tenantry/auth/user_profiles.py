"""Names, addresses and last visits of users, by tenant: recorded as users come, read for pages."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from tenantry.auth.user_profiles_store import (
    SEEN_EVERY,
    UserVisit,
    read_profiles,
    record_visits,
    visit_of,
)
from tenantry.common.clock import Clock
from tenantry.db.connection import OF_PEOPLE, Connection, of_tenant
from tenantry.db.database import Database
from tenantry.db.write_behind import WriteBehind
from tenantry.domain.members import User, UserProfile
from tenantry.integrations.oidc.claims import Claims


@dataclass(eq=False)
class VisitRecorder:
    """Records which users use which tenants by token; `writes` stores it later.

    Each process records a user once in `SEEN_EVERY`, and again with another address, so that most
    requests cost a lookup in memory alone. It remembers up to ``most`` users.
    """

    clock: Clock
    writes: WriteBehind[UserVisit]
    most: int = 10_000
    _recorded: dict[tuple[str, str, str], tuple[datetime, str | None]] = field(
        default_factory=dict,
        init=False,
        repr=False,
    )

    def record(self, org_id: str, claims: Claims) -> None:
        """Record that the user of verified claims uses a tenant."""
        user = (org_id, claims.issuer, claims.subject)
        now = self.clock()
        seen_at, email = self._recorded.get(user, (None, None))
        is_known = claims.email is None or claims.email == email
        if seen_at is not None and now < seen_at + SEEN_EVERY and is_known:
            return
        if len(self._recorded) >= self.most:
            self._recorded.clear()
        self._recorded[user] = now, claims.email or email
        self.writes.record("\n".join(user), visit_of(claims, org_id, claims.name, now))


def visit_writes(database: Database) -> WriteBehind[UserVisit]:
    """Return the pending writes of visits, by tenant and user."""

    async def store(connection: Connection, visits: Mapping[str, UserVisit]) -> None:
        await record_visits(connection, list(visits.values()))

    return WriteBehind(database, "visits of users", store, scope=OF_PEOPLE)


@dataclass(frozen=True)
class UserProfileService:
    """What a tenant knows of its users."""

    database: Database

    async def of_users(self, org_id: str, users: Sequence[User]) -> dict[User, UserProfile]:
        """Return the profiles of those users of whom the tenant knows more than the id."""
        async with self.database.transaction(of_tenant(org_id)) as connection:
            return await read_profiles(connection, org_id, users)

    async def names_of(self, org_id: str, users: Sequence[User]) -> dict[User, str]:
        """Return the names of those users whose name or address the tenant knows."""
        profiles = await self.of_users(org_id, users)
        return {user: profile.label for user, profile in profiles.items() if profile.label}
