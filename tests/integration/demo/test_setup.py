"""What the demo begins with."""

from datetime import UTC, datetime, timedelta

from tenantry.db.database import Database
from tenantry_devkit.demo.setup import next_moment
from tests.support.billing import rows

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
NEWEST = (
    "INSERT INTO tenants (id, name, owner_id, owner_email, tip_created) "
    "VALUES ('acme', 'Acme', 'usr', 'o@x.example', {})"
)


async def next_of(conninfo: str) -> datetime:
    return await next_moment(Database(conninfo, pool_size=1), NOW)


async def test_without_events_the_provider_s_clock_begins_now(conninfo: str) -> None:
    assert await next_of(conninfo) == NOW


async def test_the_provider_s_clock_begins_after_events_that_are_ahead_of_ours(conninfo: str) -> None:
    ahead = NOW + timedelta(days=40)
    await rows(conninfo, NEWEST.format(int(ahead.timestamp())))
    assert await next_of(conninfo) == ahead + timedelta(seconds=1)


async def test_events_of_the_past_do_not_hold_the_provider_s_clock_back(conninfo: str) -> None:
    await rows(conninfo, NEWEST.format(int((NOW - timedelta(days=40)).timestamp())))
    assert await next_of(conninfo) == NOW
