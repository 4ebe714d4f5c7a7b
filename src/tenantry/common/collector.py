"""Python's garbage collector, set for a process that serves requests."""

import gc
from typing import Final

_YOUNG: Final = 20_000
_YOUNG_BEFORE_MIDDLE: Final = 2
_MIDDLE_BEFORE_ALL: Final = 40


def set_for_serving() -> None:
    """Leave what is there now out of every collection, and look less often for what requests leave behind.

    Almost everything that a request makes goes as soon as it is answered, without the collector, which by default goes
    through all that is in flight several times for each batch of requests. What lives longer, as connections do, is
    gone through in portions: in one go, thousands of new ones would hold up everybody for as long as that takes.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, _YOUNG_BEFORE_MIDDLE, _MIDDLE_BEFORE_ALL)
