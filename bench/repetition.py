"""Measure what a client gains by repeating one thing in a request: ``python -m bench.repetition``.

Two parts, each against the service as deployed, in a separate process:

- *stall*: how long an API key's ``whoami`` takes while one client with four connections sends such
  requests;
- *routes*: the processor time of the largest numbers on every route, less that of the same request
  without them.

Sign in is needed for pages, so a development identity provider runs in this process.
"""

import argparse
import asyncio
import contextlib
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import httpx2

from bench import support
from bench.baselines.serving import serving
from bench.ours import PLANS_WITHOUT_LIMITS
from tenantry.common.secret import Secret
from tenantry.db.migrate import migrate
from tenantry_devkit.demo.companion import Companion
from tenantry_devkit.identity_tokens import DemoUser
from tests.support.repetition import Repetition, fill, largest_requests
from tests.support.routes import requests_of_every_kind

HOST: Final = "127.0.0.1"
OPERATOR: Final = "operator-of-the-repetitions-0123456789"
CLIENT_SECRET: Final = "client-secret-of-the-repetitions-0123456789"  # noqa: S105  # of this run only
USER: Final = DemoUser("user0", "Olivia", "olivia@x.example", "t0", "owner")
CONNECTIONS: Final = 4
TARGET_MS: Final = 10.0
SUSPECT_MS: Final = 4.0
AGAIN: Final = 7
_LEFT_OUT: Final = ("TRACE", "OPTIONS", "HEAD")
_NOT_TAKEN: Final = (0, 303, 401, 404, 405)
"""Statuses of an address that does not take the caller's credential, or does not exist for them."""


class Deployed(NamedTuple):
    """The running service, and the credentials of its callers."""

    port: int
    pid: int
    callers: dict[str, str]
    """The header line of each caller's credential; empty without one."""

    def compose(
        self,
        method: str,
        target: str,
        credential: str = "",
        headers: Sequence[tuple[str, str]] = (),
        body: bytes = b"",
    ) -> bytes:
        """Compose a request; a header that repeats something takes the place of the caller's
        own.
        """
        given = {name for name, _ in headers}
        lines = [f"{method} {target} HTTP/1.1", f"Host: {HOST}:{self.port}"]
        if credential and credential.partition(":")[0] not in given:
            lines.append(credential)
        lines += [f"{name}: {value}" for name, value in headers]
        if body or method in ("POST", "PUT", "PATCH"):
            lines.append(f"Content-Length: {len(body)}")
        return "\r\n".join([*lines, "", ""]).encode() + body


class Measured(NamedTuple):
    """The processor time of a request in milliseconds, with and without what it repeats."""

    caller: str
    method: str
    path: str
    repetition: Repetition
    status: int
    answer_bytes: int
    with_ms: float
    without_ms: float

    @property
    def above_ms(self) -> float:
        return self.with_ms - self.without_ms


class Line:
    """A connection that sends prepared requests one after the other, and connects again after it
    was closed.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def send(self, request: bytes) -> tuple[int, int]:
        """Return the status and the size of the answer, its head included."""
        if self._streams is None:
            self._streams = await asyncio.open_connection(HOST, self._port, limit=2**22)
        reader, writer = self._streams
        writer.write(request)
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            size = await self._body(head, reader, is_head=request.startswith(b"HEAD"))
        except (ConnectionError, asyncio.IncompleteReadError):
            self.close()
            return 0, 0
        if b"connection: close" in head.lower() or b"text/event-stream" in head.lower():
            self.close()
        return int(head.split(b" ", 2)[1]), len(head) + size

    @staticmethod
    async def _body(head: bytes, reader: asyncio.StreamReader, *, is_head: bool) -> int:
        fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:] if line)
        if is_head or b"text/event-stream" in fields.get(b"content-type", b""):
            return 0
        if fields.get(b"transfer-encoding") == b"chunked":
            size = 0
            while length := int(await reader.readuntil(b"\r\n"), 16):
                size += len(await reader.readexactly(length + 2))
            await reader.readexactly(2)
            return size
        return len(await reader.readexactly(int(fields.get(b"content-length", b"0"))))

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


def processor_ms(pid: int) -> float:
    """Return the processor time of a process in milliseconds."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e6


async def measure(
    deployed: Deployed, line: Line, request: bytes, times: int
) -> tuple[float, int, int]:
    """Return the least processor time of several equal requests, the status and the size of the
    answer.
    """
    least, status, size = float("inf"), 0, 0
    for _ in range(times):
        before = processor_ms(deployed.pid)
        status, size = await line.send(request)
        least = min(least, processor_ms(deployed.pid) - before)
    return least, status, size


