"""Two processes on one database: after one removes a member, the other rejects them."""

import asyncio
from collections.abc import AsyncIterator
from http import HTTPStatus

import pytest

from tests.support.app import running_app
from tests.support.issuer import AUDIENCE, CLIENT_ID
from tests.support.members import join, path_of
from tests.support.service import PROJECTS, WHOAMI, Caller, Service, refusal

ROUNDS = 25
CLIENTS = 4


@pytest.fixture
async def elsewhere(service: Service) -> AsyncIterator[Service]:
    """The same service a second time."""
    values = {
        "OIDC_ISSUER": service.issuer.url,
        "OIDC_AUDIENCE": AUDIENCE,
        "OIDC_CLIENT_ID": CLIENT_ID,
    }
    async with running_app(service.conninfo, clock=service.clock, **values) as client:
        yield Service(client, service.clock, service.issuer, service.conninfo)


class Hammer:
    """Clients that send one request after the other, and know which of them were sent after a
    moment.
    """

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._over = False
        self._stop = False
        self.let_in_before = 0
        self.let_in_after = 0
        self.refused_after = 0

    def over(self) -> None:
        """Whatever is sent from now on must be refused."""
        self._over = True

    async def until_let_in(self) -> None:
        while not self.let_in_before:
            await self._caller.get(PROJECTS)

    async def run(self) -> None:
        while self.refused_after < CLIENTS * 2 and not self.let_in_after:
            sent_after = self._over
            answer = await self._caller.get(PROJECTS)
            if not sent_after:
                self.let_in_before += answer.status_code == HTTPStatus.OK
            elif answer.status_code == HTTPStatus.OK:
                self.let_in_after += 1
            else:
                assert refusal(answer) == (403, "no_organization")
                self.refused_after += 1


@pytest.mark.thorough
async def test_request_after_the_removal_is_rejected_by_another_process(
    service: Service, elsewhere: Service
) -> None:
    org = await service.organization()
    let_in_before = let_in_after = 0
    for number in range(ROUNDS):
        member = await join(service, org, f"hammering-{number}")
        hammer = Hammer(elsewhere.user(f"hammering-{number}", org=org.id, role="owner"))
        clients = [asyncio.create_task(hammer.run()) for _ in range(CLIENTS)]
        await hammer.until_let_in()
        assert (await org.owner.delete(path_of(member))).status_code == 204
        hammer.over()
        await asyncio.gather(*clients)
        let_in_before += hammer.let_in_before
        let_in_after += hammer.let_in_after
    assert let_in_before >= ROUNDS
    assert let_in_after == 0


async def test_role_change_counts_in_another_process(service: Service, elsewhere: Service) -> None:
    org = await service.organization()
    member = await join(service, org, "watched", "admin")
    user = elsewhere.user("watched")
    assert (await user.get(WHOAMI)).json()["scopes"] == ["*:*"]
    await org.owner.patch(path_of(member), {"role": "member"})
    assert (await user.get(WHOAMI)).json()["scopes"] == [
        "projects:*",
        "tenants:read",
        "billing:read",
    ]


async def test_member_added_again_is_accepted_by_another_process(
    service: Service, elsewhere: Service
) -> None:
    org = await service.organization()
    member = await join(service, org, "away")
    await org.owner.delete(path_of(member))
    user = elsewhere.user("away")
    assert refusal(await user.get(PROJECTS)) == (403, "no_organization")
    await join(service, org, "away")
    assert (await user.get(PROJECTS)).status_code == 200
