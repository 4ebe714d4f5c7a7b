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
from collections.abc import Iterable, Iterator
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


def _of_mode(mode: str, count: int, first: int) -> Iterator[History]:
    for seed in range(first, first + count):
        yield random_history(seed, mode, int(NOW.timestamp()))


def _with_moves(count: int, orders: int, first: int) -> Iterator[History]:
    """Yield histories with moves, each in so many of the orders in which its events can arrive; 0:
    in every order.
    """
    for seed in range(first, first + count):
        history = random_history(seed, "each", int(NOW.timestamp()), moves=True)
        every = list(itertools.permutations(range(len(history.events))))
        rng = random.Random(seed)  # noqa: S311  # the same orders for the same seed
        chosen = every if not orders or len(every) <= orders else rng.sample(every, orders)
        for number, order in enumerate(chosen):
            yield renamed(history.arriving(order), f"eachm{seed}o{number}")


async def _run(
    mode: str, histories: Iterable[History], shown: int
) -> tuple[int, int, list[Outcome]]:
    """Return how many histories ran, how many were ambiguous, and the silently wrong ones, the
    first of them shrunk.
    """
    ran = ambiguous = 0
    wrong: list[Outcome] = []
    kinds: Counter[str] = Counter()
    waiting = iter(histories)
    with running_server() as server:
        while part := list(itertools.islice(waiting, _TOGETHER)):
            with server.database() as conninfo:
                async with running_history_service(conninfo, mode) as service:
                    sample = part[::_SAMPLED]
                    outcomes = await service.run(sample, over_http=True)
                    outcomes += await service.run(
                        [one for at, one in enumerate(part) if at % _SAMPLED]
                    )
                    ran += len(outcomes)
                    ambiguous += sum(outcome.is_ambiguous for outcome in outcomes)
                    for outcome in outcomes:
                        if not outcome.is_silently_wrong:
                            continue
                        wrong.append(outcome)
                        found = sorted({kind_of(difference) for difference in outcome.differences})
                        kinds[", ".join(found)] += 1
                        if kinds[", ".join(found)] <= shown:
                            print(described(await _shortest(service, outcome)), flush=True)
    for kind, count in kinds.most_common():
        print(f"  {count:>5} {kind}")
    return ran, ambiguous, wrong


async def _shortest(service: HistoryService, outcome: Outcome) -> Outcome:
    kinds = {kind_of(difference) for difference in outcome.differences}

    def is_wrong(other: Outcome) -> bool:
        return other.is_silently_wrong and bool(
            kinds & {kind_of(difference) for difference in other.differences}
        )

    return await shrink(service, outcome.history, is_wrong)


async def _measure(arguments: argparse.Namespace) -> int:
    parts = (
        ("each", "each", _of_mode("each", arguments.each, arguments.first)),
        ("any", "any", _of_mode("any", arguments.any, arguments.first)),
        (
            "each, with moves",
            "each",
            _with_moves(arguments.moves, arguments.orders, arguments.first),
        ),
    )
    failed = 0
    for name, mode, histories in parts:
        start = time.monotonic()
        ran, ambiguous, wrong = await _run(mode, histories, arguments.shown)
        if ran:
            seconds = time.monotonic() - start
            print(
                f"{name}: {ran:,} histories, {ambiguous:,} ambiguous, {len(wrong):,} silently wrong, {seconds:.0f} s"
            )
        failed += len(wrong)
    return failed


def main() -> None:
    """Run the histories; exit with 1 if one ends silently wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--each", type=int, default=0, help="histories with SUBSCRIPTIONS=each")
    parser.add_argument("--any", type=int, default=0, help="histories with SUBSCRIPTIONS=any")
    parser.add_argument(
        "--moves", type=int, default=0, help="histories in which subscriptions move between tenants"
    )
    parser.add_argument(
        "--orders", type=int, default=0, help="orders of arrival of each of these; 0: every order"
    )
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument(
        "--shown", type=int, default=1, help="histories to show of each kind of difference"
    )
    sys.exit(min(1, asyncio.run(_measure(parser.parse_args()))))


if __name__ == "__main__":
    main()
