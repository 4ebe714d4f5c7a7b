"""`SUBSCRIPTIONS=each` in the database: random histories of many tenants end as an independent
oracle says.
"""

from tests.support import figures
from tests.support.subscription_deliveries import check_in_database


async def test_random_histories_in_the_database_end_as_the_oracle_says(
    emptied: str, record_property: figures.RecordProperty
) -> None:
    await check_in_database(emptied, range(15), record_property)
