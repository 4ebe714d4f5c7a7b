"""What hostile clients do to everybody else: ``python -m bench.hostile``.

A good client sends events, lists and gateway checks to one server process at a steady pace, about a fifth of what that
can do, alone and while another process attacks. In the columns: the good client's median and 99th percentile, in ms
since each request was due, and as multiples of those of the quiet phases before and after the attack. Each attack comes
several times, and its figures are the medians, as are those of the quiet around it: one checkpoint of the database
moves the 99th percentile of one phase by more than any attack does. The quiet itself must stay what it was before the
first attack: or a service that an attack leaves slow would be held against its own slowness. Then what the attacker got
rid of in a second, and how it was answered, for an attack that hardly took place says nothing; and the server's share
of a processor, its memory and its open files before, during and after. All runs on one machine, so the attacker has
less priority and a stated rate; where other programs take the processors, `nice -n -10` as root keeps them out of the
figures.
"""

import argparse
import asyncio
import base64
import gc
import gzip
import hashlib
import statistics
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import psutil
import uvloop

from bench import support
from bench.baselines.serving import serving
from bench.events import compose, sign
from bench.hostile_client import Attack, Toll
from tenantry.domain.access import Mode
from tenantry.domain.api_keys import compose_secret
from tenantry.server.client_timeouts import ClientLimits
from tests.support.issuer import AUDIENCE, Issuer, running_issuer

PACE: Final = {"event": 60, "list": 120, "check": 120}
"""Good requests a second."""
SECONDS: Final = 8
QUIET: Final = 5
ROUNDS: Final = 3
AFTERWARDS: Final = 2
MOST: Final = 2.0
"""Times the usual latency: of an attack that of the quiet around it, of this that of the quiet before all attacks."""
LEAST_OPEN: Final = 0.9
"""Of the connections that an attack is to have at once, as far as the service takes as many."""
LEAST_SENT: Final = 0.8
"""Of what an attack usually gets rid of."""
CREDENTIALS: Final = 500
"""Refused credentials that are answered in a second (docs/limits.md); who waits for them sends no more."""
STRANGERS: Final = 200
"""The same of other refusals of strangers."""
CATALOG: Final = '[[plans]]\nid = "free"\n[[plans]]\nid = "pro"\nstripe_price_id = "price_pro"\n'
WEBHOOK: Final = "/api/v1/webhooks/payment-provider"
LIST: Final = "/api/v1/projects"
LEAK: Final = "/api/v1/api-keys/report-leak"
HOST: Final = b"Host: a\r\n"
_HEADSTART: Final = 0.25
"""Seconds in which the good client gets ready for all that it sends."""
_DIFFERENT: Final = 200
_PATIENCE: Final = 10.0


class Kind(NamedTuple):
    """An attack by its name, and how many requests it gets rid of in a second."""

    name: str
    attack: Attack
    usual: float


class Phase(NamedTuple):
    """The good client's ms, requests without a 200, and the server's share of a processor."""

    p50: float
    p99: float
    failed: int
    core: float


class Size(NamedTuple):
    """The server's memory (MiB) and open files."""

    mib: float
    files: int


class Result(NamedTuple):
    """An attack, the quiet around it, each time's toll, and the last time's sizes."""

    kind: Kind
    quiet: Phase
    during: Phase
    tolls: Sequence[Toll]
    sizes: tuple[Size, Size, Size]

    def times(self) -> tuple[float, float]:
        """The median and the 99th percentile as multiples of those of the quiet around it."""
        return times(self.during, self.quiet)


def times(phase: Phase, usual: Phase) -> tuple[float, float]:
    """The median and the 99th percentile as multiples of those of another phase."""
    return phase.p50 / usual.p50, phase.p99 / usual.p99


