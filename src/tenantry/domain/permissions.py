"""Principals and their permissions: scopes, levels, modes, roles."""

import functools
import re
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from enum import StrEnum
from typing import Final

import msgspec

from tenantry.domain.access import AccessPhase
from tenantry.domain.errors import (
    InsufficientScopeError,
    ModeMismatchError,
    OrgMismatchError,
    ScopeEscalationError,
)
from tenantry.domain.feature_access import NO_FEATURES, FeatureAccess
from tenantry.domain.plans import AccessState

MAX_SCOPES: Final = 64
_NAME = r"(?:[a-z][a-z0-9_-]{0,31}|\*)"
SCOPE_FORM: Final = f"{_NAME}:{_NAME}"
_scope = re.compile(SCOPE_FORM, re.ASCII)

ANYTHING: Final = "*:*"
OWNER_ALIAS: Final = "OWNER"


class Mode(StrEnum):
    LIVE = "live"
    TEST = "test"


ACCEPTED_MODES: Final[Mapping[str, frozenset[Mode]]] = {
    "live": frozenset({Mode.LIVE}),
    "test": frozenset({Mode.TEST}),
    "any": frozenset(Mode),
}
"""The modes that a gateway or an application may accept, by name; ``live`` is the default."""
LIVE_MODE_SCOPES: Final = frozenset({"tenants:write", "billing:write"})
"""Scopes that test-mode keys may not use, because tenants and billing have no test mode."""


class AccessLevel(StrEnum):
    SCOPED = "SCOPED"
    OWNER = "OWNER"


class PrincipalKind(StrEnum):
    API_KEY = "api_key"
    USER = "user"


class Role(StrEnum):
    MEMBER = "member"
    ADMIN = "admin"
    OWNER = "owner"


_SCOPES_REMEMBERED: Final = 256
_RANK: Final = {Role.MEMBER: 0, Role.ADMIN: 1, Role.OWNER: 2}
_GRANTS: Final = {
    Role.MEMBER: ("projects:*", "tenants:read", "billing:read"),
    Role.ADMIN: (ANYTHING,),
    Role.OWNER: (ANYTHING,),
}


class RequestPrincipal(msgspec.Struct, frozen=True, rename="camel"):
    """An authenticated caller, acting for one tenant in one mode.

    It has all that the SDK's `Principal` has, under the same names: a program may change from one
    to the other.
    """

    kind: PrincipalKind
    id: str
    org_id: str
    mode: Mode
    scopes: tuple[str, ...]
    access_level: AccessLevel
    plan: str
    subscription_status: str
    access_phase: AccessPhase
    """What the tenant's subscriptions give now, with the reason and the end."""
    expires_at: datetime | None
    issuer: str | None = None
    """The issuer of a user's token; None for a key."""
    claimed_role: Role | None = None
    """The role by the user's token, if its claim names this tenant; None by a membership alone."""
    external_id: str | None = None
    """The id that another system gives the key; None for a user."""
    metadata_document: str | None = None
    """The JSON of the key's metadata; None where it has none."""
    feature_access: FeatureAccess = NO_FEATURES
    """What the tenant has now of the features of the plan catalog."""

    @property
    def access(self) -> AccessState:
        """``full``, ``grace`` (a payment is due) or ``none``."""
        return self.access_phase.state

    @property
    def effective_plan(self) -> str:
        """The plan whose limits count now; ``free`` without access."""
        return self.access_phase.plan

    @property
    def metadata(self) -> dict[str, str]:
        """The key's metadata; empty for a user. Decoded at each call, as few requests need it."""
        if self.metadata_document is None:
            return {}
        return msgspec.json.decode(self.metadata_document, type=dict[str, str])

    @property
    def features(self) -> tuple[str, ...]:
        """The features that the tenant has, in alphabetical order."""
        return self.feature_access.names

    def has(self, feature: str) -> bool:
        """Whether the tenant has a feature. Raises `LookupError` for one that the plan catalog does
        not declare.
        """
        return self.feature_access.has(feature)

    def require(self, scope: str, *, feature: str | None = None) -> None:
        """Raise `InsufficientScopeError` unless a grant covers ``scope``, and then
        `FeatureNotGrantedError` unless the tenant has ``feature``, if one is needed.

        Raises `LookupError` for a feature that the plan catalog does not declare.
        """
        if not covers(self.scopes, scope):
            raise InsufficientScopeError(scope)
        if feature is not None:
            self.feature_access.require(feature)

    def require_org(self, org_id: str) -> None:
        """Raise `OrgMismatchError` unless the principal acts for this tenant."""
        if org_id != self.org_id:
            raise OrgMismatchError("The credential belongs to another organization.")

    def require_mode(self, accepted: Collection[Mode]) -> None:
        """Raise `ModeMismatchError` unless the principal acts in one of these modes."""
        if self.mode not in accepted:
            raise ModeMismatchError(f"A {self.mode}-mode credential is not accepted here.")

    def require_holding(self, scopes: Iterable[str], level: AccessLevel) -> None:
        """Raise `ScopeEscalationError` unless the principal has these scopes and this level."""
        if level is AccessLevel.OWNER and self.access_level is not AccessLevel.OWNER:
            raise ScopeEscalationError("Only an OWNER can create, change or revoke OWNER keys.")
        missing = [scope for scope in scopes if not covers(self.scopes, scope)]
        if missing:
            raise ScopeEscalationError(f"The credential lacks these scopes: {', '.join(missing)}.")


