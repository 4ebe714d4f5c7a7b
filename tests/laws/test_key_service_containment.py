"""Containment again, through the real services on a real database: every caller is authenticated by its secret."""

import asyncio
import itertools
from collections.abc import Coroutine
from datetime import datetime, timedelta
from typing import Any, TypeVar, cast

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from tenantry.cli.admin import operator_principal
from tenantry.db.database import Database
from tenantry.domain.access import AccessLevel, Mode, Principal, covers
from tenantry.domain.api_keys import ApiKey, KeyStatus
from tenantry.domain.errors import ApiKeyExpiredError, ApiKeyRevokedError, DomainError
from tenantry.domain.plans import parse_catalog
from tenantry.services.api_keys import ApiKeyService
from tenantry.services.authentication import Authenticator
from tenantry.store import api_keys, tenants
from tests.support.principals import NOW

PEPPER = b"pepper"
Value = TypeVar("Value")

part = st.sampled_from(["*", "a", "api-keys"])
scopes = st.lists(st.builds("{}:{}".format, part, st.sampled_from(["*", "write"])), min_size=1, max_size=2).map(tuple)
ends = st.none() | st.integers(1, 3).map(lambda hours: NOW + timedelta(hours=hours))
levels = st.sampled_from([None, None, AccessLevel.OWNER])


class World:
    """The services of one database, driven from outside an event loop."""

    def __init__(self, conninfo: str) -> None:
        self._runner = asyncio.Runner()
        self.database = Database(conninfo, pool_size=2)
        self.keys = ApiKeyService(self.database, parse_catalog('[[plans]]\nid = "free"\n'), PEPPER, lambda: NOW)
        self.numbers = itertools.count(1)
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
            keys=self.database.lane(), users=self.database.lane(), peppers=[PEPPER], tokens=None, clock=lambda: NOW
        )

    async def add_tenant(self, org_id: str) -> None:
        async with self.database.transaction() as connection:
            await tenants.insert(
                connection, tenant_id=org_id, name=org_id, owner_id="user", owner_email="a@b.example", plan="free",
                now=NOW,
            )  # fmt: skip

    async def all_keys(self, org_id: str) -> list[ApiKey]:
        async with self.database.transaction() as connection:
            return await api_keys.read_all(connection, org_id, NOW)


def test_no_sequence_of_requests_makes_a_key_that_exceeds_the_first(conninfo: str) -> None:
    world = World(conninfo)
    bounded = settings(
        max_examples=20, stateful_step_count=12, deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
    try:
        machine = cast("type[KeysThroughTheService]", lambda: KeysThroughTheService(world))
        run_state_machine_as_test(machine, settings=bounded)
    finally:
        world.close()


class KeysThroughTheService(RuleBasedStateMachine):
    """A tenant with one key that the operator made; everything else is made with keys."""

    secrets: Bundle[tuple[str, str]] = Bundle("secrets")

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world
        self.org = f"org-{next(world.numbers)}"
        world.run(world.add_tenant(self.org))

    def _authenticated(self, secret: str) -> Principal:
        return self.world.run(self.world.authenticator.authenticate(f"Bearer {secret}".encode(), None))

    def _make(self, maker: Principal, given: tuple[str, ...], level: AccessLevel | None, mode: Mode,
              expires_at: datetime | None) -> tuple[str, str]:  # fmt: skip
        made = self.world.run(
            self.world.keys.create(
                maker,
                org_id=self.org,
                name="key",
                scopes=() if level else given,
                access_level=level,
                mode=mode,
                expires_at=expires_at,
                claim=None,
            )
        )
        return made.record.id, made.secret

    @initialize(target=secrets, scopes=scopes, level=levels, mode=st.sampled_from(Mode), expires_at=ends)
    def begin(self, scopes: tuple[str, ...], level: AccessLevel | None, mode: Mode, expires_at: datetime | None
              ) -> tuple[str, str]:  # fmt: skip
        first = self._make(operator_principal(self.org, "free"), scopes, level, mode, expires_at)
        (self.root,) = self.world.run(self.world.all_keys(self.org))
        return first

    @rule(target=secrets, maker=secrets, scopes=scopes, level=levels, mode=st.sampled_from(Mode), expires_at=ends)
    def create(self, maker: tuple[str, str], scopes: tuple[str, ...], level: AccessLevel | None, mode: Mode,
               expires_at: datetime | None) -> tuple[str, str]:  # fmt: skip
        try:
            return self._make(self._authenticated(maker[1]), scopes, level, mode, expires_at)
        except DomainError:
            return maker

    @rule(maker=secrets, key=secrets, scopes=scopes, expires_at=ends)
    def change(self, maker: tuple[str, str], key: tuple[str, str], scopes: tuple[str, ...],
               expires_at: datetime | None) -> None:  # fmt: skip
        try:
            principal = self._authenticated(maker[1])
            self.world.run(self.world.keys.update(principal, key[0], scopes=scopes, expires_at=expires_at))
        except DomainError:
            pass

    @rule(target=secrets, maker=secrets, key=secrets, overlap=st.sampled_from([0, 60, 604_800]))
    def rotate(self, maker: tuple[str, str], key: tuple[str, str], overlap: int) -> tuple[str, str]:
        try:
            principal = self._authenticated(maker[1])
            made = self.world.run(
                self.world.keys.rotate(principal, key[0], overlap=timedelta(seconds=overlap), claim=None)
            )
        except DomainError:
            return key
        return made.record.id, made.secret

    @rule(maker=secrets, key=secrets)
    def revoke(self, maker: tuple[str, str], key: tuple[str, str]) -> None:
        try:
            self.world.run(self.world.keys.revoke(self._authenticated(maker[1]), key[0]))
        except DomainError:
            return
        with pytest.raises((ApiKeyRevokedError, ApiKeyExpiredError)):
            self._authenticated(key[1])

    @invariant()
    def no_key_exceeds_the_first(self) -> None:
        for key in self.world.run(self.world.all_keys(self.org)):
            assert all(covers(self.root.scopes, scope) for scope in key.scopes)
            assert key.access_level is AccessLevel.SCOPED or self.root.access_level is AccessLevel.OWNER
            assert key.mode is Mode.TEST or self.root.mode is Mode.LIVE
            if self.root.expires_at is not None and key.status is KeyStatus.ACTIVE:
                assert key.expires_at is not None
                assert key.expires_at <= self.root.expires_at
