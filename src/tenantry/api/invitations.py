"""Routes of invitations by mail."""

from typing import Annotated, Final

import msgspec
from litestar import Response, delete, get, post
from litestar.params import JSONBody, QueryParameter

from tenantry.api.guards import (
    Caller,
    CallerClaims,
    ChangeAuthor,
    IdempotencyClaim,
    VerifiedAddress,
    needs,
    needs_user,
    raises,
)
from tenantry.api.parameters import (
    DEFAULT_LIMIT,
    Cursor,
    InvitedEmail,
    Limit,
    RoleId,
    path_parameter,
)
from tenantry.api.services import Services
from tenantry.common.encoding import doc
from tenantry.db.pagination import Page
from tenantry.domain.invitation_links import LONGEST_PROOF, LONGEST_TOKEN
from tenantry.domain.invitations import Invitation, InvitationStatus
from tenantry.domain.members import Membership

PATH: Final = "/api/v1/invitations"
_INVITATION: Final = PATH + "/{invitation_id:str}"

InvitationId = Annotated[
    str, path_parameter("The invitation's id.", "inv_01975c3a5b3ef0a1b2c3d4e5f6071829")
]
Token = Annotated[
    str,
    msgspec.Meta(
        max_length=LONGEST_TOKEN,
        description="The parameter `token` of the invitation's link.",
        examples=["inv_01975c3a5b3ef0a1b2c3d4e5f6071829.9pQ...43 characters"],
    ),
]
Proof = Annotated[
    str,
    msgspec.Meta(
        max_length=LONGEST_PROOF,
        description="The parameter `proof` of the link, which only the mails to the invited address have.",
    ),
]


