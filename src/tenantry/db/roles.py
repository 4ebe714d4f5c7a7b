"""The database roles of the service, their privileges, and row-level security between tenants.

Four group roles without a login (docs/how-to/database-roles.md). The service's login is a member of
the first three and has almost no other privileges; each transaction and lane takes the role that it
needs. Row-level security limits `API` to its transaction's tenant. It does not restrict the other
roles, which are limited by columns and statements.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final, LiteralString

import msgspec
import psycopg
from psycopg import sql

from tenantry.db.connection import API, BATCH, PEOPLE, READ, TENANT
from tenantry.db.statements import Statement

SERVICE_ROLES: Final = (API, PEOPLE, BATCH)  # the roles that the service's login is a member of
ROLES: Final = (*SERVICE_ROLES, READ)
TENANT_POLICY: Final = "one_tenant"  # the restrictive policies that limit `API` to one tenant
# the policies that show all rows to roles with privileges on a table
_PERMISSIVE_POLICY: Final = "as_privileged"

# the server version from which each membership has its own inherit option
_INHERIT_OPTION_SINCE: Final = 160_000

EDITION: Final = 1
"""Of ``privileges.toml`` and `RLS_POLICIES`. Increase it with the first change after a release, so
that this release does not undo it.
"""

# The setting is empty after an earlier transaction of the session has set it.
_THIS_TENANT: Final = f"nullif(current_setting('{TENANT}', true), '')"
RLS_POLICIES: Final[Mapping[str, LiteralString]] = {
    **dict.fromkeys(
        ("api_keys", "projects", "audit_events", "outbound_events", "user_profiles"),
        f"org_id = {_THIS_TENANT}",
    ),
    **dict.fromkeys(
        (
            "customers",
            "subscription_tenants",
            "memberships",
            "billing_events",
            "mails",
            "ledger_runs",
        ),
        f"tenant_id = {_THIS_TENANT}",
    ),
    "invitations": f"org_id = {_THIS_TENANT}",
    "dashboard_sessions": f"tenant_id = {_THIS_TENANT}",
    "idempotency_keys": f"split_part(principal, ':', 2) = {_THIS_TENANT}",
    "usage_counters": f"org_id = {_THIS_TENANT}",
    "usage_hours": f"org_id = {_THIS_TENANT}",
    "usage_days": f"org_id = {_THIS_TENANT}",
    "rejections": f"org_id = {_THIS_TENANT}",
    "operator_acts": f"org_id = {_THIS_TENANT}",
    "consumption_keys": f"org_id = {_THIS_TENANT}",
    "request_counts": f"subject = 'tenant ' || {_THIS_TENANT}",
    "tenants": f"id = {_THIS_TENANT}",  # the last one: if it exists, all do
}
"""The condition for one tenant's rows, by table."""

RLS_ENABLED: Final = Statement("""
SELECT count(*) = 3
       AND EXISTS (SELECT FROM pg_policy WHERE polname = 'one_tenant' AND polrelid = to_regclass('tenants'))
  FROM pg_roles
 WHERE rolname IN ('tenantry_api', 'tenantry_people', 'tenantry_batch')
   AND pg_has_role(session_user, oid,
                   CASE WHEN current_setting('server_version_num')::int >= 160000 THEN 'SET' ELSE 'MEMBER' END)
""")
"""Whether the database has the roles and the policies, and the login may take the roles."""
TAKE_BATCH: Final[LiteralString] = """
SELECT set_config('role', rolname, false)
  FROM pg_roles
 WHERE rolname = 'tenantry_batch'
   AND pg_has_role(session_user, oid,
                   CASE WHEN current_setting('server_version_num')::int >= 160000 THEN 'SET' ELSE 'MEMBER' END)
   AND EXISTS (SELECT FROM pg_policy WHERE polname = 'one_tenant' AND polrelid = to_regclass('tenants'))
"""
"""Takes the role of sessions that serve many tenants, if possible."""

TAKE_STATISTICS: Final = Statement("""
SELECT set_config('role', rolname, true)
  FROM pg_roles
 WHERE rolname = 'pg_read_all_stats'
   AND pg_has_role(session_user, oid,
                   CASE WHEN current_setting('server_version_num')::int >= 160000 THEN 'SET' ELSE 'MEMBER' END)
""")
"""Takes, for a transaction, the role that is shown how far standbys are, if possible. The login may
be a member without its privileges (NOINHERIT).
"""

