"""The client of the operator's backend: across tenants, and for one of them."""

import os
from typing import Final

import httpx2
import pytest

from tenantry_sdk import Tenantry, errors
from tests.sdk.sdk_support import Flavour, Served, answered_by
from tests.support.app import OPERATOR_TOKEN
from tests.support.cases import cases

KEY_VARIABLE: Final = "TENANTRY_API_KEY"
TOKEN_VARIABLE: Final = "TENANTRY_OPERATOR_TOKEN"


async def test_operator_makes_a_tenant_its_first_key_and_counts_its_requests(
    served: Served, flavour: Flavour
) -> None:
    org = f"signed-up-{flavour.name}"
    async with flavour.client(base_url=served.url, operator_token=OPERATOR_TOKEN) as client:
        await client.tenants.put(org, name="Acme", owner_email="ada@acme.example")
        acme = client.tenant(org, on_behalf_of="signup")
        key = await acme.api_keys.create(name="First", scopes=["reports:read"])
        assert [each.id async for each in acme.api_keys.list()] == [key.id]
        caller = await client.auth.verify(
            {"Authorization": f"Bearer {key.secret.reveal()}"}, "reports:read"
        )
        assert caller.org_id == org
        entries = [entry async for entry in acme.audit_events.list()]
        assert [(each.actor_kind, each.on_behalf_of) for each in entries[:1]] == [
            ("operator", "signup")
        ]
        whoami = await acme.auth.whoami()
        assert (whoami.kind, whoami.id, whoami.org_id) == ("operator", "operator", org)


async def test_call_for_a_tenant_needs_to_name_one(served: Served, flavour: Flavour) -> None:
    async with flavour.client(base_url=served.url, operator_token=OPERATOR_TOKEN) as client:
        with pytest.raises(errors.BadRequestError, match=r"client\.tenant"):
            await client.projects.create(name="x")
        with pytest.raises(errors.NotFoundError):
            await client.tenant("org-none").projects.create(name="x")


class Upstream:
    """What the client asks: it keeps the requests."""

    def __init__(self) -> None:
        self.requests: list[httpx2.Request] = []

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(request)
        return httpx2.Response(404)


async def test_headers_of_a_tenant_are_sent_with_its_calls_alone(flavour: Flavour) -> None:
    upstream = Upstream()
    async with answered_by(flavour, upstream, None, operator_token=OPERATOR_TOKEN) as client:
        acme = client.tenant("acme", mode="test", on_behalf_of="agent_7")
        for call in (
            acme.auth.whoami(),
            acme.with_options(retries=0).auth.whoami(),
            client.auth.whoami(),
            acme.auth.verify({}, None),
            client.tenant("globex").auth.whoami(),
        ):
            with pytest.raises(errors.TenantryError):
                await call
    names = ("x-act-as-organization", "x-act-in-mode", "x-on-behalf-of")
    sent = [[request.headers.get(name) for name in names] for request in upstream.requests]
    assert sent == [
        ["acme", "test", "agent_7"],
        ["acme", "test", "agent_7"],
        [None, None, None],
        [None, None, None],
        ["globex", None, None],
    ]
    authorized = [request.headers.get("authorization") for request in upstream.requests]
    assert authorized == [f"Bearer {OPERATOR_TOKEN}"] * 3 + [None, f"Bearer {OPERATOR_TOKEN}"]


@cases("tenant_id", ["", "a b", "\xe4", "x\r\ny"])
def test_id_that_no_header_can_carry_is_refused(tenant_id: str) -> None:
    with Tenantry(operator_token=OPERATOR_TOKEN) as client, pytest.raises(ValueError, match="id"):
        client.tenant(tenant_id)


def test_tenant_needs_the_operators_token() -> None:
    with Tenantry("svc_live_x") as client, pytest.raises(errors.ConfigurationError, match="pass"):
        client.tenant("acme")


def test_header_of_another_tenant_is_refused() -> None:
    with (
        Tenantry(operator_token=OPERATOR_TOKEN) as client,
        pytest.raises(ValueError, match="tenant"),
    ):
        client.with_options(headers={"X-Act-As-Organization": "acme"})


def test_credential_is_that_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert KEY_VARIABLE not in os.environ
    monkeypatch.setenv(TOKEN_VARIABLE, OPERATOR_TOKEN)
    with Tenantry() as client:
        client.tenant("acme")
    monkeypatch.setenv(KEY_VARIABLE, "svc_live_x")
    with pytest.raises(errors.ConfigurationError, match="both set"):
        Tenantry()
    with Tenantry("svc_live_y") as client, pytest.raises(errors.ConfigurationError):
        client.tenant("acme")
    with Tenantry(operator_token=OPERATOR_TOKEN) as client:
        client.tenant("acme")


@cases(
    "arguments",
    [
        {"api_key": "svc_live_x", "operator_token": OPERATOR_TOKEN},
        {"operator_token": ""},
        {"operator_token": "a b"},
        {"operator_token": OPERATOR_TOKEN, "tokens": lambda: "x"},
    ],
)
def test_arguments_that_contradict_or_are_empty_are_refused(arguments: dict[str, str]) -> None:
    with pytest.raises(errors.ConfigurationError) as raised:
        Tenantry(**arguments)  # type: ignore[arg-type]
    assert OPERATOR_TOKEN not in str(raised.value)
