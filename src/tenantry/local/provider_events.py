"""The provider's events as its API lists them: what they are about, and which of them are new."""

from collections.abc import Collection, Mapping
from contextlib import aclosing
from fnmatch import fnmatchcase
from typing import Any, Final

import msgspec

from tenantry.gateways.provider.api import MOST_EVENT_TYPES, ORG_ID, ProviderApi

ALL_TYPES: Final = "*"
OVERLAP: Final = 60
"""Seconds that are read again each time: an event may appear in the list a little later than newer ones."""

Json = Mapping[str, Any]


class ProviderEvent(msgspec.Struct, frozen=True):
    """An event: its ``body`` as it was listed, and of it what people recognize it by.

    ``created`` is in seconds since the Unix epoch; ``tenant`` is what its metadata say.
    """

    id: str
    type: str
    created: int
    tenant: str | None
    customer: str | None
    body: bytes


def read_event(body: bytes) -> ProviderEvent | None:
    """What an event says of itself; None for what has no id, type or date, which cannot be relayed."""
    try:
        event = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if not isinstance(event, dict):
        return None
    event_id, event_type, created = event.get("id"), event.get("type"), event.get("created")
    if not isinstance(event_id, str) or not isinstance(event_type, str) or type(created) is not int:
        return None
    thing = _within(event, "data", "object")
    return ProviderEvent(event_id, event_type, created, _tenant(thing), _customer(thing), body)


class Subscription:
    """The events of these types that appear in the provider's list, each of them once.

    Types may hold ``*``, as in ``invoice.*``. What is remembered are the events of the last `OVERLAP` seconds.
    The methods raise what `ProviderApi.events_since` does, and nothing is lost by that.
    """

    def __init__(self, provider: ProviderApi, types: Collection[str]) -> None:
        self._provider = provider
        self._types = frozenset(types)
        is_plain = len(self._types) <= MOST_EVENT_TYPES and not any("*" in each for each in self._types)
        self._asked_for = self._types if is_plain else None
        self._since = 0
        self._seen: dict[str, int] = {}

    async def begin(self, since: int | None = None) -> None:
        """Begin with the events created at or after this second or, by default, with what happens from now on."""
        if since is not None:
            self._since = since
            return
        async with aclosing(self._provider.events_since(0, self._asked_for)) as listed:
            newest = await anext(listed, None)
        event = newest and read_event(newest)
        if event:
            self._since = max(0, event.created - OVERLAP)
            await self.fresh()

    async def fresh(self) -> list[ProviderEvent]:
        """The events that have appeared since the last call, oldest first."""
        found = []
        async with aclosing(self._provider.events_since(self._since, self._asked_for)) as listed:
            async for body in listed:
                event = read_event(body)
                if event and event.id not in self._seen:
                    found.append(event)
        # only now, when all pages have been read, for a failure on the way must not lose any
        self._seen |= {event.id: event.created for event in found}
        self._since = max(self._since, max(self._seen.values(), default=0) - OVERLAP)
        self._seen = {event_id: created for event_id, created in self._seen.items() if created >= self._since}
        return [event for event in reversed(found) if self._is_wanted(event.type)]

    def _is_wanted(self, event_type: str) -> bool:
        return any(fnmatchcase(event_type, pattern) for pattern in self._types)


def _tenant(thing: Json) -> str | None:
    places = (
        _within(thing, "metadata"),
        _within(thing, "parent", "subscription_details", "metadata"),
        _within(thing, "subscription_details", "metadata"),
    )
    return next((place[ORG_ID] for place in places if isinstance(place.get(ORG_ID), str)), None)


def _customer(thing: Json) -> str | None:
    customer = thing if thing.get("object") == "customer" else thing.get("customer")
    customer = customer.get("id") if isinstance(customer, dict) else customer
    return customer if isinstance(customer, str) else None


def _within(thing: object, *path: str) -> Json:
    for name in path:
        thing = thing.get(name) if isinstance(thing, dict) else None
    return thing if isinstance(thing, dict) else {}