_FOUND_ROLES: Final = "SELECT rolname FROM pg_roles WHERE rolname = ANY(%s)"
# A copy restored without privileges has the policies and their comments.
_GRANTED_EDITION: Final = """
SELECT obj_description(oid, 'pg_policy')
  FROM pg_policy
 WHERE polname = 'one_tenant' AND polrelid = to_regclass('tenants')
   AND has_any_column_privilege('tenantry_api', polrelid, 'SELECT')
"""
_SCHEMA: Final = """
SELECT concat_ws(' ', (SELECT max(version_num) FROM tenantry_version), (SELECT max(name) FROM queue_migrations))
"""
_OWNS_TABLES: Final = (
    "SELECT pg_has_role(relowner, 'USAGE') FROM pg_class WHERE oid = 'tenants'::regclass"
)
_SEQUENCES: Final = """
SELECT s.relname FROM pg_class s JOIN pg_class t ON t.relnamespace = s.relnamespace AND t.relowner = s.relowner
 WHERE s.relkind = 'S' AND t.oid = 'tenants'::regclass
"""
_MEMBER_OF: Final = """
SELECT rolname
  FROM pg_roles
 WHERE rolname = ANY(%s)
   AND pg_has_role(%s::name, oid,
                   CASE WHEN current_setting('server_version_num')::int >= 160000 THEN 'SET' ELSE 'MEMBER' END)
"""

Connection = psycopg.Connection[Any]


class Privileges(msgspec.Struct, frozen=True):
    """What each role may do with each table, which roles may call each SECURITY DEFINER function,
    and which beside `BATCH` may use a sequence.
    """

    tables: dict[str, dict[str, str]]
    functions: dict[str, tuple[str, ...]]
    sequences: dict[str, tuple[str, ...]]


@cache
def privileges() -> Privileges:
    return msgspec.toml.decode(
        Path(__file__).with_name("privileges.toml").read_bytes(), type=Privileges
    )


class RolesMissingError(Exception):
    """The login may not create or grant the roles; ``statements`` are for one that may."""

    def __init__(self, statements: list[str]) -> None:
        super().__init__("a login that may create roles must create the roles")
        self.statements = statements


def make_roles(connection: Connection) -> None:
    """Create the missing roles. Raises `psycopg.errors.InsufficientPrivilege`."""
    for role in missing_roles(connection):
        connection.execute(_create(role))


def owns_tables(connection: Connection) -> bool:
    """Whether the login owns the tables, which granting privileges and creating policies
    requires.
    """
    return bool(_column(connection, _OWNS_TABLES)[0])


def grant_membership(connection: Connection, login: str) -> None:
    """Create the missing roles, and make a login a member of `SERVICE_ROLES`.

    The login keeps its own privileges, and has those of a role only after taking it. On PostgreSQL
    15 it also loses the privileges inherited from other roles (NOINHERIT); from 16 on each
    membership has its own option. Raises `RolesMissingError` and `psycopg.errors.UndefinedObject`.
    """
    statements = list(map(_create, missing_roles(connection)))
    held = _column(connection, _MEMBER_OF, list(SERVICE_ROLES), login)
    if lacking := [role for role in SERVICE_ROLES if role not in held]:
        statements += _membership(connection, lacking, login)
    try:
        with connection.transaction():
            for statement in statements:
                connection.execute(statement)
    except psycopg.errors.InsufficientPrivilege as error:
        raise RolesMissingError(
            [f"{statement.as_string(connection)};" for statement in statements]
        ) from error


def _membership(connection: Connection, roles: Sequence[str], login: str) -> Iterator[sql.Composed]:
    """Make a login a member of roles, without their privileges until it takes one."""
    names = _identifiers(roles)
    if connection.info.server_version >= _INHERIT_OPTION_SINCE:
        yield _sql("GRANT {} TO {} WITH INHERIT FALSE, SET TRUE", names, login)
        return
    yield _sql("ALTER ROLE {} NOINHERIT", login)
    yield _sql("GRANT {} TO {}", names, login)


