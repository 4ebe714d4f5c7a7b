"""Triggers that find a change that the API shows and no outbound event tells, or one that tells an
older state.

They look at the end of each transaction, at the newest event that it wrote of the changed object.
"""

from collections.abc import Iterable
from logging import LogRecord
from typing import Any, Final, NamedTuple

import psycopg

_OF_SERVICE: Final = (
    "current_user IN ('tenantry_api', 'tenantry_people', 'tenantry_batch') "
    "AND current_setting('tests.writes_rows', true) IS DISTINCT FROM 'on'"
)
"""Tests that write rows themselves, as the owner of the tables or after `written_by_test`, are not
meant.
"""


class _Guarded(NamedTuple):
    """A table: the kind of its events, the column of the tenant, and the columns that the API
    shows as expressions of a row ``r``, each with its value in the data ``d`` of an event. Columns
    without a value there are compared before and after the change alone.

    Uses of keys, sent mails, renewals and times of updates are no events.
    """

    kind: str
    tenant: str
    told: dict[str, str]
    shown: tuple[str, ...] = ()
    unless: str = "true"


def _text(name: str) -> str:
    return f"d->>'{name}'"


def _moment(name: str) -> str:
    return f"(d->>'{name}')::timestamptz"


def _second(name: str) -> str:
    return f"extract(epoch FROM {_moment(name)})::bigint"


_TABLES: Final = {
    "tenants": _Guarded(
        "tenant",
        "id",
        {
            "r.name": _text("name"),
            "r.subscription_status": _text("subscriptionStatus"),
            "r.cancel_at_period_end": "(d->>'cancelAtPeriodEnd')::boolean",
            "r.cancel_at": _second("cancelAt"),
            "r.ends_at": _second("endsAt"),
            "r.seats": "(d->>'seats')::bigint",
            "r.stripe_customer_id": _text("stripeCustomerId"),
            "r.owner_id": _text("ownerId"),
            "r.owner_email": _text("ownerEmail"),
            "(r.suspended_at IS NOT NULL)": "(d->>'suspended')::boolean",
            "nullif(r.suspension, '')": _text("suspensionReason"),
            "r.time_zone": _text("timeZone"),
        },
        ("r.plan", "r.access::text", "r.deleted_at"),
        # what changes of an ended tenant is told to nobody
        "OLD.deleted_at IS NULL",
    ),
    "memberships": _Guarded(
        "member",
        "tenant_id",
        {
            "r.role": _text("role"),
            "r.removed_at": _moment("removedAt"),
            "(r.invited AND r.removed_at IS NULL)": "(d->>'status' = 'invited')",
        },
    ),
    "invitations": _Guarded(
        "invitation",
        "org_id",
        {
            "r.email": _text("email"),
            "r.role": _text("role"),
            "r.expires_at": _moment("expiresAt"),
            # one that expired shows that before it is closed
            "nullif(r.closed_as, 'expired')": "nullif(d->>'status', 'open')",
        },
    ),
    "api_keys": _Guarded(
        "api_key",
        "org_id",
        {
            "r.name": _text("name"),
            "r.scopes": "ARRAY(SELECT json_array_elements_text(d->'scopes'))",
            "r.access_level": _text("accessLevel"),
            "r.mode": _text("mode"),
            "r.expires_at": _moment("expiresAt"),
            "r.revoked_at": _moment("revokedAt"),
            "r.rotated_from": _text("rotatedFrom"),
            "r.superseded_by": _text("supersededBy"),
            "r.external_id": _text("externalId"),
            "coalesce(r.metadata::jsonb, '{}')": "(d->'metadata')::jsonb",
        },
    ),
}

