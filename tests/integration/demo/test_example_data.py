"""What the demo begins with."""

from datetime import UTC, datetime, timedelta

from tenantry_devkit.demo.example_data import next_moment
from tests.support.billing import rows

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
NEWEST = (
    "INSERT INTO tenants (id, name, owner_id, owner_email, folds) "
    """VALUES ('acme', 'Acme', 'usr', 'o@x.example', '{{"":{{"state":{{}},"tip_created":{}}}}}')"""
)


async def next_of(conninfo: str) -> datetime:
    return await next_moment(conninfo, NOW)


async def test_provider_clock_begins_now_without_events(conninfo: str) -> None:
    assert await next_of(conninfo) == NOW


async def test_provider_clock_begins_after_future_events(conninfo: str) -> None:
    ahead = NOW + timedelta(days=40)
    await rows(conninfo, NEWEST.format(int(ahead.timestamp())))
    assert await next_of(conninfo) == ahead + timedelta(seconds=1)


async def test_past_events_do_not_delay_the_provider_clock(conninfo: str) -> None:
    await rows(conninfo, NEWEST.format(int((NOW - timedelta(days=40)).timestamp())))
    assert await next_of(conninfo) == NOW
