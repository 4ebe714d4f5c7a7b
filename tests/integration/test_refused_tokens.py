"""What the operator learns of refused bearer tokens: a log line and a metric, which contain nothing
of the token.
"""

from typing import Any

import pytest

from tests.support.cases import cases
from tests.support.forgeries import ATTACKS
from tests.support.logs import LogWatch, watched
from tests.support.metrics import Shown
from tests.support.service import PROJECTS, TENANTS, VERIFY, Caller, Service, refusal

MEMBERSHIPS = "/api/v1/me/memberships"
ROUTES = (PROJECTS, f"{VERIFY}projects:read", "/api/v1/api-keys", MEMBERSHIPS)


async def shown(service: Service, name: str, **labels: str) -> float:
    return Shown((await service.anonymous.get("/metrics")).text).value(name, **labels)


def lines_of(log: LogWatch) -> list[str]:
    return [line for line in log.lines if "bearer token refused" in line]


async def line_for(caller: Caller, route: str, status: int) -> str:
    """The line about one refused request, without the id of the request, which it must contain."""
    with watched("tenantry") as log:
        answer = await caller.get(route)
    assert answer.status_code == status
    (line,) = lines_of(log)
    start, separator, rest = line.partition(f" request={answer.headers['x-request-id']}: ")
    assert separator
    return f"{start}: {rest}"


@cases("route", ROUTES)
@cases(
    ("claims", "line"),
    [
        ({"aud": "other"}, "reason=audience: wrong audience"),
        ({"aud": None}, "reason=audience: aud is absent"),
        ({"sub": None}, "reason=claims: sub is absent"),
        ({"nonce": "n"}, "reason=access_token: an ID token"),
        ({"iat": 0, "exp": 60}, "reason=expiry: expired"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
async def test_refused_token_leaves_one_line_with_its_reason(
    service: Service, route: str, claims: dict[str, Any], line: str
) -> None:
    caller = service.user(org=(await service.organization()).id, **claims)
    assert (
        await line_for(caller, route, 401)
        == f"WARNING tenantry.server.problems bearer token refused: {line}"
    )


@pytest.mark.parametrize(
    ("credential", "reason"),
    [
        ("a" * 17_000 + ".b.c", "reason=size: The credential is too long: at most 16,384 bytes."),
        ("a.b.c.d", "reason=form: The credential is neither an API key nor a token."),
    ],
    ids=["too long", "four parts"],
)
async def test_credential_without_the_form_of_a_token_leaves_a_line(
    service: Service, credential: str, reason: str
) -> None:
    assert (await line_for(service.caller(credential), PROJECTS, 401)).endswith(reason)


async def test_user_of_no_organization_leaves_a_line(service: Service) -> None:
    assert "reason=no_organization: " in await line_for(service.user("nowhere"), PROJECTS, 403)


@pytest.mark.parametrize(
    ("org", "asks_for", "reason"),
    [("org-a", "org-b", "org_mismatch"), ("no tenant's id", None, "no_organization")],
)
async def test_user_who_may_not_create_the_claimed_tenant_leaves_a_line(
    service: Service, org: str, asks_for: str | None, reason: str
) -> None:
    with watched("tenantry") as log:
        answer = await service.user("founder", org=org, asks_for=asks_for).post(
            TENANTS, {"name": "x"}
        )
    assert refusal(answer) == (403, reason)
    (line,) = lines_of(log)
    assert f"reason={reason} request=" in line


async def test_other_requests_leave_none(service: Service) -> None:
    org = await service.organization()
    with watched("tenantry") as log:
        assert (await service.user(org=org.id).get(PROJECTS)).status_code == 200
        # a lack of scope
        assert (await service.user(org=org.id).get("/api/v1/api-keys")).status_code == 403
        assert (await service.caller("svc_live_nothing").get(PROJECTS)).status_code == 401
        assert (await service.caller("svc_live_" + "a" * 17_000).get(PROJECTS)).status_code == 401
        assert (await service.anonymous.get(PROJECTS)).status_code == 401
    assert lines_of(log) == []


async def test_no_line_contains_anything_of_the_token(service: Service) -> None:
    marks = ("user-mark", "org-mark", "issuer-mark", "audience-mark", "role-mark")
    claims = dict(zip(("sub", "org_id", "iss", "aud", "org_role"), marks, strict=True))
    tokens = [service.issuer.mint(claims={name: value}) for name, value in claims.items()]
    tokens += [
        forge(service.issuer)
        for forgeries in ATTACKS.values()
        for forge in [*forgeries.values()][:1]
    ]
    with watched() as log:
        for token in tokens:
            await service.caller(token.encode("ascii", "replace").decode()).get(PROJECTS)
    assert len(lines_of(log)) >= len(tokens) - 3  # some are no tokens any more, or lack no claim
    text = "\n".join(log.lines)
    assert not [mark for mark in marks if mark in text]
    assert not [
        part for token in tokens for part in token.split(".") if len(part) > 20 and part in text
    ]


async def test_refused_tokens_are_counted_by_reason(service: Service) -> None:
    name = "tenantry_tokens_refused_total"
    before = {
        reason: await shown(service, name, reason=reason) for reason in ("audience", "expiry")
    }
    for route in ROUTES:
        await service.user(aud="other").get(route)
    await service.user(iat=0, exp=60).get(PROJECTS)
    assert await shown(service, name, reason="audience") == before["audience"] + len(ROUTES)
    assert await shown(service, name, reason="expiry") == before["expiry"] + 1


async def test_reasons_are_shown_as_0_from_the_start(service: Service) -> None:
    text = (await service.anonymous.get("/metrics")).text
    for reason in ("size", "algorithm", "organization_claim", "lifetime"):
        assert f'tenantry_tokens_refused_total{{reason="{reason}"}} ' in text


async def test_token_with_an_unknown_role_is_a_member_and_counted_once(service: Service) -> None:
    org, name = await service.organization(), "tenantry_token_roles_unknown_total"
    before = await shown(service, name)
    user = service.user(org=org.id, role="Owner")
    for _ in range(3):
        assert (await user.get(PROJECTS)).status_code == 200
    assert (await user.get("/api/v1/api-keys")).status_code == 403
    assert (
        await service.user(org=org.id, role="org:admin").get("/api/v1/api-keys")
    ).status_code == 200
    assert await shown(service, name) == before + 1
