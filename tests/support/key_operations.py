"""Random sequences of key operations, through the real services on a real database.

Users of every role and keys of every kind create, change, rotate and revoke keys while time passes.
The machine asserts after each operation that no key holds more than it held before or than its
maker holds, and that a revoked key stays revoked.
"""

import asyncio
import itertools
from collections.abc import Coroutine
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple, TypeVar, cast

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    initialize,
    multiple,
    rule,
    run_state_machine_as_test,
)

from tenantry.accounts import tenants_store as tenants
from tenantry.auth import api_keys_store
from tenantry.auth.api_keys import ApiKeyService, NewKey
from tenantry.auth.authentication import Authenticator, Rejected
from tenantry.db.connection import of_tenant
from tenantry.domain.access import NOTHING
from tenantry.domain.api_keys import (
    ApiKey,
    KeyChanges,
    KeyStatus,
    KeyTerms,
    Pepper,
    revoked,
    status_at,
)
from tenantry.domain.audit import BY_OPERATOR
from tenantry.domain.errors import ApiKeyExpiredError, ApiKeyRevokedError, DomainError
from tenantry.domain.owner_mails import OwnerAddress
from tenantry.domain.permissions import (
    AccessLevel,
    Mode,
    PrincipalKind,
    RequestPrincipal,
    role_grants,
)
from tenantry.domain.roles import BUILT_IN_ROLES, BuiltInRole
from tenantry.domain.scopes import covers
from tests.support import figures
from tests.support.figures import RecordProperty
from tests.support.guarded_events import written_by_test
from tests.support.patience import patient_database
from tests.support.principals import NOW, ONLY_FREE
from tests.support.senders import bearer
from tests.support.service import ManualClock

STEPS_OF_SEQUENCE: Final = 50
PEPPER: Final = Pepper(b"pepper")
Value = TypeVar("Value")

part = st.sampled_from(["*", "a", "api-keys"])
scopes = st.lists(
    st.builds("{}:{}".format, part, st.sampled_from(["*", "write"])), min_size=1, max_size=2
).map(tuple)
hours = st.none() | st.integers(1, 6)
levels = st.sampled_from([None, None, AccessLevel.OWNER])
modes = st.none() | st.sampled_from(Mode)
narrowings = st.sampled_from(
    [(), ("openid", "profile"), ("a:*",), ("api-keys:write", "a:write"), ("*:*",)]
)


class Held(NamedTuple):
    """A key and its secret, as its holder has it."""

    id: str
    secret: str


class User(NamedTuple):
    """A user with a token."""

    role: str
    narrowing: tuple[str, ...]


class World:
    """The services of one database, driven from outside an event loop."""

    def __init__(self, conninfo: str) -> None:
        self._runner = asyncio.Runner()
        self.clock = ManualClock(NOW)
        self.database = patient_database(conninfo, pool_size=2)
        self.keys = ApiKeyService(self.database, ONLY_FREE, PEPPER, self.clock)
        self.numbers = itertools.count(1)
        self.steps = 0
        self.carried_out = 0
        self.authenticator = self.run(self._open())

    def run(self, work: Coroutine[Any, Any, Value]) -> Value:
        return self._runner.run(work)

    def close(self) -> None:
        self.run(self.authenticator.close())
        self.run(self.database.close())
        self._runner.close()

    async def _open(self) -> Authenticator:
        await self.database.open()
        return Authenticator(
            keys=self.database.lane(),
            users=self.database.lane(),
            peppers=[PEPPER],
            tokens=None,
            catalog=ONLY_FREE,
            clock=self.clock,
        )

    async def add_tenant(self, org_id: str) -> None:
        async with self.database.change(of_tenant(org_id)) as connection:
            await written_by_test(connection)
            address = OwnerAddress("a@b.example", "a@b.example")
            await tenants.insert(connection, org_id, org_id, "user", address, NOW)

    async def find(self, org_id: str, key_id: str) -> ApiKey:
        async with self.database.transaction(of_tenant(org_id)) as connection:
            key = await api_keys_store.find(
                connection, org_id, key_id, self.clock(), test_only=False
            )
        assert key is not None
        return key


