"""Random grants in the middle of a history."""

import random
from collections.abc import Sequence
from typing import Final

from tenantry.domain.billing.events import BillingEvent
from tests.support import facts

_NAMES: Final = ("a", "b", "c")
_PLANS: Final = (None, "pro", "pro", "business", "free")
_DAY: Final = 86_400


def with_grants(
    events: Sequence[BillingEvent], rng: random.Random, number: int
) -> list[BillingEvent]:
    """A history, given in its order, with so many changes of grants at random places in it.

    No two changes of one grant are of the same second: their arrival would decide.
    """
    happened = list(events)
    taken = set[tuple[str, int]]()
    for count in range(number):
        place = rng.randint(0, len(happened))
        created = happened[min(place, len(happened) - 1)].created
        name = rng.choice(_NAMES)
        if (name, created) in taken:
            continue
        taken.add((name, created))
        happened.insert(place, _change(f"grant_{count}", name, created, rng))
    return happened


def _change(event_id: str, name: str, created: int, rng: random.Random) -> BillingEvent:
    if rng.random() < 0.3:
        return facts.grant_ended(created, event_id, name)
    return facts.granted(
        created,
        event_id,
        name,
        plan=rng.choice(_PLANS),
        features=rng.choice(((), (("exports", rng.randint(1, 9)),), (("exports", None),))),
        limits=rng.choice(((), (("projects", rng.randint(1, 9)),))),
        until=rng.choice((None, created + rng.randint(-60, 60) * _DAY)),
    )
