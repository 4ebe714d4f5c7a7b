-- Adds a partition for each month from the end of the last one to `until`, while the service runs:
--
--   psql "$OWNER_URL" --no-psqlrc --set until=2030-01-01 --file add-partitions.sql
--
-- With `first` it begins with that month instead. partition-ledger.sql uses it with another `ledger`.
\set ON_ERROR_STOP on
\if :{?ledger}
\else
  \set ledger billing_events
\endif
\if :{?first}
\else
  \set first ''
\endif
SET lock_timeout = '2s';
SET timezone = 'UTC';
BEGIN; -- all months or none: events wait for it, some tenths of a second
WITH last AS (
       SELECT to_timestamp(max(substring(pg_get_expr(relpartbound, oid) FROM 'TO \(''(\d+)''\)')::bigint)) AS until
         FROM pg_class JOIN pg_inherits ON inhrelid = oid
        WHERE inhparent = :'ledger'::regclass),
     months AS (
       SELECT to_char(month, 'YYYY_MM') AS name, extract(epoch FROM month)::bigint AS since,
              extract(epoch FROM month + interval '1 month')::bigint AS until
         FROM last, generate_series(coalesce(nullif(:'first', '')::timestamptz, last.until),
                                    :'until'::timestamptz - interval '1 month', interval '1 month') AS month)
SELECT format('CREATE TABLE billing_events_%s (LIKE %s INCLUDING DEFAULTS)', name, :'ledger'),
       format('ALTER TABLE %s ATTACH PARTITION billing_events_%s FOR VALUES FROM (%s) TO (%s)',
              :'ledger', name, since, until)
  FROM months \gexec
COMMIT;
