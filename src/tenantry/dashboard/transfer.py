"""Handing an organization over to another owner."""

from collections.abc import Sequence
from typing import Final

from litestar import Response, get, post
from litestar.handlers import HTTPRouteHandler

from tenantry.accounts.members import MemberService
from tenantry.accounts.members_store import Filter
from tenantry.accounts.tenants import TenantService
from tenantry.api.author import principal_author
from tenantry.api.guards import AnyRequest
from tenantry.api.members import OwnerTransfer
from tenantry.api.parameters import MOST_ON_A_PAGE
from tenantry.auth.sessions import SessionService
from tenantry.dashboard.inputs import (
    FaultyFormError,
    checked,
    faults_of_typed,
    form_claim,
    once_token,
    patiently,
    to_be_typed,
)
from tenantry.dashboard.look import Look
from tenantry.dashboard.members import EMAIL_WORDS, SECTION, USER_ID_WORDS
from tenantry.dashboard.notices import Notice
from tenantry.dashboard.visitor import ORG, Door, Sent, SignedIn, Visitor
from tenantry.domain.errors import ValidationError
from tenantry.domain.members import MemberStatus
from tenantry.domain.owner_mails import same_address

PATH: Final = ORG + "/settings/transfer"
_WORDS: Final = {"userId": USER_ID_WORDS, "ownerEmail": "One e-mail address, such as billing@example.com."}


def transfer_pages(
    members: MemberService, tenants: TenantService, sessions: SessionService, door: Door, look: Look
) -> Sequence[HTTPRouteHandler]:
    """The routes of handing an organization over."""

    async def show(visitor: Visitor, typed: dict[str, str], name: str, faults: dict[str, str]) -> Response[str]:
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
            name=name,
            faults=faults,
            expected=to_be_typed(tenant.name, tenant.id),
            once=once_token(),
        )

    of_owners = door.needs("tenants:write", owners_deed="hand over the organization")

    @get(PATH, guards=[of_owners])
    async def show_transfer(visitor: SignedIn) -> Response[str]:
        return await show(visitor, dict.fromkeys(_WORDS, ""), "", {})

    @post(PATH, guards=[of_owners])
    async def transfer(request: AnyRequest, visitor: SignedIn, form: Sent) -> Response[str]:
        typed = {name: form.text(name) for name in _WORDS}
        name = form.text("name")
        tenant = await tenants.get(visitor.principal, visitor.principal.org_id)
        try:
            further = faults_of_typed(name, "name", to_be_typed(tenant.name, tenant.id))
            wanted = checked(OwnerTransfer, typed, _WORDS, further)
            claim = await form_claim(request, visitor.principal, form)
            author = principal_author(request, visitor.principal)
            await patiently(
                lambda: members.transfer(
                    visitor.principal,
                    author,
                    tenant.id,
                    user_id=wanted.user_id,
                    owner_email=wanted.owner_email,
                    email_verified=same_address(visitor.claims.email or "", wanted.owner_email),
                    claim=claim,
                )
            )
        except FaultyFormError as error:
            return await show(visitor, typed, name, error.faults)
        except ValidationError:
            is_id = members.takes_user_id(typed["userId"])
            faults = {"userId": "This user is not an active member. Invite them first." if is_id else EMAIL_WORDS}
            return await show(visitor, typed, name, faults)
        return look.tell(visitor, Notice.TRANSFERRED, f"{visitor.base}{SECTION}")

    return [show_transfer, transfer]
