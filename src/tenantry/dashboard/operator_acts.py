"""The operator's trail: which of its people did what."""

from collections.abc import Sequence
from datetime import UTC
from itertools import groupby
from typing import Final

from litestar import Response, get

from tenantry.audit.operator_trail import OperatorActFilter
from tenantry.dashboard.context import Context
from tenantry.dashboard.guards import OPERATOR_PAGES, PageGuard
from tenantry.dashboard.labels import labels, shown_name
from tenantry.dashboard.pager import requested_page
from tenantry.domain.operator_acts import OperatorAct

PATH: Final = OPERATOR_PAGES + "/acts"
_PAGE_SIZE: Final = 25
_LONGEST_ID: Final = 255
_LONGEST_ISSUER: Final = 2048


@get(PATH, guards=[PageGuard()])
async def show_acts(ctx: Context) -> Response[str]:
    wanted = OperatorActFilter(
        org_id=ctx.query("customer")[:_LONGEST_ID] or None,
        subject=ctx.query("person")[:_LONGEST_ID] or None,
        issuer=ctx.query("issuer")[:_LONGEST_ISSUER] or None,
    )
    page = await ctx.services.operator_trail.read_page(wanted, requested_page(ctx, _PAGE_SIZE))
    by_day = groupby(page.data, lambda act: act.at.astimezone(UTC).date())
    org_ids = {act.org_id for act in page.data if act.org_id}
    customers = await ctx.services.directory.by_id(org_ids)
    table = labels()
    return ctx.render(
        "operator_acts.html",
        page=page,
        filters={
            "customer": wanted.org_id,
            "person": wanted.subject,
            "issuer": wanted.issuer,
        },
        days=[(day, list(acts)) for day, acts in by_day],
        people=_people_of(page.data),
        subjects=sorted({act.person.subject for act in page.data}),
        customers=customers,
        names={org_id: shown_name(each.name, org_id) for org_id, each in customers.items()},
        actions=table.audit_actions | table.tenant_updates | table.operator_actions,
        keys=await ctx.services.operator_trail.key_names(page.data),
    )


def _people_of(acts: Sequence[OperatorAct]) -> dict[str, str]:
    """Return the name of the person of each act, as it was then, by the act's id."""
    return {act.id: shown_name(act.person.name or "", act.person.subject) for act in acts}
