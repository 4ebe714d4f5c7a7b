"""Why a bearer token is let in or refused: the verifier's checks, then the tenant and the membership."""

from typing import Final

import msgspec
import psycopg

from tenantry.auth.authentication import Authenticator, claimed_role, role_of, wanted_organization
from tenantry.auth.authentication_store import SeatRow, UserQuery, find_seats
from tenantry.common.clock import Clock
from tenantry.db.database import Database
from tenantry.domain.access import AccessLevel, Principal, Role, lower_role, role_grants
from tenantry.domain.errors import AuthUnavailableError, DatabaseUnavailableError, DomainError
from tenantry.integrations.oidc.explain import CheckResult, CheckStep, TokenExplanation
from tenantry.integrations.oidc.tokens import Claims, TokenVerifier

_NAME: Final = "tenant and membership"
_EXPECTED: Final = "one tenant, neither ended nor suspended, that the user was not removed from"


class ExplainedAccess(msgspec.Struct, frozen=True, rename="camel"):
    """As whom a valid token acts. Without ``tenant_known`` only as the token has it: the membership may be lower."""

    tenant_known: bool
    org_id: str | None
    role: Role
    scopes: tuple[str, ...]
    access_level: AccessLevel
    plan: str | None = None
    subscription_status: str | None = None


class Explanation(msgspec.Struct, frozen=True):
    """All checks of a token. ``refusal`` is what the service answers; None where it lets the token in."""

    token: TokenExplanation
    steps: list[CheckStep]
    refusal: DomainError | None
    standing: ExplainedAccess | None


async def explain_token(
    verifier: TokenVerifier, token: str, organization: str | None, database: Database | None, clock: Clock
) -> Explanation:
    """Put a token through all checks of a request that sends ``organization`` as ``X-Organization-Id``.

    Without a database, and with one out of reach, the last check is not reached. Writes nothing.
    """
    told = await verifier.explain(token)
    if told.claims is None:
        return Explanation(told, [*told.steps, _not_reached(None)], told.refusal, None)
    if database is None:
        step = _not_reached("no database is set: DATABASE_URL")
        return Explanation(told, [*told.steps, step], None, _as_claimed(told.claims, organization))
    try:
        principal = await _authenticate(database, verifier, token, organization, clock)
        seats = await _seats(database, told.claims, organization)
    except (AuthUnavailableError, DatabaseUnavailableError):
        step = _not_reached("the database is out of reach")
        return Explanation(told, [*told.steps, step], None, _as_claimed(told.claims, organization))
    except psycopg.Error as error:
        step = _not_reached(f"the database's schema is not that of this release ({type(error).__name__})")
        return Explanation(told, [*told.steps, step], None, _as_claimed(told.claims, organization))
    said = _said(told.claims, organization, seats)
    if isinstance(principal, DomainError):
        step = CheckStep(_NAME, CheckResult.FAILED, said, _EXPECTED, principal.detail)
        return Explanation(told, [*told.steps, step], principal, None)
    step = CheckStep(_NAME, CheckResult.OK, said, _EXPECTED)
    return Explanation(told, [*told.steps, step], None, _as_member(told.claims, principal, seats))


async def _authenticate(
    database: Database, verifier: TokenVerifier, token: str, organization: str | None, clock: Clock
) -> Principal | DomainError:
    """What the service's own authentication makes of a request with this token."""
    lane = database.lane()
    authenticator = Authenticator(keys=lane, users=lane, peppers=(), tokens=verifier, clock=clock)
    try:
        return (await authenticator.authenticate(b"Bearer " + token.encode(), _header(organization))).principal
    except AuthUnavailableError:
        raise
    except DomainError as refusal:
        return refusal
    finally:
        await authenticator.close()


async def _seats(database: Database, claims: Claims, organization: str | None) -> list[SeatRow]:
    """What the database knows of the tenant that is asked for, or of the user's memberships."""
    try:
        wanted = wanted_organization(claims.org_id, _header(organization))
    except DomainError:
        return []
    async with database.lane().use(autocommit=True) as connection:
        (seats,) = await find_seats(connection, [UserQuery(claims.issuer, claims.subject, wanted)])
    return seats


def _as_member(claims: Claims, principal: Principal, seats: list[SeatRow]) -> ExplainedAccess:
    own = next((seat for seat in seats if seat.org_id == principal.org_id), None)
    return ExplainedAccess(
        tenant_known=True,
        org_id=principal.org_id,
        role=role_of(claims, own) if own else lower_role(claimed_role(claims.role), None),
        scopes=principal.scopes,
        access_level=principal.access_level,
        plan=principal.plan,
        subscription_status=principal.subscription_status,
    )


def _as_claimed(claims: Claims, organization: str | None) -> ExplainedAccess:
    role = lower_role(claimed_role(claims.role), None)
    scopes, level = role_grants(role, claims.scopes)
    return ExplainedAccess(
        tenant_known=False, org_id=claims.org_id or organization, role=role, scopes=scopes, access_level=level
    )


def _header(organization: str | None) -> bytes | None:
    return None if organization is None else organization.encode("utf-8", "surrogateescape")


def _not_reached(reason: str | None) -> CheckStep:
    return CheckStep(_NAME, CheckResult.NOT_REACHED, None, _EXPECTED, reason)


def _said(claims: Claims, organization: str | None, seats: list[SeatRow]) -> str:
    asked = [f"claim {claims.org_id}"] if claims.org_id is not None else ["no claim"]
    asked += [f"X-Organization-Id {organization}"] if organization is not None else []
    found = [_seat(seat) for seat in seats] or ["no tenant or membership found"]
    return f"{', '.join(asked)}: {'; '.join(found)}"


def _seat(seat: SeatRow) -> str:
    facts = ["ended"] if seat.deleted else ["suspended"] if seat.suspended else [f"plan {seat.plan}"]
    facts += [_membership(seat)]
    return f"{seat.org_id} ({', '.join(facts)})"


def _membership(seat: SeatRow) -> str:
    if seat.removed:
        return "the user was removed"
    if seat.invited:
        return f"the user is invited as {seat.role}"
    return f"the user is {seat.role}" if seat.role else "no membership: the claims count"
