"""Traces, from the request to the mail, as a collector gets them from the real processes."""

import asyncio
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tests.support import events
from tests.support.app import OPERATOR_TOKEN
from tests.support.collector import Collector, Received, running_collector
from tests.support.commands import SECRETS, Running, running
from tests.support.deployment import Deployment, add_owner, deployed
from tests.support.issuer import AUDIENCE, Issuer, running_issuer
from tests.support.ports import free_port
from tests.support.postgres import PostgresServer, as_url
from tests.support.provider_api import KEY, running_provider
from tests.support.signing import deliver
from tests.support.smtp import LOOPBACK, MailServer
from tests.support.smtp import running as running_mail

ROOT: Final = Path(__file__).parents[2]
WEBHOOK: Final = "POST /api/v1/webhooks/payment-provider"
LIST: Final = "GET /api/v1/projects"
SENDERS_TRACE: Final = "0af7651916cd43dd8448eb211c80319c"
SENDERS_SPAN: Final = "b7ad6b7169203331"
HEADERS: Final = {"traceparent": f"00-{SENDERS_TRACE}-{SENDERS_SPAN}-01"}


class World(NamedTuple):
    """The service in two processes and a worker, with all that is around them."""

    deployment: Deployment
    collector: Collector
    mail: MailServer
    issuer: Issuer
    worker: Running


