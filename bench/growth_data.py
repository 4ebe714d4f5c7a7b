"""Worlds of any size, made inside PostgreSQL: tenants, keys, projects, a ledger of a year, raw bodies.

Nothing that belongs together lies together, as in a service that has grown for a year: a tenant's keys, projects and
events are spread over their tables, because other tenants' came in between. No tenant has more events than another:
for caches there is no worse.
"""

import contextlib
import hashlib
import random
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import msgspec
import psycopg
from psycopg import sql

from bench import events
from bench.support import PEPPER, PROJECTS
from tenantry.billing.bodies_store import pack
from tenantry.domain import api_keys
from tenantry.domain.access import Mode

LEDGER: Final = "billing_events"
BODIES: Final = "billing_bodies"
YEAR: Final = 365 * 24 * 3600
KNOWN_KEYS: Final = 200_000
"""So many keys, drawn from all, have a secret that is known; of the others the digest is of nothing."""
_BEFORE_INDEXES: Final = 0.9
_CHUNK: Final = 10_000
_HOUR: Final = 3600
_SAMPLES: Final = 1000
_PARKED_SHARE: Final = 0.05
"""The part of a year in which events may still be parked: the rest has been let go."""
_BARE: Final = ("customers", "memberships", "api_keys", "projects", LEDGER)
"""Tables whose indexes are made once they are full; no other table refers to them."""


class Size(msgspec.Struct, frozen=True):
    """How much there is in a world."""

    tenants: int
    keys: int
    ledger: int
    projects: int
    """Of tenants with `PROJECTS` each, spread over all; keys whose secret is known are of these."""
    scattered_ids: bool = False
    """Event ids that sort at random; else they sort by time, as the payment provider's do."""


def event_id(name: str, created: int, *, scattered: bool) -> str:
    """The id of an event: as long as the provider's, and like them with the time in front unless ``scattered``."""
    digits = hashlib.md5(name.encode(), usedforsecurity=False).hexdigest()
    return f"evt_1{digits[:23]}" if scattered else f"evt_1{created:08x}{digits[:15]}"


def known_keys(size: Size) -> list[int]:
    """The numbers of the keys whose secrets are known: of tenants with projects, drawn from all such keys."""
    step = _holder_step(size)
    candidates = [number for number in range(size.keys) if number % size.tenants % step == 0]
    return random.Random(1).sample(candidates, min(KNOWN_KEYS, len(candidates)))  # noqa: S311  # the same each time


def secret_of(number: int) -> str:
    """The secret of a key."""
    return api_keys.compose_secret(Mode.LIVE, hashlib.sha256(b"%d" % number).digest())


def fill(conninfo: str, size: Size) -> dict[str, float]:
    """Fill an empty, migrated database; returns the seconds that each step took.

    The indexes are made when nine tenths are in; the rest comes in through them, so that they are as loosely filled
    as those that have grown. The ledger is filled beside the rest.
    """
    seconds: dict[str, float] = {}
    with ThreadPoolExecutor(2) as pool:
        rest = [table for table in _BARE if table != LEDGER]
        for filling in [pool.submit(_fill, conninfo, size, tables, seconds) for tables in ([LEDGER], rest)]:
            filling.result()
    return seconds


def _fill(conninfo: str, size: Size, tables: Sequence[str], seconds: dict[str, float]) -> None:
    with psycopg.connect(conninfo) as connection:
        connection.execute("SET session_replication_role = replica")  # no look-up of what is referred to, row by row
        connection.execute("SET maintenance_work_mem = '1GB'")
        connection.execute("SET work_mem = '256MB'")
        make_turns(connection, size)
        if LEDGER not in tables:
            with _timed(seconds, "tenants"):
                _run(connection, _TENANTS, _values(size))
            _copy_known(connection, known_keys(size))
        for table in tables:
            rows = _rows_of(table, size)
            most = int(rows * _BEFORE_INDEXES)
            with _timed(seconds, table), _bare(connection, table):
                _fill_table(connection, table, size, range(most))
            with _timed(seconds, f"{table}, the last tenth"):
                _fill_table(connection, table, size, range(most, rows))
        if LEDGER in tables:
            connection.execute("SELECT setval('billing_arrivals', %s)", (size.ledger + 1,))
        connection.commit()
        connection.autocommit = True
        for table in tables if LEDGER in tables else ("tenants", *tables):
            _vacuum(connection, table, seconds)


