"""The two clients offer the same, and all of the API."""

import ast
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from types import ModuleType
from typing import Any, Final, get_args

import httpx2
import msgspec
import pytest

import tenantry_sdk
from tenantry.domain.outbound_events import EventType
from tenantry.domain.roles import BuiltInRole
from tenantry_sdk import AsyncTenantry, Tenantry, errors, frameworks, oauth, types, webhooks
from tenantry_sdk import _events as events
from tenantry_sdk import _models as models
from tests.contract.test_openapi import document
from tests.sdk.sdk_support import SDK

RECORDS: Final[dict[str, type[msgspec.Struct]]] = {
    "ApiKey": models.ApiKey,
    "ApiKeyWithSecret": models.NewApiKey,
    "AuditEvent": models.AuditEvent,
    "BillingAddress": models.BillingAddress,
    "BillingExplanation": models.BillingExplanation,
    "BillingEventView": models.BillingEvent,
    "BillingFields": models.BillingState,
    "Consumed": models.Consumption,
    "CurrencyAmount": models.CurrencyAmount,
    "CustomerMove": models.CustomerMove,
    "EndingView": models.AccessEnding,
    "EndedKey": models.RevokedKey,
    "Entitlement": models.Entitlement,
    "Fault": errors.Fault,
    "FieldComparison": models.FieldComparison,
    "FeedPage": events.EventPage,
    "Grant": models.Grant,
    "Health": models.Health,
    "ImportPreview": models.ImportPreview,
    "ImportResult": models.ImportResult,
    "ImportedKey": models.ImportedKey,
    "ImportedKeyCounts": models.ImportedKeyCounts,
    "Invitation": models.Invitation,
    "InvitationLink": models.InvitationLink,
    "Limits": models.Limits,
    "ListedEndpoint": models.WebhookEndpointStatus,
    "ManagedTenant": models.ManagedTenant,
    "Member": models.Member,
    "Membership": models.Membership,
    "OutboundEvent": events.ChangeEvent,
    "PaymentReversal": models.PaymentReversal,
    "PlanPrice": models.PlanPrice,
    "PlanView": models.Plan,
    "Project": models.Project,
    "Rejection": models.Rejection,
    "QueuedEvents": models.QueuedEvents,
    "SessionAddress": models.HostedSession,
    "StateView": models.BillingStateDetails,
    "SubscriptionView": models.SubscriptionState,
    "Tenant": models.Tenant,
    "TenantAccess": models.TenantAccess,
    "TenantExport": models.TenantExport,
    "TenantMatch": models.TenantMatch,
    "UnplacedEvent": models.UnplacedEvent,
    "UsageCount": models.UsageCount,
    "UsageReport": models.UsageReport,
    "WebhookTest": models.WebhookTest,
    "Whoami": models.Whoami,
}


ARGUMENTS: Final[dict[str, object]] = {"request_headers": {}, "scope": "x:x", "org_id": "x"}
"""Arguments of methods; others are ``x``."""
CLOSED_SETS: Final = {
    "PrincipalKind": types.PrincipalKind,
    "Mode": types.Mode,
    "AccessLevel": types.AccessLevel,
    "HashAlgorithm": types.HashAlgorithm,
    "KeyStatus": types.KeyStatus,
    "InvitationStatus": types.InvitationStatus,
    "MemberStatus": types.MemberStatus,
}
OPEN_SETS: Final = {
    "Action": types.AuditAction,
    "ActorKind": types.ActorKind,
    "ImportStatus": types.ImportStatus,
    "Outcome": types.EventOutcome,
    "RequestOutcome": types.RequestOutcome,
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
        re.sub(r"\baclose$", "close", name): re.sub(
            r"\bAsync(?=[A-Z])", "", str(inspect.signature(method))
        )
        for name, method in members(client)
    }


def test_pagers_say_what_they_list() -> None:
    clients = (Tenantry("key"), AsyncTenantry("key"))
    shown = [
        repr(pager)
        for client in clients
        for pager in (
            client.api_keys.list(search="svc_live_AbCd"),
            client.operator.events.list(after="evt_1"),
            client.operator.events.follow(after="evt_1"),
        )
    ]
    clients[0].close()
    assert shown == [
        "<Pager of /api/v1/api-keys>",
        "<EventPager of /api/v1/operator/events>",
        "<EventFollower at evt_1>",
        "<AsyncPager of /api/v1/api-keys>",
        "<AsyncEventPager of /api/v1/operator/events>",
        "<AsyncEventFollower at evt_1>",
    ]


def test_both_clients_offer_the_same() -> None:
    assert signatures(Tenantry("key")) == signatures(AsyncTenantry("key"))