@pytest.fixture(scope="module")
async def world(
    postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[World]:
    folder = tmp_path_factory.mktemp("traces")
    async with AsyncExitStack() as stack:
        address = as_url(stack.enter_context(postgres.database()))
        collector = await stack.enter_async_context(running_collector())
        mail = await stack.enter_async_context(running_mail(MailServer()))
        issuer = await stack.enter_async_context(running_issuer())
        provider = await stack.enter_async_context(running_provider())
        values = {
            **collector.settings(),
            "OPERATOR_TOKEN": OPERATOR_TOKEN,
            "SMTP_URL": f"smtp://{LOOPBACK}:{mail.port}",
            "MAIL_FROM": "billing@acme.example",
            "PROVIDER_SECRET_KEY": KEY,
            "PROVIDER_API_BASE": provider.url,
            "OIDC_ISSUER": issuer.url,
            "OIDC_AUDIENCE": AUDIENCE,
        }
        owner = await add_owner(address, folder)
        deployment = await stack.enter_async_context(
            deployed(address, folder, credential=owner, **values)
        )
        worker = await stack.enter_async_context(
            running("worker", folder=folder, **SECRETS, DATABASE_URL=address, **values)
        )
        async with deployment.client(OPERATOR_TOKEN) as operator:
            body = {
                "name": "Acme",
                "ownerEmail": "owner@acme.example",
                "stripeCustomerId": "cus_acme",
            }
            assert (await operator.put("/api/v1/tenants/acme", json=body)).status_code == 200
        yield World(deployment, collector, mail, issuer, worker)


async def send(world: World, event: dict[str, object]) -> None:
    """Deliver an event now, as part of the sender's trace."""
    async with world.deployment.client() as client:
        client.headers.update(HEADERS)
        answer = await deliver(
            client, event, secret=SECRETS["PROVIDER_WEBHOOK_SECRET"], at=int(time.time())
        )
    assert (answer.status_code, answer.text) == (200, "OK")


def one(spans: list[Received]) -> Received:
    [span] = spans
    return span


async def test_a_trace_leads_from_the_senders_request_to_the_mail(world: World) -> None:
    await send(world, events.failed(customer="cus_acme"))
    await world.collector.until(lambda found: found.named("send mail"))
    await world.collector.until(lambda found: found.named("process deliver_mail"))
    mail = one(world.collector.named("send mail"))
    job = one(world.collector.named("process deliver_mail"))
    request = one([span for span in world.collector.named(WEBHOOK) if span.id == job.parent])
    assert (request.trace, request.parent, request.kind) == (SENDERS_TRACE, SENDERS_SPAN, "server")
    assert (job.trace, job.kind) == (SENDERS_TRACE, "consumer")
    assert (mail.trace, mail.parent, mail.kind) == (SENDERS_TRACE, job.id, "client")
    assert request.process != job.process == mail.process
    assert {span.service for span in (request, job, mail)} == {"tenantry"}
    assert request.attributes["http.route"] == "/api/v1/webhooks/payment-provider"
    assert request.attributes["http.response.status_code"] == 200
    assert request.attributes["tenantry.tenant"] == "acme"
    assert request.attributes["tenantry.outcome"] == "applied"
    batch = one(
        [span for span in world.collector.named("batch events") if request.id in span.links]
    )
    assert request.links == [batch.id]
    transaction = one([span for span in world.collector.children(batch) if span.kind == "client"])
    assert transaction.attributes["db.system.name"] == "postgresql"
    assert transaction.name == f"transaction {transaction.attributes['db.namespace']}"


async def test_request_to_the_provider_is_part_of_its_events_trace(world: World) -> None:
    await send(world, events.completed(org="acme", customer="cus_acme"))
    await world.collector.until(lambda found: found.named("process ask_provider"))
    job = one(world.collector.named("process ask_provider"))
    assert job.trace == SENDERS_TRACE
    calls = [span for span in world.collector.children(job) if span.name == "GET payment provider"]
    assert calls
    assert {(call.trace, call.kind, call.attributes["server.address"]) for call in calls} == {
        (SENDERS_TRACE, "client", "127.0.0.1")
    }


async def test_asking_the_identity_provider_is_part_of_the_request_that_needs_it(
    world: World,
) -> None:
    now = int(time.time())
    token = world.issuer.mint(claims={"sub": "founder", "iat": now, "exp": now + 3600})
    async with world.deployment.client(token) as client:
        answer = await client.post("/api/v1/tenants", json={"name": "New"})
    # the identity provider, which had to be asked, knows no address
    assert answer.status_code == 422
    name = "POST /api/v1/tenants"
    await world.collector.until(lambda found: found.named(name))
    request = one(world.collector.named(name))
    assert request.attributes["http.response.status_code"] == 422
    below = {span.name for span in world.collector.spans if span.trace == request.trace}
    assert "GET identity provider" in below


async def test_a_transaction_of_an_ordinary_route_is_part_of_its_request(world: World) -> None:
    async with world.deployment.client() as client:
        assert (await client.get("/api/v1/members")).status_code == 200
    await world.collector.until(lambda found: found.named("GET /api/v1/members"))
    request = one(world.collector.named("GET /api/v1/members"))
    [transaction] = [span for span in world.collector.children(request) if span.kind == "client"]
    assert transaction.attributes["db.system.name"] == "postgresql"
    assert (transaction.trace, transaction.failed) == (request.trace, False)


async def test_a_batch_is_linked_with_every_request_that_joined_it_and_they_with_it(
    world: World,
) -> None:
    async with world.deployment.client() as client:
        answers = await asyncio.gather(*(client.get("/api/v1/projects") for _ in range(60)))
    assert {answer.status_code for answer in answers} == {200}
    await world.collector.until(lambda found: len(found.named(LIST)) == 60)
    await world.collector.until(
        lambda found: sum(len(span.links) for span in found.named("batch keys")) >= 60
    )
    requests = {span.id: span for span in world.collector.named(LIST)}
    assert len({span.process for span in requests.values()}) == 2
    batches = {
        span.id: span
        for span in world.collector.named("batch keys")
        if set(span.links) & set(requests)
    }
    for batch in batches.values():
        assert batch.attributes["tenantry.batch.items"] >= len(batch.links)
        assert batch.parent == batch.links[0]
        assert all(batch.id in requests[link].links for link in batch.links if link in requests)
    assert all(set(request.links) & set(batches) for request in requests.values())


async def test_a_rejection_has_its_code_and_is_no_error_of_the_span(world: World) -> None:
    async with world.deployment.client("svc_live_nonsense") as client:
        assert (await client.get("/api/v1/audit-events?secret=hunter2")).status_code == 401
    await world.collector.until(lambda found: found.named("GET /api/v1/audit-events"))
    request = one(world.collector.named("GET /api/v1/audit-events"))
    assert (request.attributes["tenantry.outcome"], request.failed) == ("invalid_credential", False)
    assert b"hunter2" not in world.collector.raw
    assert b"svc_live" not in world.collector.raw


async def test_health_checks_and_metrics_are_not_traced(world: World) -> None:
    async with world.deployment.client() as client:
        for path in ("/healthz", "/readyz", "/metrics", "/api/v1/plans"):
            assert (await client.get(path)).status_code == 200
    await world.collector.until(lambda found: found.named("GET /api/v1/plans"))
    assert not [
        span for span in world.collector.spans if "healthz" in span.name or "metrics" in span.name
    ]


@pytest.mark.thorough
@pytest.mark.parametrize(
    "values",
    [{"OTEL_SDK_DISABLED": "true"}, {"OTEL_TRACES_EXPORTER": "none"}],
    ids=["disabled", "no exporter"],
)
async def test_standard_variables_disable_the_export(
    database_url: str, tmp_path: Path, values: dict[str, str]
) -> None:
    async with running_collector() as collector:
        async with deployed(
            database_url, tmp_path, **collector.settings(WORKERS="1", **values)
        ) as deployment:
            async with deployment.client("svc_live_nonsense") as client:
                assert (await client.get("/api/v1/projects")).status_code == 401
            assert await deployment.command.end(signal.SIGTERM) == 0
        assert collector.spans == []


@pytest.mark.thorough
async def test_an_unreachable_collector_has_no_effect(database_url: str, tmp_path: Path) -> None:
    away = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{free_port()}", "WORKERS": "1"}
    async with deployed(database_url, tmp_path, **away) as deployment:
        async with deployment.client("svc_live_nonsense") as client:
            assert (await client.get("/api/v1/projects")).status_code == 401
        assert await deployment.command.end(signal.SIGTERM) == 0


UNINSTALLED: Final = """
import logging, sys
sys.modules["opentelemetry.sdk"] = None
from tenantry.app import build_app
from tests.support.app import make_settings
logging.basicConfig(stream=sys.stdout, format="%(message)s")
settings = make_settings(OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:4318")
print(type(build_app(settings, "host=127.0.0.1 dbname=nothing")).__name__)
"""
UNASKED: Final = """
import sys
from tenantry.app import build_app
from tests.support.app import make_settings
build_app(make_settings(), "host=127.0.0.1 dbname=nothing")
print(sorted(name for name in sys.modules if name.startswith(("opentelemetry.sdk", "opentelemetry.trace"))))
"""


async def said_by(program: str) -> str:
    """The output of a separate Python program."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    assert process.returncode == 0
    return out.decode().strip()


@pytest.mark.thorough
async def test_without_traces_opentelemetry_is_not_imported() -> None:
    assert await said_by(UNASKED) == "[]"


@pytest.mark.thorough
async def test_without_the_extra_the_service_works_and_reports_it() -> None:
    told = "traces are enabled, but their packages are missing: install the extra otel (docs/how-to/tracing.md)"
    assert await said_by(UNINSTALLED) == f"{told}\nDispatcher"
