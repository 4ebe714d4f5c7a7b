"""One quick figure for each hot path: the service, and the same route with its database calls stubbed out.

Needs Debian's ``wrk``. PostgreSQL comes from the wheel with its usual durability (fsync and synchronous_commit on).
Everything runs on one machine, so the absolute figures are this machine's; the ratios are what holds.
"""

import asyncio
import contextlib
import hmac
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Final, NamedTuple

import psycopg

from bench import support
from bench.support import FOLDER, PROJECTS, SECRET, TENANTS

EVENTS: Final = 120_000
CONNECTIONS: Final = 64
SECONDS: Final = 4
ROUNDS: Final = 3


class Round(NamedTuple):
    """One run of wrk."""

    per_second: float
    p50_ms: float
    p99_ms: float


def main() -> None:
    """Load the data, start both servers, measure in turn, print a table."""
    support.require_wrk()
    with tempfile.TemporaryDirectory(prefix="tenantry-bench-") as folder, support.database(Path(folder)) as conninfo:
        keys = support.load(conninfo)
        key_file = Path(folder) / "keys"
        key_file.write_text("\n".join(keys))
        service, stub = support.free_port(), support.free_port()
        with support.service(service, conninfo), _stub(stub):
            _check(service, keys)
            rounds: dict[str, list[Round]] = {}
            for number in range(ROUNDS):
                for name, port in (("service", service), ("stub", stub)):
                    events = _sign_events(Path(folder) / "events", f"{name}{number}", number)
                    rounds.setdefault(f"webhook {name}", []).append(_wrk(port, "events.lua", events))
                    rounds.setdefault(f"list {name}", []).append(_wrk(port, "keys.lua", {"BENCH_KEYS": str(key_file)}))
            stored = _count_events(conninfo)
    _print(rounds, stored)


def _sign_events(file: Path, run: str, number: int) -> dict[str, str]:
    """Write distinct events for one run, newer than those of the run before; events.lua composes the same bodies."""
    stamp, filler = int(time.time()), "x" * 3300
    first = stamp - (ROUNDS - number) * EVENTS
    with file.open("w") as out:
        for position in range(EVENTS):
            tenant, event_id, second = position % TENANTS, f"evt_{run}_{position:08d}", first + position
            body = (
                f'{{"id":"{event_id}","object":"event","type":"customer.subscription.updated","created":{second}'
                f',"livemode":true,"api_version":"2025-03-31.basil","data":{{"object":{{"id":"sub_{tenant}'
                f'","object":"subscription","status":"active","customer":"cus_{tenant}'
                f'","cancel_at_period_end":false,"metadata":{{"orgId":"t{tenant}'
                f'"}},"items":{{"object":"list","data":[{{"id":"si_1","price":{{"id":"price_pro"}},'
                f'"current_period_end":1900000000}}]}},"description":"{filler}"}}}}}}'
            )
            signature = hmac.digest(SECRET.encode(), f"{stamp}.{body}".encode(), "sha256").hex()
            out.write(f"{tenant} {event_id} {second} {signature}\n")
    return {"BENCH_EVENTS": str(file), "BENCH_TIMESTAMP": str(stamp)}


def _wrk(port: int, script: str, variables: dict[str, str]) -> Round:
    done = subprocess.run(
        ["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{SECONDS}", "-s", str(FOLDER / script), f"http://127.0.0.1:{port}"],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    if "Non-2xx" in done.stdout:
        sys.exit(f"bench: not every answer was 200:\n{done.stdout}")
    requests, micros, p50, p99 = map(int, done.stdout.split("RESULT ")[1].split())
    return Round(requests / (micros / 1e6), p50 / 1000, p99 / 1000)


def _stub(port: int) -> contextlib.AbstractContextManager[int]:
    return support.process(["bench.stub_server", str(port), SECRET], port)


def _check(port: int, keys: list[str]) -> None:
    """The server must really do the work before it is measured."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/api/v1/projects", headers={"Authorization": f"Bearer {keys[0]}"}
    )
    with urllib.request.urlopen(request) as answer:
        assert answer.read().count(b'"id"') == PROJECTS
    forged = urllib.request.Request(
        f"http://127.0.0.1:{port}/api/v1/webhooks/payment-provider",
        data=b"{}",
        headers={"Provider-Signature": f"t={int(time.time())},v1={'0' * 64}"},
    )
    with contextlib.suppress(urllib.error.HTTPError):
        urllib.request.urlopen(forged).close()
        sys.exit("bench: a forged event was accepted")


def _count_events(conninfo: str) -> int:
    async def count() -> int:
        async with await psycopg.AsyncConnection.connect(conninfo) as connection:
            row = await (
                await connection.execute(
                    "SELECT count(*) FROM billing_events WHERE outcome = 'applied' OR outcome = 'no_change'"
                )
            ).fetchone()
            return int(row[0]) if row else 0

    return asyncio.run(count())


def _print(rounds: dict[str, list[Round]], stored: int) -> None:
    print(
        f"{CONNECTIONS} connections, one process, {ROUNDS} rounds of {SECONDS} s in turn, medians; PostgreSQL durable"
    )
    print(f"{'route':10} {'service/s':>10} {'stub/s':>10} {'ratio':>6} {'p50 ms':>8} {'p99 ms':>8}")
    for route in ("webhook", "list"):
        service, stub = rounds[f"{route} service"], rounds[f"{route} stub"]
        rate, limit = (statistics.median(r.per_second for r in found) for found in (service, stub))
        p50, p99 = statistics.median(r.p50_ms for r in service), statistics.median(r.p99_ms for r in service)
        print(f"{route:10} {rate:10.0f} {limit:10.0f} {rate / limit:6.2f} {p50:8.2f} {p99:8.2f}")
    print(f"events in the ledger: {stored}")


if __name__ == "__main__":
    main()
