"""Deliver random billing histories to the service, and compare their ends with an oracle.

``python -m bench.histories --each 5000 --any 1500 --moves 300`` decodes and ingests each event as
the webhook does, on a real PostgreSQL, and compares records, mails and a replay. One history in
fifty goes through the webhook itself. The oracle was written from the documentation. A history that
ends wrong without an anomaly in the ledger is printed with the fewest arrivals that still end
wrong. A history with moves arrives in every order, or in at most `--orders`.
"""

import argparse
import asyncio
import itertools
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Final

from tests.support.billing_histories import (
    NOW,
    HistoryService,
    Outcome,
    described,
    kind_of,
    renamed,
    running_history_service,
    shrink,
)
from tests.support.postgres import running_server
from tests.support.provider_world import History, random_history

_TOGETHER: Final = 500
"""Histories in one database."""
_SAMPLED: Final = 50
"""One of so many histories goes through the webhook."""


def _of_mode(mode: str, count: int) -> Iterator[History]:
    for seed in range(count):
        yield random_history(seed, mode, int(NOW.timestamp()))


def _with_moves(count: int, orders: int) -> Iterator[History]:
    """Yield histories with moves, each in so many of the orders in which its events can arrive; 0:
    in every order.
    """
    for seed in range(count):
        history = random_history(seed, "each", int(NOW.timestamp()), moves=True)
        every = list(itertools.permutations(range(len(history.events))))
        rng = random.Random(seed)  # noqa: S311  # the same orders for the same seed
        chosen = every if not orders or len(every) <= orders else rng.sample(every, orders)
        for number, order in enumerate(chosen):
            yield renamed(history.arriving(order), f"eachm{seed}o{number}")


async def _run(name: str, mode: str, histories: Iterator[History]) -> bool:
    """Run histories, and print the first silently wrong one of each kind, shrunk; return whether
    there is any.
    """
    start = time.monotonic()
    ran = ambiguous = 0
    kinds: Counter[str] = Counter()
    with running_server() as server:
        while part := list(itertools.islice(histories, _TOGETHER)):
            with server.database() as conninfo:
                async with running_history_service(conninfo, mode) as service:
                    sample = part[::_SAMPLED]
                    rest = [one for at, one in enumerate(part) if at % _SAMPLED]
                    outcomes = await service.run(sample, over_http=True)
                    outcomes += await service.run(rest)
                    ran += len(outcomes)
                    ambiguous += sum(outcome.is_ambiguous for outcome in outcomes)
                    for outcome in outcomes:
                        if outcome.is_silently_wrong:
                            kind = ", ".join(sorted(_kinds(outcome)))
                            kinds[kind] += 1
                            if kinds[kind] == 1:
                                print(described(await _shortest(service, outcome)), flush=True)
    for kind, count in kinds.most_common():
        print(f"  {count:>5} {kind}")
    if ran:
        print(
            f"{name}: {ran:,} histories, {ambiguous:,} ambiguous, {kinds.total():,} silently wrong, "
            f"{time.monotonic() - start:.0f} s"
        )
    return bool(kinds)


def _kinds(outcome: Outcome) -> set[str]:
    return {kind_of(difference) for difference in outcome.differences}


async def _shortest(service: HistoryService, outcome: Outcome) -> Outcome:
    def is_wrong(other: Outcome) -> bool:
        return other.is_silently_wrong and not _kinds(other).isdisjoint(_kinds(outcome))

    return await shrink(service, outcome.history, is_wrong)


async def _run_all(each: int, any_: int, moves: int, orders: int) -> list[bool]:
    return [
        await _run("each", "each", _of_mode("each", each)),
        await _run("any", "any", _of_mode("any", any_)),
        await _run("each, with moves", "each", _with_moves(moves, orders)),
    ]


def main() -> None:
    """Run the histories; exit with 1 if one ends silently wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, meaning in (
        ("--each", "histories with SUBSCRIPTIONS=each"),
        ("--any", "histories with SUBSCRIPTIONS=any"),
        ("--moves", "histories in which subscriptions move between tenants"),
        ("--orders", "orders of arrival of each of these; 0: every order"),
    ):
        parser.add_argument(name, type=int, default=0, help=meaning)
    given = parser.parse_args()
    sys.exit(any(asyncio.run(_run_all(given.each, given.any, given.moves, given.orders))))


if __name__ == "__main__":
    main()
