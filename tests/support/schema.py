"""The schema of a database as text, one object a line, as ``tests/integration/schema.txt`` keeps
it.

``python -m tests.support.schema`` writes that file again after a migration was added.
"""

import sys
from pathlib import Path
from typing import Final

import psycopg

from tenantry.db.migrate import migrate
from tests.support.postgres import PostgresServer, running_server

SNAPSHOT: Final = Path(__file__).parents[1] / "integration" / "schema.txt"

# The constraints of NOT NULL, which PostgreSQL 18 lists beside the columns, are left out.
_OBJECTS: Final = """
WITH schema AS (SELECT oid FROM pg_namespace WHERE nspname = current_schema()),
relations AS (
    SELECT pg_class.*
      FROM pg_class
      JOIN schema ON relnamespace = schema.oid
),
functions AS (
    SELECT pg_proc.*
      FROM pg_proc
      JOIN schema ON pronamespace = schema.oid
)
SELECT relname::text, '1 ' || concat_ws(
           ' ',
           'table',
           CASE relpersistence WHEN 'u' THEN 'unlogged' END,
           CASE WHEN relrowsecurity THEN 'row-level-security' END,
           CASE WHEN relforcerowsecurity THEN 'forced' END,
           reloptions::text
       )
  FROM relations
 WHERE relkind IN ('r', 'p')
UNION ALL
-- without the names of tables, which PostgreSQL 15 puts before the columns of a single one, too
SELECT relname, concat_ws(' ', '1 view', reloptions::text, regexp_replace(pg_get_viewdef(oid), '[a-z_]+[.]', '', 'g'))
  FROM relations
 WHERE relkind = 'v'
UNION ALL
SELECT relname, format(
           '1 sequence increment %s start %s minimum %s maximum %s cache %s cycle %s',
           seqincrement, seqstart, seqmin, seqmax, seqcache, seqcycle
       )
  FROM relations
  JOIN pg_sequence ON seqrelid = oid
UNION ALL
SELECT relname, '2 column ' || concat_ws(
           ' ',
           attname,
           format_type(atttypid, atttypmod),
           CASE WHEN attcollation <> typcollation THEN 'collate ' || collname END,
           CASE WHEN attnotnull THEN 'not null' END,
           CASE WHEN attgenerated <> '' THEN 'generated' WHEN atthasdef THEN 'default' END,
           pg_get_expr(adbin, adrelid),
           attoptions::text,
           nullif(attidentity, '')
       )
  FROM relations
  JOIN pg_attribute ON attrelid = relations.oid
  JOIN pg_type ON pg_type.oid = atttypid
  LEFT JOIN pg_collation ON pg_collation.oid = attcollation
  LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
 WHERE relkind IN ('r', 'p') AND attnum > 0 AND NOT attisdropped
UNION ALL
SELECT relname, format('3 constraint %s %s', conname, pg_get_constraintdef(pg_constraint.oid))
  FROM relations
  JOIN pg_constraint ON conrelid = relations.oid
 WHERE contype <> 'n'
UNION ALL
SELECT relations.relname, concat_ws(
           ' ',
           '4 index',
           pg_get_indexdef(indexrelid),
           CASE WHEN NOT indisvalid THEN 'invalid' END
       )
  FROM relations
  JOIN pg_index ON indrelid = relations.oid
UNION ALL
SELECT relname, '5 trigger ' || pg_get_triggerdef(pg_trigger.oid)
  FROM relations
  JOIN pg_trigger ON tgrelid = relations.oid
 WHERE NOT tgisinternal
UNION ALL
SELECT tablename, format(
           '6 policy %s %s for %s to %s using %s check %s',
           policyname, permissive, cmd, roles, qual, coalesce(with_check, 'as using')
       )
  FROM pg_policies
 WHERE schemaname = current_schema()
UNION ALL
SELECT relname, '7 grant ' || grantee::regrole || ' '
           || string_agg(privilege_type, ', ' ORDER BY privilege_type)
  FROM relations, aclexplode(relacl)
 WHERE grantee <> relowner
 GROUP BY relname, grantee
UNION ALL
SELECT relname, format(
           '7 grant %s %s (%s)',
           grantee::regrole, privilege_type, string_agg(attname, ', ' ORDER BY attname)
       )
  FROM relations
  JOIN pg_attribute ON attrelid = relations.oid, aclexplode(attacl)
 GROUP BY relname, grantee, privilege_type
UNION ALL
SELECT relname, concat_ws(' ', '8 comment', attname, '-', description)
  FROM relations
  JOIN pg_description ON objoid = relations.oid AND classoid = 'pg_class'::regclass
  LEFT JOIN pg_attribute ON attrelid = objoid AND attnum = objsubid AND objsubid > 0
UNION ALL
SELECT relname, format('8 comment %s - %s', conname, description)
  FROM relations
  JOIN pg_constraint ON conrelid = relations.oid
  JOIN pg_description ON objoid = pg_constraint.oid AND classoid = 'pg_constraint'::regclass
UNION ALL
SELECT oid::regprocedure::text, '1 function ' || pg_get_functiondef(oid)
  FROM functions
 WHERE prokind IN ('f', 'p')
UNION ALL
SELECT functions.oid::regprocedure::text, '7 grant ' || coalesce(
           string_agg(
               CASE grantee WHEN 0 THEN 'public' ELSE grantee::regrole::text END,
               ', ' ORDER BY grantee::regrole::text
           ),
           'nobody'
       )
  FROM functions
  LEFT JOIN LATERAL aclexplode(coalesce(proacl, acldefault('f', proowner))) ON grantee <> proowner
 GROUP BY functions.oid
UNION ALL
SELECT oid::regprocedure::text, '8 comment ' || obj_description(oid, 'pg_proc')
  FROM functions
 WHERE obj_description(oid, 'pg_proc') IS NOT NULL
UNION ALL
SELECT typname, '1 type ' || string_agg(enumlabel, ', ' ORDER BY enumsortorder)
  FROM pg_type
  JOIN schema ON typnamespace = schema.oid
  JOIN pg_enum ON enumtypid = pg_type.oid
 GROUP BY typname
UNION ALL
SELECT extname, '1 extension'
  FROM pg_extension
UNION ALL
SELECT nspname, format(
           '7 grant %s %s',
           CASE grantee WHEN 0 THEN 'public' ELSE grantee::regrole::text END,
           privilege_type
       )
  FROM pg_namespace, aclexplode(nspacl)
 WHERE nspname = current_schema() AND grantee <> nspowner
"""


def described(conninfo: str) -> list[str]:
    """Return a line for each object of the current schema, sorted by the object that has it.

    The job queue's objects are among them; the owner's own privileges and the order of columns
    are not.
    """
    with psycopg.connect(conninfo) as connection:
        found = connection.execute(_OBJECTS).fetchall()
    return sorted(f"{name}: {_on_one_line(text[2:])}" for name, text in found)


def _on_one_line(text: str) -> str:
    return " ".join(text.split()).replace("( ", "(").replace(" )", ")")


def of_the_service(lines: list[str]) -> list[str]:
    """Leave out the job queue's objects, which follow procrastinate's release."""
    return [line for line in lines if "procrastinate" not in line.partition(" ")[0]]


def snapshot(postgres: PostgresServer) -> str:
    """Return what `SNAPSHOT` should have: the schema that the migrations create."""
    with postgres.database(migrated=False) as conninfo:
        migrate(conninfo)
        return "\n".join(of_the_service(described(conninfo))) + "\n"


def main() -> None:
    with running_server() as server:
        SNAPSHOT.write_text(snapshot(server), "utf-8")
    sys.stdout.write(f"{SNAPSHOT}\n")


if __name__ == "__main__":
    main()
