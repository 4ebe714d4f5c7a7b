"""What can be seen of a lane's work from outside."""

from collections.abc import Callable
from typing import Final

import msgspec

from tenantry.common.tracing import Tracing

Observe = Callable[[int, float, float], None]
"""Told of each batch: how many items it has, how long the first of them waited, and how long it took; in seconds."""


def _look_away(_items: int, _waited: float, _took: float) -> None:
    """Nobody wants to know."""


class LaneWatch(msgspec.Struct, frozen=True):
    """Who is told of a lane's batches; ``name`` is the lane's. With ``tracing`` they are spans, too."""

    name: str
    observe: Observe = _look_away
    tracing: Tracing | None = None


UNWATCHED: Final = LaneWatch("")
