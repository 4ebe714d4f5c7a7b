"""How much Python does for a request: the number of calls, which does not depend on the machine."""

import sys
from types import FrameType
from typing import Any, Final, Self

_CALLS: Final = frozenset({"call", "c_call"})


class CountedCalls:
    """Counts the calls of this thread in its block, those of other tasks included."""

    def __init__(self) -> None:
        self.number = 0

    def __enter__(self) -> Self:
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    # the profiler's signature
    def _note(self, _frame: FrameType, event: str, _argument: Any) -> None:
        if event in _CALLS:
            self.number += 1
