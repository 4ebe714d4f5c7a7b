"""Invitations by mail, through both clients."""

import pytest

from tenantry_sdk import errors
from tests.sdk.sdk_support import Flavour, Served


async def test_invitation_is_sent_again_and_accepted_by_its_link(
    served: Served, flavour: Flavour
) -> None:
    organization = await served.service.organization()
    email = f"grace-{flavour.name}@acme.example"
    grace = served.service.user(f"grace-{flavour.name}", email=email, email_verified=True)
    async with flavour.client_of(served, organization) as owner:
        made = await owner.invitations.create(email=email, role="admin")
        again = await owner.invitations.resend(made.id)
        link = await owner.invitations.link(made.id)
        _, _, token = link.url.partition("?token=")
        async with flavour.client(grace.credential, base_url=served.url) as user:
            membership = await user.invitations.accept(token=token)
        accepted = await owner.invitations.get(made.id)
        listed = [one.id async for one in owner.invitations.list(status="accepted")]
    assert (made.email, made.role, made.status, made.sent_at) == (email, "admin", "open", None)
    assert again.expires_at >= made.expires_at
    assert (membership.org_id, membership.role, membership.status) == (
        organization.id,
        "admin",
        "active",
    )
    assert (accepted.status, listed) == ("accepted", [made.id])


async def test_withdrawn_invitation_is_closed(served: Served, flavour: Flavour) -> None:
    organization = await served.service.organization()
    async with flavour.client_of(served, organization) as owner:
        made = await owner.invitations.create(email=f"no-{flavour.name}@x.example", role="member")
        with pytest.raises(errors.ConflictError, match="send it again") as twice:
            await owner.invitations.create(email=made.email, role="member")
        await owner.invitations.delete(made.id)
        with pytest.raises(errors.ConflictError) as late:
            await owner.invitations.resend(made.id)
    assert (twice.value.code, late.value.code) == ("invitation_exists", "invitation_closed")


async def test_user_without_a_verified_address_requests_a_confirmation(
    served: Served, flavour: Flavour
) -> None:
    organization = await served.service.organization()
    user = served.service.user(f"unverified-{flavour.name}")
    async with flavour.client_of(served, organization) as owner:
        made = await owner.invitations.create(email=f"u-{flavour.name}@x.example", role="member")
        _, _, token = (await owner.invitations.link(made.id)).url.partition("?token=")
    async with flavour.client(user.credential, base_url=served.url) as invited:
        with pytest.raises(errors.PermissionDeniedError) as refused:
            await invited.invitations.accept(token=token)
        await invited.invitations.request_confirmation(token=token)
    assert refused.value.code == "email_not_verified"
    assert "request_confirmation" in str(refused.value.next_step)
