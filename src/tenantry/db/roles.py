"""The database roles that the service works in, what each may, and the wall between tenants.

Four group roles without a login (docs/database-roles.md). Whoever logs in for the service is a member of the first
three and has next to no privileges besides; transactions and batchers' connections take the role that they need.
Row-level security keeps `API` to the tenant that its transaction names; it restricts no other role, since the others
have columns and statements instead.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, LiteralString

import psycopg
from psycopg import sql

from tenantry.db.connection import API, BATCH, PEOPLE, READ, TENANT
from tenantry.db.lock_retry import SET_LOCK_TIMEOUT, retry_on_lock_timeout
from tenantry.db.statements import Statement

SERVICE_ROLES: Final = (API, PEOPLE, BATCH)
"""Those that the service's login is a member of."""
ROLES: Final = (*SERVICE_ROLES, READ)
WALL: Final = "one_tenant"
"""The name of the policies that keep `API` to one tenant."""
_DOOR: Final = "as_privileged"
"""The name of the policies by which rows are everybody's who may read the table, but for the wall."""

Grants = Mapping[str, LiteralString]
_EVERYTHING: Final = "SELECT, INSERT, UPDATE, DELETE"
_WITHOUT_INHERITING: Final = 160_000
"""The server version since which a membership says for itself whether it is inherited."""

EDITION: Final = 3
"""Of the three lists below. It rises with each change of them: then the release before does not bring back its own."""

