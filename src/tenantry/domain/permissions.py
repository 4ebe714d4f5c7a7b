"""Principals and their permissions: scopes, levels, modes, roles."""

import functools
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from enum import StrEnum
from typing import Final, NamedTuple

import msgspec

from tenantry.domain.access import (
    NO_SUBSCRIPTION,
    NOTHING,
    AccessPhase,
    TenantAccess,
    to_access,
)
from tenantry.domain.errors import (
    InsufficientScopeError,
    ModeMismatchError,
    OrgMismatchError,
    ScopeEscalationError,
)
from tenantry.domain.feature_access import NO_FEATURES, FeatureAccess
from tenantry.domain.plans import FREE
from tenantry.domain.roles import (
    BUILT_IN_ROLES,
    MANAGE_MEMBERS,
    OWNER,
    BuiltInRole,
    Role,
    Roles,
    common_role,
)
from tenantry.domain.scopes import ANYTHING, covers, intersect, is_scope

OWNER_ALIAS: Final = "OWNER"
OPERATOR: Final = "operator"
"""The id of the operator as a principal."""


class Mode(StrEnum):
    LIVE = "live"
    TEST = "test"


# tuples: a member is found by its identity, without a hash
ACCEPTED_MODES: Final[Mapping[str, tuple[Mode, ...]]] = {
    "live": (Mode.LIVE,),
    "test": (Mode.TEST,),
    "any": tuple(Mode),
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
    OPERATOR = "operator"
    """The operator's backend or command, which acts for a tenant with the rights of an owner."""


_GRANTS_REMEMBERED: Final = 1024


class RequestPrincipal(msgspec.Struct, frozen=True, rename="camel"):
    """An authenticated caller, acting for one tenant in one mode.

    It has what the SDK's `Principal` has, under the same names: a program may change from one to
    the other. It knows all features, so it has no ``features_cut``.
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
    """The phase that `access` shows, with the add-ons and grants that it has."""
    expires_at: datetime | None
    issuer: str | None = None
    """The issuer of a user's token; None for others."""
    claimed_role: str | None = None
    """The role by the user's token, if its claim names this tenant; None by a membership alone."""
    external_id: str | None = None
    """The id that another system gives the key; None for a user."""
    metadata_document: str | None = None
    """The JSON of the key's metadata; None where it has none."""
    allowed_addresses: tuple[str, ...] = ()
    """The addresses from which the key may be used; empty for any, and for a user."""
    requests_per_minute: int | None = None
    """The limit of the key's own; None without one, and for a user."""
    feature_access: FeatureAccess = NO_FEATURES
    """What the tenant has now of the features of the plan catalog."""
    gives: frozenset[str] | None = None
    """As `Role.gives`, of the user's role; None for a key."""
    roles: Roles = BUILT_IN_ROLES
    """The roles of the deployment, for an authorization that is repeated."""

    @property
    def access(self) -> TenantAccess:
        """What the tenant's subscriptions give now, until when and why."""
        return to_access(self.access_phase)

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
        """Whether the tenant has a feature. Raises `UnknownFeatureError` for one that the catalog
        does not declare.
        """
        return self.feature_access.has(feature)

    def require(self, scope: str, *, feature: str | None = None) -> None:
        """Raise `InsufficientScopeError` unless a grant covers ``scope``, and then
        `FeatureNotGrantedError` unless the tenant has ``feature``, if one is needed.

        Raises `UnknownFeatureError` (404) for a feature that the plan catalog does not declare.
        """
        if not covers(self.scopes, scope):
            raise InsufficientScopeError(scope)
        if feature is not None:
            self.feature_access.require(feature)

    def require_org(self, org_id: str) -> None:
        """Raise `OrgMismatchError` unless the principal acts for this tenant."""
        if org_id != self.org_id:
            raise OrgMismatchError("The request is for another organization than the caller's.")

    def require_mode(self, accepted: Collection[Mode]) -> None:
        """Raise `ModeMismatchError` unless the principal acts in one of these modes."""
        if self.mode not in accepted:
            raise ModeMismatchError(f"A {self.mode}-mode credential is not accepted here.")

    def require_giving(self, role_id: str) -> None:
        """Raise `ScopeEscalationError` unless the principal's role gives this one."""
        if self.gives is not None and role_id not in self.gives:
            raise ScopeEscalationError(
                f"Your role can't add, change or remove members with the role {role_id}."
            )

    def may_put_into_key(self, scopes: Collection[str]) -> bool:
        """Whether the principal, who holds these scopes, may put them into a key.

        A key with ``members:write`` gives every role whose scopes it holds, so a user whose role
        gives only some cannot make one.
        """
        return self.gives is None or not covers(scopes, MANAGE_MEMBERS)

    def require_key_scopes(self, scopes: Collection[str]) -> None:
        """Raise `ScopeEscalationError` unless the principal `may_put_into_key` these scopes."""
        if not self.may_put_into_key(scopes):
            raise ScopeEscalationError(
                f"Your role gives only some roles: it cannot put {MANAGE_MEMBERS} into a key."
            )

    def require_holding(self, scopes: Iterable[str], level: AccessLevel) -> None:
        """Raise `ScopeEscalationError` unless the principal has these scopes and this level."""
        if level is AccessLevel.OWNER and self.access_level is not AccessLevel.OWNER:
            raise ScopeEscalationError("Only an OWNER can create, change or revoke OWNER keys.")
        missing = [scope for scope in scopes if not covers(self.scopes, scope)]
        if missing:
            raise ScopeEscalationError(f"The credential lacks these scopes: {', '.join(missing)}.")


def operator_principal(org_id: str) -> RequestPrincipal:
    """Return the operator's principal for a tenant: with all permissions, as if without a
    subscription.
    """
    return RequestPrincipal(
        kind=PrincipalKind.OPERATOR,
        id=OPERATOR,
        org_id=org_id,
        mode=Mode.LIVE,
        scopes=(ANYTHING,),
        access_level=AccessLevel.OWNER,
        plan=FREE,
        subscription_status=NO_SUBSCRIPTION,
        access_phase=NOTHING,
        expires_at=None,
    )


class UserGrants(NamedTuple):
    """What a user may do in a tenant. The token's scopes may restrict ``scopes`` to less than the
    role grants.
    """

    role: Role
    scopes: tuple[str, ...]
    access_level: AccessLevel


# the users of a deployment have few different combinations
@functools.lru_cache(_GRANTS_REMEMBERED)
def user_grants(
    roles: Roles,
    claimed: str | None,
    stored: str | None,
    token_scopes: tuple[str, ...],
    *,
    binds_owner: bool,
) -> UserGrants:
    """Return what a user may do who has two roles by their ids, and a token with these scopes.

    Of the roles that counts which both permit; None does not count. Only a binding membership
    restricts a claimed owner: ``claimed`` is of a token that names the tenant, or else cannot be
    owner; see `AuditedMember.binds_owner`.
    """
    role = _effective_role(roles, claimed, stored, binds_owner=binds_owner)
    return UserGrants(role, *role_grants(role, token_scopes))


def _effective_role(
    roles: Roles, claimed: str | None, stored: str | None, *, binds_owner: bool
) -> Role:
    if claimed == BuiltInRole.OWNER and not binds_owner:
        return OWNER
    if claimed is None or stored is None:
        return roles.find(claimed or stored or BuiltInRole.MEMBER)
    return common_role(roles.find(claimed), roles.find(stored))


def role_grants(role: Role, token_scopes: tuple[str, ...]) -> tuple[tuple[str, ...], AccessLevel]:
    """Return the scopes and level of a user with ``role``, narrowed by the token's scopes of our
    form, if any.
    """
    scopes = role.scopes
    narrowing = [scope for scope in token_scopes if is_scope(scope)]
    if narrowing:
        scopes = intersect(scopes, narrowing)
    whole = role.is_owner and ANYTHING in scopes
    return scopes, AccessLevel.OWNER if whole else AccessLevel.SCOPED
