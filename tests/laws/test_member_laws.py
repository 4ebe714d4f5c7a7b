"""Members, through the real service on a real database: random requests of random callers in any
order.
"""

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final, NamedTuple, TypeVar, cast

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from tenantry.accounts import members_store as members
from tenantry.accounts import tenants_store as tenants
from tenantry.accounts.members_store import MemberFilter
from tenantry.accounts.memberships.changes import NO_OUTBOX, MembershipChanges
from tenantry.accounts.memberships.members import MemberService
from tenantry.accounts.memberships.own import MembershipService
from tenantry.accounts.tenants import TenantService
from tenantry.auth.changes import Change
from tenantry.db.connection import of_tenant
from tenantry.db.outbox import Outbox
from tenantry.db.pagination import Window
from tenantry.db.tenants_store import TenantUsers, find_tenant, get_tenant
from tenantry.domain.access import NOTHING
from tenantry.domain.audit import ActorKind, Author
from tenantry.domain.billing.state import BillingPolicy
from tenantry.domain.errors import DomainError
from tenantry.domain.issuers import Issuers
from tenantry.domain.members import Member, MemberStatus, User
from tenantry.domain.owner_mails import OwnerAddress
from tenantry.domain.permissions import (
    AccessLevel,
    Mode,
    PrincipalKind,
    RequestPrincipal,
    role_grants,
)
from tenantry.domain.plans import parse_catalog
from tenantry.domain.roles import BuiltInRole, Role
from tenantry.domain.scopes import covers
from tests.support.guarded_events import written_by_test
from tests.support.patience import patient_database
from tests.support.principals import NOW

ISSUER: Final = "https://id.example"
USERS: Final = ("ada", "bob", "cyd", "dan")
OWNER: Final = USERS[0]
AUTHOR: Final = Author(ActorKind.SYSTEM)
CATALOG: Final = parse_catalog("""
[[plans]]
id = "free"

[[roles]]
id = "lead"
scopes = ["members:*", "projects:*", "tenants:read", "billing:read"]
gives = ["support"]

[[roles]]
id = "support"
scopes = ["projects:read"]
""")
Value = TypeVar("Value")

users = st.sampled_from(USERS)
roles = st.sampled_from([role.id for role in CATALOG.roles])
numbers = st.integers(0, len(USERS) - 1)


class KeyOf(NamedTuple):
    """An API key that makes requests."""

    scopes: tuple[str, ...]
    level: AccessLevel
    mode: Mode
    ends: bool


Caller = str | KeyOf
"""A user by name, or a key."""
EVERYTHING: Final = ("*:*",)
OWNER_KEY: Final = KeyOf(EVERYTHING, AccessLevel.OWNER, Mode.LIVE, ends=False)
callers = users | st.sampled_from(
    [
        OWNER_KEY,
        OWNER_KEY._replace(ends=True),
        OWNER_KEY._replace(mode=Mode.TEST),
        KeyOf(EVERYTHING, AccessLevel.SCOPED, Mode.LIVE, ends=False),
        KeyOf(("members:write",), AccessLevel.SCOPED, Mode.LIVE, ends=False),
        KeyOf(
            ("members:*", "projects:*", "tenants:*", "billing:*"),
            AccessLevel.SCOPED,
            Mode.LIVE,
            ends=False,
        ),
    ]
)


class World:
    """The service of one database, driven from outside an event loop."""

    def __init__(self, conninfo: str) -> None:
        self._runner = asyncio.Runner()
        self.database = patient_database(conninfo, pool_size=2)
        ticks = itertools.count(1)
        clock = lambda: NOW + timedelta(microseconds=next(ticks))  # noqa: E731
        self.service = MemberService(self.database, Issuers(ISSUER), CATALOG, clock)
        self.tenants = TenantService(
            self.database, BillingPolicy(CATALOG), Outbox(), clock, Issuers(ISSUER)
        )
        self.memberships = MembershipService(self.database, Issuers(ISSUER), clock)
        self.numbers = itertools.count(1)
        self.run(self.database.open())

    def run(self, work: Coroutine[Any, Any, Value]) -> Value:
        return self._runner.run(work)

    def close(self) -> None:
        self.run(self.database.close())
        self._runner.close()

    async def add_tenant(self, org_id: str) -> None:
        async with self.database.change(of_tenant(org_id)) as connection:
            await written_by_test(connection)
            address = OwnerAddress("a@b.example", "a@b.example")
            await tenants.insert(connection, org_id, org_id, OWNER, address, NOW)
            change = Change(connection, AUTHOR, NOW, await get_tenant(connection, org_id))
            await MembershipChanges(change, Issuers(ISSUER), NO_OUTBOX).add_owner(
                User(ISSUER, OWNER)
            )

    async def owner_of(self, org_id: str) -> str:
        async with self.database.transaction(of_tenant(org_id)) as connection:
            found = await find_tenant(connection, org_id)
        assert found is not None
        return found.record.owner_id

    async def members_of(self, org_id: str) -> dict[str, Member]:
        async with self.database.transaction(of_tenant(org_id)) as connection:
            page = await members.read_page(
                connection, TenantUsers(org_id, Issuers(ISSUER)), MemberFilter(), Window(100)
            )
        return {row.user_id: row for row in page.data}


