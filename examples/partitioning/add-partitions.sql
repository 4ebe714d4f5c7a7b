-- Adds a partition for each month from the end of the last one to `until`, while the service runs:
--
--   psql "$OWNER_URL" --no-psqlrc --set until=2030-01-01 --file add-partitions.sql
--
-- With `first` it begins with that month instead. partition-ledger.sql uses it with another `ledger`.
\set ON_ERROR_STOP on
\if :{?ledger}
\else
  \ir prepare.sql
  \set ledger billing_events
\endif
\if :{?first}
\else
  \set first ''
\endif
SET tenantry.ledger = :'ledger';
SET tenantry.first = :'first';
SET tenantry.until = :'until';
DO $$
DECLARE
    ledger regclass := current_setting('tenantry.ledger');
    first timestamptz := nullif(current_setting('tenantry.first'), '');
    until timestamptz := current_setting('tenantry.until');
BEGIN
    IF (SELECT relkind FROM pg_class WHERE oid = ledger) <> 'p' THEN
        RAISE 'billing_events is not partitioned: use partition-ledger.sql.';
    END IF;
    first := coalesce(first, (
        SELECT to_timestamp(max(substring(pg_get_expr(relpartbound, oid) FROM 'TO \(''(\d+)''\)')::bigint))
          FROM pg_class JOIN pg_inherits ON inhrelid = oid WHERE inhparent = ledger));
    IF until < first + interval '1 month' THEN
        RAISE 'There is no month to add between % and %.', first, until;
    END IF;
    PERFORM set_config('tenantry.first', extract(epoch FROM first)::bigint::text, false);
END $$;
SELECT current_setting('tenantry.first') AS first_added, extract(epoch FROM :'until'::timestamptz)::bigint AS end_added
\gset

-- Prove that the default partition has no event of these months, so that PostgreSQL attaches them without reading it.
BEGIN;
CALL pg_temp.lock_table('billing_events_default', :attempts);
ALTER TABLE billing_events_default DROP CONSTRAINT IF EXISTS billing_events_default_proof,
  ADD CONSTRAINT billing_events_default_proof CHECK (created < :first_added OR created >= :end_added) NOT VALID;
COMMIT;
\set ON_ERROR_STOP off
ALTER TABLE billing_events_default VALIDATE CONSTRAINT billing_events_default_proof;
BEGIN; -- all months or none
CALL pg_temp.lock_table('billing_events_default', :attempts);
DO $$
BEGIN
    IF NOT (SELECT convalidated FROM pg_constraint WHERE conname = 'billing_events_default_proof') THEN
        RAISE 'The default partition is not proven to have no event of these months.';
    END IF;
END $$;
SELECT format('CREATE TABLE billing_events_%s (LIKE %s INCLUDING DEFAULTS)', to_char(month, 'YYYY_MM'), :'ledger'),
       format('ALTER TABLE %s ATTACH PARTITION billing_events_%s FOR VALUES FROM (%s) TO (%s)', :'ledger',
              to_char(month, 'YYYY_MM'), extract(epoch FROM month)::bigint,
              extract(epoch FROM month + interval '1 month')::bigint)
  FROM generate_series(to_timestamp(:first_added), to_timestamp(:end_added) - interval '1 month',
                       interval '1 month') AS month \gexec
SELECT format('CALL pg_temp.revoke_all(%L)', inhrelid::regclass)
  FROM pg_inherits WHERE inhparent = :'ledger'::regclass \gexec
ALTER TABLE billing_events_default DROP CONSTRAINT billing_events_default_proof;
COMMIT;
\set ON_ERROR_STOP on
SELECT count(*) > 0 AS has_failed FROM pg_constraint WHERE conname = 'billing_events_default_proof' \gset
\if :has_failed
  \warn 'If this fails: ALTER TABLE billing_events_default DROP CONSTRAINT billing_events_default_proof'
  BEGIN;
  CALL pg_temp.lock_table('billing_events_default', 10 * :attempts);
  ALTER TABLE billing_events_default DROP CONSTRAINT billing_events_default_proof;
  COMMIT;
  DO $$ BEGIN RAISE 'No month was added: see the first error above.'; END $$;
\endif
-- PostgreSQL analyzes partitions by itself, and not the table of them all.
ANALYZE :ledger;