async def measure_one(
    deployed: Deployed,
    line: Line,
    caller: str,
    method: str,
    path: str,
    repetition: Repetition,
    times: int,
) -> Measured:
    """Measure a request with and without what it repeats, in turn."""
    credential = deployed.callers[caller]
    kind = [
        header
        for header in repetition.headers
        if header[0] in ("Content-Type", "Sec-Fetch-Site") and repetition.body
    ]
    plain_body = b"{}" if repetition.body.startswith(b"{") else b"a=b" if repetition.body else b""
    plain = deployed.compose(method, path, credential, kind, plain_body)
    large = deployed.compose(
        method, repetition.target(path), credential, repetition.headers, repetition.body
    )
    without, _, _ = await measure(deployed, line, plain, times)
    with_it, status, size = await measure(deployed, line, large, times)
    return Measured(caller, method, path, repetition, status, size, with_it, without)


async def measure_routes(deployed: Deployed, only: str) -> list[Measured]:
    """Measure every repetition on every route for every caller; look at those again that seem
    slow.
    """
    line = Line(deployed.port)
    found: list[Measured] = []
    for method, template in requests_of_every_kind():
        path = template.replace("/orgs/x", "/orgs/t0")
        if method in _LEFT_OUT or path.endswith("/stream") or only not in f"{method} {path}":
            continue
        for caller in await _callers_of(deployed, line, method, path):
            found += [
                await _measure_well(deployed, line, caller, method, path, one)
                for one in largest_requests(method)
            ]
        print(f"{len(found):6} {method} {path}", file=sys.stderr, flush=True)
    line.close()
    return found


async def _callers_of(deployed: Deployed, line: Line, method: str, path: str) -> list[str]:
    """Return a client without a credential, and the first caller whose credential the address
    takes.
    """
    for caller, credential in deployed.callers.items():
        status, _ = await line.send(deployed.compose(method, path, credential))
        if status not in _NOT_TAKEN:
            return ["anonymous"] if caller == "anonymous" else ["anonymous", caller]
    return ["anonymous"]


async def _measure_well(
    deployed: Deployed, line: Line, caller: str, method: str, path: str, repetition: Repetition
) -> Measured:
    once = await measure_one(deployed, line, caller, method, path, repetition, 1)
    if once.above_ms <= SUSPECT_MS:
        return once
    return await measure_one(deployed, line, caller, method, path, repetition, AGAIN)


async def measure_stall(deployed: Deployed, seconds: float) -> None:
    """Print how long ``whoami`` takes, alone and beside each attack."""
    whoami = deployed.compose("GET", "/api/v1/auth/whoami", deployed.callers["key"])
    for name, request in attacks(deployed).items():
        beside = Line(deployed.port)
        attackers = [
            asyncio.create_task(_attack(deployed.port, request))
            for _ in range(CONNECTIONS if request else 0)
        ]
        taken: list[float] = []
        end = time.perf_counter() + seconds
        await asyncio.sleep(0.2)
        while time.perf_counter() < end:
            began = time.perf_counter()
            status, _ = await beside.send(whoami)
            assert status == 200, status
            taken.append((time.perf_counter() - began) * 1000)
            await asyncio.sleep(0.01)
        for attacker in attackers:
            attacker.cancel()
        answers = await asyncio.gather(*attackers, return_exceptions=True)
        del answers
        line = Line(deployed.port)
        cost, status, size = await measure(deployed, line, request, 3) if request else (0.0, 0, 0)
        line.close()
        beside.close()
        taken.sort()
        median, p99 = statistics.median(taken), taken[int(len(taken) * 0.99)]
        print(
            f"{name:45} whoami median {median:8.1f} ms  p99 {p99:8.1f} ms  most {taken[-1]:8.1f} ms  ({len(taken)})"
            f"   one of these: {cost:6.1f} ms of processor, status {status}, {size} bytes",
            flush=True,
        )


def attacks(deployed: Deployed) -> dict[str, bytes]:
    """The requests that stalled a process, by what they repeat."""
    form = fill("a{}=&", 65_000).encode()
    kind = [
        ("Content-Type", "application/x-www-form-urlencoded"),
        ("Sec-Fetch-Site", "same-origin"),
    ]
    cookies = "".join(f"tenantry_sign_in_{number:x}=a; " for number in range(1300))
    parameters = "&".join(f"a{number:x}=" for number in range(1900))[:8100]
    return {
        "nothing": b"",
        "1,300 cookies at /sign-in/start": deployed.compose(
            "GET", "/sign-in/start", "", [("Cookie", cookies)]
        ),
        "1,900 parameters at /sign-in/callback": deployed.compose(
            "GET", f"/sign-in/callback?{parameters}"
        ),
        "a form of 64 KB at /memberships/x/accept": deployed.compose(
            "POST", "/memberships/x/accept", "", kind, form
        ),
    }


