"""Why requests were refused: the list of all, and the latest ones for other pages."""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec
from litestar import Response, get

from tenantry.dashboard.audit_entries import names_of_subjects
from tenantry.dashboard.context import Context, PageContext
from tenantry.dashboard.guards import ORG, PageGuard
from tenantry.dashboard.labels import isolated, labels, shown_name
from tenantry.dashboard.pager import requested_page
from tenantry.dashboard.usage_charts import key_names
from tenantry.domain.rejections import Rejection, RejectionFilter

PATH: Final = ORG + "/usage/rejections"
_SCOPE: Final = "audit:read"
_PAGE_SIZE: Final = 25
_LONGEST_ID: Final = 255


class ShownRejection(msgspec.Struct, frozen=True):
    """A rejection, and the name of its key or user; a key that the tenant still has has a page."""

    rejection: Rejection
    sender: str
    key_id: str | None


@get(PATH, guards=[PageGuard(_SCOPE)])
async def show_rejections(ctx: Context) -> Response[str]:
    code = ctx.query("code")
    wanted = RejectionFilter(
        key_id=ctx.query("key")[:_LONGEST_ID] or None,
        code=code if code in labels().rejection_codes else None,
    )
    found = await ctx.services.rejections.search_page(
        ctx.principal, wanted, requested_page(ctx, _PAGE_SIZE)
    )
    names = key_names(found.names)
    key_ids = dict.fromkeys([*found.key_ids, *([wanted.key_id] if wanted.key_id else [])])
    return ctx.render(
        "rejections.html",
        page=found.page,
        rejections=await _shown(ctx, found.page.data, found.names),
        wanted=wanted,
        filters={"key": wanted.key_id, "code": wanted.code},
        keys=[(key_id, names.get(key_id, isolated(key_id))) for key_id in key_ids],
    )


async def latest_rejections(
    ctx: PageContext, most: int, key_id: str | None = None
) -> list[ShownRejection] | None:
    """Return the latest rejections of all, or of one key; None for users who may not see them."""
    if not ctx.user.may(_SCOPE):
        return None
    found = await ctx.services.rejections.latest(ctx.principal, most, key_id)
    return await _shown(ctx, found.data, found.names)


async def _shown(
    ctx: PageContext, rejections: Iterable[Rejection], names: Mapping[str, str]
) -> list[ShownRejection]:
    subjects = {each.principal_id for each in rejections if isinstance(each.principal_id, str)}
    users = await names_of_subjects(ctx, subjects) if subjects else {}
    return [_shown_one(each, names, users) for each in rejections]


def _shown_one(
    rejection: Rejection, names: Mapping[str, str], users: Mapping[str, str]
) -> ShownRejection:
    if isinstance(rejection.key_id, str):
        key_id = rejection.key_id
        name = shown_name(names.get(key_id, ""), key_id)
        return ShownRejection(rejection, name, key_id if key_id in names else None)
    subject = str(rejection.principal_id)
    return ShownRejection(rejection, users.get(subject, subject), None)
