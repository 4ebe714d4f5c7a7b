"""What it costs to be told of requests: the service as it is, with a line in the log for each, and with traces.

``python -m bench.watching`` measures both hot paths, round by round in turn; it needs Debian's ``wrk``. Times on a
processor are the service's own, for each request; the ratios are what holds elsewhere. ``--against FOLDER`` measures
another checkout's service too, with the packages of this one.
"""

import argparse
import contextlib
import statistics
import tempfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

from bench import support
from bench.cluster import cluster
from bench.contestant import Job
from bench.entrant import Entrant
from bench.ours import Tenantry

AS_IT_IS: Final = "as it is"
_JOBS: Final = (Job.WEBHOOK, Job.LIST)
_CONNECTIONS: Final = 64


class Options(argparse.Namespace):
    """What is to be measured."""

    against: Path | None
    rounds: int
    seconds: int
    only: list[str]


def main() -> None:
    """Start each variant, measure them in turn, and tell the ratios."""
    parser = argparse.ArgumentParser(prog="python -m bench.watching", description=__doc__.splitlines()[0])
    parser.add_argument("--against", type=Path, metavar="FOLDER")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=4)
    parser.add_argument("--only", nargs="+", default=[], metavar="VARIANT")
    options = parser.parse_args(namespace=Options())
    support.require_wrk()
    with collector() as address:
        variants = _variants(options, address)
        for job in _JOBS:
            _measure(job, {name: found for name, found in variants.items() if _wanted(name, options)}, options)


def _wanted(name: str, options: Options) -> bool:
    return name == AS_IT_IS or not options.only or name in options.only


def _variants(options: Options, collector_address: str) -> dict[str, dict[str, str]]:
    traces = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector_address}
    one_in_a_hundred = {"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.01"}
    variants = {
        AS_IT_IS: {},
        "a line for each request": {"LOG_REQUESTS": "true", "LOG_FORMAT": "json"},
        "every request traced": traces,
        "one request in a hundred traced": {**traces, **one_in_a_hundred},
    }
    if options.against is not None:
        variants["the other checkout"] = {"PYTHONPATH": str(options.against.resolve() / "src")}
    return variants


def _measure(job: Job, variants: dict[str, dict[str, str]], options: Options) -> None:
    print(f"{job}, {_CONNECTIONS} connections, one process, {options.rounds} rounds of {options.seconds} s")
    with (
        tempfile.TemporaryDirectory(prefix="tenantry-bench-") as folder,
        cluster(Path(folder) / "database") as postgres,
        contextlib.ExitStack() as stack,
    ):
        entrants = {}
        for number, (variant, settings) in enumerate(variants.items()):
            entrant = Entrant(Tenantry(variant, variant, [job], [1], settings=settings), job, 1)
            (Path(folder) / str(number)).mkdir()
            stack.callback(entrant.stop)
            entrant.start(postgres, f"bench_{number}", Path(folder) / str(number))
            entrant.check()
            entrant.warm_up(postgres, _CONNECTIONS, 2)
            entrants[variant] = entrant
        for number in range(options.rounds):
            order = list(entrants.values())
            for entrant in order if number % 2 else reversed(order):
                entrant.measure(postgres, _CONNECTIONS, options.seconds)
        base = entrants[AS_IT_IS].figures[_CONNECTIONS]
        for variant, entrant in entrants.items():
            figures = entrant.figures[_CONNECTIONS]
            time = statistics.median(one.server_us / other.server_us for one, other in zip(figures, base, strict=True))
            rate = statistics.median(
                one.per_second / other.per_second for one, other in zip(figures, base, strict=True)
            )
            own = statistics.median(figure.server_us for figure in figures)
            print(f"  {variant:32} {own:6.1f} us of the service for each, {time:5.2f} times; rate {rate:5.2f} times")


@contextlib.contextmanager
def collector() -> Iterator[str]:
    """The address of a collector that forgets what it takes."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Forgetting)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()


class _Forgetting(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:  # the name is the library's
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


if __name__ == "__main__":
    main()