def is_scope(text: str) -> bool:
    """Whether ``text`` has the form ``(name|*):(name|*)``."""
    return _scope.fullmatch(text) is not None


def covers(grants: Iterable[str], need: str) -> bool:
    """Whether one of ``grants`` covers ``need``, part by part; write does not imply read."""
    if need in grants:
        return True
    resource, _, action = need.partition(":")
    for grant in grants:
        granted_resource, _, granted_action = grant.partition(":")
        if granted_resource in ("*", resource) and granted_action in ("*", action):
            return True
    return False


def intersect(left: Iterable[str], right: Iterable[str]) -> tuple[str, ...]:
    """Return the scopes that both sides grant, part by part, sorted."""
    right = tuple(right)
    common = [
        tuple(map(_meet, one.split(":"), other.split(":"))) for one in left for other in right
    ]
    return tuple(sorted({":".join(parts) for parts in common if all(parts)}))


def _meet(left: str, right: str) -> str:
    """Return what two parts of scopes have in common; empty for nothing."""
    if left in ("*", right):
        return right
    return left if right == "*" else ""


@functools.cache
def lower_role(claimed: Role | None, stored: Role | None) -> Role:
    """Return the lower of two roles; None does not count, and without both the role is member."""
    said = [role for role in (claimed, stored) if role is not None]
    return min(said, key=_RANK.__getitem__, default=Role.MEMBER)


def highest_role(roles: Iterable[Role]) -> Role:
    """Return the highest of these roles; member without any."""
    return max(roles, key=_RANK.__getitem__, default=Role.MEMBER)


def effective_role(claimed: Role | None, stored: Role | None, *, binds_owner: bool) -> Role:
    """Return the lower of two roles, except that only a binding membership lowers a claimed owner.

    ``claimed`` is of a token that names the tenant, or else cannot be owner; see
    `AuditedMember.binds_owner`.
    """
    return Role.OWNER if claimed is Role.OWNER and not binds_owner else lower_role(claimed, stored)


@functools.lru_cache(_SCOPES_REMEMBERED)  # tokens of a provider have few different lists of scopes
def role_grants(role: Role, token_scopes: tuple[str, ...]) -> tuple[tuple[str, ...], AccessLevel]:
    """Return the scopes and level of a user with ``role``, narrowed by the token's scopes of our
    form, if any.
    """
    scopes = _GRANTS[role]
    narrowing = [scope for scope in token_scopes if is_scope(scope)]
    if narrowing:
        scopes = intersect(scopes, narrowing)
    whole = role is Role.OWNER and ANYTHING in scopes
    return scopes, AccessLevel.OWNER if whole else AccessLevel.SCOPED