def faults(result: Result, calm: Phase) -> Iterator[str]:
    """What is wrong, in words. ``calm`` is what was measured before any attack."""
    if max(result.times()) > MOST:
        yield "p50 {:.1f} and p99 {:.1f} times those of the quiet around it".format(*result.times())
    if max(left := times(result.quiet, calm)) > MOST:
        yield "the quiet around it has p50 {:.1f} and p99 {:.1f} times those before all attacks".format(*left)
    if failed := result.during.failed + result.quiet.failed:
        yield f"{failed} good requests failed"
    attack = result.kind.attack
    wanted = min(attack.connections, ClientLimits().connections)
    if (most := min(toll.most for toll in result.tolls)) < LEAST_OPEN * wanted:
        yield f"it had {most} connections at once, of {wanted}"
    if (sent := min(toll.sent / toll.seconds for toll in result.tolls)) < LEAST_SENT * result.kind.usual:
        yield f"it sent {sent:.0f} requests/s, of {result.kind.usual:.0f}"


def typical(phases: Sequence[Phase]) -> Phase:
    """The medians of several phases, and all that failed in them."""
    return Phase(
        statistics.median(phase.p50 for phase in phases),
        statistics.median(phase.p99 for phase in phases),
        sum(phase.failed for phase in phases),
        statistics.median(phase.core for phase in phases),
    )


