"""Putting another pepper in front: no key ends, and it is known when the old one may go."""

from typing import Final

import psycopg
import pytest

from tenantry.domain.api_keys import Pepper
from tenantry.services.checkup.database import judge_peppers
from tenantry.services.checkup.finding import Level
from tests.support.service import PROJECTS, refusal, running_service

OLD: Final = "old-pepper-0123456789-0123456789-0123"
NEW: Final = "new-pepper-0123456789-0123456789-0123"


async def test_keys_of_the_old_pepper_work_and_new_ones_are_under_the_first(emptied: str) -> None:
    async with running_service(emptied, API_KEY_PEPPER=OLD) as before:
        org = await before.organization()
        kept = str(org.owner.credential)
    async with running_service(emptied, API_KEY_PEPPER=f"{NEW},{OLD}") as during:
        assert (await during.caller(kept).get(PROJECTS)).status_code == 200
        made = str((await during.key(during.caller(kept), org.id, "projects:read")).caller.credential)
    async with running_service(emptied, API_KEY_PEPPER=NEW) as after:
        assert (await after.caller(made).get(PROJECTS)).status_code == 200


async def test_key_that_was_used_meanwhile_no_longer_needs_the_old_pepper(emptied: str) -> None:
    async with running_service(emptied, API_KEY_PEPPER=OLD) as before:
        org = await before.organization()
        used = await before.key(org.owner, org.id, "projects:read")
        unused = await before.key(org.owner, org.id, "projects:read")
    async with running_service(emptied, API_KEY_PEPPER=f"{NEW},{OLD}") as during:
        assert (await during.caller(used.caller.credential).get(PROJECTS)).status_code == 200
    async with running_service(emptied, API_KEY_PEPPER=NEW) as after:
        assert (await after.caller(used.caller.credential).get(PROJECTS)).status_code == 200
        assert refusal(await after.caller(unused.caller.credential).get(PROJECTS)) == (401, "invalid_credential")


async def test_key_moves_though_it_was_used_a_moment_before(emptied: str) -> None:
    async with running_service(emptied, API_KEY_PEPPER=OLD) as before:
        org = await before.organization()
        assert (await org.owner.get(PROJECTS)).status_code == 200
    async with running_service(emptied, API_KEY_PEPPER=f"{NEW},{OLD}") as during:
        during.clock.advance(seconds=1)
        assert (await during.caller(org.owner.credential).get(PROJECTS)).status_code == 200
    async with running_service(emptied, API_KEY_PEPPER=NEW) as after:
        assert (await after.caller(org.owner.credential).get(PROJECTS)).status_code == 200


async def test_it_is_recorded_which_pepper_a_key_is_under_and_the_pepper_is_not(emptied: str) -> None:
    async with running_service(emptied, API_KEY_PEPPER=OLD) as service:
        await service.organization()
    async with await psycopg.AsyncConnection.connect(emptied) as connection:
        found = await (await connection.execute("SELECT DISTINCT pepper_id FROM api_keys")).fetchall()
    assert found == [(Pepper(OLD.encode()).id,)]
    assert found[0][0] not in OLD


@pytest.mark.parametrize(
    ("counts", "peppers", "level", "says"),
    [
        ({"old": 3, "new": 2, None: 4}, ["new", "old"], Level.WARNING, "7"),
        ({"new": 2}, ["new", "old"], Level.OK, "may go"),
        ({"former": 5, "new": 2}, ["new"], Level.ERROR, "5"),
    ],
)
def test_doctor_says_whether_the_old_pepper_may_go(
    counts: dict[str | None, int], peppers: list[str], level: Level, says: str
) -> None:
    (finding,) = judge_peppers(counts, peppers)
    assert finding.level is level
    assert says in finding.message


@pytest.mark.parametrize("peppers", [["new"], []])
def test_doctor_says_nothing_of_a_single_pepper_that_fits(peppers: list[str]) -> None:
    assert judge_peppers({"new": 2, None: 1}, peppers) == []
