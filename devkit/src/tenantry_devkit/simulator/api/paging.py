"""Lists: newest first, a page at a time, narrowed by filters."""

from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeVar

from tenantry_devkit.simulator.api.parameters import Parameters
from tenantry_devkit.simulator.errors import ApiError, missing

_DEFAULT_LIMIT: Final = 10
_LARGEST_LIMIT: Final = 100
_COMPARE: Final = ("gt", "gte", "lt", "lte")


class Listed(Protocol):
    """What can be in a list."""

    @property
    def id(self) -> str: ...
    @property
    def created(self) -> int: ...


L = TypeVar("L", bound=Listed)


def page(newest_first: Sequence[L], kind: str, parameters: Parameters) -> tuple[list[L], bool]:
    """The page that the parameters ask for, and whether there is more in the direction of reading."""
    limit = parameters.integer("limit")
    if limit is None:
        limit = _DEFAULT_LIMIT
    if not 1 <= limit <= _LARGEST_LIMIT:
        message = f"This value must be between 1 and {_LARGEST_LIMIT}."
        raise ApiError(400, message, code="parameter_invalid_integer", param="limit")
    after, before = parameters.text("starting_after"), parameters.text("ending_before")
    if after is not None and before is not None:
        raise ApiError(400, "You may only specify one of these parameters: starting_after, ending_before.")
    if before is not None:
        rest = newest_first[: _place(newest_first, before, kind, "ending_before")]
        return list(rest[-limit:]), len(rest) > limit
    rest = newest_first if after is None else newest_first[_place(newest_first, after, kind, "starting_after") + 1 :]
    return list(rest[:limit]), len(rest) > limit


def in_range(parameters: Parameters, name: str) -> Callable[[int], bool]:
    """Whether a moment satisfies ``name=...``, ``name[gte]=...`` and so on; without them any does."""
    if name not in parameters:
        return lambda _: True
    if isinstance(parameters.values[name], str):
        exact = parameters.integer(name)
        return lambda value: value == exact
    gt, gte, lt, lte = (parameters.inner(name).integer(comparison) for comparison in _COMPARE)
    return lambda value: (
        (gt is None or value > gt)
        and (gte is None or value >= gte)
        and (lt is None or value < lt)
        and (lte is None or value <= lte)
    )


def _place(things: Sequence[L], wanted: str, kind: str, param: str) -> int:
    for place, thing in enumerate(things):
        if thing.id == wanted:
            return place
    raise missing(kind, wanted, param=param)