def run_key_operations(
    conninfo: str, record_property: RecordProperty, *, sequences: int, steps: int = 0
) -> None:
    """Run rounds of so many random sequences each, until all of them together have had this many
    steps.
    """
    world = World(conninfo)
    bounded = settings(
        max_examples=sequences,
        stateful_step_count=STEPS_OF_SEQUENCE,
        deadline=None,
        derandomize=False,  # or each round would be the one before
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    try:
        machine = cast("type[KeysThroughTheService]", lambda: KeysThroughTheService(world))
        run_state_machine_as_test(machine, settings=bounded)
        while world.steps < steps:
            run_state_machine_as_test(machine, settings=bounded)
    finally:
        world.close()
    ran = {"steps": world.steps, "of them carried out": world.carried_out}
    figures.record(
        record_property, "Keys made, changed, rotated and revoked", ran, {"exceed their makers": 0}
    )


class KeysThroughTheService(RuleBasedStateMachine):
    """A tenant, its users, and all the keys that they and their keys make."""

    users: Bundle[User] = Bundle("users")
    keys: Bundle[Held] = Bundle("keys")
    makers = st.one_of(users, keys)

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world
        self.org = f"org-{next(world.numbers)}"
        self.records: dict[str, ApiKey] = {}
        world.run(world.add_tenant(self.org))

    def _principal(self, caller: Held | User) -> RequestPrincipal:
        """Who the caller is now; raises for a key that has ended."""
        if isinstance(caller, Held):
            authentication = self.world.authenticator.authenticate(bearer(caller.secret))
            found = self.world.run(authentication)
            if isinstance(found, Rejected):
                raise found.error
            return found.principal
        granted, level = role_grants(BUILT_IN_ROLES.find(caller.role), caller.narrowing)
        return RequestPrincipal(
            PrincipalKind.USER,
            "user",
            self.org,
            Mode.LIVE,
            granted,
            level,
            "free",
            "none",
            NOTHING,
            NOW + timedelta(hours=1),
            claimed_role=caller.role,
        )

    def _end(self, after: int | None) -> datetime | None:
        return None if after is None else self.world.clock.now + timedelta(hours=after)

    def _hold(self, made: NewKey) -> Held:
        self.world.carried_out += 1
        self.records[made.record.id] = made.record
        return Held(made.record.id, made.secret)

    def _is_active(self, key: ApiKey) -> bool:
        return status_at(self.world.clock.now, key.revoked_at, key.expires_at) is KeyStatus.ACTIVE

    @initialize(target=users, role=st.sampled_from(BuiltInRole), narrowing=narrowings)
    def begin(self, role: str, narrowing: tuple[str, ...]) -> MultipleResults[User]:
        return multiple(User(BuiltInRole.OWNER, ()), User(role, narrowing))

    @initialize(
        target=keys, owner=st.booleans(), scopes=scopes, mode=st.sampled_from(Mode), after=hours
    )
    def begin_with_a_key(
        self, *, owner: bool, scopes: tuple[str, ...], mode: Mode, after: int | None
    ) -> Held:
        return self._hold(
            self._made(
                User(BuiltInRole.OWNER, ()),
                scopes,
                AccessLevel.OWNER if owner else None,
                mode,
                after,
            )
        )

    def _made(
        self,
        maker: Held | User,
        scopes: tuple[str, ...],
        level: AccessLevel | None,
        mode: Mode | None,
        after: int | None,
    ) -> NewKey:
        principal = self._principal(maker)
        made = self.world.run(
            self.world.keys.create(
                principal,
                BY_OPERATOR,
                KeyTerms(
                    name="key",
                    scopes=() if level else scopes,
                    access_level=level,
                    mode=mode,
                    expires_at=self._end(after),
                ),
                claim=None,
            )
        )
        assert not exceeds(made.record, principal)
        return made

    @rule(target=keys, maker=makers, scopes=scopes, level=levels, mode=modes, after=hours)
    def create(
        self,
        maker: Held | User,
        scopes: tuple[str, ...],
        level: AccessLevel | None,
        mode: Mode | None,
        after: int | None,
    ) -> Held | MultipleResults[Held]:
        self.world.steps += 1
        try:
            return self._hold(self._made(maker, scopes, level, mode, after))
        except DomainError:
            return multiple()

    @rule(maker=makers, key=keys, scopes=scopes, after=hours)
    def change(
        self, maker: Held | User, key: Held, scopes: tuple[str, ...], after: int | None
    ) -> None:
        self.world.steps += 1
        before = self.records[key.id]
        try:
            principal = self._principal(maker)
            changed = self.world.run(
                self.world.keys.update(
                    principal,
                    BY_OPERATOR,
                    key.id,
                    KeyChanges(scopes=scopes, expires_at=self._end(after)),
                )
            )
        except DomainError:
            return
        assert self._is_active(before)
        assert not exceeds(changed, principal) or not is_more(changed, before)
        self.records[key.id] = changed
        self.world.carried_out += 1

    @rule(target=keys, maker=makers, key=keys, overlap=st.sampled_from([0, 3600, 604_800]))
    def rotate(self, maker: Held | User, key: Held, overlap: int) -> Held | MultipleResults[Held]:
        self.world.steps += 1
        before = self.records[key.id]
        try:
            principal = self._principal(maker)
            made = self.world.run(
                self.world.keys.rotate(
                    principal, BY_OPERATOR, key.id, overlap=timedelta(seconds=overlap), claim=None
                )
            )
        except DomainError:
            return multiple()
        assert self._is_active(before)
        assert not exceeds(made.record, principal)
        assert not is_more(made.record, before)
        self.records[key.id] = self.world.run(self.world.find(self.org, key.id))
        assert not is_more(self.records[key.id], before)
        return self._hold(made)

    @rule(maker=makers, key=keys, force=st.booleans())
    def revoke(self, maker: Held | User, key: Held, *, force: bool) -> None:
        self.world.steps += 1
        try:
            principal = self._principal(maker)
            self.world.run(self.world.keys.revoke(principal, BY_OPERATOR, key.id, force=force))
        except DomainError:
            return
        self.world.carried_out += 1
        self.records[key.id] = revoked(self.records[key.id], self.world.clock.now)
        with pytest.raises((ApiKeyRevokedError, ApiKeyExpiredError)):
            self._principal(key)

    @rule(passed=st.integers(1, 4))
    def time_passes(self, passed: int) -> None:
        self.world.steps += 1
        self.world.clock.advance(hours=passed)


def exceeds(key: ApiKey, maker: RequestPrincipal) -> bool:
    """Whether a key holds anything that its maker does not; users may make keys that outlive their
    token.
    """
    return (
        not all(covers(maker.scopes, scope) for scope in key.scopes)
        or (key.access_level is AccessLevel.OWNER and maker.access_level is not AccessLevel.OWNER)
        or (key.mode is Mode.LIVE and maker.mode is Mode.TEST)
        or (maker.kind is PrincipalKind.API_KEY and outlives(key.expires_at, maker.expires_at))
    )


def is_more(after: ApiKey, before: ApiKey) -> bool:
    """Whether a key has more of anything than it had."""
    return (
        not all(covers(before.scopes, scope) for scope in after.scopes)
        or (
            after.access_level is AccessLevel.OWNER and before.access_level is not AccessLevel.OWNER
        )
        or after.mode is not before.mode
        or outlives(after.expires_at, before.expires_at)
    )


def outlives(one: datetime | None, other: datetime | None) -> bool:
    return other is not None and (one is None or one > other)
