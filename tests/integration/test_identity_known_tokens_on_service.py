"""A cached token only identifies its user: the service checks the user's permissions for every
request.
"""

import pytest

from tests.support.members import change_role, join, remove_member
from tests.support.service import (
    PROJECTS,
    TENANTS,
    VERIFY,
    WHOAMI,
    Caller,
    Organization,
    Service,
    refusal,
)

ROUTES = (f"{VERIFY}projects:read", PROJECTS, WHOAMI)
TIMES = 3


async def _let_in(user: Caller) -> None:
    """Accept the user several times, so that the token is known."""
    for _ in range(TIMES):
        for route in ROUTES:
            assert (await user.get(route)).status_code == 200


async def _refused(user: Caller, status: int, code: str) -> None:
    for route in ROUTES:
        assert refusal(await user.get(route)) == (status, code)


def _named(org: Organization) -> dict[str, object]:
    return {"name": org.id, "ownerEmail": "owner@x.example"}


@pytest.mark.parametrize("claimed", [True, False], ids=["with an org claim", "by membership alone"])
async def test_cached_token_of_a_removed_member_is_rejected(
    service: Service, *, claimed: bool
) -> None:
    org = await service.organization()
    name = f"member-{org.id}"
    member = await join(service, org, name, "admin")
    user = service.user(name, org=org.id if claimed else None, role="admin")
    await _let_in(user)
    await remove_member(org.owner, member)
    await _refused(user, 403, "no_organization")


async def test_cached_token_of_a_suspended_tenant_is_rejected_until_it_is_resumed(
    service: Service,
) -> None:
    org = await service.organization()
    user = service.user(org=org.id)
    await _let_in(user)
    await service.operator.put(f"{TENANTS}/{org.id}", {**_named(org), "suspended": True})
    await _refused(user, 403, "org_suspended")
    await service.operator.put(f"{TENANTS}/{org.id}", {**_named(org), "suspended": False})
    await _let_in(user)


async def test_cached_token_of_a_deleted_tenant_is_rejected(service: Service) -> None:
    org = await service.organization()
    user = service.user(org=org.id, role="owner")
    await _let_in(user)
    await service.operator.delete(f"{TENANTS}/{org.id}")
    await _refused(user, 401, "invalid_credential")


async def test_lowered_role_applies_to_a_cached_token(service: Service) -> None:
    org = await service.organization()
    name = f"admin-{org.id}"
    member = await join(service, org, name, "admin")
    user = service.user(name, org=org.id, role="admin")
    assert (await user.get(f"{VERIFY}api-keys:write")).status_code == 200
    await change_role(org.owner, member, "member")
    assert refusal(await user.get(f"{VERIFY}api-keys:write")) == (403, "insufficient_scope")


async def test_conflicting_header_is_rejected_with_a_cached_token(service: Service) -> None:
    org = await service.organization()
    user = service.user(org=org.id)
    await _let_in(user)
    again = service.caller(user.credential, X_Organization_Id="another")
    await _refused(again, 403, "org_mismatch")


async def test_cached_token_expires_on_the_service_s_clock(fresh_service: Service) -> None:
    org = await fresh_service.organization()
    user = fresh_service.user(org=org.id)
    await _let_in(user)
    fresh_service.clock.advance(minutes=60, seconds=31)
    await _refused(user, 401, "token_expired")
