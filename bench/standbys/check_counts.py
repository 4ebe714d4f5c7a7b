"""How many checks the standbys and the primary answered, as the service's metrics say."""

import re
from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Final, NamedTuple, Self

from bench.faults.client import LoadClient

_METRIC: Final = re.compile(
    rb'^tenantry_checks_total\{[^}]*\bsource="(\w+)"[^}]*\} ([0-9.e+]+)$', re.MULTILINE
)
_STANDBY: Final = "standby"


class CheckCounts(NamedTuple):
    """Checks by the source of their answer."""

    by_source: Counter[str]

    def __sub__(self, earlier: Self) -> "CheckCounts":
        counts = Counter(self.by_source)
        counts.subtract(earlier.by_source)
        return CheckCounts(counts)

    @property
    def total(self) -> int:
        """All checks."""
        return self.by_source.total()

    @property
    def standby_share(self) -> float:
        """The share that standbys answered; 0 without any check."""
        return self.by_standbys / max(self.total, 1)

    @property
    def by_standbys(self) -> int:
        """The checks that standbys answered."""
        return self.by_source[_STANDBY]


async def read_check_counts(addresses: Sequence[tuple[str, int]]) -> CheckCounts:
    """Read the metrics of every process."""
    counts: Counter[str] = Counter()
    for host, port in addresses:
        client = LoadClient([port], Random(port), host=host)  # noqa: S311  # one port
        answer = await client.send("GET", "/metrics", "Accept: text/plain")
        client.close()
        for source, count in _METRIC.findall(answer.body):
            counts[source.decode()] += int(float(count))
    return CheckCounts(counts)