_FUNCTIONS: Final = """
CREATE SCHEMA tests_guard;
CREATE INDEX tests_events_of_transaction ON outbound_events (xid, ((data->>'id') COLLATE "C"));

-- The arguments: the kind of the events, the column of the tenant, what rows show, and events.
CREATE FUNCTION tests_guard.event() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public AS $$
DECLARE
    told   json;
    equals boolean;
BEGIN
    SELECT data INTO told
      FROM outbound_events
     WHERE xid = pg_current_xact_id()
       AND (data->>'id') COLLATE "C" = NEW.id
       AND org_id = to_jsonb(NEW)->>TG_ARGV[1]
       AND starts_with(type, TG_ARGV[0] || '.')
     ORDER BY version DESC
     LIMIT 1;
    IF NOT FOUND THEN
        RAISE EXCEPTION '% of % % without an outbound event', TG_OP, TG_TABLE_NAME, NEW.id;
    END IF;
    EXECUTE format('SELECT ROW(%s) IS NOT DISTINCT FROM ROW(%s) FROM %I r, (SELECT $1 AS d) AS event WHERE r.id = $2',
                   TG_ARGV[2], TG_ARGV[3], TG_TABLE_NAME)
       INTO equals
      USING told, NEW.id;
    IF NOT equals THEN
        RAISE EXCEPTION 'the outbound event of % % has another state: %', TG_TABLE_NAME, NEW.id, told;
    END IF;
    RETURN NULL;
END $$;

CREATE FUNCTION tests_guard.grants() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = public AS $$
DECLARE
    changed text;
BEGIN
    SELECT substr(after.key, 7) INTO changed
      FROM json_each(NEW.folds) AS after
      LEFT JOIN json_each(OLD.folds) AS before ON before.key = after.key
     WHERE starts_with(after.key, 'grant:')
       AND (after.value->'state'->'grant')::text IS DISTINCT FROM (before.value->'state'->'grant')::text
       AND NOT EXISTS (SELECT
                         FROM outbound_events
                        WHERE xid = pg_current_xact_id()
                          AND org_id = NEW.id
                          AND starts_with(type, 'grant.')
                          AND data->>'name' = substr(after.key, 7)
                          AND extract(epoch FROM (data->>'setAt')::timestamptz)
                              = (after.value->'state'->'grant'->>'set_at')::bigint)
     LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'grant % of tenant % without an outbound event', changed, NEW.id;
    END IF;
    RETURN NULL;
END $$;
"""
_GRANTS: Final = f"""
CREATE CONSTRAINT TRIGGER tests_guard_grants AFTER UPDATE OF folds ON tenants
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
    WHEN (OLD.deleted_at IS NULL AND NEW.folds::text LIKE '%"grant:%' AND {_OF_SERVICE})
    EXECUTE FUNCTION tests_guard.grants();
"""


async def written_by_test(connection: psycopg.AsyncConnection[Any]) -> None:
    """Let a test write rows itself in the rest of a transaction of the service's."""
    await connection.execute("SET LOCAL tests.writes_rows = 'on'")


def forgotten_events(records: Iterable[LogRecord]) -> list[str]:
    """Return what the triggers found in requests and jobs, whose errors the service has logged."""
    errors = [record.exc_info[1] for record in records if record.exc_info]
    return [
        str(error)
        for error in errors
        if isinstance(error, psycopg.errors.RaiseException) and "outbound event" in str(error)
    ]


def guard_events(conninfo: str) -> None:
    """Let a forgotten event fail in all databases that are copied from this one."""
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute(_FUNCTIONS)
        for table, guarded in _TABLES.items():
            connection.execute(_triggers(table, guarded))
        connection.execute(_GRANTS.encode())


def unguard_events(conninfo: str) -> None:
    """Remove the triggers from a database whose columns a test alters."""
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute("DROP SCHEMA tests_guard CASCADE")
        connection.execute("DROP INDEX tests_events_of_transaction")


def _triggers(table: str, guarded: _Guarded) -> bytes:
    columns = (*guarded.told, *guarded.shown)
    before, after = (
        ", ".join(column.replace("r.", f"{row}.") for column in columns) for row in ("OLD", "NEW")
    )
    rows, events = (", ".join(values) for values in (guarded.told, guarded.told.values()))
    arguments = ", ".join(_quoted(text) for text in (guarded.kind, guarded.tenant, rows, events))
    return f"""
CREATE CONSTRAINT TRIGGER tests_guard_new_rows AFTER INSERT ON {table}
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
    WHEN ({_OF_SERVICE})
    EXECUTE FUNCTION tests_guard.event({arguments});
CREATE CONSTRAINT TRIGGER tests_guard_shown_columns AFTER UPDATE ON {table}
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
    WHEN (({before}) IS DISTINCT FROM ({after}) AND {guarded.unless} AND {_OF_SERVICE})
    EXECUTE FUNCTION tests_guard.event({arguments});
""".encode()


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
