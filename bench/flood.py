"""What a flood of bad credentials does to everybody else, and to the database.

A good client asks at a steady pace while ``wrk`` floods the same process with credentials of one kind, at given rates
and as fast as it can; beside the bad kinds, as many good requests with another key. Needs Debian's ``wrk``.
PostgreSQL comes from the wheel with its usual durability. Everything runs on one machine, so absolute figures are this
machine's; what holds are the ratios against no flood, and the number of key lookups.
"""

import argparse
import asyncio
import contextlib
import hashlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import psutil
import psycopg
import uvloop

from bench import support
from tenantry.domain.access import Mode
from tenantry.domain.api_keys import compose_secret
from tests.support.hammer import Connection
from tests.support.issuer import AUDIENCE, Issuer, SigningKey, running_issuer, signing_key

SECONDS: Final = 6
ROUNDS: Final = 3
RATES: Final = (500, 2000, 0)
"""Bad requests a second; 0 is as many as `CONNECTIONS` take when each sends one after the other."""
CONNECTIONS: Final = 64
CREDENTIALS: Final = 500
"""Different ones in a flood."""
LIST: Final = "/api/v1/projects"
CHECK: Final = "/api/v1/auth/verify/-"
PACE: Final = {LIST: 200, CHECK: 100}
"""Good requests a second."""
MARGIN: Final = 0.5
"""Seconds that a flood runs before and after it is looked at."""
STATISTICS_PAUSE: Final = 1.1
"""PostgreSQL's sessions publish their counts with a statement that comes a second after the last time."""
CATALOG: Final = '[[plans]]\nid = "free"\n'
KEYS: Final = [signing_key(alg, alg.lower()) for alg in ("RS256", "ES256", "EdDSA")]


class Kind(NamedTuple):
    """What a flood consists of."""

    name: str
    credentials: list[str]
    path: str = LIST
    good: bool = False
    looked_up: bool = False
    """Whether the database has to be asked for the key."""


class Flooded(NamedTuple):
    """How many requests wrk sent, a second and in all."""

    per_second: float
    requests: int


class Phase(NamedTuple):
    """Good client: ms and errors; server: share of one core, and key lookups; flood: requests a second."""

    p50: float
    p99: float
    errors: float
    core: float
    lookups: float
    flood: float


NO_FLOOD: Final = Kind("none", [])


