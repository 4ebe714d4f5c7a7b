"""Find the actor or target of audit entries by what people call them."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from tenantry.accounts.member_directory_store import ClaimedUser, ListedMember, UserSearch
from tenantry.auth.api_keys_store import KeyFilter
from tenantry.dashboard.context import PageContext
from tenantry.dashboard.labels import isolated, shown_name
from tenantry.dashboard.usage_charts import key_names
from tenantry.db.numbered_pages import PageRequest
from tenantry.domain.members import User, UserProfile

_MOST_OF_EACH: Final = PageRequest(10)
_BETWEEN: Final = " · "
"""Between the name and the address of a user."""


class AuditParties(NamedTuple):
    """Whom a text means: the id to filter by, None for any; or, of several, their names by id."""

    id: str | None
    choices: Mapping[str, str]


async def actors_called(ctx: PageContext, text: str) -> AuditParties:
    """Find keys and users, removed ones included, by a part of the name or address, or the id."""
    names = await _keys(ctx, text) if text else {}
    if text and ctx.user.may("members:read"):
        names |= await _users(ctx, text)
    return _chosen(text, names)


async def targets_called(ctx: PageContext, text: str) -> AuditParties:
    """Find keys, members and projects in the same way; the tenant itself by its id alone."""
    if text == ctx.principal.org_id:
        return AuditParties(text, {})
    names = await _keys(ctx, text) if text else {}
    if text and ctx.user.may("members:read"):
        names |= await _members(ctx, text)
    if text and ctx.user.may("projects:read"):
        found = await ctx.services.projects.numbered_page(ctx.principal, text, _MOST_OF_EACH)
        names |= {one.id: isolated(shown_name(one.name, one.id)) for one in found.data}
    return _chosen(text, names)


def _chosen(text: str, names: Mapping[str, str]) -> AuditParties:
    """Choose among what a search has found. What is called so exactly comes before what contains
    the text; an id that is found nowhere may be that of something that has ended.
    """
    wanted = text.casefold()
    if not text or text in names:
        return AuditParties(text or None, {})
    called = {key: name for key, name in names.items() if wanted in name.casefold()}
    exactly = {key: name for key, name in called.items() if _is_called(name, wanted)}
    found = exactly or called
    if len(found) > 1:
        return AuditParties(None, found)
    return AuditParties(next(iter(found), text), {})


def _is_called(name: str, wanted: str) -> bool:
    return name.casefold().partition(_BETWEEN)[0] == isolated(wanted)


async def _keys(ctx: PageContext, text: str) -> dict[str, str]:
    if not ctx.user.may("api-keys:read"):
        return {}
    search = ctx.services.api_keys.search_page
    found = await search(ctx.principal, KeyFilter(search=text), _MOST_OF_EACH)
    return key_names({key.id: key.name for key in found.page.data})


async def _users(ctx: PageContext, text: str) -> dict[str, str]:
    """Return the names of users by user id, as entries name them."""
    directory, search = ctx.services.member_directory, UserSearch(text)
    members = await directory.members(ctx.principal, search, _MOST_OF_EACH)
    removed = await directory.members(ctx.principal, search, _MOST_OF_EACH, removed=True)
    claimed = await directory.claimed(ctx.principal, search, _MOST_OF_EACH)
    users: list[ListedMember | ClaimedUser] = [*members.data, *removed.data, *claimed.data]
    return {one.user.subject: _called(one.user, one.profile) for one in users}


async def _members(ctx: PageContext, text: str) -> dict[str, str]:
    """Return the names of members by the member's id."""
    directory, search = ctx.services.member_directory, UserSearch(text)
    members = await directory.members(ctx.principal, search, _MOST_OF_EACH)
    removed = await directory.members(ctx.principal, search, _MOST_OF_EACH, removed=True)
    return {one.id: _called(one.user, one.profile) for one in [*members.data, *removed.data]}


def _called(user: User, profile: UserProfile | None) -> str:
    """Return the name and address of a user, of which a text may be a part."""
    known = [text for text in (profile.name, profile.email) if text] if profile else []
    return _BETWEEN.join(isolated(text) for text in known) or isolated(user.subject)
