"""The list of API keys: search, statuses with counts, and requests."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final
from urllib.parse import urlencode

from litestar import Response, get

from tenantry.auth.api_keys import KeySearch
from tenantry.auth.api_keys_store import KeyFilter
from tenantry.dashboard.api_keys import PATH
from tenantry.dashboard.context import Context, PageContext
from tenantry.dashboard.guards import PageGuard
from tenantry.dashboard.pager import requested_page
from tenantry.dashboard.usage_charts import USAGE_SCOPE
from tenantry.domain.api_keys import KeyState
from tenantry.domain.permissions import Mode

_PAGE_SIZE: Final = 25
_MOST_RANKED: Final = 1000
"""The busiest keys among which a search in their order looks."""
_STATES: Final[Mapping[KeyState | None, str]] = {
    None: "All",
    KeyState.ACTIVE: "Active",
    KeyState.EXPIRING: "Expiring soon",
    KeyState.REPLACED: "Replaced",
    KeyState.EXPIRED: "Expired",
    KeyState.REVOKED: "Revoked",
    KeyState.LEAKED: "Leaked",
    KeyState.IMPORTED: "Imported, unused",
}


class KeyOrder(StrEnum):
    """The orders of the list."""

    NEWEST = "newest"
    REQUESTS = "requests"
    """The most requests in 30 days first."""


@get(PATH, guards=[PageGuard("api-keys:read")])
async def show_keys(ctx: Context) -> Response[str]:
    text = ctx.query("search")
    shown = ctx.services.api_keys.key_format.without_secret(text)
    if shown != text:  # so that a pasted secret stays in no address
        return ctx.redirect(f"{ctx.user.base}/settings/api-keys?{urlencode({'search': shown})}")
    wanted = KeyFilter(
        state=ctx.choice("status", KeyState),
        mode=ctx.choice("mode", Mode),
        search=text or None,
    )
    may_see_usage = ctx.user.may(USAGE_SCOPE)
    order = (may_see_usage and ctx.choice("order", KeyOrder)) or KeyOrder.NEWEST
    found = await _search(ctx, wanted, order)
    usage = None
    if may_see_usage:
        key_ids = [key.id for key in found.page.data]
        usage = await ctx.services.usage.days_of_keys(ctx.principal, key_ids)
    return ctx.render(
        "api_keys.html",
        page=found.page,
        counts=found.counts,
        room=found.room,
        wanted=wanted,
        order=order,
        filters={
            "status": wanted.state,
            "mode": wanted.mode,
            "search": wanted.search,
            "order": None if order is KeyOrder.NEWEST else order,
        },
        usage=usage,
        replaced=found.counts[KeyState.REPLACED],
        states=_STATES,
    )


async def _search(ctx: PageContext, wanted: KeyFilter, order: KeyOrder) -> KeySearch:
    """Return the page of the query, or the busiest keys."""
    keys = ctx.services.api_keys
    if order is KeyOrder.NEWEST:
        return await keys.search_page(ctx.principal, wanted, requested_page(ctx, _PAGE_SIZE))
    busiest = await ctx.services.usage.busiest_keys(ctx.principal, _MOST_RANKED)
    return await keys.search_ranked(
        ctx.principal,
        wanted,
        busiest,
        _PAGE_SIZE,
    )
