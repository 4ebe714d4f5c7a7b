"""The endpoints that receive tenantry's webhooks, as the operator sees them."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Literal, Self

import msgspec

from tenantry.common.encoding import doc
from tenantry.domain.webhooks import WebhookEndpoint


class EndpointState(msgspec.Struct, frozen=True, kw_only=True):
    """An endpoint of the catalog, and what it has received.

    ``waiting`` counts the deliveries to come, ``held`` those that wait for the operator: after all
    their attempts failed, or all while the endpoint is disabled. Of events without a delivery,
    `MAX_COUNTED` are looked at. ``accepted`` and ``failed`` count attempts; ``failing_since`` is
    the first failed one since the last success.
    """

    name: str
    waiting: int = 0
    held: int = 0
    accepted: int = 0
    failed: int = 0
    last_success_at: datetime | None = None
    failing_since: datetime | None = None
    paused_until: datetime | None = None
    disabled_at: datetime | None = None
    disabled_reason: str | None = None


class ListedEndpoint(msgspec.Struct, frozen=True, rename="camel"):
    """An endpoint of the plan catalog, and its state."""

    name: Annotated[str, doc("Its name in the plan catalog.", "app")]
    url: Annotated[str, doc("Its address, without its query.", "https://app.example/webhooks")]
    types: Annotated[Sequence[str], doc("The types of events that it receives.", ["tenant.*"])]
    state: Annotated[Literal["active", "failing", "disabled"], doc("Whether it receives events.")]
    waiting: Annotated[int, doc("The number of events that will be sent.", 0)]
    held: Annotated[
        int,
        doc(
            "The number of events that wait for the operator: all attempts failed, or the endpoint is disabled.",
            0,
        ),
    ]
    last_success_at: Annotated[
        datetime | None, doc("When it last accepted an event.", "2026-11-02T09:45:10Z")
    ]
    failing_since: Annotated[
        datetime | None, doc("The first failed attempt since the last success; null without one.")
    ]
    paused_until: Annotated[
        datetime | None, doc("Until when it asked to be left alone; null if it did not.")
    ]
    disabled_at: Annotated[datetime | None, doc("When tenantry disabled it; null if it did not.")]
    disabled_reason: Annotated[str | None, doc("Why it is disabled.")]

    @classmethod
    def of(cls, endpoint: WebhookEndpoint, state: EndpointState) -> Self:
        """Show an endpoint in this state."""
        return cls(
            endpoint.name,
            endpoint.shown_url,
            endpoint.types.patterns,
            _word(state),
            state.waiting,
            state.held,
            state.last_success_at,
            state.failing_since,
            state.paused_until,
            state.disabled_at,
            state.disabled_reason,
        )


def _word(state: EndpointState) -> Literal["active", "failing", "disabled"]:
    if state.disabled_at is not None:
        return "disabled"
    return "active" if state.failing_since is None else "failing"


class QueuedEvents(msgspec.Struct, frozen=True):
    """How many events will be sent to an endpoint."""

    name: Annotated[str, doc("The endpoint's name in the plan catalog.", "app")]
    events: Annotated[int, doc("The number of events.", 3)]


class WebhookTest(msgspec.Struct, frozen=True):
    """What the receiver of an endpoint did with a test message."""

    name: Annotated[str, doc("The endpoint's name in the plan catalog.", "app")]
    accepted: Annotated[bool, doc("Whether the receiver accepted the message.", example=True)]
    status: Annotated[int | None, doc("The status of its answer; null without one.", 204)]
    error: Annotated[str | None, doc("Why there was no answer.")]