def go_on(conninfo: str, size: Size) -> float:
    """Give every tenant one more event, as the service would, but many at a time; returns the seconds that it took.

    So every page that events change has been changed since the last checkpoint.
    """
    begun = time.perf_counter()
    with psycopg.connect(conninfo) as connection:
        make_turns(connection, size)
        ((newest, number),) = connection.execute(
            "SELECT coalesce(max(tip_created), %s), setval('billing_arrivals', nextval('billing_arrivals') + %s) "
            "FROM tenants", (_end(), size.tenants),
        ).fetchall()  # fmt: skip
        connection.commit()
        for start in range(0, size.tenants, _CHUNK):
            places = range(start, min(start + _CHUNK, size.tenants))
            insert_events(connection, size, places, base=number - size.tenants, first=newest + 1, span=_HOUR)
            _run(connection, _ADVANCE, {**_values(size), **_between(places), "first": newest + 1, "span": _HOUR})
            connection.commit()
        connection.autocommit = True
        connection.execute("VACUUM tenants")
    return round(time.perf_counter() - begun, 2)


def fill_bodies(conninfo: str, size: Size, number: int) -> dict[str, float]:
    """Give the newest ``number`` events of the loaded ledger a raw body, and no other; returns the seconds by step."""
    seconds: dict[str, float] = {}
    samples = [(place, pack(events.compose(place, f"evt_{place:025}", place))) for place in range(_SAMPLES)]
    with psycopg.connect(conninfo) as connection:
        connection.execute("CREATE TEMPORARY TABLE samples (number int PRIMARY KEY, body bytea)")
        connection.cursor().executemany("INSERT INTO samples VALUES (%s, %s)", samples)
        with _timed(seconds, BODIES), _bare(connection, BODIES):
            _run(connection, _BODIES, {"number": number, "ledger": size.ledger, "samples": _SAMPLES})
        connection.commit()
        connection.autocommit = True
        _vacuum(connection, BODIES, seconds)
    return seconds


def _vacuum(connection: psycopg.Connection[Any], table: str, seconds: dict[str, float]) -> None:
    with _timed(seconds, f"vacuum {table}"):
        connection.execute(sql.SQL("VACUUM (ANALYZE) {}").format(sql.Identifier(table)))


def _end() -> int:
    """The second after the newest event of the loaded ledger."""
    return int(time.time()) - 2 * 24 * 3600


