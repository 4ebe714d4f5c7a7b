"""Search of an organization's keys, members, projects and billing events by one text."""

from collections.abc import Sequence
from functools import partial
from typing import Final
from urllib.parse import urlencode

import msgspec
from litestar import Response, get

from tenantry.accounts.member_directory_store import ListedMember, UserSearch
from tenantry.auth.api_keys_store import KeyFilter
from tenantry.billing.ledger_queries import HistoryEntry
from tenantry.billing.ledger_queries_store import EventFilter
from tenantry.dashboard.context import Context, PageContext
from tenantry.dashboard.guards import ORG, PageGuard
from tenantry.dashboard.labels import event_types_named
from tenantry.dashboard.operator_customers import first_customers
from tenantry.db.numbered_pages import NumberedPage, PageRequest
from tenantry.domain.api_keys import ApiKey
from tenantry.domain.tenants import ManagedTenant, Project

PATH: Final = ORG + "/search"
_MOST_CHARACTERS: Final = 200
_LAST_CHARACTERS: Final = 4
"""How many of a secret's last characters are shown."""
_FIRST_OF_EACH: Final = PageRequest(5)


class SearchResults(msgspec.Struct, frozen=True):
    """The newest matches of each kind; None for a kind that the user may not see."""

    keys: NumberedPage[ApiKey] | None
    members: NumberedPage[ListedMember] | None
    projects: NumberedPage[Project] | None
    events: NumberedPage[HistoryEntry] | None
    customers: Sequence[ManagedTenant] = ()
    """Of the operator, for its people alone."""


@get(PATH, guards=[PageGuard()])
async def show_search(ctx: Context) -> Response[str]:
    text = ctx.query("q")[:_MOST_CHARACTERS]
    shown = ctx.services.api_keys.key_format.without_secret(text)
    if shown != text:  # so that a pasted secret stays in no address
        return ctx.redirect(f"{ctx.user.base}/search?{urlencode({'q': shown})}")
    results = await _find(ctx, text) if text else None
    return ctx.render("search.html", text=text, results=results)


async def _find(ctx: PageContext, text: str) -> SearchResults:
    """Search what the user may see, as the list of each kind does."""
    services = ctx.services
    principal = ctx.principal
    may = ctx.user.may
    keys = members = projects = events = None
    if may("api-keys:read"):
        keys = await _find_keys(ctx, text)
    if may("members:read"):
        search = UserSearch(text)
        members = await services.member_directory.members(principal, search, _FIRST_OF_EACH)
    if may("projects:read"):
        projects = await services.projects.numbered_page(principal, text, _FIRST_OF_EACH)
    if may("billing:read"):
        filtered = EventFilter(search=text, named_types=event_types_named(text))
        events = await services.billing.numbered_page(principal, filtered, _FIRST_OF_EACH)
    customers = await first_customers(ctx, text) if ctx.user.acts_as_operator else ()
    return SearchResults(keys, members, projects, events, customers)


async def _find_keys(ctx: PageContext, text: str) -> NumberedPage[ApiKey]:
    """Search the keys; those with these last four characters come first."""
    search = partial(ctx.services.api_keys.search_page, ctx.principal)
    found = (await search(KeyFilter(search=text), _FIRST_OF_EACH)).page
    if len(text) != _LAST_CHARACTERS:
        return found
    exact = (await search(KeyFilter(last4=text.lower()), _FIRST_OF_EACH)).page.data
    others = [key for key in found.data if key not in exact]
    return msgspec.structs.replace(found, data=[*exact, *others][: _FIRST_OF_EACH.size])
