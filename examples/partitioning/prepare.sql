-- Included by the other scripts: works as the owner of the ledger and in its schema, with helpers for this session.
SELECT format('SET ROLE %s', relowner::regrole), format('SET search_path = %s', relnamespace::regnamespace)
  FROM pg_class WHERE oid = 'billing_events'::regclass \gexec
SET timezone = 'UTC';
SET lock_timeout = 0;
\if :{?attempts}
\else
  \set attempts 100
\endif

-- Lock a table. Other statements wait behind this one, so each attempt lasts half a second.
CREATE OR REPLACE PROCEDURE pg_temp.lock_table(name regclass, attempts int) LANGUAGE plpgsql AS $$
BEGIN
    SET LOCAL lock_timeout = '500ms';
    FOR attempt IN 1..attempts LOOP
        BEGIN
            EXECUTE format('LOCK TABLE %s IN ACCESS EXCLUSIVE MODE', name);
            RETURN;
        EXCEPTION WHEN lock_not_available THEN
            PERFORM pg_sleep(CASE WHEN attempt < attempts THEN 1 ELSE 0 END);
        END;
    END LOOP;
    RAISE 'Another transaction holds %: find it in pg_stat_activity.', name;
END $$;

-- Roles read partitions through the partitioned table only, whatever the default privileges are.
CREATE OR REPLACE PROCEDURE pg_temp.revoke_all(name regclass) LANGUAGE plpgsql AS $$
DECLARE
    role text;
BEGIN
    FOR role IN SELECT DISTINCT CASE grantee WHEN 0 THEN 'PUBLIC' ELSE grantee::regrole::text END
                  FROM (SELECT (aclexplode(relacl)).grantee FROM pg_class WHERE oid = name
                         UNION ALL
                        SELECT (aclexplode(attacl)).grantee FROM pg_attribute WHERE attrelid = name) AS granted
                 WHERE grantee <> (SELECT relowner FROM pg_class WHERE oid = name) LOOP
        EXECUTE format('REVOKE ALL ON %s FROM %s', name, role);
    END LOOP;
END $$;