def test_synchronous_modules_match_their_asynchronous_source() -> None:
    done = subprocess.run(
        [sys.executable, SDK / "make_sync.py", "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_import_waits_for_nothing_that_is_slow() -> None:
    code = "import sys, tenantry_sdk; print(*{'anyio', 'asyncio', 'hashlib', 'httpx2', 'ssl'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"


def test_every_method_takes_the_options_of_a_call() -> None:
    without = [
        name
        for name, method in members(AsyncTenantry("key"))
        if inspect.signature(method).parameters.get("options") is None
    ]
    assert without == ["aclose", "tenant"]


def undocumented(module: ModuleType) -> Iterator[str]:
    """The public classes, methods and functions of a module that have no docstring."""
    for name in getattr(module, "__all__", None) or [
        name for name in vars(module) if not name.startswith("_")
    ]:
        value = getattr(module, name)
        is_own = getattr(value, "__module__", "").startswith("tenantry_sdk")
        if is_own and inspect.isclass(value):
            yield from undocumented_members(value)
        elif is_own and inspect.isfunction(value) and not value.__doc__:
            yield name


def undocumented_aliases() -> set[str]:
    """The names of `types` without a text below."""
    statements = ast.parse(inspect.getsource(types)).body
    aliases = {
        one.target.id
        for one in statements
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
    }
    return aliases - {
        ast.unparse(one.target)
        for one, below in pairwise(statements)
        if isinstance(one, ast.AnnAssign)
        and isinstance(below, ast.Expr)
        and isinstance(below.value, ast.Constant)
    }


def undocumented_members(kind: type) -> Iterator[str]:
    """A class without a docstring, and its public methods and properties that have none."""
    if not vars(kind).get("__doc__"):
        yield kind.__name__
    for name, value in vars(kind).items():
        described = inspect.isfunction(value) or isinstance(value, property)
        if described and not name.startswith("_") and not value.__doc__:
            yield f"{kind.__name__}.{name}"


def test_every_public_name_is_documented() -> None:
    assert [
        name
        for module in (tenantry_sdk, errors, frameworks, oauth, webhooks)
        for name in undocumented(module)
    ] == []
    assert undocumented_aliases() == set()
    silent = [
        name for name, method in members(AsyncTenantry("key")) if not (method.__doc__ or "").strip()
    ]
    assert silent == []


def test_every_resource_is_documented() -> None:
    kinds = {
        type(value)
        for value in vars(AsyncTenantry("key")).values()
        if type(value).__module__.endswith("_resources")
    }
    assert len(kinds) >= 9
    assert [kind.__name__ for kind in kinds if not vars(kind).get("__doc__")] == []


def arguments(method: Any) -> tuple[list[str], dict[str, object]]:
    """Some arguments that a method takes."""
    positional, named = list[Any](), dict[str, object]()
    for name, parameter in inspect.signature(method).parameters.items():
        value = ARGUMENTS.get(name, "x")
        if parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
            positional.append(value)
        elif parameter.kind is parameter.KEYWORD_ONLY and (
            name in ARGUMENTS or parameter.default is parameter.empty
        ):
            named[name] = value
    return positional, named


def requests_made() -> set[tuple[str, str]]:
    """Method and path of the request that each method of the client makes."""
    seen: set[tuple[str, str]] = set()

    def answer(request: httpx2.Request) -> httpx2.Response:
        path = re.sub(r"/mode/test$", "/mode/{}", request.url.path)
        seen.add((request.method, re.sub(r"/x(?::x)?(?=/|$)", "/{}", path)))
        return httpx2.Response(
            404, json={"code": "not_found", "detail": "There is no such object."}
        )

    with httpx2.Client(transport=httpx2.MockTransport(answer)) as http_client:
        client = Tenantry("key", http_client=http_client)
        for name, method in members(client):
            if name in {"close", "request", "tenant", "with_options", "entitlements.consuming"}:
                continue
            positional, named = arguments(method)
            with pytest.raises(tenantry_sdk.errors.TenantryError):
                next(iter(method(*positional, **named)))
        with pytest.raises(tenantry_sdk.errors.UnreadableAnswerError):
            client.auth.verify({}, "x:x", mode="test")
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


def test_every_operation_of_the_api_has_a_method_and_every_method_an_operation(
    openapi: dict[str, Any],
) -> None:
    offered, made = operations(openapi), requests_made()
    assert made - set(offered) == set()
    assert {offered[one] for one in set(offered) - made} == set()


def test_records_have_the_fields_of_the_api(openapi: dict[str, Any]) -> None:
    schemas = openapi["components"]["schemas"]
    for name, kind in RECORDS.items():
        described = set(schemas[name]["properties"])
        assert {field.encode_name for field in msgspec.structs.fields(kind)} == described, name


def values_of(operation: dict[str, Any], parameter: str) -> set[str]:
    """The values that a parameter of an operation may have."""
    [schema] = [one["schema"] for one in operation["parameters"] if one["name"] == parameter]
    return set(schema["enum"])


def test_sets_of_values_are_those_of_the_api(openapi: dict[str, Any]) -> None:
    schemas = openapi["components"]["schemas"]
    for name, closed in CLOSED_SETS.items():
        assert set(get_args(closed)) == set(schemas[name]["enum"]), name
    for name, opened in OPEN_SETS.items():
        literal, other = get_args(opened)
        assert set(get_args(literal)) == set(schemas[name]["enum"]), name
        assert other is str
    event_types, other = get_args(types.EventType)
    assert (set(get_args(event_types)), other) == (set(EventType), str)
    built_in, other = get_args(types.Role)
    assert (set(get_args(built_in)), other) == (set(BuiltInRole), str)
    entitlement = schemas["Entitlement"]["properties"]
    assert set(get_args(types.FeatureType)) == set(entitlement["type"]["enum"])
    sources, _ = get_args(types.EntitlementSource)
    assert {*get_args(sources), None} == {*entitlement["source"]["anyOf"][0]["enum"], None}
    assert set(get_args(types.AccessState)) == set(
        schemas["TenantAccess"]["properties"]["state"]["enum"]
    )
    of_verify = openapi["paths"]["/api/v1/auth/verify/{scope}/mode/{mode}"]["get"]
    assert set(get_args(types.AcceptedMode)) == values_of(of_verify, "mode")
    of_usage = openapi["paths"]["/api/v1/usage"]["get"]
    assert set(get_args(types.UsageInterval)) == values_of(of_usage, "interval")
