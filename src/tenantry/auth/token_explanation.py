"""Explain why a token is accepted or rejected: the verifier's checks, the tenant and the
membership.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec
import psycopg

from tenantry.auth.authentication import (
    grants_of_user,
    only_access,
    requested_organization,
)
from tenantry.auth.authentication_store import UserAccessRow, UserQuery, find_user_access
from tenantry.db.database import Database
from tenantry.domain import errors, permissions
from tenantry.domain.permissions import AccessLevel, UserGrants
from tenantry.domain.roles import Roles
from tenantry.integrations.oidc.claims import Claims
from tenantry.integrations.oidc.tokens import (
    CheckResult,
    CheckStep,
    TokenExplanation,
    TokenVerifier,
)

_EXPECTED: Final = "one tenant, neither ended nor suspended, that the user was not removed from"


class ExplainedAccess(msgspec.Struct, frozen=True, rename="camel"):
    """The access that a valid token gives; without ``tenant_known`` by its claims, which a
    membership may restrict.
    """

    tenant_known: bool
    org_id: str | None
    role: str
    role_origin: str
    """Which of claim, membership and default the role comes from."""
    scopes: tuple[str, ...]
    access_level: AccessLevel
    plan: str | None = None
    subscription_status: str | None = None


class AccessExplanation(msgspec.Struct, frozen=True):
    """All checks of a token. ``refusal`` is the error of a rejected token."""

    token: TokenExplanation
    steps: list[CheckStep]
    refusal: errors.DomainError | None
    access: ExplainedAccess | None


class _TenantCheck(NamedTuple):
    """The check of the tenant and the membership, and the access that it leaves."""

    result: CheckResult = CheckResult.NOT_REACHED
    said: str | None = None
    reason: str | None = None
    refusal: errors.DomainError | None = None
    access: ExplainedAccess | None = None


async def explain_token(
    verifier: TokenVerifier, token: str, organization: str | None, database: Database | None
) -> AccessExplanation:
    """Explain why a request with a token and this ``X-Organization-Id`` is accepted or rejected;
    write nothing.

    Runs the verifier's checks, then with a database those of the tenant and the membership.
    """
    explained = await verifier.explain(token)
    check = _TenantCheck()
    if explained.claims is not None:
        check = await _check_tenant(
            explained.claims,
            explained.role,
            organization,
            database,
            verifier.roles,
        )
    step = CheckStep("tenant and membership", check.result, check.said, _EXPECTED, check.reason)
    return AccessExplanation(
        explained,
        [*explained.steps, step],
        explained.refusal or check.refusal,
        check.access,
    )


async def _check_tenant(
    claims: Claims,
    claim: str,
    organization: str | None,
    database: Database | None,
    roles: Roles,
) -> _TenantCheck:
    """Check what a valid token gives. ``claim`` describes its role claim."""
    by_claims = _access_by_claims(claims, claim, organization, roles)
    if database is None:
        return _TenantCheck(reason="no database is set: DATABASE_URL", access=by_claims)
    rows = list[UserAccessRow]()
    try:
        rows += await _find_tenants(database, claims, organization)
        access = _access_by_membership(claims, claim, only_access(claims, rows), roles)
    except errors.DatabaseUnavailableError:
        return _TenantCheck(reason="the database is out of reach", access=by_claims)
    except psycopg.Error as error:
        reason = f"the database's schema is not that of this release ({type(error).__name__})"
        return _TenantCheck(reason=reason, access=by_claims)
    except errors.DomainError as error:
        said = _describe(claims, organization, rows)
        return _TenantCheck(CheckResult.FAILED, said, error.detail, error)
    return _TenantCheck(CheckResult.OK, _describe(claims, organization, rows), access=access)


async def _find_tenants(
    database: Database, claims: Claims, organization: str | None
) -> list[UserAccessRow]:
    header = None if organization is None else organization.encode("utf-8", "surrogateescape")
    org_id = requested_organization(claims.org_id, header)
    async with database.lane().use(autocommit=True) as connection:
        [rows] = await find_user_access(
            connection, [UserQuery(claims.issuer, claims.subject, org_id)]
        )
    return rows


def _access_by_claims(
    claims: Claims, claim: str, organization: str | None, roles: Roles
) -> ExplainedAccess:
    granted = permissions.user_grants(
        roles,
        claims.role,
        None,
        claims.scopes,
        binds_owner=False,
    )
    return ExplainedAccess(
        tenant_known=False,
        org_id=claims.org_id or organization,
        role=granted.role.id,
        role_origin=_role_origin(claims, claim, None, granted),
        scopes=granted.scopes,
        access_level=granted.access_level,
    )


def _access_by_membership(
    claims: Claims, claim: str, row: UserAccessRow, roles: Roles
) -> ExplainedAccess:
    """Return a user's access in a tenant. Raises the errors of `Authenticator.as_user`."""
    granted = grants_of_user(claims, row, roles)
    return ExplainedAccess(
        tenant_known=True,
        org_id=row.org_id,
        role=granted.role.id,
        role_origin=_role_origin(claims, claim, row.role, granted),
        scopes=granted.scopes,
        access_level=granted.access_level,
        plan=row.plan,
        subscription_status=row.subscription_status,
    )


def _role_origin(claims: Claims, claim: str, stored: str | None, granted: UserGrants) -> str:
    """Say where the role comes from. ``claim`` describes the role claim; ``stored`` is the
    membership's role, None without one, or without a look at tenants.
    """
    if claims.role is None:
        return f"{claim}, so the {'membership' if stored else 'default'} counts"
    if stored is None or granted.role.id == claims.role:
        return claim
    if granted.role.limited_by is not None:
        return f"{claim}, and only what the membership's role allows too counts"
    return f"{claim}, and the membership has a lower role"


def _describe(claims: Claims, organization: str | None, rows: Sequence[UserAccessRow]) -> str:
    requested = ["no claim" if claims.org_id is None else f"claim {claims.org_id}"]
    requested += [f"X-Organization-Id {organization}"] if organization is not None else []
    found = [f"{row.org_id} ({_state_of(row)}, {_membership_of(row)})" for row in rows]
    return f"{', '.join(requested)}: {'; '.join(found or ['no tenant or membership found'])}"


def _state_of(row: UserAccessRow) -> str:
    if row.deleted:
        return "ended"
    return "suspended" if row.suspension is not None else f"plan {row.plan}"


def _membership_of(row: UserAccessRow) -> str:
    if row.removed:
        return "the user was removed"
    if row.role is None and row.rejects_erased:
        return "no membership: the claims count, unless a removed member whose data was erased has these ids"
    if row.role is None:
        return "no membership: the claims count"
    return f"the user is {'invited as ' if row.invited else ''}{row.role}"
