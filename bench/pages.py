"""How long the dashboard's pages take for a tenant that has very much of everything, and how large they are.

Run it from the repository's folder: ``python -m bench.pages``. One tenant gets a million billing events, a million
entries of the audit trail, 500,000 projects, 10,000 API keys and 5,000 members; its owner signs in and opens each page
often enough that the database has its plans. Times are those that a client in the same process sees: the server's and
the client's work together, so a little more than the server's alone. "over" marks a median or a size that is more than
a page may have. PostgreSQL comes from the wheel.
"""

import asyncio
import logging
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import urlencode

import httpx2
import psycopg

from bench import support
from tenantry.common.encoding import Position, encode
from tests.support.dashboard import ACME, AT_ACME, OLIVIA, running_dashboard

EVENTS: Final = 1_000_000
ENTRIES: Final = 1_000_000
PROJECTS: Final = 500_000
KEYS: Final = 10_000
MEMBERS: Final = 5000
ROUNDS: Final = 30
LIMIT_MS: Final = 20.0
LIMIT_OF_REPLAY_MS: Final = 1000.0
LIMIT_BYTES: Final = 50_000
APART: Final = 60
"""Seconds between two events."""

# The first tenth of the ledger, and nothing after it, has events that came late; a payment fails now and then.
_LEDGER: Final = """
INSERT INTO billing_events (
    id, arrival, type, created, received_at, livemode, api_version, org_id, customer_id, subscription_id,
    subscription_created, status, price_id, current_period_end, cancel_at_period_end, invoice_id, tenant_id, outcome,
    reason, before, after)
SELECT 'evt_' || lpad(n::text, 24, '0'), n, kind, second, to_timestamp(second + 1), true, '2025-03-31', %(tenant)s,
       'cus_acme', 'sub_1', %(first)s, CASE WHEN is_update THEN 'active' END, CASE WHEN is_update THEN 'price_pro' END,
       CASE WHEN is_update THEN second + 30 * 86400 END, CASE WHEN is_update THEN false END,
       CASE WHEN NOT is_update THEN 'in_' || n END, %(tenant)s, outcome,
       'The subscription is active: price price_pro means plan pro.', state, state
  FROM generate_series(1, %(events)s) AS n,
       LATERAL (SELECT %(first)s + n * %(apart)s AS second,
                       CASE WHEN n %% 1000 = 7 THEN 'invoice.payment_failed' WHEN n %% 3 = 0 THEN
                       'invoice.payment_succeeded' ELSE 'customer.subscription.updated' END AS kind,
                       CASE WHEN n < %(events)s / 10 AND n %% 1000 = 5 THEN 'late' WHEN n %% 3 = 1 THEN 'applied'
                       ELSE 'no_change' END AS outcome) AS drawn,
       LATERAL (SELECT kind = 'customer.subscription.updated' AS is_update,
                       json_build_object('plan', 'pro', 'subscription_status', 'active', 'current_period_end',
                       second + 30 * 86400, 'cancel_at_period_end', false, 'provider_status', 'active',
                       'subscription_id', 'sub_1', 'subscription_created', %(first)s) AS state) AS of_kind
"""
_TENANT: Final = """
UPDATE tenants SET plan = 'business', subscription_status = 'past_due', tip_created = %(first)s + %(events)s * %(apart)s
 WHERE id = %(tenant)s
"""
_PROJECTS: Final = """
INSERT INTO projects (id, org_id, mode, name, description, created_at, updated_at)
SELECT 'proj_' || md5(n::text), %(tenant)s, 'live', 'Project ' || n, 'What it is for', at, at
  FROM generate_series(1, %(projects)s) AS n, LATERAL (SELECT now() - n * interval '1 minute' AS at) AS made
"""
# Nine of ten keys have ended; the oldest two of each state are all that there are of a kind.
_KEYS: Final = """
INSERT INTO api_keys (id, org_id, digest, name, scopes, access_level, mode, expires_at, start, last4, created_at,
                      created_by, last_used_at, revoked_at)
SELECT 'key_' || md5(n::text), %(tenant)s, sha256(n::text::bytea), 'Key ' || n, '{projects:read}', 'SCOPED', 'live',
       CASE WHEN n %% 10 = 5 THEN now() + n * interval '1 hour' WHEN n > %(keys)s - 2 THEN now() - interval '1 day' END,
       'svc_live_ABCD', 'wxyz', now() - n * interval '1 hour', 'olivia', now() - n * interval '1 minute',
       CASE WHEN n %% 10 <> 5 AND n <= %(keys)s - 2 THEN now() - interval '1 hour' END
  FROM generate_series(1, %(keys)s) AS n
"""
_MEMBERS: Final = """
INSERT INTO memberships (id, issuer, subject, tenant_id, role, created_at, removed_at)
SELECT 'mem_' || md5(n::text), issuer, 'user_' || n, %(tenant)s, CASE WHEN n > %(members)s - 2 THEN 'admin'
       ELSE 'member' END, now() - n * interval '1 hour', CASE WHEN n %% 2 = 0 THEN now() END
  FROM generate_series(1, %(members)s) AS n, (SELECT issuer FROM memberships WHERE subject = %(owner)s LIMIT 1) AS of
"""
_ENTRIES: Final = """
INSERT INTO audit_events (id, org_id, at, action, actor_kind, actor_id, address, request_id, target_id, before, after)
SELECT 'aud_' || lpad(n::text, 32, '0'), %(tenant)s, now() - n * interval '1 minute',
       CASE WHEN n > %(entries)s - 3 THEN 'tenant.transferred' ELSE 'api_key.updated' END,
       'user', CASE WHEN n %% 100 = 0 THEN 'adam' ELSE 'olivia' END, '192.0.2.7', md5(n::text),
       'key_' || md5((n %% %(keys)s)::text), '{"name": "before"}', '{"name": "after"}'
  FROM generate_series(1, %(entries)s) AS n
"""


