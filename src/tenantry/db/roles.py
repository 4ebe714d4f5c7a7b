"""The database roles of the service, their privileges, and row-level security between tenants.

Four group roles without a login (docs/database-roles.md). The service's login is a member of the first three and has
almost no other privileges; each transaction and lane takes the role that it needs. Row-level security limits `API` to
its transaction's tenant. It does not restrict the other roles, which are limited by columns and statements.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, LiteralString

import psycopg
from psycopg import sql

from tenantry.db.connection import API, BATCH, PEOPLE, READ, TENANT
from tenantry.db.lock_retry import SET_LOCK_TIMEOUT, retry_on_lock_timeout
from tenantry.db.statements import Statement

SERVICE_ROLES: Final = (API, PEOPLE, BATCH)  # the roles that the service's login is a member of
ROLES: Final = (*SERVICE_ROLES, READ)
TENANT_POLICY: Final = "one_tenant"  # the restrictive policies that limit `API` to one tenant
_PERMISSIVE_POLICY: Final = "as_privileged"  # the policies that show all rows to roles with privileges on a table

Grants = Mapping[str, LiteralString]
_EVERYTHING: Final = "SELECT, INSERT, UPDATE, DELETE"
_INHERIT_OPTION_SINCE: Final = 160_000  # the server version from which each membership has its own inherit option

EDITION: Final = 3
"""Of the tables below. Increase it with each change, so that an older release does not restore its own."""

# FOR UPDATE needs the UPDATE privilege on some column, even if only DELETE follows.
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
"""The privileges of each role on each table."""

FUNCTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "purge_audit_events(text, integer)": (BATCH,),
    "purge_tenant(text)": (BATCH,),
    "tenant_event_body(text)": (API,),
    "event_body(text)": (BATCH,),
}
"""SECURITY DEFINER functions, and the roles that may call them."""

# The setting is empty after an earlier transaction of the session has set it.
_THIS_TENANT: Final = f"nullif(current_setting('{TENANT}', true), '')"
RLS_POLICIES: Final[Mapping[str, LiteralString]] = {
    **dict.fromkeys(("api_keys", "projects", "audit_events", "dashboard_names"), f"org_id = {_THIS_TENANT}"),
    **dict.fromkeys(
        ("customers", "memberships", "billing_events", "notifications", "owner_mails", "dashboard_sessions"),
        f"tenant_id = {_THIS_TENANT}",
    ),
    "idempotency_keys": f"split_part(principal, ':', 2) = {_THIS_TENANT}",
    "request_counts": f"subject = 'tenant ' || {_THIS_TENANT}",
    "tenants": f"id = {_THIS_TENANT}",  # the last one: if it exists, all do
}
"""The condition for one tenant's rows, by table."""

_MAY_TAKE: Final = """
       pg_has_role({login}, oid, CASE WHEN current_setting('server_version_num')::int >= 160000 THEN 'SET'
                                           ELSE 'MEMBER' END)"""
MAY_TAKE_BY_LOGIN: Final = _MAY_TAKE.format(login="session_user")
"""A condition on ``pg_roles``: the login may take the role."""
TENANT_POLICY_EXISTS: Final = (
    f"SELECT FROM pg_policy WHERE polname = '{TENANT_POLICY}' AND polrelid = to_regclass('tenants')"
)
RLS_ENABLED: Final = Statement(
    f"""
SELECT count(*) = {len(SERVICE_ROLES)} AND EXISTS ({TENANT_POLICY_EXISTS})
  FROM pg_roles
 WHERE rolname IN ('{"', '".join(SERVICE_ROLES)}') AND {MAY_TAKE_BY_LOGIN}
"""  # noqa: S608  # our own names
)
"""Whether the database has the roles and the policies, and the login may take the roles."""
TAKE_BATCH: Final[LiteralString] = f"""
SELECT set_config('role', rolname, false)
  FROM pg_roles
 WHERE rolname = '{BATCH}' AND {MAY_TAKE_BY_LOGIN} AND EXISTS ({TENANT_POLICY_EXISTS})
"""  # noqa: S608  # our own names
"""Takes the role of sessions that serve many tenants, if possible."""

