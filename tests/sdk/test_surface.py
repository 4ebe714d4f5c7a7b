"""The two clients offer the same, and all of the API."""

import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, Final

import httpx2
import msgspec
import pytest

import tenantry_sdk
from tenantry_sdk import AsyncTenantry, Tenantry
from tenantry_sdk import _models as models
from tests.contract.test_openapi import document
from tests.sdk.support import SDK

LEFT_OUT: Final = {
    "exportAuditEvents",  # the list goes over all pages
    "verifyCredential",  # gateways ask it, with another client's credential
    "verifyCredentialInMode",
    "receiveProviderEvent",
    "healthz",
    "readyz",
}
RECORDS: Final[dict[str, type[msgspec.Struct]]] = {
    "ApiKey": models.ApiKey,
    "ApiKeyWithSecret": models.NewApiKey,
    "AuditEvent": models.AuditEvent,
    "BillingEventView": models.BillingEvent,
    "BillingFields": models.BillingState,
    "EndedKey": models.RevokedKey,
    "Fault": models.Fault,
    "Limits": models.Limits,
    "Member": models.Member,
    "Membership": models.Membership,
    "PlanView": models.Plan,
    "Project": models.Project,
    "SessionAddress": models.HostedSession,
    "Tenant": models.Tenant,
    "Whoami": models.Whoami,
}


def members(client: object, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every public method of a client, by its dotted name."""
    for name in sorted(vars(client) | vars(type(client))):
        if name.startswith("_"):
            continue
        value = getattr(client, name)
        if callable(value):
            yield prefix + name, value
        elif type(value).__module__.startswith("tenantry_sdk._"):
            yield from members(value, f"{prefix}{name}.")


def signatures(client: object) -> dict[str, str]:
    """How each method is called, without what tells the two clients apart."""
    return {
        re.sub(r"\baclose$", "close", name): re.sub(r"\bAsync(?=[A-Z])", "", str(inspect.signature(method)))
        for name, method in members(client)
    }


def test_both_clients_offer_the_same() -> None:
    assert signatures(Tenantry("key")) == signatures(AsyncTenantry("key"))


def test_synchronous_modules_match_their_asynchronous_source() -> None:
    done = subprocess.run(
        [sys.executable, SDK / "make_sync.py", "--check"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_import_waits_for_nothing_that_is_slow() -> None:
    code = "import sys, tenantry_sdk; print(*{'anyio', 'asyncio', 'hashlib', 'httpx2', 'ssl'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"


def test_every_method_has_a_docstring() -> None:
    silent = [name for name, method in members(AsyncTenantry("key")) if not (method.__doc__ or "").strip()]
    assert silent == []


def test_every_public_name_is_documented() -> None:
    silent = [name for name in tenantry_sdk.__all__ if not (getattr(tenantry_sdk, name).__doc__ or "").strip()]
    assert silent == []


def arguments(method: Any) -> tuple[list[str], dict[str, object]]:
    """Some arguments that a method takes."""
    positional, named = [], dict[str, object]()
    for name, parameter in inspect.signature(method).parameters.items():
        if parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
            positional.append("x")
        elif parameter.default is parameter.empty:
            named[name] = "x"
    return positional, named


def requests_made() -> set[tuple[str, str]]:
    """Method and path of the request that each method of the client makes."""
    seen: set[tuple[str, str]] = set()

    def answer(request: httpx2.Request) -> httpx2.Response:
        seen.add((request.method, re.sub(r"/x(?=/|$)", "/{}", request.url.path)))
        return httpx2.Response(404, json={"code": "not_found", "detail": "There is no such object."})

    with httpx2.Client(transport=httpx2.MockTransport(answer)) as http_client:
        client = Tenantry("key", http_client=http_client)
        for name, method in members(client):
            if name in {"close", "request"}:
                continue
            positional, named = arguments(method)
            with pytest.raises(tenantry_sdk.errors.NotFoundError):
                next(iter(method(*positional, **named)))
    return seen


@pytest.fixture(scope="module")
def openapi() -> dict[str, Any]:
    """The API's description of itself."""
    return document()


def operations(openapi: dict[str, Any]) -> dict[tuple[str, str], str]:
    """The operations of the API that take a credential, by method and path."""
    found = {}
    for path, methods in openapi["paths"].items():
        for method, operation in methods.items():
            found[method.upper(), re.sub(r"\{[^}]*\}", "{}", path)] = operation["operationId"]
    return found


def test_every_operation_of_the_api_has_a_method_and_every_method_an_operation(openapi: dict[str, Any]) -> None:
    offered, made = operations(openapi), requests_made()
    assert made - set(offered) == set()
    assert {offered[one] for one in set(offered) - made} == LEFT_OUT


def test_records_have_the_fields_of_the_api(openapi: dict[str, Any]) -> None:
    schemas = openapi["components"]["schemas"]
    for name, kind in RECORDS.items():
        described = set(schemas[name]["properties"])
        assert {field.encode_name for field in msgspec.structs.fields(kind)} == described, name