def test_no_sequence_of_requests_gives_more_than_its_maker_holds_or_leaves_no_owner(
    conninfo: str,
) -> None:
    world = World(conninfo)
    sequences = settings().max_examples // 2
    bounded = settings(
        max_examples=sequences, stateful_step_count=20, suppress_health_check=[HealthCheck.too_slow]
    )
    try:
        machine = cast("type[MembersThroughTheService]", lambda: MembersThroughTheService(world))
        run_state_machine_as_test(machine, settings=bounded)
    finally:
        world.close()


class MembersThroughTheService(RuleBasedStateMachine):
    """A tenant with an owner and an admin; everything else is done by its members, and by keys."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world
        self.org = f"org-{next(world.numbers)}"
        world.run(world.add_tenant(self.org))
        self._read_members()
        self._do(
            "ada",
            lambda caller: world.service.add(
                caller, AUTHOR, user_id="bob", role=BuiltInRole.ADMIN, claim=None
            ),
        )
        self.accept(1)

    @rule(caller=callers, user=users, role=roles)
    def add(self, caller: Caller, user: str, role: str) -> None:
        self._do(
            caller,
            lambda principal: self.world.service.add(
                principal, AUTHOR, user_id=user, role=role, claim=None
            ),
        )

    @rule(caller=callers, number=numbers, role=roles)
    def change(self, caller: Caller, number: int, role: str) -> None:
        member = self._member(number)
        self._do(
            caller,
            lambda principal: self.world.service.change_role(principal, AUTHOR, member.id, role),
        )

    @rule(caller=callers, number=numbers)
    def remove(self, caller: Caller, number: int) -> None:
        member = self._member(number)
        self._do(caller, lambda principal: self.world.service.remove(principal, AUTHOR, member.id))

    @rule(number=numbers)
    def accept(self, number: int) -> None:
        member = self._member(number)
        with suppress(DomainError):
            self.world.run(
                self.world.memberships.accept(User(ISSUER, member.user_id), AUTHOR, member.id, None)
            )
        self._read_members()

    @rule(number=numbers)
    def leave(self, number: int) -> None:
        member = self._member(number)
        with suppress(DomainError):
            self.world.run(
                self.world.memberships.end(User(ISSUER, member.user_id), AUTHOR, member.id)
            )
        self._read_members()

    @rule(caller=callers, user=users)
    def transfer(self, caller: Caller, user: str) -> None:
        self._do(
            caller,
            lambda principal: self.world.tenants.transfer(
                principal, AUTHOR, self.org, user_id=user, owner_email="c@d.example", claim=None
            ),
        )

    @invariant()
    def tenant_has_its_owner(self) -> None:
        owner = self.members[self.world.run(self.world.owner_of(self.org))]
        assert (owner.role, owner.status) == (BuiltInRole.OWNER, MemberStatus.ACTIVE)

    def _do(
        self, caller: Caller, request: Callable[[RequestPrincipal], Coroutine[Any, Any, object]]
    ) -> None:
        """After each request no user has more rights, except from a caller who holds them and may
        give them.
        """
        principal = self._principal(caller)
        before = self.members
        with suppress(DomainError):
            principal.require("members:write")
            self.world.run(request(principal))
        self._read_members()
        if principal.mode is Mode.TEST:
            assert self.members == before
        for user, member in self.members.items():
            self._check_given(principal, before.get(user), member)
            scopes, level = _access(member)
            held, held_level = _access(before.get(user))
            if level is not held_level:
                assert principal.access_level is AccessLevel.OWNER
            if level is AccessLevel.OWNER is not held_level or not all(
                covers(held, scope) for scope in scopes
            ):
                assert all(covers(principal.scopes, scope) for scope in scopes)
                assert principal.kind is PrincipalKind.USER or principal.expires_at is None

    def _check_given(
        self, principal: RequestPrincipal, before: Member | None, after: Member
    ) -> None:
        """A user whose role gives only some roles changes only members with these."""
        if principal.gives is not None and before != after:
            assert after.role in principal.gives
            if before is not None and before.status is not MemberStatus.REMOVED:
                assert before.role in principal.gives

    def _read_members(self) -> None:
        self.members = self.world.run(self.world.members_of(self.org))

    def _member(self, number: int) -> Member:
        return list(self.members.values())[number % len(self.members)]

    def _principal(self, caller: Caller) -> RequestPrincipal:
        """A user with what the role grants now, and a token's end; or a key."""
        if isinstance(caller, KeyOf):
            kind, name, mode, issuer = PrincipalKind.API_KEY, "key", caller.mode, None
            scopes, level, expires_at = (
                caller.scopes,
                caller.level,
                NOW + timedelta(hours=1) if caller.ends else None,
            )
        else:
            kind, name, mode, issuer = PrincipalKind.USER, caller, Mode.LIVE, ISSUER
            scopes, level = _access(self.members.get(caller))
            expires_at = NOW + timedelta(hours=1)
        principal = RequestPrincipal(
            kind, name, self.org, mode, scopes, level, "free", "none", NOTHING, expires_at, issuer
        )
        if isinstance(caller, KeyOf):
            return principal
        gives = _role(self.members.get(caller)).gives
        return msgspec.structs.replace(principal, gives=gives, roles=CATALOG.roles)


def _role(member: Member | None) -> Role:
    if member is None or member.status is MemberStatus.REMOVED:
        return Role("none", "None")
    return CATALOG.roles.find(member.role)


def _access(member: Member | None) -> tuple[tuple[str, ...], AccessLevel]:
    return role_grants(_role(member), ())