class Bench:
    """The service under measurement, its database, and the good client's key."""

    def __init__(self, conninfo: str, port: int, server: int, key: str, folder: Path) -> None:
        self._conninfo = conninfo
        self._port = port
        self._server = psutil.Process(server)
        self._key = key
        self._folder = folder

    async def alone(self, kind: Kind, seconds: int) -> tuple[Flooded, int]:
        """A flood without the good client, as fast as it can, and how many key lookups the database saw of it."""
        before = await self.lookups()
        flooded = await self._flood(kind, 0, seconds)
        return flooded, await self.lookups() - before - 1  # the last good request was one of them

    async def phase(self, kind: Kind, rate: int, seconds: int) -> Phase:
        """The good client for some seconds, in the middle of a flood."""
        before = await self.lookups()
        flood = None if kind is NO_FLOOD else asyncio.create_task(self._flood(kind, rate, seconds + round(2 * MARGIN)))
        await asyncio.sleep(MARGIN)
        busy, since = self._busy(), time.perf_counter()
        took = await support.send_paced(self._port, self._key, PACE, seconds)
        core = (self._busy() - busy) / (time.perf_counter() - since)
        flooded = await flood if flood else Flooded(0, 0)
        lookups = await self.lookups() - before - 1
        answered = [ms for ms in took if ms is not None]
        cuts = statistics.quantiles(answered, n=100)
        if not (kind.looked_up or flood is None) and lookups > len(took):
            sys.exit(f"bench: {kind.name}: {lookups} key lookups for {len(took)} good requests")
        return Phase(cuts[49], cuts[98], len(took) - len(answered), core, lookups, flooded.per_second)

    async def _flood(self, kind: Kind, rate: int, seconds: int) -> Flooded:
        """Run wrk; each of its connections pauses between requests so that together they come to the rate."""
        (self._folder / "credentials").write_text("".join(f"{one}\n" for one in kind.credentials))
        variables = {
            "BENCH_CREDENTIALS": str(self._folder / "credentials"),
            "BENCH_PATH": kind.path,
            "BENCH_PAUSE_MS": str(CONNECTIONS * 1000 // rate if rate else 0),
        }
        wrk = await asyncio.create_subprocess_exec(
            "wrk", "-t1", f"-c{CONNECTIONS}", f"-d{seconds}", "-s", str(support.FOLDER / "flood.lua"),
            f"http://127.0.0.1:{self._port}", env={**os.environ, **variables}, stdout=subprocess.PIPE,
        )  # fmt: skip
        out, _ = await wrk.communicate()
        requests, micros, refused, failed = map(int, out.decode().split("RESULT ")[1].split())
        if failed or refused != (0 if kind.good else requests):
            sys.exit(f"bench: {kind.name}: {requests} requests, {refused} refused, {failed} without an answer")
        return Flooded(requests / (micros / 1e6), requests)

    async def lookups(self) -> int:
        """How often the index of the keys' digests has been searched: at most once for each key of a group."""
        await asyncio.sleep(STATISTICS_PAUSE)
        connection = Connection("127.0.0.1", self._port)
        assert await connection.status("GET", LIST, self._key) == 200
        connection.close()
        async with await psycopg.AsyncConnection.connect(self._conninfo) as database:
            cursor = await database.execute(
                "SELECT idx_scan FROM pg_stat_user_indexes WHERE indexrelname = 'api_keys_digest_key'"
            )
            return int((await cursor.fetchall())[0][0])

    def _busy(self) -> float:
        times = self._server.cpu_times()
        return times.user + times.system


def main() -> None:
    """Measure in turn, print two tables."""
    parser = argparse.ArgumentParser(prog="python -m bench.flood")
    parser.add_argument("--seconds", type=int, default=SECONDS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    given = parser.parse_args()
    support.require_wrk()
    with tempfile.TemporaryDirectory(prefix="tenantry-bench-") as folder, support.database(Path(folder)) as conninfo:
        uvloop.run(_measure(conninfo, Path(folder), given.seconds, given.rounds))


async def _measure(conninfo: str, folder: Path, seconds: int, rounds: int) -> None:
    keys = support.load(conninfo)
    async with running_issuer(*KEYS) as issuer, _served(conninfo, folder, issuer) as (port, server):
        bench, kinds = Bench(conninfo, port, server, keys[0], folder), _kinds(conninfo, keys, issuer)
        await bench.lookups()  # makes the connection for lookups
        print(f"floods alone, as fast as {CONNECTIONS} connections take, {seconds} s each")
        print(f"{'flood':22} {'requests/s':>10} {'requests':>9} {'key lookups':>11}")
        for kind in kinds:
            flooded, lookups = await bench.alone(kind, seconds)
            print(f"{kind.name:22} {flooded.per_second:10,.0f} {flooded.requests:9,} {lookups:11,}", flush=True)
            if lookups and not kind.looked_up:
                sys.exit("bench: the database was asked for what cannot be a key")
        found: dict[tuple[int, str], list[Phase]] = {}
        for _ in range(rounds):
            for rate in RATES:
                for kind in (NO_FLOOD, *kinds):
                    found.setdefault((rate, kind.name), []).append(await bench.phase(kind, rate, seconds))
        _print({which: _medians(phases) for which, phases in found.items()}, seconds, rounds)


@contextlib.asynccontextmanager
async def _served(conninfo: str, folder: Path, issuer: Issuer) -> AsyncIterator[tuple[int, int]]:
    """The service's port and process id. It is awaited in a thread: the issuer that it asks at its start runs here."""
    catalog, port = folder / "plans.toml", support.free_port()
    catalog.write_text(CATALOG)
    provider = {"OIDC_ISSUER": issuer.url, "OIDC_AUDIENCE": AUDIENCE}
    with contextlib.ExitStack() as stack:
        service = support.service(port, conninfo, TENANTRY_PLANS=str(catalog), **provider)
        yield port, await asyncio.to_thread(stack.enter_context, service)


def _kinds(conninfo: str, keys: Sequence[str], issuer: Issuer) -> list[Kind]:
    with psycopg.connect(conninfo) as connection:
        connection.execute("UPDATE api_keys SET revoked_at = now() WHERE id = 'key_1'")
    unknown = [compose_secret(Mode.LIVE, hashlib.sha256(b"unknown %d" % n).digest()) for n in range(CREDENTIALS)]
    wrong = [secret[:-1] + ("0" if secret[-1] != "0" else "1") for secret in unknown]
    other = [keys[support.TENANTS]]  # of the same tenant
    return [
        Kind("no credential", [""]),
        Kind("key, wrong checksum", wrong),
        Kind("key, unknown", unknown, looked_up=True),
        Kind("key, revoked", [keys[1]], looked_up=True),
        *(Kind(f"{key.alg}, bad signature", _forged(issuer, key)) for key in KEYS),
        Kind("token, unknown kid", _tokens(issuer, KEYS[0], unknown=True)),
        Kind("good key, check", other, CHECK, good=True, looked_up=True),
        Kind("good key, list", other, LIST, good=True, looked_up=True),
    ]


def _tokens(issuer: Issuer, key: SigningKey, *, unknown: bool = False) -> list[str]:
    """Tokens that are good, but for a key id that the provider does not know."""
    said: dict[str, Any] = {"iat": int(time.time()), "exp": int(time.time()) + 7200, "org_id": "t0"}
    return [
        issuer.mint(key, header={"kid": f"unknown-{n}"} if unknown else None, claims={**said, "jti": str(n)})
        for n in range(CREDENTIALS)
    ]


def _forged(issuer: Issuer, key: SigningKey) -> list[str]:
    """Each with the signature of another, so that it takes the whole check to see it."""
    tokens = _tokens(issuer, key)
    return [f"{a.rpartition('.')[0]}.{b.rpartition('.')[2]}" for a, b in zip(tokens, reversed(tokens), strict=True)]


def _medians(phases: Sequence[Phase]) -> Phase:
    return Phase(*(statistics.median(column) for column in zip(*phases, strict=True)))


def _print(found: dict[tuple[int, str], Phase], seconds: int, rounds: int) -> None:
    pace = " and ".join(f"{pace}/s to {path}" for path, pace in PACE.items())
    print(f"\na good client, {pace}, {seconds * sum(PACE.values()):,} requests by key in each phase")
    print(f"{rounds} rounds of {seconds} s in turn, medians, ratios to no flood")
    for rate in RATES:
        print(f"flood of {f'{rate:,}/s' if rate else f'as many as {CONNECTIONS} connections take'}")
        print(
            f"  {'':22} {'sent/s':>7} {'p50 ms':>7} {'ratio':>6} {'p99 ms':>7} {'ratio':>6} {'errors':>6} "
            f"{'core':>6} {'us each':>7} {'lookups':>7}"
        )
        calm = found[rate, NO_FLOOD.name]
        for (_, name), phase in ((which, phase) for which, phase in found.items() if which[0] == rate):
            micros = f"{(phase.core - calm.core) / phase.flood * 1e6:.0f}" if phase.flood else "-"
            print(
                f"  {name:22} {phase.flood:7,.0f} {phase.p50:7.2f} {phase.p50 / calm.p50:6.2f} {phase.p99:7.2f} "
                f"{phase.p99 / calm.p99:6.2f} {phase.errors:6.0f} {phase.core:6.0%} {micros:>7} {phase.lookups:7,.0f}"
            )


if __name__ == "__main__":
    main()
