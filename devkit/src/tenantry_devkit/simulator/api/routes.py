"""What a request of the API asks for, and who answers it."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tenantry_devkit.simulator.api.paging import L, page
from tenantry_devkit.simulator.api.parameters import Parameters
from tenantry_devkit.simulator.rendering import render
from tenantry_devkit.simulator.shapes import Json, Shape, as_list


@dataclass(frozen=True)
class Call:
    """A request, understood: ``ids`` are those in its address."""

    path: str
    ids: tuple[str, ...]
    parameters: Parameters
    shape: Shape

    @property
    def id(self) -> str:
        """The id of the object that the address names."""
        return self.ids[0]

    def render(self, thing: object) -> Json:
        """An object in the shape that was asked for."""
        return render(thing, self.shape)

    def page(self, oldest_first: Iterable[L], kind: str, show: Callable[[L], Json] | None = None) -> Json:
        """The page of a list that was asked for."""
        found, has_more = page(list(oldest_first)[::-1], kind, self.parameters)
        return as_list(self.path, [(show or self.render)(thing) for thing in found], has_more=has_more)


Handler = Callable[[Call], Json]


class Route:
    """A method and a path, in which ``{}`` stands for an id."""

    def __init__(self, method: str, path: str, handler: Handler) -> None:
        self.method = method
        self.handler = handler
        self._pattern = re.compile(re.escape(path).replace(r"\{\}", "([^/]+)"))

    def ids(self, method: str, path: str) -> tuple[str, ...] | None:
        """The ids in the address of a request that is for this route, else None."""
        match = self._pattern.fullmatch(path) if method == self.method else None
        return None if match is None else match.groups()


def expand(answer: Json, paths: Sequence[str], look_up: Callable[[str, str], Json | None]) -> None:
    """Put whole objects in the place of ids, as in ``expand[]=data.customer``.

    ``look_up`` is given a field's name and the id there; what it does not know stays an id.
    """
    for path in paths:
        _expand(answer, path.split("."), look_up)


def _expand(thing: object, path: Sequence[str], look_up: Callable[[str, str], Json | None]) -> None:
    if isinstance(thing, list):
        for member in thing:
            _expand(member, path, look_up)
        return
    if not path or not isinstance(thing, dict):
        return
    name, *rest = path
    value = thing.get(name)
    if isinstance(value, str):
        value = thing[name] = look_up(name, value) or value
    _expand(value, rest, look_up)
