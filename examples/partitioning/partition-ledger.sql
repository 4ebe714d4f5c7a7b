-- Partitions the ledger, the table billing_events, by month while the service runs (docs/how-to/partition-ledger.md):
--
--   psql "$OWNER_URL" --no-psqlrc --set first=2027-01-01 --set until=2029-01-01 --file partition-ledger.sql
--
-- The present table becomes the first partition, with all events created before `first`: no row is copied. `first` is
-- the beginning of a month (UTC) in the future. Each month from `first` to `until` gets a partition. If a statement
-- fails, the service works on as before: correct the cause and run the script again.
\set ON_ERROR_STOP on
SELECT relkind = 'p' AS is_partitioned FROM pg_class WHERE oid = 'billing_events'::regclass \gset
\if :is_partitioned
  \warn 'billing_events is partitioned already; add-partitions.sql adds months.'
  \quit
\endif
SET timezone = 'UTC';
SELECT extract(epoch FROM :'first'::timestamptz)::bigint AS first_second \gset

-- 1. A primary key of a partitioned table contains the partition key. An event has one id and one second of creation,
-- so this key rejects the same duplicates as the present one.
SET lock_timeout = 0; -- waits for running transactions, and no statement waits for it
DROP INDEX CONCURRENTLY IF EXISTS billing_events_before_pkey;
CREATE UNIQUE INDEX CONCURRENTLY billing_events_before_pkey ON billing_events (id, created);
SET lock_timeout = '2s';

-- 2. The partitioned table, with the columns, indexes, privileges and policies of the present one.
DROP TABLE IF EXISTS billing_events_new;
CREATE TABLE billing_events_new (LIKE billing_events INCLUDING DEFAULTS, PRIMARY KEY (id, created))
  PARTITION BY RANGE (created);
SELECT regexp_replace(pg_get_indexdef(indexrelid), '^CREATE INDEX (\S+) ON \S+',
                      'CREATE INDEX \1_new ON billing_events_new')
  FROM pg_index WHERE indrelid = 'billing_events'::regclass AND NOT indisunique \gexec
SELECT format('GRANT %s ON billing_events_new TO %s', privilege_type, grantee::regrole)
  FROM pg_class, aclexplode(relacl)
 WHERE oid = 'billing_events'::regclass AND grantee NOT IN (0, relowner)
 UNION ALL
SELECT format('GRANT %s (%I) ON billing_events_new TO %s', privilege_type, attname, grantee::regrole)
  FROM pg_attribute, aclexplode(attacl)
 WHERE attrelid = 'billing_events'::regclass AND NOT attisdropped AND grantee <> 0
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
-- then exchange the tables, which takes milliseconds and waits up to two seconds for running transactions. Until the
-- end, the service cannot store an event created at `first` or later. If a step fails, its proof is dropped.
\set ON_ERROR_STOP off
ALTER TABLE billing_events ADD CONSTRAINT billing_events_before_first CHECK (created < :first_second) NOT VALID;
ALTER TABLE billing_events VALIDATE CONSTRAINT billing_events_before_first;
BEGIN;
LOCK TABLE billing_events IN ACCESS EXCLUSIVE MODE;
DO $$
BEGIN
    ASSERT (SELECT convalidated FROM pg_constraint
             WHERE conname = 'billing_events_before_first' AND conrelid = 'billing_events'::regclass),
           'the ledger has an event created at "first" or later';
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
-- Roles read the first partition through the partitioned table only, as all others.
SELECT DISTINCT format('REVOKE ALL ON billing_events FROM %s', grantee::regrole)
  FROM (SELECT (aclexplode(relacl)).grantee FROM pg_class WHERE oid = 'billing_events'::regclass
         UNION ALL
        SELECT (aclexplode(attacl)).grantee FROM pg_attribute WHERE attrelid = 'billing_events'::regclass) AS granted
 WHERE grantee NOT IN (0, (SELECT relowner FROM pg_class WHERE oid = 'billing_events'::regclass)) \gexec
ALTER TABLE billing_events RENAME TO billing_events_before;
ALTER TABLE billing_events_new RENAME TO billing_events;
ALTER TABLE billing_events ATTACH PARTITION billing_events_before FOR VALUES FROM (MINVALUE) TO (:first_second);
ALTER TABLE billing_events_before DROP CONSTRAINT billing_events_before_first;
COMMIT;
\set ON_ERROR_STOP on
SELECT relkind = 'p' AS is_partitioned FROM pg_class WHERE oid = 'billing_events'::regclass \gset
\if :is_partitioned
  ANALYZE billing_events;
\else
  ALTER TABLE billing_events DROP CONSTRAINT IF EXISTS billing_events_before_first;
  DO $$ BEGIN RAISE 'The ledger is not partitioned: see the first error above.'; END $$;
\endif