class GoodClient:
    """Sends its requests when they are due, whatever became of those before."""

    def __init__(self, port: int, keys: Sequence[str]) -> None:
        self._port = port
        self._keys = keys
        self._number = 0
        self._first = int(time.time()) - 86_400

    async def run(self, seconds: float) -> list[float | None]:
        """The ms that each took since it was due; None where it was not a 200."""
        idle: deque[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = deque()
        gc.collect()
        begun = time.perf_counter() + _HEADSTART

        async def send(kind: str, due: float) -> float | None:
            await asyncio.sleep(begun + due - time.perf_counter())
            request = self._request(kind)
            try:
                async with asyncio.timeout(_PATIENCE):
                    streams = idle.popleft() if idle else await asyncio.open_connection("127.0.0.1", self._port)
                    status = await _answer(*streams, request)
            except (OSError, EOFError):
                return None
            idle.append(streams)
            return (time.perf_counter() - begun - due) * 1000 if status == b"200" else None

        plan = [(kind, n / rate) for kind, rate in PACE.items() for n in range(int(seconds * rate))]
        took = await asyncio.gather(*(send(kind, due) for kind, due in plan))
        for _, writer in idle:
            writer.close()
        return took

    def _request(self, kind: str) -> bytes:
        self._number += 1
        if kind == "event":
            tenant, created = self._number % support.TENANTS, self._first + self._number // support.TENANTS
            return posted(compose(tenant, f"evt_good_{self._number}", created), signed=True)
        path = LIST if kind == "list" else "/api/v1/auth/verify/projects:read"
        return asked(path, self._keys[self._number % len(self._keys)])


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> bytes:
    writer.write(request)
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    await reader.readexactly(int(head.partition(b"content-length: ")[2].partition(b"\r")[0]))
    return head[9:12]


def asked(path: str, credential: str | None = None, extra: bytes = b"") -> bytes:
    """A GET."""
    vouched = b"Authorization: Bearer %b\r\n" % credential.encode() if credential is not None else b""
    return b"GET %b HTTP/1.1\r\n%b%b%b\r\n" % (path.encode(), HOST, vouched, extra)


def posted(body: bytes, path: str = WEBHOOK, *, signed: bool = False, extra: bytes = b"") -> bytes:
    """A POST; to the webhook one with a signature, right or wrong."""
    signature = sign(body, support.SECRET if signed else "whsec_of_somebody_else")
    head = b"POST %b HTTP/1.1\r\n%bContent-Type: application/json\r\nProvider-Signature: %b\r\n" % (
        path.encode(), HOST, signature.encode()
    )  # fmt: skip
    return b"%b%bContent-Length: %d\r\n\r\n%b" % (head, extra, len(body), body)


def kinds(port: int, issuer: Issuer, seconds: float) -> Iterator[Kind]:
    """All attacks."""

    def flood(
        name: str, rate: float, requests: Sequence[bytes], connections: int = 64, *, answered: float | None = None
    ) -> Kind:
        attack = Attack(port=port, seconds=seconds + 1, requests=list(requests), rate=rate, connections=connections)
        return Kind(name, attack, rate if answered is None else min(rate, answered))

    def hold(name: str, connections: int, drip: bytes = b"", drop: bytes = b"") -> Kind:
        longest = ClientLimits().head + 2
        attack = Attack(port=port, seconds=max(seconds, longest), connections=connections, drip=drip, drop=drop)
        return Kind(name, attack, 0)

    body = compose(0, "evt_bad", int(time.time()))
    unknown = [compose_secret(Mode.LIVE, hashlib.sha256(b"unknown %d" % n).digest()) for n in range(_DIFFERENT)]
    wrong = [secret[:-1] + ("0" if secret[-1] != "0" else "1") for secret in unknown]
    good = _tokens(issuer, unknown=False)
    forged = [f"{a.rpartition('.')[0]}.{b.rpartition('.')[2]}" for a, b in zip(good, reversed(good), strict=True)]
    yield hold("5,000 idle connections", 5000)
    yield hold("9,000 idle: past the limit", 9000)
    yield hold("2,000 slow heads", 2000, b"GET / HTTP/1.1\r\n" + HOST + b"X: ", b"x")
    yield hold("2,000 slow bodies, webhook", 2000, posted(body)[: -len(body)], b"x")
    yield hold("2,000 slow bodies, elsewhere", 2000, posted(body, LEAK)[: -len(body)], b"x")
    yield hold("240 bodies of 1 MiB less 1", 240, posted(b"x" * 1_048_576)[:-1])
    yield flood("new connections", 500, [asked("/healthz", extra=b"Connection: close\r\n")])
    yield flood("bad signatures, 5 KiB", 2000, [posted(body)], answered=STRANGERS)
    yield flood("bad signatures, 1 MiB", 20, [posted(b"x" * 1_048_576)], 16)
    yield flood("no credential", 2000, [asked(LIST)], answered=CREDENTIALS)
    yield flood("bad keys, wrong checksum", 2000, [asked(LIST, key) for key in wrong], answered=CREDENTIALS)
    yield flood("bad keys, well-formed", 2000, [asked(LIST, key) for key in unknown], answered=CREDENTIALS)
    yield flood(
        "garbage tokens",
        2000,
        [asked(LIST, "eyJ" + base64.b64encode(b"x%d" % n * 50).decode()) for n in range(99)],
        answered=CREDENTIALS,
    )
    yield flood("tokens, forged", 2000, [asked(LIST, token) for token in forged], answered=CREDENTIALS)
    nameless = _tokens(issuer, unknown=True)
    yield flood("tokens, unknown key id", 2000, [asked(LIST, token) for token in nameless], answered=CREDENTIALS)
    bad = [asked(f"/{part}/{n}") for n in range(99) for part in ("api/v1", "wp", "orgs")]
    yield flood("bad paths", 2000, bad, answered=STRANGERS)
    yield flood("open routes", 500, [asked("/healthz"), asked("/api/v1/openapi.json"), asked("/")])
    yield flood("bodies of 8 MiB", 4, [posted(b"x" * 8_388_608)], 8)
    yield flood("compressed bodies", 1000, [
        posted(gzip.compress(b" " * 10_000_000), path, extra=b"Content-Encoding: gzip\r\n") for path in (WEBHOOK, LEAK)
    ], answered=STRANGERS)  # fmt: skip
    yield flood("deep JSON, 100 KiB", 100, [posted(b"[" * 102_400, LEAK), posted(b'{"secret": ' * 9000, LEAK)])
    yield flood("number of a million digits", 20, [posted(b'{"secret": ' + b"9" * 1_000_000 + b"}", LEAK)])
    tiny = b"1\r\nx\r\n" * 100_000
    yield flood("body of 100,000 chunks", 20, [
        b"POST %b HTTP/1.1\r\n%bTransfer-Encoding: chunked\r\n\r\n%b" % (path.encode(), HOST, tiny)
        for path in (WEBHOOK, LEAK)
    ], 16)  # fmt: skip
    fields = b"".join(b"x%d: y\r\n" % n for n in range(100_000))
    yield flood("fields of 1 MB behind a body", 20, [
        b"POST %b HTTP/1.1\r\n%bTransfer-Encoding: chunked\r\n\r\n0\r\n%b" % (path.encode(), HOST, fields)
        for path in (WEBHOOK, LEAK)
    ], 16)  # fmt: skip
    yield flood("heads of 1 MB", 20, [asked("/", extra=b"X: " + b"x" * 1_000_000 + b"\r\n")], 16)
    yield flood("malformed", 1000, [
        b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", b"GET / HTTP/1.1\nHost: a\n\n", b"GET / HTTP/9\r\n" + HOST + b"\r\n",
        b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
    ])  # fmt: skip
    # 32 of each thousand are answered, and those of a connection one after the other
    many = [asked(LIST, wrong[0]) * 1000, asked("/healthz") * 1000]
    yield flood("1,000 requests at once", 20, many, 16, answered=16)


def _tokens(issuer: Issuer, *, unknown: bool) -> list[str]:
    said = {"iat": int(time.time()), "exp": int(time.time()) + 7200, "org_id": "t0"}
    return [
        issuer.mint(header={"kid": f"unknown-{n}"} if unknown else None, claims={**said, "jti": str(n)})
        for n in range(_DIFFERENT)
    ]


def main() -> None:
    """Measure, print, and exit with 1 where others waited more than twice as long, or in vain, or nothing attacked."""
    parser = argparse.ArgumentParser(prog="python -m bench.hostile")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of each attack")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="how often each attack comes")
    parser.add_argument("--only", action="append", help="attacks whose name has this in it")
    given = parser.parse_args()
    gc.disable()  # its pauses would be held against the service
    with tempfile.TemporaryDirectory(prefix="tenantry-bench-") as folder, support.database(Path(folder)) as conninfo:
        missed = uvloop.run(_measure(conninfo, Path(folder), given.seconds, given.rounds, given.only or [""]))
    print(f"\nmissed: {len(missed) or 'none'}")
    for name, why in missed.items():
        print(f"  {name}: {'; '.join(why)}")
    sys.exit(1 if missed else 0)


async def _measure(
    conninfo: str, folder: Path, seconds: float, rounds: int, only: Sequence[str]
) -> dict[str, Sequence[str]]:
    """What was missed, and why."""
    keys = support.load(conninfo)
    missed: dict[str, Sequence[str]] = {}
    async with running_issuer() as issuer, _served(conninfo, folder, issuer) as (port, pid):
        names = [kind.name for kind in kinds(port, issuer, seconds)]
        if unknown := [word for word in only if not any(word in name for name in names)]:
            sys.exit(f"bench: no such attack: {', '.join(unknown)}")
        bench = _Bench(GoodClient(port, keys), psutil.Process(pid))
        await bench.phase(QUIET)  # warm-up
        calm = typical([await bench.phase(QUIET) for _ in range(rounds)])
        print(f"alone: {sum(PACE.values())} requests/s, p50 {calm.p50:.2f} ms, p99 {calm.p99:.2f} ms, "
              f"{calm.core:.0%} of a processor, {bench.size().mib:.0f} MiB; each attack {rounds} times")  # fmt: skip
        print(
            f"{'':30} {'p50':>6} {'p99':>7} | quiet: {'p50':>6} {'p99':>7} | {'p50 x':>5} {'p99 x':>5} {'failed':>6} | "
            f"{'sent/s':>6} {'open':>5} {'answers':32} | {'core':>5} {'MiB':>15} {'files':>16}"
        )
        for kind in kinds(port, issuer, seconds):
            if any(word in kind.name for word in only):
                result = await bench.attacked(kind, rounds)
                _print(result)
                if why := list(faults(result, calm)):
                    missed[kind.name] = why
    return missed


class _Bench:
    def __init__(self, client: GoodClient, server: psutil.Process) -> None:
        self._client = client
        self._server = server

    async def phase(self, seconds: float) -> Phase:
        """The good client for so long."""
        busy, since = self._busy(), time.perf_counter()
        took = await self._client.run(seconds)
        core = (self._busy() - busy) / (time.perf_counter() - since)
        answered = [ms for ms in took if ms is not None]
        cuts = statistics.quantiles(answered, n=100)
        return Phase(cuts[49], cuts[98], len(took) - len(answered), core)

    async def attacked(self, kind: Kind, rounds: int) -> Result:
        """The good client during an attack and around it."""
        quiet, during, tolls, sizes = [await self.phase(QUIET)], [], [], [self.size()]
        for _ in range(rounds):
            attacker = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "bench.hostile_client",
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            )  # fmt: skip
            ending = asyncio.create_task(attacker.communicate(msgspec.json.encode(kind.attack)))
            await asyncio.sleep(1 - _HEADSTART)  # the last request is due before the attacker hangs up
            during.append(await self.phase(kind.attack.seconds - 1))
            sizes.append(self.size())
            out, _ = await ending
            if attacker.returncode:
                sys.exit(f"bench: the attacker failed: {kind.name}")
            tolls.append(msgspec.json.decode(out, type=Toll))
            await asyncio.sleep(AFTERWARDS)
            quiet.append(await self.phase(QUIET))
        return Result(kind, typical(quiet), typical(during), tolls, (sizes[0], sizes[-1], self.size()))

    def size(self) -> Size:
        """Now."""
        return Size(self._server.memory_info().rss / 2**20, self._server.num_fds())

    def _busy(self) -> float:
        times = self._server.cpu_times()
        return times.user + times.system


