"""Events and where they are sent."""

from collections.abc import Callable, Sequence
from typing import Final

from tenantry_devkit.simulator.api.paging import in_range
from tenantry_devkit.simulator.api.parameters import missing_parameter
from tenantry_devkit.simulator.api.routes import Call, Route
from tenantry_devkit.simulator.engine import Engine
from tenantry_devkit.simulator.errors import ApiError, found, missing
from tenantry_devkit.simulator.objects import Event, WebhookEndpoint
from tenantry_devkit.simulator.rendering import render_event
from tenantry_devkit.simulator.shapes import Json
from tenantry_devkit.simulator.subscriptions import DAY

KEPT_SECONDS: Final = 30 * DAY
"""How long the API knows an event."""


class EventRoutes:
    """The handlers for what happened."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._account = engine.account

    def routes(self) -> list[Route]:
        """Which handler answers what."""
        return [
            Route("GET", "/v1/events", self._list),
            Route("GET", "/v1/events/{}", self._retrieve),
            Route("POST", "/v1/events/{}/retry", self._retry),
            Route("POST", "/v1/webhook_endpoints", self._create_endpoint),
            Route("GET", "/v1/webhook_endpoints", self._list_endpoints),
            Route("GET", "/v1/webhook_endpoints/{}", self._endpoint),
            Route("DELETE", "/v1/webhook_endpoints/{}", self._delete_endpoint),
        ]

    def _list(self, call: Call) -> Json:
        given = call.parameters
        one, several = given.text("type"), given.texts("types")
        if one is not None and several:
            raise ApiError(400, "You may only specify one of these parameters: type, types.")
        types = [one] if one else several
        delivered = given.boolean("delivery_success")
        undelivered = set() if delivered is None else self._engine.courier.undelivered()
        is_wanted, made_in_time = _among(types), in_range(given, "created")
        return call.page(
            (
                event
                for event in self._account.events.values()
                if self._is_kept(event)
                and is_wanted(event.type)
                and made_in_time(event.created)
                and (delivered is None or delivered is (event.id not in undelivered))
            ),
            "event",
            self._show,
        )

    def _retrieve(self, call: Call) -> Json:
        return self._show(self._kept(call.id))

    def _retry(self, call: Call) -> Json:
        event, endpoint = self._kept(call.id), call.parameters.text("webhook_endpoint")
        if endpoint is not None:
            found(self._account.endpoints, "webhook endpoint", endpoint, param="webhook_endpoint")
        self._engine.courier.again(event, endpoint)
        return self._show(event)

    def _create_endpoint(self, call: Call) -> Json:
        given = call.parameters
        events = given.texts("enabled_events")
        if not events:
            raise missing_parameter("enabled_events")
        endpoint = WebhookEndpoint(
            url=given.required("url"),
            secret=self._account.ids.new("whsec"),
            enabled_events=tuple(events),
            api_version=given.text("api_version"),
            description=given.text("description"),
            metadata=given.metadata() or {},
        )
        endpoint = self._engine.add_endpoint(endpoint)
        # Told this once, as the provider does.
        return {**call.render(endpoint), "secret": endpoint.secret}

    def _list_endpoints(self, call: Call) -> Json:
        return call.page(self._account.endpoints.values(), "webhook endpoint")

    def _endpoint(self, call: Call) -> Json:
        return call.render(found(self._account.endpoints, "webhook endpoint", call.id))

    def _delete_endpoint(self, call: Call) -> Json:
        endpoint = found(self._account.endpoints, "webhook endpoint", call.id)
        del self._account.endpoints[endpoint.id]
        return {"id": endpoint.id, "object": "webhook_endpoint", "deleted": True}

    def _show(self, event: Event) -> Json:
        return render_event(event, self._account.api_version)

    def _is_kept(self, event: Event) -> bool:
        return event.created > self._account.now - KEPT_SECONDS

    def _kept(self, event_id: str) -> Event:
        event = found(self._account.events, "event", event_id)
        if not self._is_kept(event):
            raise missing("event", event_id)
        return event


def _among(wanted: Sequence[str]) -> Callable[[str], bool]:
    """Whether a type is one of these, of which some may end in ``*``; without any, every type is."""
    whole = frozenset(wanted)
    beginnings = tuple(each.removesuffix("*") for each in wanted if each.endswith("*"))
    return lambda event_type: not whole or event_type in whole or event_type.startswith(beginnings)
