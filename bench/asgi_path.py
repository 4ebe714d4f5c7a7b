"""Measure what the service's server adds to a request that goes through ASGI: ``python -m
bench.asgi_path``.

The same application, which answers a constant, behind uvicorn's own protocol, behind the service's,
and behind the service's with its dispatcher. All three run, and get requests in turn, in rounds of
another order each. A figure is the processor time of a request, as the median of all rounds, and
the median of what it is above uvicorn's in the same round. Needs Debian's ``wrk``.
"""

import argparse
import contextlib
import random
import shutil
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import uvicorn

from bench import support, wrk
from bench.baselines.serving import serving
from bench.contestant import Server
from bench.upper_bound_server import answer_ok, without_lifespan
from tenantry.cli.serve import bind, server_config
from tenantry.common import process
from tenantry.server.dispatch import Dispatcher, HotRoutes
from tenantry.server.metrics import Metrics
from tenantry.settings import load

_ROOT: Final = Path(__file__).parents[1]
_PATH: Final = "/api/v1/constant"
_UVICORN: Final = "uvicorn"
_PROTOCOL: Final = "the service's protocol"
_SERVICE: Final = "the same with the dispatcher"
_SERVERS: Final = (_UVICORN, _PROTOCOL, _SERVICE)


def serve(name: str, port: int) -> None:
    """Serve the constant in one process, until stopped."""
    app = without_lifespan(answer_ok, {})
    if name == _SERVICE:
        app = Dispatcher(HotRoutes(), app, Metrics(several_processes=False))
    settings = load(
        {
            "PROVIDER_WEBHOOK_SECRET": support.SECRET,
            "API_KEY_PEPPER": support.PEPPER,
            "SESSION_SECRET": support.PEPPER,
            "DATABASE_URL": "embedded",
        }
    )
    config = server_config(settings, app)
    if name == _UVICORN:
        config.http = "httptools"
    process.set_for_serving()
    with bind("127.0.0.1", port) as bound:
        uvicorn.Server(config).run(sockets=[bound])


def _measure(folder: Path, options: argparse.Namespace) -> dict[str, list[float]]:
    """Return the microseconds of a request to each server in each round."""
    credentials = folder / "credentials"
    credentials.write_text("Bearer of-nothing\n")
    found: dict[str, list[float]] = {name: [] for name in _SERVERS}
    with contextlib.ExitStack() as stack:
        servers = {}
        for name in _SERVERS:
            port = support.free_port()
            command = [sys.executable, "-m", "bench.asgi_path", "--serve", name, str(port)]
            url = f"http://127.0.0.1:{port}{_PATH}"
            pid = stack.enter_context(serving(command, _ROOT, {}, url=url, log=folder / "log"))
            servers[name] = Server(port, pid, _PATH, "Authorization", [], {})
        for number in range(-1, options.rounds):
            for name in random.sample(_SERVERS, len(_SERVERS)):
                figure = wrk.run(
                    servers[name],
                    "list.lua",
                    {"BENCH_CREDENTIALS": str(credentials)},
                    connections=options.connections,
                    seconds=options.seconds,
                )
                if number >= 0:  # the first round warms up
                    found[name].append(figure.server_us)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the measurement, and print a line for each server."""
    parser = argparse.ArgumentParser(prog="python -m bench.asgi_path", description=__doc__)
    parser.add_argument("--connections", type=int, default=64, metavar="N")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=int, default=1, help="length of each run")
    parser.add_argument("--serve", nargs=2, metavar=("NAME", "PORT"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.serve:
        serve(options.serve[0], int(options.serve[1]))
        return
    if shutil.which("wrk") is None:
        sys.exit("bench: wrk is missing; install it with: apt-get install wrk")
    with tempfile.TemporaryDirectory(prefix="tenantry-bench-") as name:
        found = _measure(Path(name), options)
    for name, figures in found.items():
        above = statistics.median(
            mine - theirs for mine, theirs in zip(figures, found[_UVICORN], strict=True)
        )
        print(f"{name:30} {statistics.median(figures):6.1f} us  {above:+6.1f} us")


if __name__ == "__main__":
    main()
