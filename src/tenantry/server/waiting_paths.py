"""Routes that may wait longer than for the database."""

import re
from collections.abc import Callable
from typing import Any, Final

from litestar import Litestar
from litestar.handlers import BaseRouteHandler
from litestar.routes import HTTPRoute

MAY_WAIT: Final[dict[str, Any]] = {"may_wait": True}
"""In the ``opt`` of a route: the deadline of requests does not end it, and it counts as no load. It
waits for another service, for changes or for much work, each with a limit of its own.
"""


def waiting_paths(application: Litestar) -> Callable[[str], bool]:
    """Return what tells whether a path has such a route."""
    routes = [route for route in application.routes if isinstance(route, HTTPRoute)]
    patterns = [_pattern(route) for route in routes if any(map(_may_wait, route.route_handlers))]
    matches = re.compile("|".join(patterns)).fullmatch
    return lambda path: matches(path) is not None


def _may_wait(handler: BaseRouteHandler) -> bool:
    return MAY_WAIT.items() <= handler.opt.items()


def _pattern(route: HTTPRoute) -> str:
    return "".join(
        f"/{re.escape(part) if isinstance(part, str) else '[^/]+'}"
        for part in route.path_components
    )