# FOR UPDATE needs the privilege to update some column, also where nothing but DELETE follows.
TABLES: Final[Mapping[str, Grants]] = {
    "tenants": {
        API: "SELECT, INSERT (id, name, owner_id, owner_email, verified_email, base_plan, plan, created_at, "
        "updated_at), UPDATE (name, owner_id, owner_email, verified_email, owner_email_follows, "
        "owner_email_token_issued, stripe_customer_id, suspended_at, deleted_at, updated_at)",
        PEOPLE: "SELECT (id, name, plan, subscription_status, current_period_end, cancel_at_period_end, "
        "stripe_customer_id, owner_id, created_at, updated_at, suspended_at, deleted_at)",
        BATCH: "SELECT, UPDATE (plan, subscription_status, current_period_end, cancel_at_period_end, provider_status, "
        "subscription_id, subscription_created, other_subscriptions, stripe_customer_id, tip_created, tip_state, "
        "reconciled_at, owner_email, verified_email, owner_email_token_issued, updated_at)",
        READ: "SELECT (id, name, owner_id, stripe_customer_id, created_at, updated_at, suspended_at, deleted_at, "
        "base_plan, plan, subscription_status, current_period_end, cancel_at_period_end, provider_status, "
        "subscription_id, subscription_created, other_subscriptions, tip_created, tip_state, reconciled_at)",
    },
    "customers": {API: "SELECT, INSERT", BATCH: "SELECT, INSERT", READ: "SELECT"},
    "memberships": {
        API: "SELECT, INSERT, UPDATE (role, invited, updated_at, removed_at, written_by, written_as, written_at)",
        PEOPLE: "SELECT (id, issuer, subject, tenant_id, role, invited, founded, created_at, updated_at, removed_at, "
        "written_as, written_at)",
        BATCH: "SELECT (issuer, subject, tenant_id, role, invited, updated_at, removed_at, written_as, written_at)",
        READ: "SELECT",
    },
    "api_keys": {
        API: "SELECT (id, org_id, name, scopes, access_level, mode, expires_at, start, last4, created_at, created_by, "
        "last_used_at, last_used_address, revoked_at, rotated_from, superseded_by), INSERT, "
        "UPDATE (name, scopes, access_level, expires_at, revoked_at, superseded_by)",
        BATCH: "SELECT (id, org_id, digest, pepper_id, name, scopes, access_level, mode, expires_at, created_at, "
        "last_used_at, last_used_address, revoked_at), "
        "UPDATE (last_used_at, last_used_address, digest, pepper_id), DELETE",
        READ: "SELECT (id, org_id, name, scopes, access_level, mode, expires_at, start, last4, created_at, created_by, "
        "last_used_at, revoked_at, rotated_from, superseded_by)",
    },
    "projects": {
        API: "SELECT, INSERT, UPDATE (name, description, updated_at), DELETE",
        BATCH: "SELECT (id, org_id, mode, created_at, document), DELETE",
        READ: "SELECT",
    },
    "billing_events": {
        API: "SELECT",
        BATCH: "SELECT, INSERT, UPDATE (tenant_id, outcome, reason, before, after, anomalies), DELETE",
        READ: "SELECT (id, arrival, type, created, received_at, livemode, api_version, org_id, customer_id, "
        "subscription_id, subscription_created, status, price_id, current_period_end, cancel_at_period_end, "
        "previous, invoice_id, amount_due, amount_remaining, attempt_count, currency, checkout_mode, problem, account, "
        "tenant_id, outcome, reason, before, after, anomalies)",
    },
    "billing_bodies": {BATCH: "SELECT (arrival, received_at), INSERT, DELETE", READ: "SELECT (arrival, received_at)"},
    "billing_findings": {BATCH: "SELECT, INSERT, UPDATE", READ: "SELECT"},
    "notifications": {
        BATCH: "SELECT, INSERT, UPDATE (status, attempts, last_error, sent_at), DELETE",
        READ: "SELECT (id, type, recipient_id, tenant_id, channels, event_id, status, attempts, created_at, sent_at)",
    },
    "owner_mails": {
        BATCH: "SELECT, INSERT, UPDATE (data, status, attempts, last_error, sent_at, digest, expires_at), DELETE",
        READ: "SELECT (id, tenant_id, type, status, attempts, created_at, due_at, sent_at)",
    },
    "audit_events": {
        API: "SELECT, INSERT",
        BATCH: "INSERT",
        READ: "SELECT (id, org_id, at, action, actor_kind, actor_id, request_id, target_id)",
    },
    "idempotency_keys": {
        API: "SELECT, INSERT, UPDATE (body_digest, answer, created_at)",
        PEOPLE: "SELECT, INSERT, UPDATE (body_digest, answer, created_at)",
        BATCH: "SELECT (principal, route, key, created_at), UPDATE (created_at), DELETE",
    },
    "request_counts": {API: "SELECT", BATCH: "SELECT, INSERT, UPDATE (number), DELETE", READ: "SELECT"},
    "dashboard_names": {
        API: "SELECT",
        PEOPLE: "SELECT, INSERT, UPDATE (name, seen_at)",
        BATCH: "SELECT (org_id, issuer, subject, seen_at), UPDATE (seen_at), DELETE",
    },
    "dashboard_sessions": {
        PEOPLE: "SELECT, INSERT, UPDATE (claims, name, tenant_id, proved_at, used_at), DELETE",
        BATCH: "SELECT (digest, started_at), UPDATE (agent), DELETE",
    },
    "alembic_version": {BATCH: "SELECT", READ: "SELECT"},
    "queue_migrations": {READ: "SELECT"},
    "procrastinate_jobs": {
        BATCH: _EVERYTHING,
        READ: "SELECT (id, queue_name, task_name, priority, lock, queueing_lock, status, scheduled_at, attempts)",
    },
    "job_runs": {BATCH: "SELECT, INSERT, UPDATE (succeeded, failed, succeeded_at)", READ: "SELECT"},
    "procrastinate_events": {BATCH: _EVERYTHING, READ: "SELECT"},
    "procrastinate_periodic_defers": {BATCH: _EVERYTHING, READ: "SELECT (id, task_name, defer_timestamp, job_id)"},
    "procrastinate_workers": {BATCH: _EVERYTHING, READ: "SELECT"},
}
"""What each role may do with each table; what is not here it may not."""

FUNCTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "purge_audit_events(text, integer)": (BATCH,),
    "purge_tenant(text)": (BATCH,),
    "tenant_event_body(text)": (API,),
    "event_body(text)": (BATCH,),
}
"""Functions that do what their callers may not, and who may call them."""

# Empty, once a transaction of the same session has named one.
_THIS_TENANT: Final = f"nullif(current_setting('{TENANT}', true), '')"
RLS_POLICIES: Final[Mapping[str, LiteralString]] = {
    **dict.fromkeys(("api_keys", "projects", "audit_events", "dashboard_names"), f"org_id = {_THIS_TENANT}"),
    **dict.fromkeys(
        ("customers", "memberships", "billing_events", "notifications", "owner_mails", "dashboard_sessions"),
        f"tenant_id = {_THIS_TENANT}",
    ),
    # Answers kept for a caller, whose name has the tenant in it; counts of a tenant's requests.
    "idempotency_keys": f"split_part(principal, ':', 2) = {_THIS_TENANT}",
    "request_counts": f"subject = 'tenant ' || {_THIS_TENANT}",
    "tenants": f"id = {_THIS_TENANT}",  # the last one: where it stands, all do
}
"""The rows of one tenant, by table."""

_MAY_TAKE: Final = """
       pg_has_role({login}, oid, CASE WHEN current_setting('server_version_num')::int >= 160000 THEN 'SET'
                                           ELSE 'MEMBER' END)"""
MAY_TAKE_BY_LOGIN: Final = _MAY_TAKE.format(login="session_user")
"""A condition on rows of ``pg_roles``: whoever is logged in may take the role."""
TENANT_POLICY: Final = f"SELECT FROM pg_policy WHERE polname = '{WALL}' AND polrelid = to_regclass('tenants')"
ARE_UP: Final = Statement(
    f"""
SELECT count(*) = {len(SERVICE_ROLES)} AND EXISTS ({TENANT_POLICY})
  FROM pg_roles
 WHERE rolname IN ('{"', '".join(SERVICE_ROLES)}') AND {MAY_TAKE_BY_LOGIN}
"""  # noqa: S608  # our own names
)
"""Whether this database has the roles and the wall, and whoever is logged in may take the roles."""
TAKE_BATCH: Final[LiteralString] = f"""
SELECT set_config('role', rolname, false)
  FROM pg_roles
 WHERE rolname = '{BATCH}' AND {MAY_TAKE_BY_LOGIN} AND EXISTS ({TENANT_POLICY})
"""  # noqa: S608  # our own names
"""The role of sessions that serve many tenants, where there is one to take."""

_FOUND_ROLES: Final = "SELECT rolname FROM pg_roles WHERE rolname = ANY(%s)"
# A copy that was restored without privileges has the wall, and what stands on it.
_BUILT: Final = f"""
SELECT obj_description(oid, 'pg_policy')
  FROM pg_policy
 WHERE polname = '{WALL}' AND polrelid = to_regclass('tenants')
   AND has_any_column_privilege('{API}', polrelid, 'SELECT')
"""  # noqa: S608  # our own name
_SCHEMA: Final = """
SELECT concat_ws(' ', (SELECT max(version_num) FROM alembic_version), (SELECT max(name) FROM queue_migrations))
"""
_OWNS_TABLES: Final = "SELECT pg_has_role(relowner, 'USAGE') FROM pg_class WHERE oid = 'tenants'::regclass"
_SEQUENCES: Final = """
SELECT s.relname FROM pg_class s JOIN pg_class t ON t.relnamespace = s.relnamespace AND t.relowner = s.relowner
 WHERE s.relkind = 'S' AND t.oid = 'tenants'::regclass
"""
_POLICIES: Final = "SELECT polname FROM pg_policy WHERE polrelid = to_regclass(%s)"
_MEMBER_OF: Final = f"SELECT rolname FROM pg_roles WHERE rolname = ANY(%s) AND {_MAY_TAKE.format(login='%s::name')}"  # noqa: S608

