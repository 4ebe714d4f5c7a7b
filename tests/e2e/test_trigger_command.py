"""``tenantry trigger`` against the service. `test_demo` and `tests/system` run it as a process.

The service has an event loop in a separate thread: the command handles signals, so it needs the
main thread.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal

from tenantry.common.clock import system_clock
from tests.support.app import OPERATOR_TOKEN, make_app
from tests.support.command_runner import invoke
from tests.support.commands import SECRETS, Done
from tests.support.patience import PATIENT
from tests.support.ports import free_port
from tests.support.postgres import PostgresServer
from tests.support.serving import served

UPDATED = "customer.subscription.updated"
FAILED = "invoice.payment_failed"


class Service:
    """The running service, and the command's way to it."""

    def __init__(
        self, folder: Path, base: str, portal: BlockingPortal, client: httpx2.Client
    ) -> None:
        self._folder = folder
        self.base = base
        self.portal = portal
        self._client = client

    def trigger(self, *arguments: str, **values: str) -> Done:
        known = {"TENANTRY_BASE_URL": self.base, "OPERATOR_TOKEN": OPERATOR_TOKEN, **SECRETS}
        return invoke("trigger", *arguments, folder=self._folder, **{**known, **values})

    def request(self, method: str, path: str, body: object) -> httpx2.Response:
        """The answer to a request of the operator's."""
        headers = {"Authorization": f"Bearer {OPERATOR_TOKEN}"}
        return self._client.request(method, path, json=body, headers=headers)

    def call(self, method: str, path: str, body: object) -> Any:
        """What the answer holds, which must be a success."""
        answer = self.request(method, path, body)
        assert answer.is_success, answer.text
        return answer.json()

    def tenant(self, tenant_id: str, **fields: str) -> None:
        self.call(
            "PUT",
            f"/api/v1/tenants/{tenant_id}",
            {"name": "Acme", "ownerEmail": "o@x.example", **fields},
        )


@pytest.fixture(scope="module")
def service(
    postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Service]:
    with running(postgres, tmp_path_factory.mktemp("trigger")) as service:
        yield service


@contextmanager
def running(postgres: PostgresServer, folder: Path, **settings: str) -> Iterator[Service]:
    """Run the service with these settings."""
    with postgres.database() as conninfo, start_blocking_portal() as portal:
        app = make_app(conninfo, system_clock, PATIENT, **SECRETS, **settings)
        with (
            portal.wrap_async_context_manager(served(app)) as base,
            httpx2.Client(base_url=base, trust_env=False, verify=False) as client,  # plain HTTP
        ):
            yield Service(folder, base, portal, client)


def test_event_changes_the_tenant(service: Service) -> None:
    service.tenant("acme", stripeCustomerId="cus_of_acme")
    done = service.trigger(UPDATED, "--org", "acme", "--plan", "business", "--status", "trialing")
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[0].startswith(f"{UPDATED}  200  ")
    assert (
        lines[1]
        == "  applied: The subscription is trialing: price price_business means plan business."
    )
    assert lines[2:6] == [
        "",
        "acme  Acme",
        "  plan                free -> business",
        "  subscriptionStatus  none -> trialing",
    ]
    # the tenant's own customer, so the invoice finds it; and later than what the ledger has
    failed = service.trigger(FAILED, "--org", "acme", "--json")
    said = json.loads(failed.out)
    assert said["changed"] == [
        {"field": "subscriptionStatus", "before": "trialing", "after": "past_due"},
        {"field": "access", "before": "full", "after": "grace"},
    ]
    assert [event["outcome"] for event in said["events"]] == ["applied"]
    assert (said["before"]["subscriptionStatus"], said["after"]["plan"]) == ("trialing", "business")


def test_parked_event_is_reported_with_a_remedy(service: Service) -> None:
    service.tenant("unlinked")
    waiting = service.trigger(FAILED, "--org", "unlinked")
    assert waiting.code == 0
    assert "is not linked to unlinked yet" in waiting.out
    remedy = next(line for line in waiting.out.splitlines() if "tenantry trigger " in line).split()[
        2:
    ]
    linked = service.trigger(*remedy)
    assert "stripeCustomerId" in linked.out
    assert "-> past_due" in linked.out
    anonymous = service.trigger(UPDATED, "--org", "missing")
    assert (anonymous.code, anonymous.err) == (
        0,
        "There is no tenant missing. The service parks its events until the tenant exists.\n",
    )


def test_event_is_sent_without_a_credential(service: Service) -> None:
    service.tenant("unseen")
    done = service.trigger(UPDATED, "--org", "unseen", OPERATOR_TOKEN="")
    assert done.code == 0
    assert done.out.startswith(f"{UPDATED}  200")
    assert "The tenant cannot be shown: TENANTRY_API_KEY is not a key of this tenant" in done.err
    exported = service.call("GET", "/api/v1/tenants/unseen/export", None)
    assert exported["tenant"]["plan"] == "pro"


def test_exit_codes_of_errors(service: Service) -> None:
    service.tenant("codes")
    wrong = service.trigger(
        UPDATED, "--org", "codes", PROVIDER_WEBHOOK_SECRET="whsec_of_nobody_0123456789"
    )
    assert wrong.code == 1
    assert "400" in wrong.out
    assert "Invalid signature" in wrong.out
    assert "another secret than PROVIDER_WEBHOOK_SECRET" in wrong.out
    refused = service.trigger(UPDATED, "--org", "codes", TENANTRY_API_KEY="svc_live_nothing")
    assert (refused.code, refused.out) == (4, "")
    assert refused.err.startswith("The service does not accept the credential: ")
    away = service.trigger(
        UPDATED, "--org", "codes", TENANTRY_BASE_URL=f"http://127.0.0.1:{free_port()}"
    )
    assert (away.code, away.out) == (6, "")
    secrets = (*SECRETS.values(), OPERATOR_TOKEN, "svc_live_nothing", "whsec_of_nobody")
    for done in (wrong, refused, away):
        assert not any(secret in done.out + done.err for secret in secrets)


@pytest.mark.parametrize(
    "arguments",
    [
        (UPDATED, "--override", "event.data=1", "--override", "status=x"),
        (UPDATED, "--override", "status=\udcff"),
        (UPDATED, "--forward-to", "http://127.0.0.1:1/\x01"),
    ],
)
def test_impossible_requests_are_usage_errors(service: Service, arguments: tuple[str, ...]) -> None:
    done = service.trigger(*arguments, "--org", "acme")
    assert (done.code, "Traceback" in done.err) == (2, False), done
