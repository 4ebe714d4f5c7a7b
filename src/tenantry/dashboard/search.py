"""Search of an organization's keys, members, projects and billing events by one text."""

from typing import Final
from urllib.parse import urlencode

import msgspec
from litestar import Response, get

from tenantry.accounts.member_directory_store import ListedMember, UserSearch
from tenantry.auth.api_keys_store import KeyFilter
from tenantry.billing.ledger_queries import BillingEventView
from tenantry.billing.ledger_queries_store import EventFilter
from tenantry.dashboard.context import Context, PageContext
from tenantry.dashboard.guards import ORG, needs
from tenantry.dashboard.labels import event_types_named
from tenantry.db.numbered_pages import NumberedPage, PageRequest
from tenantry.domain.api_keys import ApiKey
from tenantry.domain.tenants import Project

PATH: Final = ORG + "/search"
_MOST_CHARACTERS: Final = 200
_FIRST_OF_EACH: Final = PageRequest(5)


class SearchResults(msgspec.Struct, frozen=True):
    """The newest matches of each kind; None for a kind that the user may not see."""

    keys: NumberedPage[ApiKey] | None
    members: NumberedPage[ListedMember] | None
    projects: NumberedPage[Project] | None
    events: NumberedPage[BillingEventView] | None


@get(PATH, guards=[needs()])
async def show_search(ctx: Context) -> Response[str]:
    text = ctx.query("q")[:_MOST_CHARACTERS]
    shown = ctx.services.api_keys.key_format.without_secret(text)
    if shown != text:  # so that a pasted secret stays in no address
        return ctx.redirect(f"{ctx.user.base}/search?{urlencode({'q': shown})}")
    results = await _find(ctx, text) if text else None
    return ctx.render("search.html", text=text, results=results)


async def _find(ctx: PageContext, text: str) -> SearchResults:
    """Search what the user may see, as the list of each kind does."""
    return SearchResults(
        keys=await _keys(ctx, text),
        members=await _members(ctx, text),
        projects=await _projects(ctx, text),
        events=await _events(ctx, text),
    )


async def _keys(ctx: PageContext, text: str) -> NumberedPage[ApiKey] | None:
    if not ctx.user.may("api-keys:read"):
        return None
    wanted = KeyFilter(search=text)
    found = await ctx.services.api_keys.search_page(ctx.principal, wanted, _FIRST_OF_EACH)
    return found.page


async def _members(ctx: PageContext, text: str) -> NumberedPage[ListedMember] | None:
    if not ctx.user.may("members:read"):
        return None
    directory = ctx.services.member_directory
    wanted = UserSearch(text)
    return await directory.members(ctx.principal, wanted, _FIRST_OF_EACH)


async def _projects(ctx: PageContext, text: str) -> NumberedPage[Project] | None:
    if not ctx.user.may("projects:read"):
        return None
    return await ctx.services.projects.numbered_page(ctx.principal, text, _FIRST_OF_EACH)


async def _events(ctx: PageContext, text: str) -> NumberedPage[BillingEventView] | None:
    if not ctx.user.may("billing:read"):
        return None
    wanted = EventFilter(search=text, named_types=event_types_named(text))
    return await ctx.services.billing.numbered_page(ctx.principal, wanted, _FIRST_OF_EACH)
