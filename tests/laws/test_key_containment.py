"""Containment: keys that change keys never gain more rights than the first keys had."""

from collections.abc import Callable
from datetime import timedelta

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    rule,
)

from tenantry.domain.api_keys import ApiKey, check_may_change, check_may_create
from tenantry.domain.errors import DomainError
from tenantry.domain.permissions import AccessLevel, Mode, RequestPrincipal
from tenantry.domain.scopes import covers
from tests.support.principals import NOW, make_key, principal_of

part = st.sampled_from(["*", "a", "b"])
scopes = st.lists(st.builds("{}:{}".format, part, part), min_size=1, max_size=3, unique=True).map(
    tuple
)
levels = st.sampled_from(AccessLevel)
modes = st.sampled_from(Mode)
ends = st.none() | st.integers(1, 4).map(lambda hours: NOW + timedelta(hours=hours))


given_keys = st.builds(
    lambda scopes, owner, mode, end: msgspec.structs.replace(
        make_key(*scopes, owner=owner, mode=mode), expires_at=end
    ),
    scopes,
    st.booleans(),
    modes,
    ends,
)


def exceeds(key: ApiKey, root: ApiKey) -> bool:
    """Whether a key holds anything that the root does not."""
    return (
        not all(covers(root.scopes, scope) for scope in key.scopes)
        or (key.access_level is AccessLevel.OWNER and root.access_level is not AccessLevel.OWNER)
        or (key.mode is Mode.LIVE and root.mode is Mode.TEST)
        or (
            root.expires_at is not None
            and (key.expires_at is None or key.expires_at > root.expires_at)
        )
    )


def allowed(check: Callable[[], None]) -> bool:
    try:
        check()
    except DomainError:
        return False
    return True


class KeysMakingKeys(RuleBasedStateMachine):
    """A few keys to begin with, and all that their holders can make of them together."""

    keys: Bundle[str] = Bundle("keys")

    def __init__(self) -> None:
        super().__init__()
        self.roots: list[ApiKey] = []
        self.held: dict[str, ApiKey] = {}

    def _keep(self, key: ApiKey) -> str:
        name = f"key {len(self.held)}"
        self.held[name] = msgspec.structs.replace(key, id=name)
        return name

    def _caller(self, name: str) -> RequestPrincipal:
        return principal_of(self.held[name])

    @initialize(target=keys, roots=st.lists(given_keys, min_size=1, max_size=3))
    def begin(self, roots: list[ApiKey]) -> MultipleResults[str]:
        self.roots = roots
        return multiple(*(self._keep(root) for root in roots))

    @rule(target=keys, maker=keys, scopes=scopes, level=levels, mode=modes, expires_at=ends)
    def create(
        self,
        maker: str,
        scopes: tuple[str, ...],
        level: AccessLevel,
        mode: Mode,
        expires_at: object,
    ) -> str:
        key = make_key(*scopes, owner=level is AccessLevel.OWNER, mode=mode)
        key = msgspec.structs.replace(key, expires_at=expires_at)
        caller = self._caller(maker)
        if allowed(lambda: check_may_create(caller, key)):
            return self._keep(key)
        return maker

    @rule(maker=keys, name=keys, scopes=scopes, level=levels, expires_at=ends)
    def change(
        self, maker: str, name: str, scopes: tuple[str, ...], level: AccessLevel, expires_at: object
    ) -> None:
        before, caller = self.held[name], self._caller(maker)
        if caller.mode is Mode.TEST and before.mode is Mode.LIVE:
            return  # not even found
        given = ("*:*",) if level is AccessLevel.OWNER else scopes
        after = msgspec.structs.replace(
            before, scopes=given, access_level=level, expires_at=expires_at
        )
        if allowed(lambda: check_may_change(caller, before, after)):
            self.held[name] = after

    @rule(target=keys, maker=keys, name=keys)
    def rotate(self, maker: str, name: str) -> str:
        old, caller = self.held[name], self._caller(maker)
        if allowed(lambda: check_may_create(caller, old)):
            return self._keep(old)
        return name

    @invariant()
    def no_key_exceeds_every_root(self) -> None:
        for key in self.held.values():
            assert not all(exceeds(key, root) for root in self.roots), (key, self.roots)


KeysMakingKeys.TestCase.settings = settings(stateful_step_count=15)
TestKeysMakingKeys = KeysMakingKeys.TestCase