def _values(size: Size) -> dict[str, Any]:
    """What the statements are filled in with."""
    span = YEAR * size.tenants // max(1, size.ledger)
    return {
        "tenants": size.tenants, "keys": size.keys, "ledger": size.ledger, "projects": size.projects,
        "holders": -(-size.tenants // _holder_step(size)), "step": _holder_step(size), "begin": _end() - YEAR,
        "year": YEAR, "span": span, "parked_from": int(size.ledger * (1 - _PARKED_SHARE)), "begun": events.BEGIN,
        "price": events.PRICE, "pepper": api_keys.Pepper(PEPPER.encode()).id,
    }  # fmt: skip


def _holder_step(size: Size) -> int:
    """Every tenant whose number is a multiple of this has projects."""
    return max(1, size.tenants * PROJECTS // max(1, size.projects))


def _rows_of(table: str, size: Size) -> int:
    holders = -(-size.tenants // _holder_step(size))
    rows = {"api_keys": size.keys, "projects": holders * PROJECTS, LEDGER: size.ledger}
    return rows.get(table, size.tenants)


def _fill_table(connection: psycopg.Connection[Any], table: str, size: Size, rows: range) -> None:
    values = _values(size)
    if table != LEDGER:
        _run(connection, _ROWS[table], {**values, **_between(rows)})
        return
    position = rows.start
    while position < rows.stop:  # round by round, the first and the last perhaps not whole
        base = position // size.tenants * size.tenants
        until = min(rows.stop, base + size.tenants)
        first = values["begin"] + base // size.tenants * values["span"]
        insert_events(
            connection, size, range(position - base, until - base), base=base, first=first, span=values["span"]
        )
        position = until


def insert_events(
    connection: psycopg.Connection[Any], size: Size, places: range, *, base: int, first: int, span: int
) -> None:
    """Put one event of each of these tenants into the ledger, spread over ``span`` seconds from ``first``.

    The tenants are named by their places in the order of chance that `make_turns` has made for the connection; the
    events are numbered from ``base``.
    """
    statement = _LEDGER.replace("<id>", _SCATTERED_ID if size.scattered_ids else _ORDERED_ID)
    _run(connection, statement, {**_values(size), **_between(places), "base": base, "first": first, "span": span})


def _between(places: range) -> dict[str, int]:
    return {"from": places.start, "until": places.stop}


def make_turns(connection: psycopg.Connection[Any], size: Size) -> None:
    """Put the tenants into an order of chance, in a table of this connection's own."""
    _run(connection, _TURNS, _values(size))
    connection.execute("CREATE UNIQUE INDEX ON turns (place)")
    connection.execute("ANALYZE turns")


def _copy_known(connection: psycopg.Connection[Any], numbers: Sequence[int]) -> None:
    connection.execute("CREATE TEMP TABLE known (number bigint PRIMARY KEY, digest bytea, start text, last4 text)")
    with connection.cursor().copy("COPY known FROM STDIN") as copy:
        for number in numbers:
            secret = secret_of(number)
            digest = api_keys.digest(secret.encode(), PEPPER.encode())
            copy.write_row((number, digest, *api_keys.shown_parts(secret)))
    connection.execute("ANALYZE known")


def _run(connection: psycopg.Connection[Any], statement: str, values: dict[str, Any]) -> None:
    connection.execute(sql.SQL(statement).format(**{name: sql.Literal(value) for name, value in values.items()}))


@contextlib.contextmanager
def _bare(connection: psycopg.Connection[Any], table: str) -> Iterator[None]:
    """Take a table's indexes and keys away meanwhile, and empty it: then loading it is not written to the log."""
    keys = connection.execute(
        "SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint "
        "WHERE conrelid = %s::regclass AND contype IN ('p', 'u')",
        (table,),
    ).fetchall()
    name = sql.Identifier(table)
    connection.execute(sql.SQL("TRUNCATE {}").format(name))
    for key, _ in keys:
        connection.execute(sql.SQL("ALTER TABLE {} DROP CONSTRAINT {}").format(name, sql.Identifier(key)))
    indexes = connection.execute(
        "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = current_schema() AND tablename = %s", (table,)
    ).fetchall()
    for index, _ in indexes:
        connection.execute(sql.SQL("DROP INDEX {}").format(sql.Identifier(index)))
    yield
    for key, definition in keys:
        connection.execute(
            sql.SQL("ALTER TABLE {} ADD CONSTRAINT {} {}").format(name, sql.Identifier(key), sql.SQL(definition))
        )
    for _, definition in indexes:
        connection.execute(definition)


@contextlib.contextmanager
def _timed(seconds: dict[str, float], step: str) -> Iterator[None]:
    begun = time.perf_counter()
    yield
    seconds[step] = round(time.perf_counter() - begun, 2)


_STATE: Final = """
replace(replace(jsonb_build_object('plan', 'pro', 'subscription_status', 'active', 'provider_status', 'active',
                                   'cancel_at_period_end', false, 'current_period_end', 1900000000,
                                   'subscription_id', 'sub_' || n, 'subscription_created', {begun})::text,
                ': ', ':'), ', ', ',')::json
"""
# The ledger goes round by round: in each, every tenant has one event, in an order of chance.
_TURNS: Final = f"""
CREATE TEMP TABLE turns AS
SELECT row_number() OVER (ORDER BY hashint8(n)) - 1 AS place, 't' || n AS tenant_id, 'cus_' || n AS customer_id,
       'sub_' || n AS subscription_id, n, {_STATE} AS state
  FROM generate_series(0, {{tenants}} - 1) AS n
 ORDER BY 1
"""  # noqa: S608  # our own text
_TENANTS: Final = """
INSERT INTO tenants (id, name, owner_id, owner_email, stripe_customer_id, created_at, updated_at, plan,
       subscription_status, current_period_end, provider_status, subscription_id, subscription_created, tip_created,
       tip_state)
SELECT 't' || n, 'Tenant ' || n, 'user' || n, n || '@example.com', 'cus_' || n, now() - interval '1 year', now(),
       CASE WHEN known THEN 'pro' ELSE 'free' END, CASE WHEN known THEN 'active' ELSE 'none' END,
       CASE WHEN known THEN 1900000000 END, CASE WHEN known THEN 'active' END,
       CASE WHEN known THEN 'sub_' || n END, CASE WHEN known THEN {begun} END,
       CASE WHEN known THEN {begin} + ({ledger} - 1 - place) / {tenants} * {span}
                            + place * {span}::bigint / {tenants} END,
       CASE WHEN known THEN state END
  FROM (SELECT *, place < {ledger} AS known FROM turns) AS turns
 ORDER BY n
"""
_ADVANCE: Final = """
UPDATE tenants t
   SET tip_created = {first} + place * {span}::bigint / {tenants}, tip_state = state, current_period_end = 1900000000
  FROM turns
 WHERE t.id = turns.tenant_id AND place >= {from} AND place < {until}
"""
_ORDERED_ID: Final = "lpad(to_hex(created), 8, '0') || left(md5(number::text), 15)"
_SCATTERED_ID: Final = "left(md5(number::text), 23)"
# Of ten events seven are renewals and the like, one is of a payment, one of a failed one, one of a type that says
# nothing; some come late, and a few of the last days still wait for their tenant.
_LEDGER: Final = """
INSERT INTO billing_events (id, arrival, type, created, received_at, livemode, api_version, org_id, customer_id,
       subscription_id, subscription_created, status, price_id, current_period_end, cancel_at_period_end, previous,
       invoice_id, amount_due, currency, tenant_id, outcome, reason, before, after, anomalies)
SELECT 'evt_1' || <id>, number + 1,
       (ARRAY['invoice.payment_succeeded', 'invoice.payment_failed', 'customer.updated',
              'customer.subscription.updated'])[least(kind, 4)],
       created, to_timestamp(created), true, '2025-03-31.basil',
       CASE WHEN parked THEN 'gone_' || n WHEN kind > 3 THEN tenant_id END, customer_id,
       CASE WHEN kind > 3 THEN subscription_id END, CASE WHEN kind > 3 THEN {begun} END,
       CASE WHEN kind > 3 THEN 'active' END, CASE WHEN kind > 3 THEN {price} END,
       CASE WHEN kind > 3 THEN created + 2592000 END, CASE WHEN kind > 3 THEN false END,
       CASE WHEN kind > 3 THEN '{{}}'::json END,
       CASE WHEN kind < 3 THEN 'in_' || number END, CASE WHEN kind < 3 THEN 2900 END,
       CASE WHEN kind < 3 THEN 'eur' END,
       CASE WHEN kind <> 3 AND NOT parked THEN tenant_id END,
       CASE WHEN parked THEN 'parked' WHEN kind = 3 THEN 'ignored' WHEN kind = 1 THEN 'no_change'
            WHEN number % 50 = 7 THEN 'late' ELSE 'applied' END,
       CASE WHEN parked THEN 'Waits: tenant gone_' || n || ' is not known yet.'
            WHEN kind = 3 THEN 'This type is not handled.' WHEN kind = 2 THEN 'A payment failed.'
            WHEN kind = 1 THEN 'The payment is logged; the tenant was not past due.'
            ELSE 'The subscription is active: price price_pro means plan pro.' END,
       CASE WHEN kind <> 3 AND NOT parked THEN state END, CASE WHEN kind <> 3 AND NOT parked THEN state END,
       CASE WHEN number % 5000 = 0 THEN ARRAY['unknown_price'] END
  FROM (SELECT *, {base} + place AS number, {first} + place * {span}::bigint / {tenants} AS created,
               1 + ({base} / {tenants} + n) % 10 AS kind,
               {base} + place >= {parked_from} AND ({base} + place) % 500 = 0 AS parked
          FROM turns WHERE place >= {from} AND place < {until}) AS made
 ORDER BY place
"""
_BODIES: Final = """
INSERT INTO billing_bodies (arrival, received_at, body)
SELECT e.arrival, e.received_at, s.body
  FROM billing_events e JOIN samples s ON s.number = e.arrival % {samples}
 WHERE e.arrival > {ledger} - {number} AND e.arrival <= {ledger}
 ORDER BY e.arrival
"""
_ROWS: Final = {
    "customers": """
        INSERT INTO customers (id, tenant_id, linked_by)
        SELECT 'cus_' || n, 't' || n, 'evt_1' || left(md5(n::text), 23) FROM generate_series({from}, {until} - 1) AS n
        """,
    "memberships": """
        INSERT INTO memberships (issuer, subject, tenant_id, role)
        SELECT 'https://login.example.com/', 'user' || n, 't' || n, 'owner'
          FROM generate_series({from}, {until} - 1) AS n
        """,
    "api_keys": """
        INSERT INTO api_keys (id, org_id, digest, name, scopes, access_level, mode, start, last4, created_at,
               created_by, last_used_at, last_used_address, pepper_id, revoked_at)
        SELECT 'key_' || lpad(to_hex(n), 17, '0') || left(md5(n::text), 15), 't' || n % {tenants},
               coalesce(known.digest, sha256(int8send(n::bigint))), 'bench', ARRAY['projects:read'], 'SCOPED', 'live',
               coalesce(known.start, 'svc_live_' || left(md5(n::text), 4)),
               coalesce(known.last4, right(md5(n::text), 4)),
               to_timestamp({begin} + n * {year}::bigint / {keys}), 'user' || n % {tenants},
               now() - interval '1 day', '192.0.2.1', {pepper},
               CASE WHEN known.number IS NULL AND n % 20 = 3 THEN now() - interval '2 days' END
          FROM generate_series({from}, {until} - 1) AS n LEFT JOIN known ON known.number = n
         ORDER BY n
        """,
    "projects": """
        INSERT INTO projects (id, org_id, mode, name, created_at, updated_at)
        SELECT 'proj_' || lpad(to_hex(n), 17, '0') || left(md5(n::text), 15),
               't' || n % {holders} * {step}, 'live', 'Project ' || n,
               to_timestamp({begin} + n * {year}::bigint / {projects}),
               to_timestamp({begin} + n * {year}::bigint / {projects})
          FROM generate_series({from}, {until} - 1) AS n
        """,
}
