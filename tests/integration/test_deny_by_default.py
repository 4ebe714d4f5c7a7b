"""Every route requires a credential, except the few listed here."""

from collections.abc import Iterator
from typing import Final

from litestar.routes import HTTPRoute

from tenantry.app import build_app, litestar_routes
from tenantry.dashboard.guards import OPERATOR_PAGES
from tenantry.server.dispatch import Dispatcher
from tests.support.app import make_settings
from tests.support.cases import cases
from tests.support.service import PROJECTS, VERIFY, Service, refusal

PUBLIC: Final = {"/healthz", "/readyz", "/metrics", "/api/v1/openapi.json", "/docs"}
SIGN_IN: Final = {"/sign-in", "/sign-in/start", "/sign-in/callback", "/signed-out", "/assets/x/x"}
CONFIRMATION: Final = "/confirm-address"
"""Asks for the token of a link."""
INVITATION: Final = "/invitation"
"""Shows the invitation of a link."""
"""The dashboard's pages, with and without a session."""
WEBHOOK: Final = "/api/v1/webhooks/payment-provider"
LEAK_REPORT: Final = "/api/v1/api-keys/report-leak"
STREAM: Final = "/orgs/x/events/stream"
"""Addresses that users do not open: a script requests them, which cannot be redirected to the
sign-in.
"""
HIDDEN: Final = "/-"
"""Where Litestar would serve its own description."""


def front() -> Dispatcher:
    return build_app(make_settings(), "host=/nowhere")


def routes() -> Iterator[tuple[str, str]]:
    """Method and path of everything that is answered behind the front, with ``x`` for each
    parameter.
    """
    for route in litestar_routes().routes:
        assert isinstance(route, HTTPRoute)
        path = "/".join(
            "x" if part.startswith("{") else part for part in route.path_format.split("/")
        )
        yield from ((method, path) for method in sorted(route.methods - {"OPTIONS"}))


NOT_PUBLIC: Final = [
    one
    for one in routes()
    if one[1] not in {*PUBLIC, *SIGN_IN, LEAK_REPORT, CONFIRMATION, INVITATION}
    and not one[1].startswith(HIDDEN)
]
GUARDED: Final = [one for one in NOT_PUBLIC if one[1].startswith("/api/")]
PAGES: Final = [one for one in NOT_PUBLIC if not one[1].startswith(("/api/", OPERATOR_PAGES))]
OF_OPERATOR: Final = [one for one in NOT_PUBLIC if one[1].startswith(OPERATOR_PAGES)]


async def test_route_asks_for_a_credential(service: Service) -> None:
    for method, path in GUARDED:
        answer = await service.anonymous.call(method, path)
        assert refusal(answer) == (401, "missing_credential"), (method, path)
        assert answer.headers["www-authenticate"] == 'Bearer realm="api"', (method, path)


async def test_page_asks_for_a_sign_in(service: Service) -> None:
    for method, path in PAGES:
        answer = await service.anonymous.call(method, path)
        leads_to = answer.headers.get("location", "").partition("?")[0]
        shown = (answer.status_code, leads_to, "Nothing was saved." in answer.text)
        if path == "/sign-out":
            assert shown == (303, "/signed-out", False)
        elif method == "GET" and path != STREAM:
            assert shown == (303, "/sign-in", False), (method, path)
        else:
            assert shown == (401, "", True), (method, path)


async def test_page_of_the_operator_is_missing_without_operators(service: Service) -> None:
    for method, path in OF_OPERATOR:
        assert (await service.anonymous.call(method, path)).status_code == 404, (method, path)
    assert len(OF_OPERATOR) > 30


def test_hot_routes_are_the_three_that_are_tested_here() -> None:
    hot = front()._hot
    assert list(hot._exact) == [(None, WEBHOOK), ("GET", PROJECTS)]
    assert [prefix for prefix, _ in hot._prefixes] == [VERIFY]


@cases("path", [PROJECTS, f"{VERIFY}-", f"{VERIFY}projects:read", f"{VERIFY}a:b/c"])
async def test_hot_route_asks_for_a_credential(service: Service, path: str) -> None:
    assert refusal(await service.anonymous.get(path)) == (401, "missing_credential")


async def test_webhook_asks_for_a_signature(service: Service) -> None:
    answer = await service.anonymous.call("POST", WEBHOOK, content=b"{}")
    assert (answer.status_code, answer.text) == (400, "Missing Provider-Signature header")


@cases("token", ["", "x", "x" * 43, "x" * 1000])
async def test_confirmation_of_an_address_asks_for_the_token_of_a_link(
    service: Service, token: str
) -> None:
    shown = await service.anonymous.get(CONFIRMATION, token=token)
    sent = await service.anonymous.call("POST", CONFIRMATION, data={"token": token})
    assert (shown.status_code in (400, 404), sent.status_code) == (True, 404)


async def test_report_of_a_leak_asks_for_a_key_in_its_body_alone(service: Service) -> None:
    assert refusal(await service.anonymous.post(LEAK_REPORT, {"secret": "none"})) == (
        422,
        "validation_failed",
    )


@cases("path", sorted(PUBLIC))
async def test_public_route_answers_without_a_credential(service: Service, path: str) -> None:
    assert (await service.anonymous.get(path)).status_code == 200


async def test_litestar_serves_no_description_of_its_own(service: Service) -> None:
    for path in (
        "/-",
        "/-/openapi.json",
        "/-/swagger",
        "/schema",
        "/schema/openapi.json",
        "/openapi.json",
        "/unused",
    ):
        assert refusal(await service.anonymous.get(path)) == (404, "not_found")


@cases(("method", "path"), [("PUT", PROJECTS), ("DELETE", "/healthz"), ("POST", "/api/v1/plans")])
async def test_other_methods_are_refused_with_those_that_are_answered(
    service: Service, method: str, path: str
) -> None:
    answer = await service.anonymous.call(method, path)
    assert refusal(answer) == (405, "method_not_allowed")
    assert "GET" in answer.headers["allow"]
    assert method not in answer.headers["allow"]


@cases("path", ["/nowhere", "/api", "/api/v1", "/api/v2/projects", "/api/v1/nowhere", "/%00"])
async def test_unknown_address_is_not_found(service: Service, path: str) -> None:
    assert refusal(await service.anonymous.get(path)) == (404, "not_found")


@cases(
    ("path", "methods"),
    [
        (PROJECTS, "GET, HEAD, OPTIONS, POST"),
        ("/api/v1/tenants/x", "DELETE, GET, HEAD, OPTIONS, PATCH, PUT"),
        ("/healthz", "GET, HEAD, OPTIONS"),
    ],
)
async def test_options_need_no_credential(service: Service, path: str, methods: str) -> None:
    answer = await service.anonymous.call("OPTIONS", path)
    assert (answer.status_code, answer.content) == (204, b"")
    assert answer.headers["allow"] == methods
