"""Pepper rotation: every key keeps working, and doctor reports when the old pepper is unused."""

from collections.abc import AsyncIterator
from typing import Final, NamedTuple

import httpx2
import psycopg
import pytest

from tenantry.domain.api_keys import Pepper
from tenantry.installation.data_checks import judge_peppers
from tenantry.installation.findings import Level
from tests.support.cases import cases
from tests.support.postgres import PostgresServer
from tests.support.service import PROJECTS, refusal, running_service

OLD: Final = "old-pepper-0123456789-0123456789-0123"
NEW: Final = "new-pepper-0123456789-0123456789-0123"


class Rotation(NamedTuple):
    """The keys while a new pepper precedes the old one, and after the old one is removed."""

    peppers_before: list[str | None]
    """The ids of the peppers that the keys were under."""
    during: dict[str, httpx2.Response]
    """Answers while there were both peppers, by the key that was sent."""
    after: dict[str, httpx2.Response]
    """Answers while there was the new pepper alone."""


@pytest.fixture(scope="module")
async def rotation(postgres: PostgresServer) -> AsyncIterator[Rotation]:
    with postgres.database() as conninfo:
        async with running_service(conninfo, API_KEY_PEPPER=OLD) as before:
            org = await before.organization()
            names = ("used meanwhile", "used before and meanwhile", "not used")
            keys = {
                name: (await before.key(org.owner, org.id, "projects:read")).caller.credential
                for name in names
            }
            assert (
                await before.caller(keys["used before and meanwhile"]).get(PROJECTS)
            ).status_code == 200
        async with await psycopg.AsyncConnection.connect(conninfo) as connection:
            found = await (
                await connection.execute("SELECT DISTINCT pepper_id FROM api_keys")
            ).fetchall()
        async with running_service(conninfo, API_KEY_PEPPER=f"{NEW},{OLD}") as both:
            both.clock.advance(seconds=1)
            during = {
                name: await both.caller(keys[name]).get(PROJECTS)
                for name in names
                if name != "not used"
            }
            made = await both.key(both.caller(org.owner.credential), org.id, "projects:read")
            keys["made meanwhile"] = made.caller.credential
        async with running_service(conninfo, API_KEY_PEPPER=NEW) as new:
            after = {name: await new.caller(key).get(PROJECTS) for name, key in keys.items()}
        yield Rotation([row[0] for row in found], during, after)


def test_keys_of_the_old_pepper_work_and_new_ones_are_under_the_first(rotation: Rotation) -> None:
    assert {answer.status_code for answer in rotation.during.values()} == {200}
    assert rotation.after["made meanwhile"].status_code == 200


def test_key_that_was_used_meanwhile_no_longer_needs_the_old_pepper(rotation: Rotation) -> None:
    assert rotation.after["used meanwhile"].status_code == 200
    assert refusal(rotation.after["not used"]) == (401, "invalid_credential")


def test_key_moves_though_it_was_used_a_moment_before(rotation: Rotation) -> None:
    assert rotation.after["used before and meanwhile"].status_code == 200


def test_it_is_recorded_which_pepper_a_key_is_under_and_the_pepper_is_not(
    rotation: Rotation,
) -> None:
    assert rotation.peppers_before == [Pepper(OLD.encode()).id]
    assert Pepper(OLD.encode()).id not in OLD


@cases(
    ("counts", "peppers", "level", "says"),
    [
        ({"old": 3, "new": 2, None: 4}, ["new", "old"], Level.WARNING, "7"),
        ({"new": 2}, ["new", "old"], Level.OK, "no key needs the others"),
        ({"former": 5, "new": 2}, ["new"], Level.ERROR, "5"),
    ],
)
def test_doctor_reports_whether_the_old_pepper_is_unused(
    counts: dict[str | None, int], peppers: list[str], level: Level, says: str
) -> None:
    (finding,) = judge_peppers(counts, peppers)
    assert finding.level is level
    assert says in finding.message


def test_doctor_accepts_a_single_matching_pepper() -> None:
    assert judge_peppers({"new": 2, None: 1}, ["new"]) == []