Connection = psycopg.Connection[Any]


class RolesMissingError(Exception):
    """Whoever asked for the roles may not make them, or not give them; ``statements`` are for somebody who may."""

    def __init__(self, statements: list[str]) -> None:
        super().__init__("the roles are to be made by somebody who may create roles")
        self.statements = statements


def make_roles(connection: Connection) -> None:
    """Make those of the roles that the server lacks. Raises `psycopg.errors.InsufficientPrivilege`."""
    for role in _missing_roles(connection):
        connection.execute(_create(role))


def are_made(connection: Connection) -> bool:
    """Whether the server has all of the roles."""
    return not _missing_roles(connection)


def may_build(connection: Connection) -> bool:
    """Whether whoever is connected owns the tables: nobody else can give privileges, or put up a wall."""
    return _scalar(connection, _OWNS_TABLES) == "True"


def let_in(connection: Connection, login: str) -> None:
    """Make the roles where they are missing, and a login a member of those that the service works in.

    The login's own privileges stay what they are; of the roles' it has none until it takes one. On PostgreSQL 15 it
    loses what it inherits from any other role too (NOINHERIT): only from 16 on each membership says that for itself.
    Raises `RolesMissingError` and `psycopg.errors.UndefinedObject`.
    """
    statements = [_create(role) for role in _missing_roles(connection)]
    held = {row[0] for row in connection.execute(_MEMBER_OF, (list(SERVICE_ROLES), login)).fetchall()}
    lacking = [role for role in SERVICE_ROLES if role not in held]
    if lacking:
        statements += _membership(lacking, login, connection.info.server_version)
    try:
        with connection.transaction():
            for statement in statements:
                connection.execute(statement)
    except psycopg.errors.InsufficientPrivilege as error:
        raise RolesMissingError([f"{statement.as_string(connection)};" for statement in statements]) from error


def build(connection: Connection) -> None:
    """Give the roles what they may, and put up the wall.

    Does nothing where that is done for the schema as it is, nor where a later release has done it.
    The roles must exist, and the connected user owns the tables, in autocommit mode. Each table is changed in its own
    transaction, so that other statements wait for no more than one. Raises what `retry_on_lock_timeout` raises.
    """
    mark = f"{EDITION} {_scalar(connection, _SCHEMA)}"
    found = connection.execute(_BUILT).fetchone()
    built_as = (found and found[0]) or "0"
    if _edition(built_as) > EDITION or built_as == mark:
        return
    connection.execute(SET_LOCK_TIMEOUT)
    _carry_out(connection, _grants_beside_tables(connection))
    for table in (*(name for name in TABLES if name not in RLS_POLICIES), *RLS_POLICIES):
        _carry_out(connection, [*_granted(table), *(_walled_off(connection, table) if table in RLS_POLICIES else ())])
    comment = sql.SQL("COMMENT ON POLICY {} ON tenants IS {}")
    _carry_out(connection, [comment.format(sql.Identifier(WALL), sql.Literal(mark))])


def let_see_schema(connection: Connection, login: str) -> None:
    """Let a login see, before it takes a role, whether the schema is up to date: that is what a start looks at."""
    schema, grantee = sql.Identifier(_scalar(connection, "SELECT current_schema()")), sql.Identifier(login)
    connection.execute(sql.SQL("GRANT USAGE ON SCHEMA {} TO {}").format(schema, grantee))
    connection.execute(sql.SQL("GRANT SELECT ON alembic_version, queue_migrations TO {}").format(grantee))


def _missing_roles(connection: Connection) -> list[str]:
    found = {row[0] for row in connection.execute(_FOUND_ROLES, (list(ROLES),)).fetchall()}
    return [role for role in ROLES if role not in found]


