"""What the demo begins with."""

from datetime import UTC, datetime, timedelta

from tenantry_devkit.demo.example_data import AccountTimes, account_times
from tests.support.billing import rows

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
NEWEST = (
    "INSERT INTO tenants (id, name, owner_id, owner_email, folds) "
    """VALUES ('acme', 'Acme', 'usr', 'o@x.example', '{{"":{{"state":{{}},"tip_created":{}}}}}')"""
)


async def times_of(conninfo: str) -> AccountTimes:
    return await account_times(conninfo, NOW)


async def test_without_events_the_account_has_a_history_until_now(conninfo: str) -> None:
    assert await times_of(conninfo) == (NOW - timedelta(days=32), NOW)


async def test_provider_clock_begins_after_future_events(conninfo: str) -> None:
    ahead = NOW + timedelta(days=40)
    await rows(conninfo, NEWEST.format(int(ahead.timestamp())))
    present = ahead + timedelta(seconds=1)
    assert await times_of(conninfo) == (present, present)


async def test_past_events_do_not_delay_the_provider_clock(conninfo: str) -> None:
    await rows(conninfo, NEWEST.format(int((NOW - timedelta(days=40)).timestamp())))
    assert await times_of(conninfo) == (NOW, NOW)
