"""What cannot be passed: the service's server answering a constant, and its routes without a database."""

import contextlib
import hashlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench import support
from bench.baselines.serving import serving
from bench.contestant import Job, Server, World
from bench.ours import PATHS, WITHOUT_LIMITS
from tenantry.domain import api_keys
from tenantry.domain.access import Mode

WITHOUT_DATABASE: Final = "no-database"
CONSTANT: Final = "constant"
_ROOT: Final = Path(__file__).parents[1]


@dataclass(frozen=True)
class Limit:
    """A server that answers as ours does, with less behind it: nothing that could be checked in a database."""

    name: str
    title: str
    jobs: Sequence[Job]
    module: str
    processes: Sequence[int] = (1,)

    def install(self) -> str:
        """It is there."""
        return ""

    @contextlib.contextmanager
    def running(self, job: Job, world: World) -> Iterator[Server]:
        """Start it; the world is not needed."""
        port = support.free_port()
        catalog = world.folder / "plans.toml"
        catalog.write_text(WITHOUT_LIMITS)
        command = [sys.executable, "-m", self.module, str(port), world.secret, str(catalog)]
        url = f"http://127.0.0.1:{port}{PATHS[Job.LIST]}"
        header = "Stripe-Signature" if job is Job.WEBHOOK else "Authorization"
        keys = [api_keys.compose_secret(Mode.LIVE, hashlib.sha256(b"%d" % n).digest()) for n in range(world.keys)]
        with serving(command, _ROOT, {}, url=url, log=world.folder / "log") as pid:
            yield Server(port, pid, PATHS[job], header, [f"Bearer {key}" for key in keys])


def servers() -> list[Limit]:
    """The two servers."""
    every = (Job.WEBHOOK, Job.LIST, Job.VERIFY)
    return [
        Limit(WITHOUT_DATABASE, "our own route, whose store answers with constants", every, "bench.stub_server"),
        Limit(CONSTANT, "the same server answering OK", (Job.WEBHOOK, Job.LIST), "bench.constant_server"),
    ]