def main() -> None:
    """Fill, measure, print a table."""
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory(prefix="tenantry-bench-") as folder, support.database(Path(folder)) as conninfo:
        asyncio.run(_measure(conninfo, Path(folder)))


async def _measure(conninfo: str, folder: Path) -> None:
    async with running_dashboard(conninfo, folder) as dashboard:
        fill(conninfo)
        person = await dashboard.sign_in(OLIVIA)
        much = {"events": EVENTS, "entries": ENTRIES, "projects": PROJECTS, "keys": KEYS, "members": MEMBERS}
        print(", ".join(f"{number:,} {what}" for what, number in much.items()))
        print(f"{'page':60} {'least ms':>8} {'median':>7} {'p90':>7} {'KB':>6}")
        for path in paths():
            await _show(path, partial(person.get, AT_ACME + path))
        form = (await person.open(f"{AT_ACME}/events/replay")).form().fields
        await _show(
            "POST /events/replay",
            partial(person.client.post, f"{AT_ACME}/events/replay", data=form),
            LIMIT_OF_REPLAY_MS,
        )


def fill(conninfo: str) -> None:
    """Give the tenant acme all that."""
    values = {
        "tenant": ACME, "owner": OLIVIA.sub, "first": int(time.time()) - EVENTS * APART, "apart": APART,
        "events": EVENTS, "projects": PROJECTS, "keys": KEYS, "members": MEMBERS, "entries": ENTRIES,
    }  # fmt: skip
    with psycopg.connect(conninfo, autocommit=True) as connection:
        for statement in (_LEDGER, _TENANT, _PROJECTS, _KEYS, _MEMBERS, _ENTRIES):
            connection.execute(statement, values)
        connection.execute("VACUUM ANALYZE")


def paths() -> Sequence[str]:
    """The pages; filters ask for what there is much of, for what is far back, and for what there is none of."""
    now = int(time.time())
    middle = {
        "/events": Position(now - EVENTS * APART // 2, "0"),
        "/projects": Position((now - PROJECTS // 2 * 60) * 10**6, "proj_"),
        "/settings/audit": Position((now - ENTRIES // 2 * 60) * 10**6, "aud_"),
    }
    filtered: dict[str, list[dict[str, str]]] = {
        "/": [{}],
        "/billing": [{}],
        "/projects": [{}],
        "/events": [
            {},
            *({"outcome": outcome} for outcome in ("applied", "late", "invalid")),
            *({"type": kind} for kind in ("invoice.payment_failed", "customer.subscription.deleted")),
            {"type": "invoice.payment_failed", "outcome": "late"},
        ],
        "/settings/api-keys": [{}, *({"status": status} for status in ("active", "expired", "revoked"))],
        "/settings/members": [
            {}, {"role": "admin"}, {"role": "owner", "status": "removed"}, {"status": "removed"},
            {"userId": "user_4001"}, {"userId": "nobody"},
        ],
        "/settings/audit": [
            {}, {"action": "tenant.transferred"}, {"action": "member.added"}, {"actorId": "adam"},
            {"actorId": "adam", "action": "member.added"}, {"targetId": "key_none"}, {"until": "2025-12-01"},
            {"since": "2026-01-01", "action": "member.added"},
        ],
    }  # fmt: skip
    return [
        path + (f"?{urlencode(query)}" if query else "")
        for path, queries in filtered.items()
        for query in (*queries, *([{"cursor": encode(middle[path])}] if path in middle else []))
    ]


async def _show(what: str, ask: Callable[[], Awaitable[httpx2.Response]], limit: float = LIMIT_MS) -> None:
    took, size = [], 0
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        answer = await ask()
        took.append((time.perf_counter() - begun) * 1000)
        assert answer.status_code == 200, answer.text
        size = len(answer.content)
    median, p90 = statistics.median(took), statistics.quantiles(took, n=10)[8]
    over = "over" if median > limit or size > LIMIT_BYTES else ""
    print(f"{what:60} {min(took):8.1f} {median:7.1f} {p90:7.1f} {size / 1000:6.1f} {over}", flush=True)


if __name__ == "__main__":
    main()
