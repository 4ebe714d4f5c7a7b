"""The list of API keys: search, statuses with counts, and requests."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final
from urllib.parse import urlencode

from litestar import Response, get

from tenantry.auth.api_keys import KeySearch
from tenantry.auth.api_keys_store import KeyFilter
from tenantry.dashboard import forms
from tenantry.dashboard.api_keys import PATH
from tenantry.dashboard.context import Context, PageContext
from tenantry.dashboard.guards import needs
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


@get(PATH, guards=[needs("api-keys:read")])
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
    filters = {"status": wanted.state, **_further_filters(wanted, order)}
    return ctx.render(
        "api_keys.html",
        page=found.page,
        counts=found.counts,
        room=found.room,
        wanted=wanted,
        order=order,
        filters=filters,
        usage=usage,
        replaced=found.counts[KeyState.REPLACED],
        states=_state_chips(ctx, wanted, order, found),
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


def _further_filters(wanted: KeyFilter, order: KeyOrder) -> dict[str, str | None]:
    """Return the parameters beside the status."""
    is_usual = order is KeyOrder.NEWEST
    return {
        "mode": wanted.mode,
        "search": wanted.search,
        "order": None if is_usual else order,
    }


def _state_chips(
    ctx: PageContext, wanted: KeyFilter, order: KeyOrder, found: KeySearch
) -> list[tuple[str, str, int | str, bool]]:
    """Return the text, address and count of each state that has keys, and which one is shown."""
    address = f"{ctx.user.base}/settings/api-keys"
    further = _further_filters(wanted, order)
    shown = [
        state
        for state, count in found.counts.items()
        if count or state in (None, KeyState.ACTIVE, wanted.state)
    ]
    return [
        (
            _STATES[state],
            f"{address}?{forms.query_string({'status': state, **further})}".rstrip("?&"),
            found.counts[state],
            state is wanted.state,
        )
        for state in shown
    ]
