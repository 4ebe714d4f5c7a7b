"""Handing an organization over to another owner."""

from collections.abc import Sequence
from typing import Final

from litestar import Response, get, post
from litestar.handlers import HTTPRouteHandler

from tenantry.domain.access import Role
from tenantry.domain.errors import ValidationError
from tenantry.domain.members import MemberStatus, check_may_give
from tenantry.http.access import AnyRequest
from tenantry.http.author import principal_author
from tenantry.http.dashboard.inputs import (
    FaultyFormError,
    check_typed,
    checked,
    form_claim,
    once_token,
    patiently,
    to_be_typed,
)
from tenantry.http.dashboard.look import Look
from tenantry.http.dashboard.members import SECTION, USER_ID_WORDS
from tenantry.http.dashboard.notices import Notice
from tenantry.http.dashboard.visitor import ORG, Door, Sent, SignedIn, Visitor
from tenantry.http.fields import MOST_ON_A_PAGE
from tenantry.http.members import OwnerTransfer
from tenantry.services.members import MemberService
from tenantry.services.sessions import SessionService
from tenantry.services.tenants import TenantService
from tenantry.store.members import Filter

PATH: Final = ORG + "/settings/transfer"
_WORDS: Final = {"userId": USER_ID_WORDS, "ownerEmail": "One e-mail address, such as billing@example.com."}


def transfer_pages(
    members: MemberService, tenants: TenantService, sessions: SessionService, door: Door, look: Look
) -> Sequence[HTTPRouteHandler]:
    """The routes of handing an organization over."""

    async def show(visitor: Visitor, typed: dict[str, str], faults: dict[str, str]) -> Response[str]:
        tenant = await tenants.get(visitor.principal, visitor.principal.org_id)
        active = Filter(status=MemberStatus.ACTIVE)
        page = await members.list_page(visitor.principal, active, MOST_ON_A_PAGE, None)
        known = [member.user_id for member in page.data if member.user_id != tenant.owner_id]
        names = await sessions.names_of(visitor.session, tenant.id, [*known, tenant.owner_id])
        return look.page(
            "transfer.html",
            status_code=422 if faults else 200,
            visitor=visitor,
            section=SECTION,
            tenant=tenant,
            known=known,
            names=names,
            typed=typed,
            faults=faults,
            expected=to_be_typed(tenant.name, tenant.id),
            once=once_token(),
        )

    @get(PATH, guards=[door.needs("tenants:write")])
    async def show_transfer(visitor: SignedIn) -> Response[str]:
        check_may_give(visitor.principal, Role.OWNER)
        return await show(visitor, {"userId": "", "ownerEmail": ""}, {})

    @post(PATH, guards=[door.needs("tenants:write")])
    async def transfer(request: AnyRequest, visitor: SignedIn, form: Sent) -> Response[str]:
        check_may_give(visitor.principal, Role.OWNER)
        typed = {name: form.text(name) for name in ("userId", "ownerEmail")}
        tenant = await tenants.get(visitor.principal, visitor.principal.org_id)
        try:
            wanted = checked(OwnerTransfer, typed, _WORDS)
            check_typed(form, "name", to_be_typed(tenant.name, tenant.id))
            claim = await form_claim(request, visitor.principal, form)
            author = principal_author(request, visitor.principal)
            await patiently(
                lambda: members.transfer(
                    visitor.principal,
                    author,
                    tenant.id,
                    user_id=wanted.user_id,
                    owner_email=wanted.owner_email,
                    claim=claim,
                )
            )
        except FaultyFormError as error:
            return await show(visitor, typed, error.faults)
        except ValidationError:
            return await show(visitor, typed, {"userId": "This user is not an active member. Add them first."})
        return look.tell(visitor, Notice.TRANSFERRED, f"{visitor.base}{SECTION}")

    return [show_transfer, transfer]