class NewInvitation(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """A mail address to invite."""

    email: Annotated[InvitedEmail, doc(example="grace@acme.example")]
    role: Annotated[RoleId, doc("What the user may do after accepting.", "member")]


class InvitationLink(msgspec.Struct, frozen=True):
    """The link of an invitation."""

    url: Annotated[
        str,
        doc(
            "The page on which the invited user accepts.",
            "https://app.example.com/invitation?token=inv_01975c3a5b3ef0a1b2c3d4e5f6071829...",
        ),
    ]


class Acceptance(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """The link of the invitation to accept."""

    token: Token
    proof: Proof = ""


class ConfirmationRequest(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """The link of the invitation whose address the caller confirms."""

    token: Token


@get(
    PATH,
    guards=[needs("members:read")],
    summary="List invitations",
    opt=raises("invitations_not_enabled"),
)
async def list_invitations(
    services: Services,
    principal: Caller,
    status: Annotated[
        InvitationStatus | None,
        QueryParameter(name="status", description="Only these. Without it: all."),
    ] = None,
    limit: Limit = DEFAULT_LIMIT,
    cursor: Cursor = None,
) -> Page[Invitation]:
    """List the tenant's invitations by mail, newest first.

    One that was accepted or withdrawn, or has expired, is listed for 30 more days.
    """
    return await services.invitations.list_page(
        principal,
        status,
        limit,
        cursor,
    )


@post(
    PATH,
    guards=[needs("members:write")],
    summary="Invite a user by mail",
    opt=raises(
        "scope_escalation",
        "mode_mismatch",
        "invitation_exists",
        "invitation_limit_reached",
        "member_exists",
        "plan_limit_reached",
        "invitations_not_enabled",
    ),
)
async def create_invitation(
    services: Services,
    principal: Caller,
    author: ChangeAuthor,
    claim: IdempotencyClaim,
    data: JSONBody[NewInvitation],
) -> Response[Invitation]:
    """Mail a link with which the user of this address becomes a member.

    The invitation can be accepted for seven days, once. Open invitations count against the plan's
    limit `members`. The caller must hold everything that the role grants, with a token or a key
    that does not expire. A tenant has at most 100 open invitations and sends at most 50 such mails
    in 24 hours. If the address already received six of all tenants, the invitation is created
    without a mail, and you can pass on its link.
    """
    invitation = await services.invitations.create(
        principal,
        author,
        email=data.email,
        role=data.role,
        claim=claim,
    )
    return Response(invitation, headers={"Location": f"{PATH}/{invitation.id}"})


@get(
    _INVITATION,
    guards=[needs("members:read")],
    summary="Get an invitation",
    opt=raises("invitations_not_enabled"),
)
async def get_invitation(
    services: Services, principal: Caller, invitation_id: InvitationId
) -> Invitation:
    """Return an invitation of the caller's tenant, including a closed one."""
    return await services.invitations.get(principal, invitation_id)


@get(
    _INVITATION + "/link",
    guards=[needs("members:write")],
    summary="Get the link of an invitation",
    opt=raises(
        "scope_escalation",
        "mode_mismatch",
        "invitation_closed",
        "invitations_not_enabled",
    ),
)
async def get_invitation_link(
    services: Services, principal: Caller, invitation_id: InvitationId
) -> Response[InvitationLink]:
    """Return the link of an open invitation, to pass it on by another way than mail.

    It lacks the proof that the link in the mail has. So only a user whose verified address is the
    invited one can accept with it, or one without a verified address who confirms the invited one.
    Only an OWNER gets the link of an invitation as owner.
    """
    url = await services.invitations.link(principal, invitation_id)
    return Response(InvitationLink(url), headers={"Cache-Control": "no-store"})


@delete(
    _INVITATION,
    guards=[needs("members:write")],
    summary="Withdraw an invitation",
    opt=raises(
        "scope_escalation",
        "mode_mismatch",
        "invitation_closed",
    ),
)
async def delete_invitation(
    services: Services, principal: Caller, author: ChangeAuthor, invitation_id: InvitationId
) -> None:
    """Withdraw an invitation. Its link stops working immediately.

    Withdrawing again succeeds. One that was accepted is not withdrawn: remove the member. Only an
    OWNER can withdraw an invitation as owner.
    """
    await services.invitations.withdraw(principal, author, invitation_id)


@post(
    _INVITATION + "/resend",
    guards=[needs("members:write")],
    status_code=200,
    summary="Send an invitation again",
    opt=raises(
        "scope_escalation",
        "mode_mismatch",
        "invitation_closed",
        "invitation_limit_reached",
        "member_exists",
        "invitations_not_enabled",
    ),
)
async def resend_invitation(
    services: Services,
    principal: Caller,
    author: ChangeAuthor,
    claim: IdempotencyClaim,
    invitation_id: InvitationId,
) -> Invitation:
    """Mail the same link again. The invitation can then be accepted for seven more days.

    An invitation is mailed at most three times.
    """
    return await services.invitations.resend(
        principal,
        author,
        invitation_id,
        claim,
    )


@post(
    PATH + "/accept",
    guards=[needs_user()],
    status_code=200,
    summary="Accept an invitation by mail",
    opt=raises(
        "email_mismatch",
        "email_not_verified",
        "invitation_closed",
        "last_owner",
        "member_exists",
        "not_found",
        "org_suspended",
        "plan_limit_reached",
        "invitations_not_enabled",
    ),
)
async def accept_invitation(
    services: Services,
    claims: CallerClaims,
    author: ChangeAuthor,
    claim: IdempotencyClaim,
    address: VerifiedAddress,
    data: JSONBody[Acceptance],
) -> Membership:
    """Make the caller a member by the link of an invitation.

    With the `proof` of a mail to the invited address, any user can accept, once. Without it, the
    identity provider must have verified the invited address as the caller's: `email` with
    `email_verified` in the token or in its userinfo. A removed member becomes a member again. The
    same user may repeat the call.
    """
    return await services.invitations.accept(
        claims.user,
        author,
        data.token,
        address,
        proof=data.proof,
        claim=claim,
    )


@post(
    PATH + "/confirmation",
    guards=[needs_user()],
    status_code=204,
    summary="Request a confirmation mail for an invitation",
    opt=raises(
        "email_mismatch",
        "invitation_closed",
        "invitation_limit_reached",
        "member_exists",
        "not_found",
        "org_suspended",
        "invitations_not_enabled",
    ),
)
async def request_invitation_confirmation(
    services: Services,
    claims: CallerClaims,
    address: VerifiedAddress,
    data: JSONBody[ConfirmationRequest],
) -> None:
    """Mail the link with the `proof` to the invited address.

    For users who have only the link that an admin passed on, and whose identity provider verifies
    no address. For a user with another verified address nothing is mailed: the invited address may
    be another person's. An address receives at most three such mails an hour and six in 24 hours.
    """
    await services.invitations.request_confirmation(claims.user, data.token, address)
