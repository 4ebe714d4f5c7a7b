"""Triggers that find a change of what checks read that does not go through `Database.change`.

The servers of the tests run with ``synchronous_commit = off``. `Database.change` never commits with
that.
"""

from typing import Final

import psycopg

# Tests that write rows themselves, as the owner of the tables, are not meant.
_GUARD: Final = """
CREATE FUNCTION tests_guard_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('synchronous_commit') = 'off'
       AND current_user IN ('tenantry_api', 'tenantry_people', 'tenantry_batch')
    THEN
        RAISE EXCEPTION '% of % without Database.change', TG_OP, TG_TABLE_NAME;
    END IF;
    RETURN NULL;
END $$;
"""
_READ_BY_CHECKS: Final = {
    "api_keys": (
        "org_id",
        "scopes",
        "access_level",
        "mode",
        "expires_at",
        "revoked_at",
        "external_id",
        "metadata::text",
    ),
    "memberships": ("role", "removed_at", "invited", "binds_owner"),
    "tenants": (
        "plan",
        "subscription_status",
        "access::text",
        "suspension",
        "deleted_at",
        "owner_id",
        "owner_email",
        "verified_email",
        "owner_email_follows",
    ),
    "projects": ("document",),
}
"""The columns of each table that checks read, as expressions that can be compared."""


def guard_changes(conninfo: str) -> None:
    """Let a forgotten `Database.change` fail in all databases that are copied from this one."""
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute(_GUARD)
        for table, columns in _READ_BY_CHECKS.items():
            connection.execute(_triggers(table, columns))


def unguard_changes(conninfo: str) -> None:
    """Remove the triggers from a database whose columns a test alters."""
    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute("DROP FUNCTION tests_guard_change CASCADE")


def _triggers(table: str, columns: tuple[str, ...]) -> bytes:
    before, after = (", ".join(f"{row}.{column}" for column in columns) for row in ("OLD", "NEW"))
    # checks reject all of an ended tenant, whatever else its row says
    unless = "AND OLD.deleted_at IS NULL" if table == "tenants" else ""
    return f"""
CREATE TRIGGER tests_guard_rows AFTER INSERT OR DELETE ON {table}
    FOR EACH ROW EXECUTE FUNCTION tests_guard_change();
CREATE TRIGGER tests_guard_columns AFTER UPDATE ON {table}
    FOR EACH ROW WHEN (({before}) IS DISTINCT FROM ({after}) {unless})
    EXECUTE FUNCTION tests_guard_change();
""".encode()
