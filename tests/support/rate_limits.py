"""Tenants with rate limits: a catalog of plans, a tenant of each with its window empty, and what
counts for them.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import httpx2
import psycopg

from tenantry.auth.rate_limits import RateLimiter
from tenantry.auth.rate_limits_store import SESSION
from tenantry.common.clock import Clock
from tenantry.db.batcher import BatchMetrics, BatchObserver
from tenantry.domain.errors import RateLimitedError
from tenantry.domain.permissions import RequestPrincipal
from tenantry.domain.plans import Catalog, parse_catalog
from tenantry.domain.rate_limits import NEAR_DATABASE, SLOTS
from tenantry.domain.shares import ShareTerms
from tests.support.patience import patient_database
from tests.support.service import Organization, Service

CATALOG: Final = """
[[plans]]
id = "free"
[plans.limits]
requests_per_minute = 5
[[plans]]
id = "larger"
[plans.limits]
requests_per_minute = 7
[[plans]]
id = "keyed"
[plans.limits]
requests_per_minute = 5
requests_per_minute_per_key = 3
[[plans]]
id = "halved"
[plans.limits]
requests_per_minute = 4
requests_per_minute_per_key = 2
[[plans]]
id = "keys_alone"
[plans.limits]
requests_per_minute_per_key = 2
[[plans]]
id = "wide"
[plans.limits]
requests_per_minute = 1000
[[plans]]
id = "closed"
[plans.limits]
requests_per_minute = 0
[[plans]]
id = "boundless"
"""


PLANS: Final = parse_catalog(CATALOG)


@asynccontextmanager
async def limiter_on(
    conninfo: str,
    clock: Clock,
    catalog: Catalog = PLANS,
    terms: ShareTerms = NEAR_DATABASE,
    observe: BatchObserver = lambda _items, _waited, _took: None,
) -> AsyncIterator[RateLimiter]:
    """A limiter as one process has it; ``observe`` is called after each turn to the database."""
    database = patient_database(
        conninfo, pool_size=1, metrics_of=lambda name: BatchMetrics(name, observe)
    )
    limiter = RateLimiter(database.lane(SESSION), catalog, clock, terms=terms)
    yield limiter
    await limiter.close()
    await database.close()


async def let_through(limiter: RateLimiter, most: int, principal: RequestPrincipal) -> int:
    """How many of so many requests get through, one after the other."""
    for number in range(most):
        try:
            if limiter.count_locally(principal) is None:
                await limiter.count(principal)
        except RateLimitedError:
            return number
    return most


async def set_plan(service: Service, org: Organization, plan: str) -> None:
    """Change the plan, as an event of the provider does."""
    async with await psycopg.AsyncConnection.connect(
        service.conninfo, autocommit=True
    ) as connection:
        await connection.execute(
            "UPDATE tenants SET plan = %s, access = NULL WHERE id = %s", (plan, org.id)
        )


async def tenant_of(service: Service, plan: str = "free") -> Organization:
    """A new tenant of this plan, none of whose requests count any more."""
    org = await service.organization()
    await set_plan(service, org, plan)
    service.clock.advance(seconds=SLOTS)
    return org


def rate_headers(answer: httpx2.Response) -> tuple[str | None, str | None, str | None]:
    """``RateLimit-Policy``, ``RateLimit`` and ``Retry-After``."""
    return (
        answer.headers.get("ratelimit-policy"),
        answer.headers.get("ratelimit"),
        answer.headers.get("retry-after"),
    )
