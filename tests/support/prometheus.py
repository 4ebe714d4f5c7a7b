"""A running Prometheus that scrapes one service."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx2

from tests.support.ports import free_port
from tests.support.proxies import start
from tests.support.required import debian_program
from tests.support.serving import LOOPBACK

JOB: Final = "tenantry"
_READY: Final = "Server is ready to receive web requests."
_PATIENCE: Final = 60
_CONFIGURATION: Final = """\
global:
  scrape_interval: 1s
  scrape_timeout: 1s
scrape_configs:
  - job_name: {job}
    static_configs:
      - targets: ["{target}"]
"""


class Sample(NamedTuple):
    """A series of an answer: its labels, and its value now."""

    labels: Mapping[str, str]
    value: float


class Prometheus:
    def __init__(self, client: httpx2.AsyncClient) -> None:
        self._client = client
        self._moment: float | None = None

    async def query(self, expression: str) -> list[Sample]:
        """Return what an expression gives at the last scrape that `scraped` waited for; fail if it
        is not accepted.
        """
        return await self._query(expression, self._moment)

    async def scraped(self, times: int) -> None:
        """Return once it has scraped the service so many times since now; scrapes that fail do not
        count.
        """
        good = f'sum_over_time(up{{job="{JOB}"}}[1h])'
        before = sum(sample.value for sample in await self._query(good, None))
        async with asyncio.timeout(_PATIENCE):
            while True:
                last = await self._query(
                    f'timestamp(up{{job="{JOB}"}} == 1) and {good} >= {before + times}', None
                )
                if last:
                    self._moment = last[0].value
                    return
                await asyncio.sleep(0.05)  # Prometheus gives no notice

    async def _query(self, expression: str, moment: float | None) -> list[Sample]:
        params = (
            {"query": expression} if moment is None else {"query": expression, "time": str(moment)}
        )
        answer = await self._client.get("/api/v1/query", params=params)
        result: dict[str, Any] = answer.json()
        assert result["status"] == "success", result
        return [
            Sample(each["metric"], float(each["value"][1])) for each in result["data"]["result"]
        ]


@asynccontextmanager
async def running_prometheus(folder: Path, target: str) -> AsyncIterator[Prometheus]:
    """Debian's Prometheus, with its data in this folder; ``target`` is the host and port of the
    service.

    It is required (`tests.support.required`).
    """
    program, address = debian_program("prometheus"), f"{LOOPBACK}:{free_port()}"
    (folder / "prometheus.yml").write_text(_CONFIGURATION.format(job=JOB, target=target))
    arguments = (
        "--config.file=prometheus.yml",
        "--storage.tsdb.path=data",
        f"--web.listen-address={address}",
    )
    running = await start(program, *arguments, folder=folder)
    try:
        await running.until(_READY, "err")
        async with httpx2.AsyncClient(base_url=f"http://{address}", trust_env=False) as client:
            yield Prometheus(client)
    finally:
        running.kill()
        await running.wait()
