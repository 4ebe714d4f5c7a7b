"""Routes of the endpoints that receive tenantry's webhooks, for the operator."""

from datetime import datetime
from typing import Annotated, Final

import msgspec
from litestar import get, post
from litestar.params import JSONBody

from tenantry.api.guards import ChangeAuthor, needs_operator
from tenantry.api.parameters import path_parameter
from tenantry.api.services import Services
from tenantry.common.encoding import doc
from tenantry.db.pagination import Page
from tenantry.domain.errors import ValidationError
from tenantry.domain.webhook_endpoints import ListedEndpoint, QueuedEvents, WebhookTest
from tenantry.server.waiting_paths import MAY_WAIT

PATH: Final = "/api/v1/operator/webhook-endpoints"

EndpointName = Annotated[str, path_parameter("The endpoint's name in the plan catalog.", "app")]
_operator = needs_operator()


class Resend(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """The events to send again: one, or all since a time; with neither, all that were not
    delivered.
    """

    event: Annotated[
        Annotated[str, msgspec.Meta(max_length=64)] | None,
        doc("The id of the event.", "evt_1795843200000123"),
    ] = None
    since: Annotated[
        Annotated[datetime, msgspec.Meta(tz=True)] | None,
        doc("All events since then, delivered or not (RFC 3339)."),
    ] = None


@get(PATH, guards=[_operator], summary="List webhook endpoints (operator)")
async def list_webhook_endpoints(services: Services) -> Page[ListedEndpoint]:
    """List the endpoints of the plan catalog, their state, and how many events wait for each: all
    on one page.
    """
    return Page(await services.outbound_webhooks.list_endpoints(), None)


@post(
    PATH + "/{name:str}/test",
    guards=[_operator],
    status_code=200,
    summary="Test a webhook endpoint (operator)",
    opt=MAY_WAIT,  # a receiver answers within 15 s
)
async def test_webhook_endpoint(
    services: Services, author: ChangeAuthor, name: EndpointName
) -> WebhookTest:
    """Send a signed message of the type `webhook.test` to an endpoint at once, also to a disabled
    one. It is sent once, and changes no state. The answer may take 15 s.
    """
    return await services.outbound_webhooks.test(author, name)


@post(
    PATH + "/{name:str}/enable",
    guards=[_operator],
    status_code=200,
    summary="Enable a webhook endpoint (operator)",
    opt=MAY_WAIT,  # a transaction queues 14,000 events a second (measured)
)
async def enable_webhook_endpoint(
    services: Services, author: ChangeAuthor, name: EndpointName
) -> QueuedEvents:
    """Enable an endpoint that was disabled, and send it all events that are held.

    The receiver gets them in any order: the highest version of an object is its newest state.
    """
    return await services.outbound_webhooks.enable(author, name)


@post(
    PATH + "/{name:str}/resend",
    guards=[_operator],
    status_code=200,
    summary="Resend webhooks (operator)",
    opt=MAY_WAIT,
)
async def resend_webhooks(
    services: Services,
    author: ChangeAuthor,
    name: EndpointName,
    data: JSONBody[Resend | None] = None,
) -> QueuedEvents:
    """Send an endpoint the events that are held or wait for another attempt, or others again.

    Events are kept for 30 days. The receiver gets an event under its first id, by which it
    detects duplicates. While the endpoint is disabled, they are held.
    """
    wanted = data or Resend()
    if wanted.event is not None and wanted.since is not None:
        raise ValidationError(("since", "cannot be used with event"))
    webhooks = services.outbound_webhooks
    return await webhooks.resend(author, name, event=wanted.event, since=wanted.since)