_FOUND_ROLES: Final = "SELECT rolname FROM pg_roles WHERE rolname = ANY(%s)"
# A copy restored without privileges has the policies and their comments.
_GRANTED_EDITION: Final = f"""
SELECT obj_description(oid, 'pg_policy')
  FROM pg_policy
 WHERE polname = '{TENANT_POLICY}' AND polrelid = to_regclass('tenants')
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
    """The login may not create or grant the roles; ``statements`` are for one that may."""

    def __init__(self, statements: list[str]) -> None:
        super().__init__("a login that may create roles must create the roles")
        self.statements = statements


def make_roles(connection: Connection) -> None:
    """Create the missing roles. Raises `psycopg.errors.InsufficientPrivilege`."""
    for role in _missing_roles(connection):
        connection.execute(_create(role))


def all_exist(connection: Connection) -> bool:
    return not _missing_roles(connection)


def owns_tables(connection: Connection) -> bool:
    """Whether the login owns the tables, which granting privileges and creating policies requires."""
    return bool(_column(connection, _OWNS_TABLES)[0])


def grant_membership(connection: Connection, login: str) -> None:
    """Create the missing roles, and make a login a member of `SERVICE_ROLES`.

    The login keeps its own privileges, and has those of a role only after taking it. On PostgreSQL 15 it also loses
    the privileges inherited from other roles (NOINHERIT); from 16 on each membership has its own option. Raises
    `RolesMissingError` and `psycopg.errors.UndefinedObject`.
    """
    statements = [_create(role) for role in _missing_roles(connection)]
    held = _column(connection, _MEMBER_OF, list(SERVICE_ROLES), login)
    if lacking := [role for role in SERVICE_ROLES if role not in held]:
        names, grantee = _identifiers(lacking), sql.Identifier(login)
        if connection.info.server_version >= _INHERIT_OPTION_SINCE:
            statements.append(sql.SQL("GRANT {} TO {} WITH INHERIT FALSE, SET TRUE").format(names, grantee))
        else:
            statements.append(sql.SQL("ALTER ROLE {} NOINHERIT").format(grantee))
            statements.append(sql.SQL("GRANT {} TO {}").format(names, grantee))
    try:
        with connection.transaction():
            for statement in statements:
                connection.execute(statement)
    except psycopg.errors.InsufficientPrivilege as error:
        raise RolesMissingError([f"{statement.as_string(connection)};" for statement in statements]) from error


def grant_privileges(connection: Connection) -> None:
    """Grant the roles their privileges, and enable row-level security.

    Does nothing if this or a later release has done it for the present schema. The roles must exist, and the login must
    own the tables, in autocommit mode. Each table is changed in its own transaction, so that other statements wait for
    one at most. Raises the errors of `retry_on_lock_timeout`.
    """
    mark = f"{EDITION} {_column(connection, _SCHEMA)[0]}"
    granted = next(iter(_column(connection, _GRANTED_EDITION)), None) or "0"
    edition = granted.partition(" ")[0]
    if granted == mark or (edition.isdecimal() and int(edition) > EDITION):
        return
    connection.execute(SET_LOCK_TIMEOUT)
    _run_in_transaction(connection, _grants_beside_tables(connection))
    for table in (*(name for name in TABLES if name not in RLS_POLICIES), *RLS_POLICIES):
        policies = _policies(connection, table) if table in RLS_POLICIES else ()
        _run_in_transaction(connection, [*_table_grants(table), *policies])
    comment = sql.SQL("COMMENT ON POLICY {} ON tenants IS {}")
    _run_in_transaction(connection, [comment.format(sql.Identifier(TENANT_POLICY), sql.Literal(mark))])


def grant_schema_access(connection: Connection, login: str) -> None:
    """Let a login read the schema's revision without a role, as the start of the service does."""
    schema, grantee = sql.Identifier(*_column(connection, "SELECT current_schema()")), sql.Identifier(login)
    connection.execute(sql.SQL("GRANT USAGE ON SCHEMA {} TO {}").format(schema, grantee))
    connection.execute(sql.SQL("GRANT SELECT ON alembic_version, queue_migrations TO {}").format(grantee))


def _missing_roles(connection: Connection) -> list[str]:
    found = _column(connection, _FOUND_ROLES, list(ROLES))
    return [role for role in ROLES if role not in found]


def _create(role: str) -> sql.Composed:
    return sql.SQL("CREATE ROLE {} NOLOGIN").format(sql.Identifier(role))


def _identifiers(names: Iterable[str]) -> sql.Composed:
    return sql.SQL(", ").join(map(sql.Identifier, names))


def _grants_beside_tables(connection: Connection) -> Iterator[sql.Composed]:
    schema = sql.Identifier(*_column(connection, "SELECT current_schema()"))
    for role in ROLES:
        yield sql.SQL("GRANT USAGE ON SCHEMA {} TO {}").format(schema, sql.Identifier(role))
    for sequence in _column(connection, _SEQUENCES):
        yield sql.SQL("GRANT USAGE ON SEQUENCE {} TO {}").format(sql.Identifier(sequence), sql.Identifier(BATCH))
    for signature, callers in FUNCTIONS.items():
        function = sql.SQL(signature)
        yield sql.SQL("REVOKE ALL ON FUNCTION {} FROM PUBLIC, {}").format(function, _identifiers(ROLES))
        for role in callers:
            yield sql.SQL("GRANT EXECUTE ON FUNCTION {} TO {}").format(function, sql.Identifier(role))


def _table_grants(table: str) -> Iterator[sql.Composed]:
    name = sql.Identifier(table)
    yield sql.SQL("REVOKE ALL ON {} FROM {}").format(name, _identifiers(ROLES))
    for role, privileges in TABLES[table].items():
        yield sql.SQL("GRANT {} ON {} TO {}").format(sql.SQL(privileges), name, sql.Identifier(role))


def _policies(connection: Connection, table: str) -> Iterator[sql.Composed]:
    """Limit `API` to one tenant's rows of a table, and change nothing for other roles."""
    existing = _column(connection, _POLICIES, table)
    name = sql.Identifier(table)
    yield sql.SQL("ALTER TABLE {} ENABLE ROW LEVEL SECURITY").format(name)
    for policy, statement in {
        _PERMISSIVE_POLICY: sql.SQL("CREATE POLICY {policy} ON {table} USING (true)"),
        TENANT_POLICY: sql.SQL("CREATE POLICY {policy} ON {table} AS RESTRICTIVE TO {role} USING ({rows})"),
    }.items():
        parts = {"policy": sql.Identifier(policy), "table": name}
        if policy in existing:
            yield sql.SQL("DROP POLICY {policy} ON {table}").format(**parts)
        yield statement.format(**parts, role=sql.Identifier(API), rows=sql.SQL(RLS_POLICIES[table]))


def _run_in_transaction(connection: Connection, statements: Iterable[sql.Composed]) -> None:
    planned = list(statements)

    def change() -> None:
        with connection.transaction():
            for statement in planned:
                connection.execute(statement)

    retry_on_lock_timeout(change)


def _column(connection: Connection, query: LiteralString, *values: object) -> list[Any]:
    """Return the first column of a query's rows."""
    return [row[0] for row in connection.execute(query, values)]