@asynccontextmanager
async def _served(conninfo: str, folder: Path, issuer: Issuer) -> AsyncIterator[tuple[int, int]]:
    """The service's port and process id. It is awaited in a thread: the issuer that it asks at its start runs here."""
    catalog, port = folder / "plans.toml", support.free_port()
    catalog.write_text(CATALOG)
    settings = {"OIDC_ISSUER": issuer.url, "OIDC_AUDIENCE": AUDIENCE, "TENANTRY_PLANS": str(catalog)}
    variables = {**support.settings(port, conninfo), "DRAIN_SECONDS": "0", **settings}
    command, url = [sys.executable, "-m", "tenantry", "serve"], f"http://127.0.0.1:{port}{LIST}"
    with ExitStack() as stack:
        running = serving(command, folder, variables, url=url, log=folder / "log")
        yield port, await asyncio.to_thread(stack.enter_context, running)


def _print(result: Result) -> None:
    p50, p99 = result.times()
    toll = result.tolls[-1]
    answers = Counter(toll.answers).most_common(3)
    print(
        f"{result.kind.name:30} {result.during.p50:6.2f} {result.during.p99:7.2f} | {'':6} {result.quiet.p50:6.2f} "
        f"{result.quiet.p99:7.2f} | {p50:5.2f} {p99:5.2f} {result.during.failed + result.quiet.failed:6} | "
        f"{toll.sent / toll.seconds:6,.0f} {toll.most:5} "
        f"{', '.join(f'{status}: {count}' for status, count in answers):32} | {result.during.core:5.0%} "
        f"{'/'.join(f'{size.mib:.0f}' for size in result.sizes):>15} "
        f"{'/'.join(str(size.files) for size in result.sizes):>16}",
        flush=True,
    )


if __name__ == "__main__":
    main()