def privilege_changes(connection: Connection) -> Iterator[list[sql.Composed]]:
    """Yield the transactions that grant the roles their privileges and enable row-level security.

    None if this or a later release has done it for the present schema. The roles must exist, and
    the login must own the tables, in autocommit mode. Each table has its own transaction, so that
    other statements wait for one at most.
    """
    mark = f"{EDITION} {_column(connection, _SCHEMA)[0]}"
    if _is_granted(connection, mark):
        return
    yield [*_grants_beside_tables(connection)]
    tables = privileges().tables
    for table in (*(name for name in tables if name not in RLS_POLICIES), *RLS_POLICIES):
        policies = _policies(table) if table in RLS_POLICIES else ()
        yield [*_table_grants(table, tables[table]), *policies]
    yield [_sql("COMMENT ON POLICY {} ON tenants IS {}", TENANT_POLICY, sql.Literal(mark))]


def _is_granted(connection: Connection, mark: str) -> bool:
    """Whether the comment on the policies is this mark, or that of a later release."""
    granted = next(iter(_column(connection, _GRANTED_EDITION)), None) or "0"
    edition = granted.partition(" ")[0]
    return granted == mark or (edition.isdecimal() and int(edition) > EDITION)


def grant_schema_access(connection: Connection, login: str) -> None:
    """Let a login read the schema's revision without a role, as the start of the service does."""
    [schema] = _column(connection, "SELECT current_schema()")
    connection.execute(_sql("GRANT USAGE ON SCHEMA {} TO {}", schema, login))
    connection.execute(_sql("GRANT SELECT ON tenantry_version, queue_migrations TO {}", login))


def missing_roles(connection: Connection) -> list[str]:
    found = _column(connection, _FOUND_ROLES, list(ROLES))
    return [role for role in ROLES if role not in found]


def _sql(text: LiteralString, *names: str | sql.Composable) -> sql.Composed:
    """Put names into a statement as identifiers; what is composed already stays as it is."""
    parts = (sql.Identifier(name) if isinstance(name, str) else name for name in names)
    return sql.SQL(text).format(*parts)


def _create(role: str) -> sql.Composed:
    return _sql("CREATE ROLE {} NOLOGIN", role)


def _identifiers(names: Iterable[str]) -> sql.Composed:
    return sql.SQL(", ").join(map(sql.Identifier, names))


def _grants_beside_tables(connection: Connection) -> Iterator[sql.Composed]:
    [schema] = _column(connection, "SELECT current_schema()")
    for role in ROLES:
        yield _sql("GRANT USAGE ON SCHEMA {} TO {}", schema, role)
    for sequence in _column(connection, _SEQUENCES):
        users = (BATCH, *privileges().sequences.get(sequence, ()))
        yield _sql("GRANT USAGE ON SEQUENCE {} TO {}", sequence, _identifiers(users))
    for signature, callers in privileges().functions.items():
        function = sql.SQL(signature)
        yield _sql("REVOKE ALL ON FUNCTION {} FROM PUBLIC, {}", function, _identifiers(ROLES))
        for role in callers:
            yield _sql("GRANT EXECUTE ON FUNCTION {} TO {}", function, role)


def _table_grants(table: str, grants: Mapping[str, str]) -> Iterator[sql.Composed]:
    yield _sql("REVOKE ALL ON {} FROM {}", table, _identifiers(ROLES))
    for role, granted in grants.items():
        yield _sql("GRANT {} ON {} TO {}", sql.SQL(granted), table, role)


def _policies(table: str) -> Iterator[sql.Composed]:
    """Limit `API` to one tenant's rows of a table, and change nothing for other roles."""
    yield _sql("ALTER TABLE {} ENABLE ROW LEVEL SECURITY", table)
    yield _sql("DROP POLICY IF EXISTS {} ON {}", _PERMISSIVE_POLICY, table)
    yield _sql("CREATE POLICY {} ON {} USING (true)", _PERMISSIVE_POLICY, table)
    yield _sql("DROP POLICY IF EXISTS {} ON {}", TENANT_POLICY, table)
    yield _sql(
        "CREATE POLICY {} ON {} AS RESTRICTIVE TO {} USING ({})",
        TENANT_POLICY,
        table,
        API,
        sql.SQL(RLS_POLICIES[table]),
    )


def _column(connection: Connection, query: LiteralString, *values: object) -> list[Any]:
    """Return the first column of a query's rows."""
    return [row[0] for row in connection.execute(query, values)]
