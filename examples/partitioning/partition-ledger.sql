-- Partitions the ledger, the table billing_events, by month while the service runs (docs/how-to/partition-ledger.md):
--
--   psql "$OWNER_URL" --no-psqlrc --set first=2027-01-01 --set until=2029-01-01 --file partition-ledger.sql
--
-- The present table becomes the first partition, with all events created before `first`: no row is copied. `first` is
-- the beginning of a month (UTC) in the future. Each month from `first` to `until` gets a partition. If a statement
-- fails, the ledger stays as it is: correct the cause and run the script again.
\set ON_ERROR_STOP on
\ir prepare.sql
SELECT relkind = 'p' AS is_partitioned FROM pg_class WHERE oid = 'billing_events'::regclass \gset
\if :is_partitioned
  \warn 'billing_events is partitioned already; add-partitions.sql adds months.'
  \quit
\endif
SELECT extract(epoch FROM :'first'::timestamptz)::bigint AS first_second \gset

-- The script copies what tenantry has created. Whatever else belongs to the table would stay with its first partition.
SELECT string_agg(name, ', ') AS obstacles, count(*) > 0 AS has_obstacles
  FROM (SELECT 'trigger ' || tgname FROM pg_trigger WHERE tgrelid = 'billing_events'::regclass AND NOT tgisinternal
         UNION ALL
        SELECT 'foreign key ' || conname FROM pg_constraint WHERE confrelid = 'billing_events'::regclass
         UNION ALL
        SELECT DISTINCT 'view ' || ev_class::regclass FROM pg_rewrite JOIN pg_depend ON objid = pg_rewrite.oid
         WHERE classid = 'pg_rewrite'::regclass AND refobjid = 'billing_events'::regclass
         UNION ALL
        SELECT 'publication ' || pubname FROM pg_publication JOIN pg_publication_rel ON prpubid = pg_publication.oid
         WHERE prrelid = 'billing_events'::regclass
         UNION ALL
        SELECT 'statistics ' || stxname FROM pg_statistic_ext WHERE stxrelid = 'billing_events'::regclass
         UNION ALL
        SELECT 'index ' || relname FROM pg_index JOIN pg_class ON oid = indexrelid
         WHERE indrelid = 'billing_events'::regclass AND relname !~ '^billing_events_'
         UNION ALL
        SELECT 'setting ' || unnest(reloptions) FROM pg_class WHERE oid = 'billing_events'::regclass
         UNION ALL
        SELECT 'FORCE ROW LEVEL SECURITY' FROM pg_class WHERE oid = 'billing_events'::regclass AND relforcerowsecurity
         UNION ALL
        SELECT 'grant to PUBLIC' FROM pg_class, aclexplode(relacl)
         WHERE oid = 'billing_events'::regclass AND grantee = 0) AS found (name) \gset
\if :has_obstacles
  \warn 'Remove these from billing_events, and create them again afterwards:' :obstacles
  DO $$ BEGIN RAISE 'The ledger is not partitioned: something depends on the table.'; END $$;
\endif

-- 1. A primary key of a partitioned table contains the partition key. An event has one id and one second of creation,
-- so this key rejects the same duplicates as the present one.
SET lock_timeout = 0; -- waits for running transactions, and no statement waits for it
DROP INDEX CONCURRENTLY IF EXISTS billing_events_before_pkey;
CREATE UNIQUE INDEX CONCURRENTLY billing_events_before_pkey ON billing_events (id, created);

-- 2. The partitioned table, with the columns, indexes, privileges and policies of the present one.
DROP TABLE IF EXISTS billing_events_new;
CREATE TABLE billing_events_new (LIKE billing_events INCLUDING DEFAULTS, PRIMARY KEY (id, created))
  PARTITION BY RANGE (created);
SELECT regexp_replace(pg_get_indexdef(indexrelid), '^CREATE INDEX (\S+) ON \S+',
                      'CREATE INDEX \1_new ON billing_events_new')
  FROM pg_index WHERE indrelid = 'billing_events'::regclass AND NOT indisunique \gexec
