"""The explanation of the access of 250 random tenants; `tests/integration` has 40 of them."""

from tenantry.domain.billing.state import SubscriptionRule
from tests.integration.test_explained_access import check_sentences
from tests.support import figures


async def test_every_sentence_about_the_access_of_250_tenants_is_that_of_the_record(
    conninfo: str, record_property: figures.RecordProperty
) -> None:
    await check_sentences(conninfo, SubscriptionRule.EACH, 250, record_property)
