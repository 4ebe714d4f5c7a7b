"""Names of tenants, projects and API keys: which characters they may contain."""

from typing import Final

import httpx2

from tests.support.cases import cases
from tests.support.service import KEYS, PROJECTS, TENANTS, Service, refusal

REFUSED: Final = (
    "a\x1b[31mb",
    "a\nb",
    "a\x7fb",
    "a\x85b",
    "a\u2028b",
    "a\u202eb",
    "a\u2066b",
    "\u200fa",
    "\u061ca",
)
MESSAGE: Final = (
    "must not contain control characters, line breaks or bidirectional formatting characters"
)


def is_refused(answer: httpx2.Response) -> bool:
    return refusal(answer) == (422, "validation_failed") and answer.json()["errors"] == [
        {"location": "name", "message": MESSAGE}
    ]


@cases("name", [*REFUSED, "a\x00b"])
async def test_name_that_a_terminal_obeys_or_that_turns_text_around_is_refused(
    service: Service, name: str
) -> None:
    org = await service.organization()
    project = (await org.owner.post(PROJECTS, {"name": "a"})).json()
    key = await service.key(org.owner, org.id, "a:b")
    owner = {"name": name, "ownerEmail": "owner@x.example"}
    for answer in (
        await org.owner.post(PROJECTS, {"name": name}),
        await org.owner.patch(f"{PROJECTS}/{project['id']}", {"name": name}),
        await org.owner.post(KEYS, {"orgId": org.id, "name": name, "scopes": ["a:b"]}),
        await org.owner.patch(key.path, {"name": name}),
        await service.user("names").post(TENANTS, owner),
        await org.owner.patch(f"{TENANTS}/{org.id}", {"name": name}),
        await service.operator.put(f"{TENANTS}/{org.id}", owner),
        await service.operator.put(f"{TENANTS}/{org.id}-new", owner),
    ):
        assert is_refused(answer), answer.text
    assert (await service.operator.get(f"{TENANTS}/{org.id}-new/export")).status_code == 404


async def test_letters_of_every_script_and_joined_emoji_are_accepted(service: Service) -> None:
    org = await service.organization()
    for name in ("שלום", "مرحبا", "नमस्\u200dते", "👩\u200d💻", "Räksmörgås"):
        assert (
            await org.owner.post(KEYS, {"orgId": org.id, "name": name, "scopes": ["a:b"]})
        ).status_code == 201
