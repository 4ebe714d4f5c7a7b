"""All routes of the API that are answered by Litestar."""

from collections.abc import Iterable
from itertools import chain
from types import ModuleType
from typing import Final

from litestar.handlers import HTTPRouteHandler

from tenantry.api import (
    api_keys,
    audit,
    auth,
    billing,
    customer_links,
    entitlements,
    events,
    grants,
    invitations,
    key_import,
    members,
    operator,
    projects,
    rejections,
    tenants,
    usage,
    webhook_endpoints,
)

_MODULES: Final = (
    auth,
    projects,
    api_keys,
    key_import,
    tenants,
    grants,
    members,
    invitations,
    audit,
    operator,
    customer_links,
    webhook_endpoints,
    billing,
    entitlements,
    usage,
    rejections,
    events,
)


def api_routes() -> list[HTTPRouteHandler]:
    """Return the routes of every subject."""
    return handlers_of(_MODULES)


def handlers_of(modules: Iterable[ModuleType]) -> list[HTTPRouteHandler]:
    """Return the routes of these modules: their functions decorated with ``@get``, ``@post`` and
    the like.
    """
    values = chain.from_iterable(vars(module).values() for module in modules)
    return [value for value in values if isinstance(value, HTTPRouteHandler)]
