"""The events of the change feed, each with the object that was changed. Pure."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from tenantry_sdk._models import (
    ApiKey,
    AuditEvent,
    Entitlement,
    Grant,
    Invitation,
    ManagedTenant,
    Member,
    PaymentReversal,
)
from tenantry_sdk._response import Model, Response, converted

if TYPE_CHECKING:
    from tenantry_sdk.types import EventType
else:
    EventType = str  # msgspec would reject the values that a newer service adds


class ChangeEvent(Model, frozen=True, kw_only=True):
    """A change of a tenant, or of an object of it. Its class tells what kind of object ``data`` is;
    an event of a kind that this version does not know is of this class itself.
    """

    id: str
    """The event's id. It is also the cursor of the events that follow it."""
    type: EventType
    """What was changed, and how."""
    org_id: str
    """The tenant that it belongs to."""
    at: datetime
    """When the change took effect."""
    version: int
    """Of two events of one object, the one with the higher version has the newer state."""
    data: Any
    """The whole object after the change, without secrets."""


class TenantEvent(ChangeEvent, frozen=True, kw_only=True):
    """``tenant.*``: a tenant was changed. ``tenant.access_changed`` is a change of its plan, its
    subscription's status or its access.
    """

    data: ManagedTenant
    """The tenant."""


class MemberEvent(ChangeEvent, frozen=True, kw_only=True):
    """``member.*``: a membership was changed."""

    data: Member
    """The membership."""


class InvitationEvent(ChangeEvent, frozen=True, kw_only=True):
    """``invitation.*``: an invitation by mail was changed."""

    data: Invitation
    """The invitation."""


class ApiKeyEvent(ChangeEvent, frozen=True, kw_only=True):
    """``api_key.*``: an API key was changed."""

    data: ApiKey
    """The key, without its secret."""


class GrantEvent(ChangeEvent, frozen=True, kw_only=True):
    """``grant.*``: a grant was set or ended."""

    data: Grant
    """The grant. Its name is unique within the tenant."""


class PaymentReversalEvent(ChangeEvent, frozen=True, kw_only=True):
    """``billing.*``: a refund or a dispute reached another status."""

    data: PaymentReversal
    """The refund or dispute."""


class EntitlementEvent(ChangeEvent, frozen=True, kw_only=True):
    """``entitlement.*``: a tenant reached a quota."""

    data: Entitlement
    """The feature and the use of its quota."""


class AuditTrailEvent(ChangeEvent, frozen=True, kw_only=True):
    """``audit.*``: an entry of the audit trail. Only on request, by ``types``."""

    data: AuditEvent
    """The entry."""


class EventPage(Model, frozen=True, kw_only=True):
    """A part of the change feed."""

    data: list[ChangeEvent]
    """The events, in their order; none if there are none yet."""
    next_cursor: str
    """The cursor of the events that follow, also if there are none yet: the feed has no end."""


_KINDS: Final[dict[str, type[ChangeEvent]]] = {
    "tenant": TenantEvent,
    "member": MemberEvent,
    "invitation": InvitationEvent,
    "api_key": ApiKeyEvent,
    "grant": GrantEvent,
    "entitlement": EntitlementEvent,
    "billing": PaymentReversalEvent,
    "audit": AuditTrailEvent,
}


def page_of(response: Response) -> EventPage:
    """Return the page in a response, each event of the class of its kind. Raises
    `UnreadableAnswerError`.
    """
    return response.parse(EventPage, _converted)


def event_of(document: Any) -> ChangeEvent:  # noqa: ANN401  # decoded JSON
    """Return one event, of the class of its kind. Raises `msgspec.ValidationError`."""
    converted(document, ChangeEvent)
    event: ChangeEvent = converted(document, _class_of(document))
    return event


def _converted(document: Any, kind: Any, response: Response) -> Any:  # noqa: ANN401
    page = converted(document, kind, response)
    page.data[:] = [converted(each, _class_of(each), response) for each in document["data"]]
    return page


def _class_of(document: dict[str, Any]) -> type[ChangeEvent]:
    kind, _, _ = document["type"].partition(".")
    return _KINDS.get(kind, ChangeEvent)
