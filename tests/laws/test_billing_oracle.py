"""Law of billing: whatever happens at the provider and however it arrives, no end is wrong without
an anomaly.

An independent oracle says what each history must end in, mails included.
TENANTRY_TEST_HISTORIES=2000 runs so many random histories of each kind.
"""

import asyncio
import os
from collections.abc import Sequence

import pytest
from hypothesis import settings

from tests.support import figures
from tests.support.billing_examples import billing_examples
from tests.support.billing_histories import (
    NOW,
    Outcome,
    described,
    numbered,
    running_history_service,
    shrink,
)
from tests.support.provider_world import History, random_history

SECOND = int(NOW.timestamp())
HISTORIES = int(os.environ.get("TENANTRY_TEST_HISTORIES", settings().max_examples))
MOST_ORDERS = 3


async def _run(conninfo: str, mode: str, histories: Sequence[History]) -> list[Outcome]:
    """Run histories; replace the first that ends silently wrong by its shortest part that does."""
    async with running_history_service(conninfo, mode) as service:
        outcomes = await service.run(histories)
        for number, outcome in enumerate(outcomes):
            if outcome.is_silently_wrong:
                outcomes[number] = await shrink(service, outcome.history)
                break
        return outcomes


def _check(outcomes: Sequence[Outcome], what: str, record_property: figures.RecordProperty) -> None:
    wrong = [outcome for outcome in outcomes if outcome.is_silently_wrong]
    ambiguous = sum(outcome.is_ambiguous for outcome in outcomes)
    ran = {"histories": len(outcomes), "ambiguous": ambiguous}
    figures.record(record_property, what, ran, {"tenantry": len(wrong)})
    assert not wrong, described(wrong[0])


@pytest.mark.parametrize("mode", ["each", "any"])
def test_an_example_ends_as_documented_in_every_order(
    conninfo: str, mode: str, record_property: figures.RecordProperty
) -> None:
    examples = [example for example in billing_examples(SECOND) if example.history.mode == mode]
    histories = [order for example in examples for order in list(example.orders())[:MOST_ORDERS]]
    outcomes = asyncio.run(_run(conninfo, mode, numbered(histories)))
    _check(outcomes, f"Documented examples of billing, {mode}", record_property)


@pytest.mark.parametrize(("mode", "moves"), [("each", False), ("any", False), ("each", True)])
def test_a_random_history_ends_as_the_oracle_says(
    conninfo: str, mode: str, moves: bool, record_property: figures.RecordProperty
) -> None:
    histories = [random_history(seed, mode, SECOND, moves=moves) for seed in range(HISTORIES)]
    outcomes = asyncio.run(_run(conninfo, mode, histories))
    _check(
        outcomes,
        f"Random histories of billing, {mode}{', with moves' if moves else ''}",
        record_property,
    )


def test_the_webhook_ends_a_random_history_as_the_oracle_says(
    conninfo: str, record_property: figures.RecordProperty
) -> None:
    async def run() -> list[Outcome]:
        histories = [
            random_history(seed, "each", SECOND) for seed in range(HISTORIES, HISTORIES + 10)
        ]
        async with running_history_service(conninfo, "each") as service:
            return await service.run(histories, over_http=True)

    _check(asyncio.run(run()), "Random histories of billing over HTTP", record_property)
