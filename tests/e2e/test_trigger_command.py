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
from tenantry.server.asgi_types import Receive, Scope, Send
from tenantry_devkit.serving import serving
from tests.support.app import OPERATOR_TOKEN, make_app
from tests.support.command_runner import invoke
from tests.support.commands import SECRETS, Done
from tests.support.patience import PATIENT
from tests.support.ports import free_port
from tests.support.postgres import PostgresServer
from tests.support.serving import served

UPDATED = "customer.subscription.updated"
FAILED = "invoice.payment_failed"


class Receiver:
    """Takes everything, and keeps the credentials that came along."""

    def __init__(self) -> None:
        self.url = ""
        self.authorizations: list[bytes | None] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive()).get("more_body"):
            pass
        self.authorizations.append(dict(scope["headers"]).get(b"authorization"))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"OK"})


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


def test_commands_follow_a_service_with_separate_subscriptions(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    settings = {"SUBSCRIPTIONS": "each"}
    with running(postgres, tmp_path, **settings) as service:
        service.tenant("acme", stripeCustomerId="cus_acme")

        def said(*arguments: str) -> Any:
            done = service.trigger(*arguments, "--json", **settings)
            assert done.code == 0, done
            return json.loads(
                done.out.splitlines()[-1] if arguments[0].startswith("story:") else done.out
            )

        end = said("story:replaced-subscription")["tenant"]
        assert (end["plan"], end["subscriptionStatus"]) == ("business", "active")
        created = said(
            "customer.subscription.created", "--tenant", "acme", "--subscription", "sub_1"
        )
        assert (created["after"]["plan"], created["after"]["subscriptionStatus"]) == (
            "pro",
            "active",
        )
        others = said("invoice.payment_failed", "--tenant", "acme", "--subscription", "sub_2")
        assert others["changed"] == []


def test_event_changes_the_tenant(service: Service) -> None:
    service.tenant("acme", stripeCustomerId="cus_of_acme")
    done = service.trigger(
        UPDATED, "--tenant", "acme", "--plan", "business", "--status", "trialing"
    )
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
    failed = service.trigger(FAILED, "--tenant", "acme", "--shape", "old", "--json")
    said = json.loads(failed.out)
    assert said["changed"] == [
        {"field": "subscriptionStatus", "before": "trialing", "after": "past_due"},
        {"field": "access", "before": "full", "after": "grace"},
    ]
    assert [event["outcome"] for event in said["events"]] == ["applied"]
    assert (said["before"]["subscriptionStatus"], said["after"]["plan"]) == ("trialing", "business")


@pytest.mark.thorough
def test_several_events_have_different_seconds(service: Service) -> None:
    service.tenant("several", stripeCustomerId="cus_several")
    done = service.trigger(FAILED, "--tenant", "several", "--times", "12", "--json")
    events = json.loads(done.out)["events"]
    assert len({event["id"] for event in events}) == 12
    moments = [event["created"] for event in events]
    assert moments == list(range(moments[0], moments[0] + 12))
    text = service.trigger(FAILED, "--tenant", "several", "--times", "12")
    assert text.out.count("\n  applied: ") + text.out.count("\n  no_change: ") == 10
    assert "and 2 events more: 2 accepted" in text.out
    assert "nothing changed: plan free, status past_due" in text.out


def test_parked_event_is_reported_with_a_remedy(service: Service) -> None:
    service.tenant("unlinked")
    waiting = service.trigger(FAILED, "--tenant", "unlinked")
    assert waiting.code == 0
    assert "is not linked to unlinked yet" in waiting.out
    remedy = next(line for line in waiting.out.splitlines() if "tenantry trigger " in line).split()[
        2:
    ]
    linked = service.trigger(*remedy)
    assert "stripeCustomerId" in linked.out
    assert "-> past_due" in linked.out
    anonymous = service.trigger(UPDATED, "--tenant", "missing")
    assert (anonymous.code, anonymous.err) == (
        0,
        "There is no tenant missing. The service parks its events until the tenant exists.\n",
    )


def test_event_is_sent_without_a_credential(service: Service) -> None:
    service.tenant("unseen")
    done = service.trigger(UPDATED, "--tenant", "unseen", OPERATOR_TOKEN="")
    assert done.code == 0
    assert done.out.startswith(f"{UPDATED}  200")
    assert "The tenant cannot be shown: TENANTRY_API_KEY is not a key of this tenant" in done.err
    exported = service.call("GET", "/api/v1/tenants/unseen/export", None)
    assert exported["tenant"]["plan"] == "pro"


def test_exit_codes_of_errors(service: Service) -> None:
    service.tenant("codes")
    wrong = service.trigger(
        UPDATED, "--tenant", "codes", PROVIDER_WEBHOOK_SECRET="whsec_of_nobody_0123456789"
    )
    assert wrong.code == 1
    assert "400" in wrong.out
    assert "Invalid signature" in wrong.out
    assert "Perhaps --sign-as listener?" in wrong.out
    refused = service.trigger(UPDATED, "--tenant", "codes", TENANTRY_API_KEY="svc_live_nothing")
    assert (refused.code, refused.out) == (4, "")
    assert refused.err.startswith("The service does not accept the credential: ")
    away = service.trigger(
        UPDATED, "--tenant", "codes", TENANTRY_BASE_URL=f"http://127.0.0.1:{free_port()}"
    )
    assert (away.code, away.out) == (6, "")
    missing = service.trigger("story:trial", "--tenant", "no-such-tenant")
    assert (missing.code, missing.err) == (5, "There is no tenant no-such-tenant.\n")
    unheard = service.trigger("story:trial", PROVIDER_WEBHOOK_SECRET="whsec_of_nobody_0123456789")
    assert unheard.code == 1
    assert "answered 400 to invoice.payment_succeeded: the story stops here" in unheard.err
    secrets = (*SECRETS.values(), OPERATOR_TOKEN, "svc_live_nothing", "whsec_of_nobody")
    for done in (wrong, refused, away, missing, unheard):
        assert not any(secret in done.out + done.err for secret in secrets)


def test_story_output_and_end_of_its_tenant(service: Service) -> None:
    done = service.trigger("story:cancellation", "--json")
    assert (done.code, done.err) == (0, "")
    scenes = [json.loads(line) for line in done.out.splitlines()]
    assert [scene["tenant"]["subscriptionStatus"] for scene in scenes] == ["active"] * 4 + [
        "canceled"
    ]
    assert [scene["tenant"]["cancelAtPeriodEnd"] for scene in scenes[:4]] == [
        False,
        True,
        False,
        True,
    ]
    assert all(event["status"] == 200 for scene in scenes for event in scene["events"])
    again = {"name": "Again", "ownerEmail": "o@x.example"}
    ended = service.request("PUT", f"/api/v1/tenants/{scenes[0]['tenantId']}", again)
    assert (ended.status_code, ended.json()["code"]) == (409, "tenant_deleted")
    told = service.trigger("story:upgrade", "--plan", "pro")
    assert "upgrades to the bigger plan" in told.out
    assert "-> business" in told.out
    assert max(map(len, told.out.splitlines())) <= 80


@pytest.mark.thorough
def test_several_events_are_not_in_the_future(service: Service) -> None:
    service.tenant("punctual", stripeCustomerId="cus_punctual")
    done = service.trigger(FAILED, "--tenant", "punctual", "--times", "50", "--json")
    moments = [event["created"] for event in json.loads(done.out)["events"]]
    assert moments[-1] <= system_clock().timestamp()


def test_credentials_are_sent_only_to_the_configured_service(service: Service) -> None:
    receiver = Receiver()
    with service.portal.wrap_async_context_manager(serving(receiver)):
        away = receiver.url.replace("127.0.0.1", "[::ffff:127.0.0.1]")
        refused = service.trigger(UPDATED, "--tenant", "acme", "--forward-to", away)
        assert refused.code == 2
        assert "is not on this machine" in refused.err
        assert receiver.authorizations == []
        sent = service.trigger(UPDATED, "--tenant", "acme", "--forward-to", away, "--remote")
    assert "The tenant cannot be shown" in sent.err
    assert set(receiver.authorizations) == {None}


def test_remote_service_needs_an_option(service: Service) -> None:
    done = service.trigger(
        UPDATED, "--tenant", "acme", TENANTRY_BASE_URL="https://tenantry.prod.example"
    )
    assert (done.code, done.out) == (2, "")
    assert "https://tenantry.prod.example" in done.err
    assert "--remote" in done.err


def test_tenant_must_be_named(service: Service) -> None:
    done = service.trigger("story:trial", OPERATOR_TOKEN="", TENANTRY_API_KEY="svc_live_x")
    assert (done.code, done.out) == (2, "")
    assert "--tenant" in done.err


@pytest.mark.parametrize(
    "arguments",
    [
        (UPDATED, "--override", "event.data=1", "--override", "status=x"),
        (UPDATED, "--override", "status=\udcff"),
        (UPDATED, "--forward-to", "http://127.0.0.1:1/\x01"),
    ],
)
def test_impossible_requests_are_usage_errors(service: Service, arguments: tuple[str, ...]) -> None:
    done = service.trigger(*arguments, "--tenant", "acme")
    assert (done.code, "Traceback" in done.err) == (2, False), done
