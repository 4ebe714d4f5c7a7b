"""The provider's events as its API lists them: what they are about, and which of them are new."""

import time
from collections.abc import Callable, Collection, Mapping
from contextlib import aclosing
from fnmatch import fnmatchcase
from typing import Any, Final

import msgspec

from tenantry.common.encoding import NOT_JSON
from tenantry.integrations.stripe.api import MOST_EVENT_TYPES, ORG_ID, ProviderApi

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
    except NOT_JSON:
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
    ``monotonic`` returns seconds that never go back. The methods raise what `ProviderApi.events_since` does, and
    nothing is lost by that.
    """

    def __init__(
        self, provider: ProviderApi, types: Collection[str], monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self.began_anew = False
        """Whether the last call of `fresh` found another list than the one before, such as that of a new simulator."""
        self._provider = provider
        self._types = frozenset(types)
        is_plain = len(self._types) <= MOST_EVENT_TYPES and not any("*" in each for each in self._types)
        self._asked_for = self._types if is_plain else None
        self._monotonic = monotonic
        self._since = 0
        self._newest: ProviderEvent | None = None
        self._found_at = monotonic()
        self._seen: dict[str, int] = {}

    async def begin(self, since: int | None = None) -> None:
        """Begin with the events created at or after this second or, by default, with what happens from now on."""
        if since is not None:
            self._since = since
            return
        newest = await self._newest_listed()
        if newest:
            self._since = max(0, newest.created - OVERLAP)
            await self.fresh()

    async def fresh(self) -> list[ProviderEvent]:
        """The events that have appeared since the last call, oldest first."""
        found, is_empty = await self._listed()
        self.began_anew = is_empty and await self._is_another_list()
        if self.began_anew:
            self._since, self._seen, self._newest = 0, {}, None
            found, _ = await self._listed()
        # only now, when all pages have been read, for a failure on the way must not lose any
        self._seen |= {event.id: event.created for event in found}
        if found:
            self._found_at = self._monotonic()
            self._newest = max((found[0], self._newest or found[0]), key=lambda event: event.created)
        if self._newest is not None:
            # once it has been quiet for so long, nothing older appears any more: it need not be read again each time
            is_quiet = self._monotonic() - self._found_at > OVERLAP
            self._since = max(self._since, self._newest.created + 1 if is_quiet else self._newest.created - OVERLAP)
        self._seen = {event_id: created for event_id, created in self._seen.items() if created >= self._since}
        return [event for event in reversed(found) if self._is_wanted(event.type)]

    async def _listed(self) -> tuple[list[ProviderEvent], bool]:
        """What is new in the list, newest first, and whether it was empty from `_since` on."""
        found, is_empty = [], True
        async with aclosing(self._provider.events_since(self._since, self._asked_for)) as listed:
            async for body in listed:
                is_empty = False
                event = read_event(body)
                if event and event.id not in self._seen:
                    found.append(event)
        return found, is_empty

    async def _is_another_list(self) -> bool:
        """Whether the list's newest event is one that was never seen, and older than what was."""
        if self._newest is None:
            return False
        newest = await self._newest_listed()
        return newest is not None and newest.created < self._since and newest.id != self._newest.id

    async def _newest_listed(self) -> ProviderEvent | None:
        async with aclosing(self._provider.events_since(0, self._asked_for)) as listed:
            body = await anext(listed, None)
        return read_event(body) if body is not None else None

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
