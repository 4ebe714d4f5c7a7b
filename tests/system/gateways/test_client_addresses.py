"""Keys with allowed addresses behind gateways as the page configures them."""

from typing import Final

import pytest

from tests.support.gateways import CLIENT, Gateway, ServiceBehindGateway, refused
from tests.support.service import Organization

ELSEWHERE: Final = "192.0.2.7"
PATH: Final = "/projects"


async def key_for(behind: ServiceBehindGateway, org: Organization, *addresses: str) -> str:
    key = await behind.service.key(
        org.owner, org.id, "projects:read", allowedAddresses=list(addresses)
    )
    return str(key.caller.credential)


async def test_address_of_the_client_counts(
    gateway: Gateway, behind: ServiceBehindGateway, org: Organization
) -> None:
    key = await key_for(behind, org, CLIENT)
    assert (await gateway.send("GET", PATH, credential=key)).status == 200


async def test_client_from_elsewhere_is_refused(
    gateway: Gateway, behind: ServiceBehindGateway, org: Organization
) -> None:
    key = await key_for(behind, org, ELSEWHERE)
    answer = await gateway.send("GET", PATH, credential=key)
    refused(answer, 403, "address_not_allowed")
    assert gateway.application.received == []


@pytest.mark.parametrize("name", ["X-Forwarded-For", "Forwarded", "X-Real-IP", "X_Forwarded_For"])
async def test_forged_header_changes_nothing(
    gateway: Gateway, behind: ServiceBehindGateway, org: Organization, name: str
) -> None:
    key = await key_for(behind, org, ELSEWHERE)
    value = f"for={ELSEWHERE}" if name == "Forwarded" else ELSEWHERE
    answer = await gateway.send("GET", PATH, (name, value), (name, value), credential=key)
    refused(answer, 403, "address_not_allowed")
    own = await key_for(behind, org, CLIENT)
    assert (await gateway.send("GET", PATH, (name, value), credential=own)).status == 200
