"""What is nginx's own: it knows two of the service's answers, and must be taught the others."""

from pathlib import Path

import psycopg

from tests.support.gateways import ServiceBehindGateway, running_gateway
from tests.support.ports import free_port
from tests.support.service import Organization


def two_services(first: str) -> dict[str, str]:
    """The example with another service before the usual one."""
    return {"server 127.0.0.1:3001;": f"server {first};\n    server 127.0.0.1:3001;"}


async def test_second_service_answers_while_the_first_is_down(
    behind: ServiceBehindGateway, org: Organization, tmp_path: Path
) -> None:
    changes = two_services(f"127.0.0.1:{free_port()} max_fails=0")
    limited = await behind.service.organization()
    with psycopg.connect(behind.conninfo) as connection:
        connection.execute("UPDATE tenants SET plan = 'tight' WHERE id = %s", [limited.id])
    async with running_gateway("nginx", tmp_path, behind.port, changes) as gateway:
        seen = [
            (await gateway.send("GET", "/me", credential=org.owner.credential)).status
            for _ in range(6)
        ]
        assert seen == [200] * 6
        assert {
            (await gateway.send("GET", "/me", credential="missing")).status for _ in range(6)
        } == {401}
        seen = [
            (await gateway.send("GET", "/me", credential=limited.owner.credential)).status
            for _ in range(9)
        ]
        assert seen == [200] * 3 + [429] * 6
        await gateway.line.cut()
        seen = [
            (await gateway.send("GET", "/me", credential=org.owner.credential)).status
            for _ in range(6)
        ]
        assert seen == [503] * 6


async def test_internal_error_of_nginx_after_acceptance_is_500(
    behind: ServiceBehindGateway, org: Organization, tmp_path: Path
) -> None:
    async with running_gateway("nginx", tmp_path, behind.port) as gateway:
        (tmp_path / "body").rmdir()
        (tmp_path / "body").touch()  # where nginx wants to keep large bodies
        body = b"x" * (1 << 20)
        answer = await gateway.send("POST", "/me", credential=org.owner.credential, body=body)
        assert (answer.status, len(gateway.line.requests())) == (500, 1)
        assert gateway.application.received == []
        assert (await gateway.send("GET", "/me", credential=org.owner.credential)).status == 200


async def test_location_without_a_scope_rejects_every_request(
    behind: ServiceBehindGateway, org: Organization, tmp_path: Path
) -> None:
    changes = {"        set $tenantry_scope reports:read/mode/live;\n": ""}
    async with running_gateway("nginx", tmp_path, behind.port, changes) as gateway:
        answer = await gateway.send("GET", "/reports", credential=org.owner.credential)
        assert (answer.status, gateway.application.received) == (503, [])


async def test_invalid_scope_of_a_location_rejects_every_request(
    behind: ServiceBehindGateway, org: Organization, tmp_path: Path
) -> None:
    async with running_gateway(
        "nginx", tmp_path, behind.port, {"reports:read/mode": "reports/mode"}
    ) as gateway:
        answer = await gateway.send("GET", "/reports", credential=org.owner.credential)
        assert (answer.status, gateway.application.received) == (503, [])


async def test_refusals_need_no_second_question(
    behind: ServiceBehindGateway, tmp_path: Path
) -> None:
    async with running_gateway("nginx", tmp_path, behind.port) as gateway:
        assert (await gateway.send("GET", "/me", credential="missing")).status == 401
        assert len(gateway.line.requests()) == 1
        assert {name for name, _ in gateway.line.requests()[0].headers} == {
            "host",
            "authorization",
            "x-request-id",
            "x-forwarded-for",
            "x-forwarded-proto",
        }