def _create(role: str) -> sql.Composed:
    return sql.SQL("CREATE ROLE {} NOLOGIN").format(sql.Identifier(role))


def _membership(roles: list[str], login: str, server_version: int) -> list[sql.Composed]:
    """So that the login has the roles' privileges only where it takes them, and is not kept to no tenant meanwhile."""
    names, grantee = sql.SQL(", ").join(map(sql.Identifier, roles)), sql.Identifier(login)
    if server_version >= _WITHOUT_INHERITING:
        return [sql.SQL("GRANT {} TO {} WITH INHERIT FALSE, SET TRUE").format(names, grantee)]
    return [sql.SQL("ALTER ROLE {} NOINHERIT").format(grantee), sql.SQL("GRANT {} TO {}").format(names, grantee)]


def _grants_beside_tables(connection: Connection) -> Iterator[sql.Composed]:
    schema = sql.Identifier(_scalar(connection, "SELECT current_schema()"))
    for role in ROLES:
        yield sql.SQL("GRANT USAGE ON SCHEMA {} TO {}").format(schema, sql.Identifier(role))
    for (sequence,) in connection.execute(_SEQUENCES).fetchall():
        yield sql.SQL("GRANT USAGE ON SEQUENCE {} TO {}").format(sql.Identifier(sequence), sql.Identifier(BATCH))
    for function, callers in FUNCTIONS.items():
        yield from _callable(function, callers)


def _granted(table: str) -> Iterator[sql.Composed]:
    name = sql.Identifier(table)
    everyone = sql.SQL(", ").join(map(sql.Identifier, ROLES))
    yield sql.SQL("REVOKE ALL ON {} FROM {}").format(name, everyone)
    for role, privileges in TABLES[table].items():
        yield sql.SQL("GRANT {} ON {} TO {}").format(sql.SQL(privileges), name, sql.Identifier(role))


def _callable(function: str, callers: tuple[str, ...]) -> Iterator[sql.Composed]:
    name = sql.SQL(function)  # with its arguments' types
    everyone = sql.SQL(", ").join(map(sql.Identifier, ROLES))
    yield sql.SQL("REVOKE ALL ON FUNCTION {} FROM PUBLIC, {}").format(name, everyone)
    for role in callers:
        yield sql.SQL("GRANT EXECUTE ON FUNCTION {} TO {}").format(name, sql.Identifier(role))


def _walled_off(connection: Connection, table: str) -> Iterator[sql.Composed]:
    """Keep the API to one tenant's rows of a table, and change nothing for anybody else."""
    there = {row[0] for row in connection.execute(_POLICIES, (table,)).fetchall()}
    name = sql.Identifier(table)
    yield sql.SQL("ALTER TABLE {} ENABLE ROW LEVEL SECURITY").format(name)
    for policy, statement in {
        _DOOR: sql.SQL("CREATE POLICY {policy} ON {table} USING (true)"),
        WALL: sql.SQL("CREATE POLICY {policy} ON {table} AS RESTRICTIVE TO {role} USING ({rows})"),
    }.items():
        parts = {"policy": sql.Identifier(policy), "table": name}
        if policy in there:
            yield sql.SQL("DROP POLICY {policy} ON {table}").format(**parts)
        yield statement.format(**parts, role=sql.Identifier(API), rows=sql.SQL(RLS_POLICIES[table]))


def _carry_out(connection: Connection, statements: Iterable[sql.Composed]) -> None:
    """All of them or none, once their locks can be had."""
    planned = list(statements)

    def change() -> None:
        with connection.transaction():
            for statement in planned:
                connection.execute(statement)

    retry_on_lock_timeout(change)


def _edition(built_as: str) -> int:
    number = built_as.partition(" ")[0]
    return int(number) if number.isdecimal() else 0


def _scalar(connection: Connection, query: LiteralString) -> str:
    row = connection.execute(query).fetchone()
    assert row is not None  # noqa: S101  # it always has one
    return str(row[0])
