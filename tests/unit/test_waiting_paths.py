"""Which requests the deadline of the service does not end."""

from collections.abc import Callable

import pytest

from tenantry.app import litestar_routes
from tenantry.server.waiting_paths import waiting_paths


@pytest.fixture(scope="module")
def may_wait() -> Callable[[str], bool]:
    return waiting_paths(litestar_routes())


@pytest.mark.parametrize(
    "path",
    [
        "/metrics",
        "/api/v1/billing/checkout-sessions",
        "/api/v1/billing/portal-sessions",
        "/api/v1/operator/events",
        "/api/v1/operator/webhook-endpoints/app/test",
        "/api/v1/operator/webhook-endpoints/app/enable",
        "/api/v1/operator/webhook-endpoints/app/resend",
        "/orgs/acme/billing/checkout",
        "/orgs/acme/billing/portal",
        "/orgs/acme/events/stream",
        "/operator/installation/checks",
        "/operator/installation/webhooks/app/test",
        "/operator/installation/webhooks/app/enable",
        "/operator/installation/webhooks/app/resend",
    ],
)
def test_route_that_waits_for_others_may_wait(may_wait: Callable[[str], bool], path: str) -> None:
    assert may_wait(path)


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/readyz",
        "/metrics/other",
        "/api/v1/api-keys",
        "/api/v1/operator/events/evt_1",
        "/api/v1/operator/webhook-endpoints",
        "/api/v1/operator/webhook-endpoints/app",
        "/api/v1/operator/webhook-endpoints/app/other/test",
        "/orgs/acme/billing",
        "/orgs/acme/other/billing/checkout",
        "/orgs//events/stream",
        "/operator/installation",
    ],
)
def test_other_paths_may_not(may_wait: Callable[[str], bool], path: str) -> None:
    assert not may_wait(path)
