"""The hot routes answer like Litestar's: the list of projects is also a Litestar route, with a
trailing slash.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

import httpx2

from tests.support.cases import cases
from tests.support.service import KEYS, PROJECTS, VERIFY, WHOAMI, Caller, Service, refusal

HOT: Final = PROJECTS
TWIN: Final = f"{PROJECTS}/"
REMAINING: Final = re.compile(r"\br=[0-9]+;")
MADE_ID: Final = re.compile(r"[0-9a-f]{32}")


def comparable(answer: httpx2.Response) -> tuple[int, dict[str, str], Any]:
    """Status, headers and body, without what differs from request to request."""
    request_id = answer.headers["x-request-id"]
    headers = {
        name.lower(): REMAINING.sub("r=n;", text)
        for name, text in answer.headers.items()
        if text != request_id
    }
    body = answer.json()
    if "requestId" in body:
        assert body.pop("requestId") == request_id
    return answer.status_code, headers, body


async def both(
    caller: Caller, headers: Mapping[str, str | bytes] | None = None, **params: str
) -> httpx2.Response:
    """The answer of the hot route, once its twin's is known to be the same."""
    hot, twin = [
        await caller.call("GET", path, headers=headers, params=params) for path in (HOT, TWIN)
    ]
    assert comparable(hot) == comparable(twin)
    return hot


async def test_lists_are_the_same(service: Service) -> None:
    org = await service.organization()
    for name in "abc":
        await org.owner.post(PROJECTS, {"name": name, "description": "ä"})
    assert len((await both(org.owner)).json()["data"]) == 3
    first = (await both(org.owner, limit="2")).json()
    assert first["nextCursor"] is not None
    assert (await both(org.owner, limit="2", cursor=first["nextCursor"])).json()[
        "nextCursor"
    ] is None
    assert (await both(org.owner, unknown="1", limit="100")).status_code == 200


@cases("limit", ["0", "101", "-5", "", "a", "1.5", "007", "+1", " 1", "٣", "1_0", "9" * 400])
async def test_invalid_limits_get_equal_errors(service: Service, limit: str) -> None:
    org = await service.organization()
    assert refusal(await both(org.owner, limit=limit)) == (422, "validation_failed")


@cases("cursor", ["", "x", "é", "\x00", "a b", "a+b", "%41", "a" * 1001])
async def test_invalid_cursors_get_equal_errors(service: Service, cursor: str) -> None:
    org = await service.organization()
    assert (await both(org.owner, cursor=cursor)).status_code in (400, 422)


async def test_last_of_several_values_counts(service: Service) -> None:
    org = await service.organization()
    for query in (
        "limit=0&limit=1",
        "limit=1&limit=0",
        "limit",
        "limit=1&&",
        "&=&limit=1",
        "limit=%31",
    ):
        hot, twin = [await org.owner.call("GET", f"{path}?{query}") for path in (HOT, TWIN)]
        assert comparable(hot) == comparable(twin), query


async def test_rejected_callers_get_equal_errors(service: Service) -> None:
    org = await service.organization()
    writer = await service.key(org.owner, org.id, "projects:write")
    revoked = await service.key(org.owner, org.id, "projects:read")
    await org.owner.delete(revoked.path)
    now = int(service.clock.now.timestamp())
    callers = {
        "missing_credential": service.anonymous,
        "invalid_credential": service.caller("nonsense"),
        "api_key_revoked": revoked.caller,
        "insufficient_scope": writer.caller,
        "token_expired": service.user(org=org.id, iat=now - 7200, exp=now - 3600),
        "no_organization": service.user("outsider"),
        "org_mismatch": service.user(org=org.id, asks_for="other"),
    }
    for code, caller in callers.items():
        assert refusal(await both(caller))[1] == code


@cases("authorization", [b"", b"Basic x", b"Bearer \xff", b"Bearer a.b.c", b"Bearer a, Bearer b"])
async def test_headers_are_read_in_the_same_way(service: Service, authorization: bytes) -> None:
    assert (await both(service.anonymous, {"Authorization": authorization})).status_code == 401


PATHS: Final = (HOT, TWIN, KEYS, WHOAMI, f"{VERIFY}-", "/healthz", "/nowhere")


@cases("path", PATHS)
async def test_request_id_of_the_client_is_kept(service: Service, path: str) -> None:
    org = await service.organization()
    for caller in (org.owner, service.anonymous):
        answer = await caller.call("GET", path, headers={"X-Request-Id": "my.own_ID-1"})
        assert answer.headers.get_list("x-request-id") == ["my.own_ID-1"]


@cases("path", PATHS)
async def test_request_id_is_generated_without_a_plain_one(service: Service, path: str) -> None:
    made = []
    for sent in (None, None, b"", b"a b", b"a" * 129, b"\xe9", b"a\tb", b'"', b"a,b"):
        headers = None if sent is None else {"X-Request-Id": sent}
        answer = await service.anonymous.call("GET", path, headers=headers)
        made.append(answer.headers["x-request-id"])
        assert MADE_ID.fullmatch(made[-1]), sent
    assert len(set(made)) == len(made)


async def lookups(service: Service) -> float:
    """How many keys were looked up so far."""
    metrics = (await service.anonymous.get("/metrics")).text
    [found] = re.findall(r'^tenantry_batch_items_sum\{lane="keys"\} (.+)$', metrics, re.MULTILINE)
    return float(found)


async def test_key_is_looked_up_once_also_where_the_answer_waits(fresh_service: Service) -> None:
    org = await fresh_service.organization()
    key = await fresh_service.key(org.owner, org.id, "projects:read")
    revoked = await fresh_service.key(org.owner, org.id, "projects:read")
    await org.owner.delete(revoked.path)
    before = await lookups(fresh_service)
    # the first one waits for a share of the rate limit, a rejected one for its delay
    for caller, status in ((key.caller, 200), (revoked.caller, 401)):
        for path in (HOT, f"{VERIFY}projects:read"):
            assert (await caller.get(path)).status_code == status
    assert await lookups(fresh_service) - before == 4


async def test_both_routes_share_their_metrics(fresh_service: Service) -> None:
    org = await fresh_service.organization()
    for path, times in ((HOT, 2), (TWIN, 3)):
        for _ in range(times):
            await org.owner.get(path)
    await both(fresh_service.anonymous)
    metrics = (await fresh_service.anonymous.get("/metrics")).text
    assert (
        'tenantry_http_requests_total{method="GET",route="/api/v1/projects",status="200"} 5.0'
        in metrics
    )
    assert (
        'tenantry_http_requests_total{method="GET",route="/api/v1/projects",status="401"} 2.0'
        in metrics
    )
    assert 'tenantry_http_request_seconds_count{route="/api/v1/projects"} 7.0' in metrics