async def _attack(port: int, request: bytes) -> None:
    line = Line(port)
    with contextlib.suppress(asyncio.CancelledError):
        while True:
            await line.send(request)
    line.close()


@contextlib.contextmanager
def deployment(folder: Path) -> Iterator[Deployed]:
    """Run PostgreSQL, an identity provider and the service."""
    with support.cluster(folder / "postgres") as database, contextlib.ExitStack() as stack:
        conninfo = database.create("repetition")
        migrate(conninfo)
        support.load(conninfo)
        [key] = support.create_owner_keys(conninfo, ["t0"])
        companion = stack.enter_context(
            Companion(
                folder,
                users=[USER],
                audience="api",
                client_id="dashboard",
                client_secret=Secret(CLIENT_SECRET),
            )
        )
        port = support.free_port()
        catalog = folder / "plans.toml"
        catalog.write_text(PLANS_WITHOUT_LIMITS)
        variables = {
            "DATABASE_URL": conninfo,
            "PORT": str(port),
            "BASE_URL": f"http://{HOST}:{port}",
            "PROVIDER_WEBHOOK_SECRET": support.SECRET,
            "API_KEY_PEPPER": support.PEPPER,
            "SESSION_SECRET": support.PEPPER,
            "OPERATOR_TOKEN": OPERATOR,
            "TENANTRY_PLANS": str(catalog),
            "TRUSTED_PROXIES": HOST,
            "OIDC_ISSUER": companion.issuer,
            "OIDC_AUDIENCE": "api",
            "OIDC_CLIENT_ID": "dashboard",
            "OIDC_CLIENT_SECRET": CLIENT_SECRET,
        }
        command = [sys.executable, "-m", "tenantry", "serve", "--no-jobs"]
        url = f"http://{HOST}:{port}"
        pid = stack.enter_context(
            serving(command, folder, variables, url=f"{url}/readyz", log=folder / "log")
        )
        callers = {
            "anonymous": "",
            "key": f"Authorization: Bearer {key}",
            "operator": f"Authorization: Bearer {OPERATOR}",
            "user": f"Authorization: Bearer {companion.tokens.access_token(USER, scope='openid')}",
            "session": f"Cookie: {_sign_in(url)}",
        }
        yield Deployed(port, pid, callers)


def _sign_in(url: str) -> str:
    """Return the session cookie of a user who has signed in."""
    with httpx2.Client(base_url=url, trust_env=False, verify=False) as browser:
        browser.get(f"/sign-in/start?hint={USER.sub}", follow_redirects=True).raise_for_status()
        return "; ".join(f"{name}={value}" for name, value in browser.cookies.items())


def report(found: Sequence[Measured]) -> None:
    """Print the most expensive repetitions, and how many exceed the target."""
    for one in sorted(found, key=lambda one: one.above_ms, reverse=True)[:25]:
        print(
            f"{one.above_ms:7.1f} ms above {one.without_ms:5.1f}  {one.caller:8} {one.method} {one.path}: "
            f"{one.repetition.name} -> {one.status}, {one.answer_bytes} bytes"
        )
    over = [one for one in found if one.above_ms > TARGET_MS]
    largest = max(
        (one for one in found if one.caller == "anonymous"), key=lambda one: one.answer_bytes
    )
    print(f"{len(found)} requests, {len(over)} above the target of {TARGET_MS:g} ms")
    print(
        f"largest answer without a credential: {largest.answer_bytes} bytes, {largest.method} {largest.path}, "
        f"{largest.repetition.name}"
    )


def main() -> None:
    """Measure and print; exit with 1 if a request exceeds the target."""
    parser = argparse.ArgumentParser(prog="python -m bench.repetition")
    parser.add_argument(
        "--seconds", type=float, default=5.0, help="for each attack of the first part"
    )
    parser.add_argument("--only", default="", help="the routes whose method and path contain this")
    parser.add_argument("--part", choices=("stall", "routes"), help="one part only")
    given = parser.parse_args()
    found: list[Measured] = []
    with tempfile.TemporaryDirectory() as folder, deployment(Path(folder)) as deployed:
        if given.part != "routes":
            asyncio.run(measure_stall(deployed, given.seconds))
        if given.part != "stall":
            found = asyncio.run(measure_routes(deployed, given.only))
            report(found)
    sys.exit(1 if any(one.above_ms > TARGET_MS for one in found) else 0)


if __name__ == "__main__":
    main()
