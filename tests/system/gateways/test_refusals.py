"""The answers to rejected clients."""

import psycopg
import pytest

from tests.support.gateways import Answer, Gateway, ServiceBehindGateway, refused
from tests.support.service import Organization


def challenge(error: str, description: str) -> str:
    return f'Bearer realm="api", error="{error}", error_description="{description}"'


async def test_without_a_credential_it_is_401(gateway: Gateway) -> None:
    answer = refused(await gateway.send("GET", "/projects"), 401, "missing_credential")
    assert answer.header("www-authenticate") == 'Bearer realm="api"'
    assert gateway.application.received == []


async def test_refused_head_has_no_body(gateway: Gateway, reader: str) -> None:
    for status, answer in (
        (401, await gateway.send("HEAD", "/projects")),
        (403, await gateway.send("HEAD", "/reports", credential=reader)),
    ):
        assert (answer.status, answer.body) == (status, b"")
        assert answer.header("www-authenticate") is not None


@pytest.mark.parametrize("credential", ["svc_live_nothing", "missing", "a.b.c"])
async def test_bad_credential_is_401(gateway: Gateway, credential: str) -> None:
    answer = refused(
        await gateway.send("GET", "/projects", credential=credential), 401, "invalid_credential"
    )
    assert str(answer.header("www-authenticate")).startswith(
        'Bearer realm="api", error="invalid_token"'
    )
    assert gateway.application.received == []


async def test_revoked_key_is_401_at_the_next_request(
    gateway: Gateway, behind: ServiceBehindGateway, org: Organization
) -> None:
    for number in range(20):
        key = await behind.service.key(org.owner, org.id, "projects:read")
        assert (
            await gateway.send("GET", "/projects", credential=key.caller.credential)
        ).status == 200
        assert (await org.owner.delete(key.path)).status_code == 204
        answer = await gateway.send("GET", "/projects", credential=key.caller.credential)
        refused(answer, 401, "api_key_revoked")
        assert answer.header("www-authenticate") == challenge(
            "invalid_token", "The API key has been revoked."
        )
        assert len(gateway.application.received) == number + 1


async def test_expired_key_is_401(
    gateway: Gateway, behind: ServiceBehindGateway, org: Organization
) -> None:
    key = await behind.service.key(org.owner, org.id, "projects:read")
    with psycopg.connect(behind.conninfo) as connection:
        connection.execute(
            "UPDATE api_keys SET created_at = now() - interval '2 days', expires_at = now() - interval '1 day' "
            "WHERE id = %s",
            [key.id],
        )
    answer = await gateway.send("GET", "/projects", credential=key.caller.credential)
    refused(answer, 401, "api_key_expired")
    assert answer.header("www-authenticate") == challenge(
        "invalid_token", "The API key has expired."
    )
    assert gateway.application.received == []


async def test_wrong_scope_is_403_and_named(gateway: Gateway, reader: str) -> None:
    answer = refused(
        await gateway.send("GET", "/reports/1", credential=reader), 403, "insufficient_scope"
    )
    assert (
        answer.header("www-authenticate")
        == 'Bearer realm="api", error="insufficient_scope", scope="reports:read"'
    )
    assert gateway.application.received == []


async def test_suspended_tenant_is_403(gateway: Gateway, behind: ServiceBehindGateway) -> None:
    org = await behind.service.organization()
    body = {"name": "x", "ownerEmail": "a@x.example", "suspended": True}
    assert (await behind.service.operator.put(org.path, body)).status_code == 200
    answer = refused(
        await gateway.send("GET", "/me", credential=org.owner.credential), 403, "org_suspended"
    )
    assert answer.header("www-authenticate") is None


async def test_limited_request_is_429_with_retry_after(
    gateway: Gateway, behind: ServiceBehindGateway
) -> None:
    org = await behind.service.organization()
    with psycopg.connect(behind.conninfo) as connection:
        connection.execute("UPDATE tenants SET plan = 'tight' WHERE id = %s", [org.id])
    credential = org.owner.credential
    passed = [await gateway.send("GET", "/me", credential=credential) for _ in range(3)]
    assert [answer.status for answer in passed] == [200, 200, 200]
    assert [limits_of(answer)["r"] for answer in passed] == ["2", "1", "0"]
    answer = refused(await gateway.send("GET", "/me", credential=credential), 429, "rate_limited")
    assert answer.header("www-authenticate") is None
    assert 1 <= int(str(answer.header("retry-after"))) <= 61
    assert limits_of(answer)["r"] == "0"
    assert answer.header("ratelimit-policy") == passed[0].header("ratelimit-policy")
    assert len(gateway.application.received) == 3
    assert {request.identity()["x-plan"][0] for request in gateway.application.received} == {
        "tight"
    }


def limits_of(answer: Answer) -> dict[str, str]:
    """The parameters of the first item of ``RateLimit``."""
    first = str(answer.header("ratelimit")).split(",")[0]
    return dict(part.split("=", 1) for part in first.split(";")[1:] if "=" in part)


async def test_every_counted_answer_has_the_remaining_count(
    gateway: Gateway, behind: ServiceBehindGateway
) -> None:
    org = await behind.service.organization()
    reader = str((await behind.service.key(org.owner, org.id, "projects:read")).caller.credential)
    with psycopg.connect(behind.conninfo) as connection:
        connection.execute("UPDATE tenants SET plan = 'tight' WHERE id = %s", [org.id])
    answers = [
        await gateway.send("GET", "/projects?answer=404", credential=reader),
        await gateway.send("GET", "/projects?answer=500", credential=reader),
        refused(
            await gateway.send("GET", "/reports", credential=reader), 403, "insufficient_scope"
        ),
    ]
    assert [(answer.status, limits_of(answer)["r"]) for answer in answers] == [
        (404, "2"),
        (500, "1"),
        (403, "0"),
    ]
    [policy] = {answer.header("ratelimit-policy") for answer in answers}
    assert policy is not None


async def test_limits_are_the_services_also_where_the_application_names_its_own(
    gateway: Gateway, behind: ServiceBehindGateway
) -> None:
    org = await behind.service.organization()
    with psycopg.connect(behind.conninfo) as connection:
        connection.execute("UPDATE tenants SET plan = 'tight' WHERE id = %s", [org.id])
    answer = await gateway.send("GET", "/me?limits", credential=org.owner.credential)
    assert (answer.status, limits_of(answer)["r"]) == (200, "2")
    assert "own" not in str(answer.header("ratelimit-policy"))


@pytest.mark.parametrize("target", ["/me?limits", "/status?limits"])
async def test_answer_names_no_limits_where_there_are_none(
    gateway: Gateway, owner: str, target: str
) -> None:
    answer = await gateway.send("GET", target, credential=owner)
    assert answer.status == 200
    assert answer.header("ratelimit") is answer.header("ratelimit-policy") is None
