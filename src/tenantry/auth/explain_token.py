"""Explain why a bearer token is accepted or rejected: the verifier's checks, then the tenant and the membership."""

from typing import Final

import msgspec
import psycopg

from tenantry.auth.authentication import Authenticator, effective_role, requested_organization
from tenantry.auth.authentication_store import UserAccessRow, UserQuery, find_user_access
from tenantry.common.clock import Clock
from tenantry.db.database import Database
from tenantry.domain.access import AccessLevel, Principal, Role, lower_role, role_grants
from tenantry.domain.errors import AuthUnavailableError, DatabaseUnavailableError, DomainError
from tenantry.integrations.oidc.tokens import CheckResult, CheckStep, Claims, TokenExplanation, TokenVerifier

_NAME: Final = "tenant and membership"
_EXPECTED: Final = "one tenant, neither ended nor suspended, that the user was not removed from"


class ExplainedAccess(msgspec.Struct, frozen=True, rename="camel"):
    """The access that a valid token gives; without ``tenant_known`` by its claims, which a membership may restrict."""

    tenant_known: bool
    org_id: str | None
    role: Role
    scopes: tuple[str, ...]
    access_level: AccessLevel
    plan: str | None = None
    subscription_status: str | None = None


class AccessExplanation(msgspec.Struct, frozen=True):
    """All checks of a token. ``refusal`` is the error of a rejected token."""

    token: TokenExplanation
    steps: list[CheckStep]
    refusal: DomainError | None
    access: ExplainedAccess | None


async def explain_token(
    verifier: TokenVerifier, token: str, organization: str | None, database: Database | None, clock: Clock
) -> AccessExplanation:
    """Run all checks of a request that sends ``organization`` as ``X-Organization-Id``, without writing anything.

    The last check needs a database.
    """
    explained = await verifier.explain(token)
    if explained.claims is None:
        step = CheckStep(_NAME, CheckResult.NOT_REACHED, None, _EXPECTED, None)
        return AccessExplanation(explained, [*explained.steps, step], explained.refusal, None)
    reason = "no database is set: DATABASE_URL"
    if database is not None:
        try:
            principal = await _authenticate(database, verifier, token, organization, clock)
            rows = await _find_rows(database, explained.claims, organization)
        except (AuthUnavailableError, DatabaseUnavailableError):
            reason = "the database is out of reach"
        except psycopg.Error as error:
            reason = f"the database's schema is not that of this release ({type(error).__name__})"
        else:
            found = _describe(explained.claims, organization, rows)
            if isinstance(principal, DomainError):
                step = CheckStep(_NAME, CheckResult.FAILED, found, _EXPECTED, principal.detail)
                return AccessExplanation(explained, [*explained.steps, step], principal, None)
            step = CheckStep(_NAME, CheckResult.OK, found, _EXPECTED)
            access = _access_of(explained.claims, principal, rows)
            return AccessExplanation(explained, [*explained.steps, step], None, access)
    step = CheckStep(_NAME, CheckResult.NOT_REACHED, None, _EXPECTED, reason)
    access = _claimed_access(explained.claims, organization)
    return AccessExplanation(explained, [*explained.steps, step], None, access)


async def _authenticate(
    database: Database, verifier: TokenVerifier, token: str, organization: str | None, clock: Clock
) -> Principal | DomainError:
    """Authenticate a request with this token as the service does."""
    lane = database.lane()
    authenticator = Authenticator(keys=lane, users=lane, peppers=(), tokens=verifier, clock=clock)
    try:
        return (await authenticator.authenticate(b"Bearer " + token.encode(), _header(organization)))[0]
    except AuthUnavailableError:
        raise
    except DomainError as refusal:
        return refusal
    finally:
        await authenticator.close()


async def _find_rows(database: Database, claims: Claims, organization: str | None) -> list[UserAccessRow]:
    """Read the requested tenant, or those of the user's memberships."""
    try:
        requested = requested_organization(claims.org_id, _header(organization))
    except DomainError:
        return []
    async with database.lane().use(autocommit=True) as connection:
        [rows] = await find_user_access(connection, [UserQuery(claims.issuer, claims.subject, requested)])
    return rows


def _access_of(claims: Claims, principal: Principal, rows: list[UserAccessRow]) -> ExplainedAccess:
    own = next((row for row in rows if row.org_id == principal.org_id), None)
    return ExplainedAccess(
        tenant_known=True,
        org_id=principal.org_id,
        role=effective_role(claims, own) if own else lower_role(claims.claimed_role, None),
        scopes=principal.scopes,
        access_level=principal.access_level,
        plan=principal.plan,
        subscription_status=principal.subscription_status,
    )


def _claimed_access(claims: Claims, organization: str | None) -> ExplainedAccess:
    role = lower_role(claims.claimed_role, None)
    scopes, level = role_grants(role, claims.scopes)
    return ExplainedAccess(
        tenant_known=False, org_id=claims.org_id or organization, role=role, scopes=scopes, access_level=level
    )


def _header(organization: str | None) -> bytes | None:
    return None if organization is None else organization.encode("utf-8", "surrogateescape")


def _describe(claims: Claims, organization: str | None, rows: list[UserAccessRow]) -> str:
    requested = [f"claim {claims.org_id}"] if claims.org_id is not None else ["no claim"]
    requested += [f"X-Organization-Id {organization}"] if organization is not None else []
    found = [_describe_row(row) for row in rows] or ["no tenant or membership found"]
    return f"{', '.join(requested)}: {'; '.join(found)}"


def _describe_row(row: UserAccessRow) -> str:
    state = "ended" if row.deleted else "suspended" if row.suspended else f"plan {row.plan}"
    if row.removed:
        membership = "the user was removed"
    elif row.invited:
        membership = f"the user is invited as {row.role}"
    else:
        membership = f"the user is {row.role}" if row.role else "no membership: the claims count"
    return f"{row.org_id} ({state}, {membership})"
