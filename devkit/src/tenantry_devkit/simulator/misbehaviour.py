"""What a delivery policy may do wrong on request, the same wrongs for the same seed."""

import random
from collections.abc import Callable, Collection
from dataclasses import dataclass
from datetime import timedelta

from tenantry_devkit.simulator.objects import Event


@dataclass(frozen=True, kw_only=True)
class Misbehaviour:
    """What goes wrong with the deliveries of the events that it is for: all, unless it names some.

    ``drop`` is the share of deliveries that is lost for good, and never tried again. ``duplicates`` is how many more
    copies are sent. ``delay`` is simulated time; of two, each copy gets one between them. With ``reorder``, what is
    due together is sent in any order.
    """

    drop: float = 0.0
    duplicates: int = 0
    reorder: bool = False
    delay: timedelta | tuple[timedelta, timedelta] = timedelta(0)
    endpoint: str | None = None
    types: Collection[str] = ()
    events: Collection[str] = ()
    only: Callable[[Event], bool] | None = None

    def concerns(self, event: Event, endpoint: str) -> bool:
        """Whether it is for the delivery of this event to this endpoint."""
        return (
            self.endpoint in {None, endpoint}
            and (not self.types or event.type in self.types)
            and (not self.events or event.id in self.events)
            and (self.only is None or self.only(event))
        )

    def in_words(self) -> str:
        """What goes wrong, and with what."""
        least, most = (int(bound.total_seconds()) for bound in self._delays)
        late = f"{least} to {most}" if most > least else f"{least}"
        wrongs = [
            f"{self.drop:.0%} lost" if self.drop else "",
            f"{self.duplicates} more cop{'y' if self.duplicates == 1 else 'ies'} of each" if self.duplicates else "",
            f"{late} seconds late" if most else "",
            "in any order" if self.reorder else "",
        ]
        told = ", ".join(wrong for wrong in wrongs if wrong) or "nothing goes wrong"
        concerned = [*([self.endpoint] if self.endpoint else []), *self.types, *self.events]
        if self.only is not None:
            concerned.append("some events")
        return f"{told}: {', '.join(concerned)}" if concerned else told

    @property
    def _delays(self) -> tuple[timedelta, timedelta]:
        return (self.delay, self.delay) if isinstance(self.delay, timedelta) else self.delay

    def loses(self, chance: random.Random) -> bool:
        """Whether a delivery is lost."""
        return chance.random() < self.drop

    def seconds_late(self, chance: random.Random) -> int:
        """How long a copy is held back."""
        if isinstance(self.delay, timedelta):
            return int(self.delay.total_seconds())
        least, most = (int(bound.total_seconds()) for bound in self.delay)
        return chance.randint(least, most)
