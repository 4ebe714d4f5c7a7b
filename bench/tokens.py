"""Two figures about tokens: what the cache of proven tokens saves, and how fast an outage of the provider is told.

Run it from the repository's folder: ``python -m bench.tokens``. The first part verifies tokens for the first
time and again, in turn; the second sends tokens of unknown keys to the service, over HTTP on this machine, while the
identity provider refuses connections, and while it takes them and never answers. Absolute figures are this
machine's; the ratio is what holds.
"""

import asyncio
import contextlib
import itertools
import logging
import socket
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import httpx2
import uvicorn

from tenantry.app import build_app
from tenantry.db.migrate import migrate
from tenantry.integrations.oidc import KeySet, OidcConfig, TokenVerifier
from tenantry.settings import load
from tenantry_devkit.embedded_postgres import EmbeddedServer
from tests.support.issuer import AUDIENCE, DISCOVERY, NOW, Issuer, running_issuer, signing_key

TOKENS: Final = 2000
OUTAGE_SECONDS: Final = 5.0
LIMIT_MS: Final = 50.0
SECRET: Final = "bench-secret-0123456789abcdef0123456789abcdef"  # noqa: S105  # of this run's own service
KEYS: Final = {alg: signing_key(alg, alg.lower()) for alg in ("RS256", "ES256", "EdDSA")}


class Seconds:
    """A monotonic clock that can be put forward, so that no cool-down has to be waited for."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead


def main() -> None:
    """Measure both, print two tables."""
    logging.disable(logging.CRITICAL)
    asyncio.run(_cache())
    print()
    with tempfile.TemporaryDirectory(prefix="tenantry-bench-") as folder:
        server = EmbeddedServer(Path(folder))
        server.start()
        try:
            migrate(server.conninfo)
            asyncio.run(_outages(server.conninfo))
        finally:
            server.stop()


async def _cache() -> None:
    print(f"verifying a token, us; {TOKENS} tokens each, first time and again in turn, medians")
    print(f"{'':8} {'first time':>10} {'again':>8} {'ratio':>6}")
    async with running_issuer(*KEYS.values()) as issuer, httpx2.AsyncClient() as client:
        config = OidcConfig(issuer=issuer.url, audience=AUDIENCE)
        keys = KeySet(config, client)
        await keys.refresh()
        for alg in KEYS:
            verifier = TokenVerifier(config, keys, clock=lambda: NOW)
            tokens = _tokens(issuer, alg)
            await verifier.verify(tokens[0])
            took = [
                (await _timed(verifier, token), await _timed(verifier, known))
                for known, token in itertools.pairwise(tokens)
            ]
            first, again = (statistics.median(column) for column in zip(*took, strict=True))
            print(f"{alg:8} {first:10.1f} {again:8.1f} {first / again:6.1f}")


def _tokens(issuer: Issuer, alg: str) -> list[str]:
    said = {"org_id": "acme", "org_role": "admin", "scope": "openid projects:read", "client_id": "spa"}
    return [issuer.mint(KEYS[alg], claims={**said, "jti": str(number)}) for number in range(TOKENS)]


async def _timed(verifier: TokenVerifier, token: str) -> float:
    begun = time.perf_counter()
    await verifier.verify(token)
    return (time.perf_counter() - begun) * 1e6


async def _outages(conninfo: str) -> None:
    print(f"tokens of unknown keys, ms until the 503; one client, {OUTAGE_SECONDS:.0f} s each; a cool-down every 0.2 s")
    print(f"{'provider':10} {'requests':>8} {'fetches':>8} {'median':>7} {'p99':>7} {'slowest':>8} {'finds out':>10}")
    for mode in ("refuses", "hangs"):
        async with running_issuer(KEYS["RS256"]) as issuer:
            seconds = Seconds()
            async with _served(conninfo, issuer, seconds) as client:
                await _fail(issuer, mode)
                seconds.ahead += 30
                # The first such request after the last good fetch is the one that finds the outage out.
                finds_out = await _refused(client, issuer)
                fetches = issuer.fetches[DISCOVERY]
                took = await _flood(client, issuer, seconds)
                fetched = issuer.fetches[DISCOVERY] - fetches if mode == "hangs" else None
        cuts = statistics.quantiles(took, n=100)
        print(
            f"{mode:10} {len(took):8} {'-' if fetched is None else fetched:>8} {cuts[49]:7.2f} {cuts[98]:7.2f} "
            f"{max(took):8.2f} {finds_out:10.2f}"
        )
        assert max(took) < LIMIT_MS, f"slower than {LIMIT_MS} ms"


async def _fail(issuer: Issuer, mode: str) -> None:
    if mode == "hangs":
        issuer.open.clear()
    else:
        await issuer.stop()


async def _flood(client: httpx2.AsyncClient, issuer: Issuer, seconds: Seconds) -> list[float]:
    took: list[float] = []
    begun = time.monotonic()
    while time.monotonic() - begun < OUTAGE_SECONDS:
        seconds.ahead = 30 + (time.monotonic() - begun) * 150
        took.append(await _refused(client, issuer, len(took)))
    return took


async def _refused(client: httpx2.AsyncClient, issuer: Issuer, number: int = 0) -> float:
    token = issuer.mint(header={"kid": f"unknown-{number}"})
    begun = time.perf_counter()
    answer = await client.get("/api/v1/projects", headers={"Authorization": f"Bearer {token}"})
    took = (time.perf_counter() - begun) * 1000
    assert (answer.status_code, answer.json()["code"]) == (503, "auth_unavailable"), answer.text
    assert answer.headers["retry-after"]
    return took


@contextlib.asynccontextmanager
async def _served(conninfo: str, issuer: Issuer, seconds: Seconds) -> AsyncIterator[httpx2.AsyncClient]:
    """The service on a port of this machine, in this process, so that its clock can be put forward."""
    settings = load(
        {
            "DATABASE_URL": conninfo,
            "PROVIDER_WEBHOOK_SECRET": SECRET,
            "API_KEY_PEPPER": SECRET,
            "SESSION_SECRET": SECRET,
            "RUN_JOBS": "false",
            "OIDC_ISSUER": issuer.url,
            "OIDC_AUDIENCE": AUDIENCE,
        }
    )
    app = build_app(settings, conninfo, monotonic=seconds)
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical", lifespan="on"))
    # asyncio turns Nagle's algorithm off, which costs 40 ms a request, only where the protocol is named.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        port = listening.getsockname()[1]
        serving = asyncio.create_task(server.serve([listening]))
        try:
            async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=10) as client:
                assert (await client.get("/readyz")).status_code == httpx2.codes.OK
                yield client
        finally:
            server.should_exit = True
            await serving


if __name__ == "__main__":
    main()