SELECT format('GRANT %s ON billing_events_new TO %s', privilege_type, grantee::regrole)
  FROM pg_class, aclexplode(relacl)
 WHERE oid = 'billing_events'::regclass AND grantee <> relowner
 UNION ALL
SELECT format('GRANT %s (%I) ON billing_events_new TO %s', privilege_type, attname, grantee::regrole)
  FROM pg_attribute, aclexplode(attacl)
 WHERE attrelid = 'billing_events'::regclass AND NOT attisdropped
 UNION ALL
SELECT 'ALTER TABLE billing_events_new ENABLE ROW LEVEL SECURITY'
  FROM pg_class WHERE oid = 'billing_events'::regclass AND relrowsecurity
 UNION ALL
SELECT format('CREATE POLICY %I ON billing_events_new AS %s FOR %s TO %s USING (%s)',
              policyname, permissive, cmd, array_to_string(roles, ', '), qual)
  FROM pg_policies WHERE schemaname = current_schema() AND tablename = 'billing_events' \gexec
CREATE TABLE billing_events_default PARTITION OF billing_events_new DEFAULT;
\set ledger billing_events_new
\ir add-partitions.sql

-- 3. Prove that the present table has no event of a later partition, so that PostgreSQL attaches it without reading it;
-- then exchange the tables, which takes milliseconds. Until the end, the service cannot store an event created at
-- `first` or later. If a step fails, the script drops the proof.
BEGIN;
CALL pg_temp.lock_table('billing_events', :attempts);
ALTER TABLE billing_events DROP CONSTRAINT IF EXISTS billing_events_before_first,
  ADD CONSTRAINT billing_events_before_first CHECK (created < :first_second) NOT VALID;
COMMIT;
\set ON_ERROR_STOP off
ALTER TABLE billing_events VALIDATE CONSTRAINT billing_events_before_first;
BEGIN;
CALL pg_temp.lock_table('billing_events', :attempts);
DO $$
BEGIN
    IF NOT (SELECT convalidated FROM pg_constraint
             WHERE conname = 'billing_events_before_first' AND conrelid = 'billing_events'::regclass) THEN
        RAISE 'The ledger is not proven to end before "first".';
    END IF;
END $$;
ALTER TABLE billing_events DROP CONSTRAINT billing_events_pkey,
  ADD CONSTRAINT billing_events_before_pkey PRIMARY KEY USING INDEX billing_events_before_pkey;
SELECT format('ALTER INDEX %s RENAME TO %I', indexrelid::regclass,
              regexp_replace(relname, '^billing_events', 'billing_events_before'))
  FROM pg_index JOIN pg_class ON oid = indexrelid
 WHERE indrelid = 'billing_events'::regclass AND NOT indisprimary
 UNION ALL
SELECT format('ALTER INDEX %s RENAME TO %I', indexrelid::regclass,
              CASE WHEN indisprimary THEN 'billing_events_pkey' ELSE regexp_replace(relname, '_new$', '') END)
  FROM pg_index JOIN pg_class ON oid = indexrelid
 WHERE indrelid = 'billing_events_new'::regclass \gexec
ALTER TABLE billing_events RENAME TO billing_events_before;
ALTER TABLE billing_events_new RENAME TO billing_events;
ALTER TABLE billing_events ATTACH PARTITION billing_events_before FOR VALUES FROM (MINVALUE) TO (:first_second);
CALL pg_temp.revoke_all('billing_events_before');
ALTER TABLE billing_events_before DROP CONSTRAINT billing_events_before_first;
COMMIT;
\set ON_ERROR_STOP on
SELECT relkind = 'p' AS is_partitioned FROM pg_class WHERE oid = 'billing_events'::regclass \gset
\if :is_partitioned
  ANALYZE billing_events;
\else
  \warn 'The script drops the proof; if that fails: ALTER TABLE billing_events DROP CONSTRAINT billing_events_before_first'
  BEGIN;
  CALL pg_temp.lock_table('billing_events', 10 * :attempts);
  ALTER TABLE billing_events DROP CONSTRAINT IF EXISTS billing_events_before_first;
  COMMIT;
  DO $$ BEGIN RAISE 'The ledger is not partitioned: see the first error above.'; END $$;
\endif
