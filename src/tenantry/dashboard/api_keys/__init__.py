"""Settings, API keys."""

from litestar import Response, Router
from litestar.types import ExceptionHandlersMap

from tenantry.api.guards import AnyRequest
from tenantry.auth.api_keys import ApiKeyService
from tenantry.common.clock import Clock
from tenantry.dashboard.api_keys.desk import Desk
from tenantry.dashboard.api_keys.ending import ending_pages
from tenantry.dashboard.api_keys.listing import list_pages
from tenantry.dashboard.api_keys.looking import key_pages
from tenantry.dashboard.api_keys.making import changing_pages, making_pages
from tenantry.dashboard.api_keys.refusals import REFUSALS
from tenantry.dashboard.api_keys.rotating import rotating_pages
from tenantry.dashboard.api_keys.secret import shown_before, use_pages
from tenantry.dashboard.look import Look
from tenantry.dashboard.visitor import Door, current_visitor
from tenantry.domain.errors import DomainError, IdempotencyReplayError
from tenantry.domain.plans import Catalog

__all__ = ["api_key_pages"]


def api_key_pages(
    keys: ApiKeyService, door: Door, look: Look, base_url: str, clock: Clock, catalog: Catalog
) -> list[Router]:
    """The routes of API keys."""
    desk = Desk(keys, door, look, base_url, clock, catalog)

    def on_refusal(request: AnyRequest, error: DomainError) -> Response[str]:
        return desk.refused(current_visitor(request), error, request.path_params.get("key_id"))

    def on_replay(request: AnyRequest, error: IdempotencyReplayError) -> Response[str]:
        return shown_before(desk, current_visitor(request), error)

    pages = [
        *list_pages(desk),
        *making_pages(desk),
        *changing_pages(desk),
        *key_pages(desk),
        *use_pages(desk),
        *rotating_pages(desk),
        *ending_pages(desk),
    ]
    handlers: ExceptionHandlersMap = {**dict.fromkeys(REFUSALS, on_refusal), IdempotencyReplayError: on_replay}
    return [Router("/", route_handlers=pages, exception_handlers=handlers)]
