"""Servers that bound what the service can reach: a constant answer, and its routes without a
database.
"""

import contextlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.baselines.serving import serving
from bench.contestant import Dataset, Job, Server
from bench.ours import PATHS, PLANS_WITHOUT_LIMITS
from bench.support import free_port
from tenantry.domain import api_keys
from tenantry.domain.permissions import Mode

WITHOUT_DATABASE: Final = "no-database"
CONSTANT: Final = "constant"


@dataclass(frozen=True)
class UpperBound:
    """A server that answers like the service and does less; it has no database to check."""

    name: str
    title: str
    jobs: Sequence[Job]
    processes: Sequence[int] = (1,)

    def install(self) -> str:
        """Do nothing: it is part of this repository."""
        return ""

    @contextlib.contextmanager
    def running(self, job: Job, data: Dataset) -> Iterator[Server]:
        """Start the server; it needs no data."""
        port = free_port()
        catalog = data.folder / "plans.toml"
        catalog.write_text(PLANS_WITHOUT_LIMITS)
        command = [
            sys.executable,
            "-m",
            "bench.upper_bound_server",
            self.name,
            str(port),
            data.secret,
            str(catalog),
        ]
        url = f"http://127.0.0.1:{port}{PATHS[Job.LIST]}"
        header = "Stripe-Signature" if job is Job.WEBHOOK else "Authorization"
        keys = [api_keys.DEFAULT_FORMAT.compose(Mode.LIVE, b"%032d" % n) for n in range(data.keys)]
        with serving(
            command, Path(__file__).parents[1], {}, url=url, log=data.folder / "log"
        ) as pid:
            yield Server(port, pid, PATHS[job], header, [f"Bearer {key}" for key in keys])


def servers() -> list[UpperBound]:
    """Return both servers."""
    return [
        UpperBound(
            WITHOUT_DATABASE,
            "the service's routes, with a store that returns constants",
            tuple(Job),
        ),
        UpperBound(CONSTANT, "the same server answering OK", (Job.WEBHOOK, Job.LIST)),
    ]
