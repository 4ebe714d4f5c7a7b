"""The schema of the first release.

What each role may do with a table, and its row-level security, is in ``db/privileges.toml`` and
``db/roles.py``. The job queue has its own tables. Ids are compared byte by byte (``COLLATE "C"``),
which is faster than by a language's rules, and the same on each system.

Revision ID: 0001
"""

from alembic import op

revision = "0001"
down_revision = None

TENANTS = """
CREATE TABLE tenants (
    id                       text COLLATE "C" PRIMARY KEY CHECK (id ~ '^[A-Za-z0-9_-]{1,64}$'),
    name                     text NOT NULL,
    created_at               timestamptz NOT NULL DEFAULT now(),
    updated_at               timestamptz NOT NULL DEFAULT now(),
    suspended_at             timestamptz,
    -- Why it is suspended, for its people: in the operator's words, empty if the operator gave no
    -- reason; NULL while it is not suspended.
    suspension               text,
    deleted_at               timestamptz,
    -- The IANA name of the zone in which pages show times; NULL: that of each reader.
    time_zone                text,
    -- Its people get no reminders of API keys by mail.
    leaves_key_mails         boolean NOT NULL DEFAULT false,

    owner_id                 text NOT NULL,
    owner_email              text NOT NULL,
    -- The address that was verified last; empty if none was.
    verified_email           text NOT NULL DEFAULT '',
    -- The address is the one that the identity provider vouches for, and follows it.
    owner_email_follows      boolean NOT NULL DEFAULT false,
    -- Of two tokens that disagree about the address, the one that was issued later counts.
    owner_email_token_issued timestamptz,

    -- The billing state: what the events so far made of it, and the access that follows.
    stripe_customer_id       text,
    plan                     text NOT NULL DEFAULT 'free',
    subscription_status      text NOT NULL DEFAULT 'none',
    current_period_end       bigint,
    cancel_at_period_end     boolean NOT NULL DEFAULT false,
    cancel_at                bigint,
    ends_at                  bigint,
    seats                    bigint,
    -- The phases of the access; NULL where plan and status say everything.
    access                   json,
    -- The billing periods that quotas follow, by phases; NULL where they follow the calendar month.
    billing_periods          json,

    -- What the next event is folded into: the value of SUBSCRIPTIONS by which the events are
    -- grouped, and the result of each group by its key, which is the id of a subscription with each
    -- and empty with any, and grant:NAME for a grant. json, not jsonb: an event reads and writes it whole.
    folded_by                text,
    folds                    json,
    reconciled_at            timestamptz,
    -- The checkout session to end before another one: the last one, or with SUBSCRIPTIONS=each the
    -- last one that offered a trial.
    last_checkout            text,
    -- Members were removed before their data was erased: they are rejected by an HMAC of their ids.
    rejects_erased           boolean NOT NULL DEFAULT false,
    CHECK ((suspended_at IS NULL) = (suspension IS NULL))
) WITH (fillfactor = 70);

CREATE INDEX tenants_deleted ON tenants (deleted_at) WHERE deleted_at IS NOT NULL;
-- For the operator's lists. A billing event changes no column of theirs.
CREATE INDEX tenants_by_age ON tenants (created_at DESC, id DESC) WHERE deleted_at IS NULL;
CREATE INDEX tenants_by_owner_email ON tenants (lower(owner_email));
-- For the jobs that record access that ended by time, and mail owners of it: the ends of the first
-- phase, and of the last one that ends; and the few tenants with more ends than these.
CREATE INDEX tenants_by_first_access_end ON tenants (((access->0->>'until')::bigint))
    WHERE (access->0->>'until')::bigint IS NOT NULL;
CREATE INDEX tenants_by_last_access_end ON tenants (((access->-2->>'until')::bigint))
    WHERE (access->-2->>'until')::bigint IS NOT NULL;
CREATE INDEX tenants_by_more_access_ends ON tenants (id) WHERE json_array_length(access) > 3;
"""

AUDIT = """
-- Who changed what. No foreign key to what was changed: the trail outlives it, but not its tenant.
CREATE TABLE audit_events (
    id           text COLLATE "C" PRIMARY KEY,
    org_id       text COLLATE "C" NOT NULL REFERENCES tenants ON DELETE CASCADE,
    at           timestamptz NOT NULL,
    action       text NOT NULL,
    actor_kind   text NOT NULL,
    actor_id     text,
    on_behalf_of text,
    reason       text,
    address      text,
    request_id   text,
    target_id    text NOT NULL,
    before       jsonb,
    after        jsonb
);
CREATE INDEX audit_events_of_tenant ON audit_events (org_id, at DESC, id DESC);
CREATE INDEX audit_events_of_target ON audit_events (org_id, target_id, at DESC, id DESC);
CREATE INDEX audit_events_of_actor ON audit_events (org_id, actor_id, at DESC, id DESC)
    WHERE actor_id IS NOT NULL;
-- Which keys were reported as leaked: few entries among many.
CREATE INDEX audit_events_of_leaks ON audit_events (org_id, target_id, at)
    WHERE action = 'api_key.leak_reported';

-- Entries change only by the erasure of a person, and go only after the end of their tenant, also
-- for the table's owner.
CREATE FUNCTION keep_audit_events() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'UPDATE'
       AND EXISTS (SELECT FROM erasures WHERE ended_at IS NULL)
       AND NEW IS NOT DISTINCT FROM erased_entry(OLD)
    THEN
        RETURN NEW;
    END IF;
    IF TG_OP = 'DELETE'
       AND NOT EXISTS (SELECT FROM tenants WHERE id = OLD.org_id AND deleted_at IS NULL)
    THEN
        RETURN OLD;
    END IF;
    RAISE EXCEPTION 'the audit trail is append-only' USING ERRCODE = 'insufficient_privilege';
END $$;
CREATE TRIGGER audit_events_are_kept BEFORE UPDATE OR DELETE ON audit_events
    FOR EACH ROW EXECUTE FUNCTION keep_audit_events();
CREATE TRIGGER audit_events_are_not_emptied BEFORE TRUNCATE ON audit_events
    FOR EACH STATEMENT EXECUTE FUNCTION keep_audit_events();

-- What the operator's people did. No foreign key: it outlives its tenant.
CREATE TABLE operator_acts (
    id         text COLLATE "C" PRIMARY KEY,
    at         timestamptz NOT NULL,
    action     text NOT NULL,
    org_id     text COLLATE "C",
    target_id  text NOT NULL,
    reason     text,
    address    text,
    request_id text,
    issuer     text NOT NULL,
    subject    text NOT NULL,
    name       text
);
CREATE INDEX operator_acts_by_time ON operator_acts (at DESC, id DESC);
CREATE INDEX operator_acts_of_tenant ON operator_acts (org_id, at DESC, id DESC);
CREATE INDEX operator_acts_of_person ON operator_acts (subject, at DESC, id DESC);
"""

ERASURES = """
-- People whose data was erased. While that is under way, the row has what is looked for: the person,
-- regular expressions for texts, user ids, and what takes the place of each. Then nothing of that stays.
CREATE TABLE erasures (
    id           text COLLATE "C" PRIMARY KEY,
    begun_at     timestamptz NOT NULL,
    ended_at     timestamptz,
    person       json,
    patterns     text[],
    loose        text, -- finds all that any of the patterns finds, and more, but far faster
    replacements text[],
    subjects     text[],
    aliases      text[],
    CHECK (num_nonnulls(ended_at, person) = 1),
    CHECK (num_nonnulls(person, patterns, loose, replacements, subjects, aliases) IN (0, 6))
);
CREATE UNIQUE INDEX erasures_under_way ON erasures ((ended_at IS NULL)) WHERE ended_at IS NULL;

CREATE FUNCTION erased_text(value text, patterns text[], replacements text[]) RETURNS text
LANGUAGE plpgsql IMMUTABLE STRICT AS $$
BEGIN
    FOR i IN 1 .. cardinality(patterns) LOOP
        value := regexp_replace(value, patterns[i], replacements[i], 'g');
    END LOOP;
    RETURN value;
END $$;

CREATE FUNCTION erased_id(value text, subjects text[], aliases text[]) RETURNS text
LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(aliases[array_position(subjects, value)], value)
$$;

-- An entry of the trail without the person whose erasure is under way.
CREATE FUNCTION erased_entry(entry audit_events) RETURNS audit_events LANGUAGE plpgsql STABLE AS $$
DECLARE
    e erasures;
BEGIN
    SELECT * INTO STRICT e FROM erasures WHERE ended_at IS NULL;
    IF entry.actor_kind = 'user' AND entry.actor_id = ANY (e.subjects) THEN
        entry.address := NULL;
    END IF;
    entry.actor_id := erased_text(erased_id(entry.actor_id, e.subjects, e.aliases), e.patterns, e.replacements);
    entry.on_behalf_of :=
        erased_text(erased_id(entry.on_behalf_of, e.subjects, e.aliases), e.patterns, e.replacements);
    entry.reason := erased_text(entry.reason, e.patterns, e.replacements);
    entry.request_id := erased_text(entry.request_id, e.patterns, e.replacements);
    entry.target_id := erased_text(entry.target_id, e.patterns, e.replacements);
    entry.before := erased_text(entry.before::text, e.patterns, e.replacements)::jsonb;
    entry.after := erased_text(entry.after::text, e.patterns, e.replacements)::jsonb;
    RETURN entry;
END $$;

-- The only way to change entries: without the person whose erasure is under way, in the pages from
-- `first` up to `last`. Returns the tenants of the changed ones.
CREATE FUNCTION erase_from_audit_events(first tid, last tid) RETURNS SETOF text
LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    e erasures;
BEGIN
    SELECT * INTO STRICT e FROM erasures WHERE ended_at IS NULL;
    RETURN QUERY
    UPDATE audit_events a
       SET (actor_id, on_behalf_of, reason, address, request_id, target_id, before, after) =
           (SELECT c.actor_id, c.on_behalf_of, c.reason, c.address, c.request_id, c.target_id, c.before, c.after
              FROM erased_entry(a) c)
     WHERE a.ctid >= first AND a.ctid < last
       AND (a.actor_id = ANY (e.subjects)
            OR a.on_behalf_of = ANY (e.subjects)
            OR CASE WHEN concat_ws(chr(10), a.actor_id, a.on_behalf_of, a.reason, a.request_id, a.target_id,
                                   a.before, a.after) ~ e.loose
                    THEN concat_ws(chr(10), a.actor_id, a.on_behalf_of, a.reason, a.request_id, a.target_id,
                                   a.before, a.after) ~ array_to_string(e.patterns, '|') END)
    RETURNING a.org_id::text;
END $$;
REVOKE ALL ON FUNCTION erase_from_audit_events FROM PUBLIC;
"""

# A role that does not own the tables may remove a tenant and its audit trail, once the tenant was
# deleted 30 days ago by the database's own clock. It cannot put the deletion into the past for
# that: it deletes a tenant now or not at all.
TENANT_REMOVAL = """
CREATE FUNCTION owns_tenants() RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT pg_has_role(session_user, relowner, 'MEMBER')
      FROM pg_class
     WHERE oid = 'tenants'::regclass
$$;

CREATE FUNCTION is_over(tenant text) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT EXISTS (
        SELECT
          FROM tenants
         WHERE id = tenant
           AND deleted_at IS NOT NULL
           AND (owns_tenants() OR deleted_at <= clock_timestamp() - interval '30 days')
    )
$$;

CREATE FUNCTION purge_audit_events(tenant text, most integer) RETURNS SETOF text
LANGUAGE sql SECURITY DEFINER AS $$
    DELETE FROM audit_events
     WHERE is_over(tenant)
       AND id IN (SELECT id FROM audit_events WHERE org_id = tenant LIMIT most)
    RETURNING id
$$;

CREATE FUNCTION purge_tenant(tenant text) RETURNS void LANGUAGE sql SECURITY DEFINER AS $$
    DELETE FROM tenants WHERE id = tenant AND is_over(tenant)
$$;
REVOKE ALL ON FUNCTION purge_audit_events, purge_tenant FROM PUBLIC;

CREATE FUNCTION keep_ends_of_tenants() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.deleted_at IS NOT NULL
       AND NOT owns_tenants()
       AND abs(extract(epoch FROM NEW.deleted_at - clock_timestamp())) > 86400
    THEN
        RAISE EXCEPTION 'a tenant ends now' USING ERRCODE = 'insufficient_privilege';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER ends_of_tenants_are_kept BEFORE UPDATE OF deleted_at ON tenants
    FOR EACH ROW WHEN (OLD.deleted_at IS DISTINCT FROM NEW.deleted_at)
    EXECUTE FUNCTION keep_ends_of_tenants();
"""

MEMBERS = """
CREATE TABLE memberships (
    issuer      text NOT NULL,
    subject     text NOT NULL,
    tenant_id   text COLLATE "C" NOT NULL REFERENCES tenants ON DELETE CASCADE,
    id          text COLLATE "C" NOT NULL
                DEFAULT 'mbr_' || replace(gen_random_uuid()::text, '-', ''),
    role        text NOT NULL CHECK (role ~ '^[a-z][a-z0-9_-]{0,31}$'),
    -- The user has not accepted yet.
    invited     boolean NOT NULL DEFAULT false,
    -- The user created the tenant: this counts against TENANTS_PER_USER.
    founded     boolean NOT NULL DEFAULT false,
    created_at  timestamptz NOT NULL DEFAULT now(),
    updated_at  timestamptz,
    removed_at  timestamptz,
    -- An OWNER or the operator wrote it once: the row also restricts a user whose token claims the
    -- role owner.
    binds_owner boolean NOT NULL DEFAULT true,
    PRIMARY KEY (issuer, subject, tenant_id)
);
CREATE UNIQUE INDEX memberships_by_id ON memberships (id);
CREATE INDEX memberships_of_tenant ON memberships (tenant_id, created_at DESC, id DESC);
CREATE INDEX memberships_invited ON memberships (tenant_id, created_at DESC, id DESC)
    WHERE invited AND removed_at IS NULL;
-- For a token that names no organization: neither removed rows nor invitations are read.
CREATE INDEX memberships_active ON memberships (issuer, subject, tenant_id)
    WHERE removed_at IS NULL AND NOT invited;
-- For a user's own list, newest first.
CREATE INDEX memberships_of_user ON memberships (issuer, subject, created_at DESC, id DESC)
    WHERE removed_at IS NULL;
-- For the operator, who finds organizations by their people.
-- In lower case, so that no lookup of a request takes it.
CREATE INDEX memberships_of_subject ON memberships (lower(subject)) WHERE removed_at IS NULL;
CREATE INDEX memberships_founded ON memberships (issuer, subject) WHERE founded;
-- For the number of a tenant's members: the rows of removed users stay, however many they become.
CREATE INDEX memberships_current ON memberships (tenant_id, issuer) WHERE removed_at IS NULL;
"""

INVITATIONS = """
-- Invitations by mail. The link in the mail is an HMAC of the id, and in no table.
CREATE TABLE invitations (
    id          text COLLATE "C" PRIMARY KEY,
    org_id      text COLLATE "C" NOT NULL REFERENCES tenants ON DELETE CASCADE,
    email       text NOT NULL,
    -- The address in the form by which addresses are compared.
    address     text NOT NULL,
    role        text NOT NULL,
    -- As of memberships, for the membership that follows.
    binds_owner boolean NOT NULL,
    invited_by  text NOT NULL,
    -- Mails that were queued.
    sends       integer NOT NULL,
    created_at  timestamptz NOT NULL,
    expires_at  timestamptz NOT NULL,
    sent_at     timestamptz,
    -- NULL while the invitation is open, and for one that expired until the address is invited again.
    closed_as   text CHECK (closed_as IN ('accepted', 'withdrawn', 'expired')),
    closed_at   timestamptz,
    -- The membership of the user who accepted.
    member_id   text COLLATE "C",
    CHECK ((closed_as IS NULL) = (closed_at IS NULL))
);
CREATE INDEX invitations_of_tenant ON invitations (org_id, created_at DESC, id DESC);
CREATE UNIQUE INDEX invitations_open ON invitations (org_id, address) WHERE closed_as IS NULL;
CREATE INDEX invitations_by_end ON invitations (coalesce(closed_at, expires_at));
"""

API_KEYS = """
CREATE TABLE api_keys (
    id                text COLLATE "C" PRIMARY KEY,
    org_id            text COLLATE "C" NOT NULL REFERENCES tenants ON DELETE CASCADE,
    digest            bytea NOT NULL UNIQUE,
    -- The pepper of the digest: its id, not the pepper.
    pepper_id         text,
    name              text NOT NULL,
    scopes            text[] NOT NULL,
    access_level      text NOT NULL CHECK (access_level IN ('SCOPED', 'OWNER')),
    mode              text NOT NULL CHECK (mode IN ('live', 'test')),
    expires_at        timestamptz,
    start             text NOT NULL,
    last4             text NOT NULL,
    created_at        timestamptz NOT NULL,
    created_by        text NOT NULL,
    last_used_at      timestamptz,
    last_used_address text,
    revoked_at        timestamptz,
    rotated_from      text,
    superseded_by     text,
    -- What other systems know of the key: an id, which several keys may have, and an object of
    -- strings. Null where they store nothing.
    external_id       text COLLATE "C",
    metadata          json,
    -- The addresses and networks from which the key may be used. Null is any.
    allowed_addresses text[],
    -- False for a key that is switched off.
    enabled           boolean NOT NULL DEFAULT true,
    -- A limit of the key's own. Null is none.
    requests_per_minute integer,
    -- Of an imported key: the algorithm of its hash, and the HMAC of that hash. `digest` is the same
    -- until the first use replaces it. This one stays, so that the hash is never imported again.
    import_algorithm  text CHECK (import_algorithm IN ('sha256', 'sha512')),
    import_digest     bytea
) WITH (fillfactor = 80); -- room in each page for the last uses of its keys, which change no index
CREATE INDEX api_keys_of_tenant ON api_keys (org_id, created_at DESC, id DESC);
CREATE INDEX api_keys_by_external_id ON api_keys (org_id, external_id, created_at DESC, id DESC)
    WHERE external_id IS NOT NULL;
CREATE UNIQUE INDEX api_keys_by_import_digest ON api_keys (import_digest)
    WHERE import_digest IS NOT NULL;
CREATE INDEX api_keys_rotated ON api_keys (rotated_from) WHERE rotated_from IS NOT NULL;
-- The operator finds a key by the characters that pages show.
CREATE INDEX api_keys_by_start ON api_keys (lower(start));
CREATE INDEX api_keys_by_last4 ON api_keys (lower(last4));
"""

PROJECTS = """
CREATE FUNCTION api_time(moment timestamptz) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT regexp_replace(
               to_char(moment AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US'),
               '[.]000000$', ''
           ) || 'Z'
$$;

CREATE FUNCTION project_document(
    id text, org_id text, name text, description text, mode text,
    created_at timestamptz, updated_at timestamptz
) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT format(
               '{"id":%s,"orgId":%s,"name":%s,"description":%s,"mode":%s,"createdAt":"%s","updatedAt":"%s"}',
               to_json(id), to_json(org_id), to_json(name), coalesce(to_json(description), 'null'),
               to_json(mode), api_time(created_at), api_time(updated_at)
           )
$$;

CREATE TABLE projects (
    id          text COLLATE "C" PRIMARY KEY,
    org_id      text COLLATE "C" NOT NULL REFERENCES tenants ON DELETE CASCADE,
    mode        text NOT NULL CHECK (mode IN ('live', 'test')),
    name        text NOT NULL,
    description text,
    created_at  timestamptz NOT NULL,
    updated_at  timestamptz NOT NULL,
    -- As the API shows it: computed once for each write, instead of for each read.
    document    text NOT NULL GENERATED ALWAYS AS
        (project_document(id, org_id, name, description, mode, created_at, updated_at)) STORED
);
CREATE INDEX projects_of_tenant ON projects (org_id, mode, created_at DESC, id DESC);
"""

CUSTOMERS_AND_SUBSCRIPTIONS = """
CREATE TABLE customers (
    id        text COLLATE "C" PRIMARY KEY,
    tenant_id text COLLATE "C" NOT NULL REFERENCES tenants ON DELETE CASCADE,
    linked_by text NOT NULL,
    linked_at timestamptz NOT NULL DEFAULT now(),
    gone_by   text -- the event after which the provider does not have the customer any more
);
CREATE INDEX customers_of_tenant ON customers (tenant_id);

-- Finds tenants by the subscriptions of their folds. Rows stay when a fold has gone.
CREATE TABLE subscription_tenants (
    subscription_id text COLLATE "C" NOT NULL,
    tenant_id       text COLLATE "C" NOT NULL REFERENCES tenants ON DELETE CASCADE,
    customer_id     text,
    PRIMARY KEY (subscription_id, tenant_id)
);
CREATE INDEX subscription_tenants_of_tenant ON subscription_tenants (tenant_id);
CREATE INDEX subscription_tenants_of_customer ON subscription_tenants (customer_id)
    WHERE customer_id IS NOT NULL;

-- The folds by column, for queries. The id is empty if no subscription is current or it has none.
CREATE VIEW subscriptions WITH (security_invoker = true) AS
SELECT t.id AS tenant_id,
       coalesce(nullif(fold.key, ''), fold.state->>'subscription_id', '') AS id,
       fold.state->>'customer_id' AS customer_id,
       (fold.state->>'subscription_created')::bigint AS created,
       coalesce(fold.state->>'subscription_status', 'none') AS status,
       coalesce(fold.state->>'plan', 'free') AS plan,
       (fold.state->>'seats')::bigint AS quantity,
       fold.state->'details'->'items' AS items,
       (fold.state->'details'->>'period_start')::bigint AS current_period_start,
       (fold.state->>'current_period_end')::bigint AS current_period_end,
       (fold.state->'details'->>'cancel_at')::bigint AS cancel_at,
       coalesce((fold.state->>'cancel_at_period_end')::boolean, false) AS cancel_at_period_end,
       (fold.state->'details'->>'trial_end')::bigint AS trial_end,
       fold.state->'details'->>'pause' AS pause_behavior,
       (fold.state->>'past_due_since')::bigint AS past_due_since,
       (fold.state->'details'->>'ended_at')::bigint AS ended_at,
       fold.state->'unpaid_invoices' AS unpaid_invoices,
       (fold.state->>'paid_until')::bigint AS paid_until,
       fold.state->>'provider_status' AS provider_status,
       (fold.state->>'reported_at')::bigint AS reported_at,
       (fold.value->>'tip_created')::bigint AS tip_created,
       (fold.value->>'moved_at')::bigint AS moved_at
  FROM tenants t
 CROSS JOIN LATERAL (
         SELECT key, value, value->'state' AS state FROM json_each(
                CASE WHEN json_typeof(t.folds) = 'object' THEN t.folds END)
          WHERE NOT starts_with(key, 'grant:')) AS fold;
"""

LEDGER = """
-- A process takes 1024 arrival numbers at a time, and numbers the events of its batches itself.
CREATE SEQUENCE billing_arrivals INCREMENT BY 1024;

CREATE TABLE billing_events (
    id              text COLLATE "C" PRIMARY KEY,
    arrival         bigint NOT NULL,
    received_at     timestamptz NOT NULL,
    type            text NOT NULL,
    created         bigint NOT NULL,

    -- What parked events wait for.
    org_id          text COLLATE "C",
    customer_id     text COLLATE "C",
    subscription_id text,
    -- A bearer secret: whoever has the address can see and pay the invoice.
    invoice_url     text,
    -- The charge and the payment intent, by which refunds and disputes find their tenant.
    payments        text[],

    tenant_id       text COLLATE "C",
    outcome         text NOT NULL,
    anomalies       text[],
    -- When the operator's removal of the customer's link parked it again; NULL: at its arrival.
    parked_at       timestamptz,

    -- The other facts of the event, the reason of the outcome, and the tenant's record before and
    -- after it. json, not jsonb: a row is written once, and most queries read it whole.
    document        json NOT NULL DEFAULT '{}'
);
CREATE INDEX billing_events_of_tenant ON billing_events (tenant_id, created, arrival)
    WHERE tenant_id IS NOT NULL;
CREATE INDEX billing_events_parked_by_org ON billing_events (org_id) WHERE outcome = 'parked';
CREATE INDEX billing_events_parked_by_customer ON billing_events (customer_id)
    WHERE outcome = 'parked';
-- For invoices that wait for their subscription.
CREATE INDEX billing_events_parked_by_subscription ON billing_events (subscription_id)
    WHERE outcome = 'parked' AND org_id IS NULL;
CREATE INDEX billing_events_of_payment ON billing_events USING gin (payments)
    WHERE payments IS NOT NULL;
CREATE INDEX billing_events_with_anomalies ON billing_events (received_at)
    WHERE anomalies IS NOT NULL;

-- Raw bodies are large, seldom read and dropped with age; the ledger's facts are small, often read
-- and kept. Arrival numbers grow, so the oldest bodies are at one end of the index, and new ones go
-- to the other. A body of a few KiB stays in its row as it is: to compress it, or to move it
-- elsewhere, costs more than all else that is written with it.
CREATE TABLE billing_bodies (
    arrival     bigint PRIMARY KEY,
    received_at timestamptz NOT NULL,
    body        bytea NOT NULL
) WITH (toast_tuple_target = 8160);

-- For roles that may not read the bodies themselves.
CREATE FUNCTION event_body(event text) RETURNS bytea LANGUAGE sql STABLE SECURITY DEFINER AS $$
    SELECT b.body
      FROM billing_events e
      JOIN billing_bodies b USING (arrival)
     WHERE e.id = event
$$;
REVOKE ALL ON FUNCTION event_body FROM PUBLIC;

-- The last replay or reconciliation of a tenant that an operator has started on a page.
CREATE TABLE ledger_runs (
    tenant_id    text COLLATE "C" PRIMARY KEY REFERENCES tenants ON DELETE CASCADE,
    id           text NOT NULL,
    kind         text NOT NULL,
    repairs      boolean NOT NULL,
    author       text NOT NULL,
    requested_at timestamptz NOT NULL,
    started_at   timestamptz,
    starts       integer NOT NULL DEFAULT 0,
    seen         bigint NOT NULL DEFAULT 0,
    ended_at     timestamptz,
    failure      text,
    result       text
);
COMMENT ON COLUMN ledger_runs.author IS 'the person, address and request, as JSON';

-- Counts of checks that read too much to run for each scrape of the metrics.
CREATE TABLE billing_findings (
    name     text PRIMARY KEY,
    number   bigint NOT NULL,
    found_at timestamptz NOT NULL
);

-- Requests that the payment provider refused, with its own code and message, for the operator. The
-- messages have no mail addresses.
CREATE TABLE provider_refusals (
    operation   text NOT NULL,
    code        text NOT NULL,
    message     text NOT NULL,
    number      bigint NOT NULL,
    first_at    timestamptz NOT NULL,
    last_at     timestamptz NOT NULL,
    last_tenant text,
    PRIMARY KEY (operation, code, message)
);
"""

MAILS = """
CREATE TABLE mails (
    id           uuid PRIMARY KEY,
    type         text NOT NULL,
    tenant_id    text COLLATE "C" NOT NULL,
    cause        text COLLATE "C" NOT NULL UNIQUE,
    recipient_id text,
    recipient    text NOT NULL,
    limit_key    text,
    data         jsonb NOT NULL,
    -- its delivery; the job queue counts the attempts
    status       text NOT NULL CHECK (status IN ('collecting', 'queued', 'sent', 'failed', 'dropped')),
    last_error   text,
    created_at   timestamptz NOT NULL,
    due_at       timestamptz NOT NULL,
    ended_at     timestamptz,
    -- of a confirmation
    digest       bytea CHECK (octet_length(digest) = 32),
    expires_at   timestamptz
);
COMMENT ON COLUMN mails.cause IS 'is mailed once: an event, a notice, or a request of its own';
COMMENT ON COLUMN mails.recipient_id IS 'the owner, of a notification (SPEC 2.4); null for another mail to an address';
COMMENT ON COLUMN mails.recipient IS 'fixed when the mail was queued';
COMMENT ON COLUMN mails.limit_key IS 'the recipient, spelled so that one mailbox counts once; null for a notification';
COMMENT ON COLUMN mails.ended_at IS 'when it was sent, given up or dropped';
COMMENT ON COLUMN mails.digest IS 'SHA-256 of the token in the link; the token itself is only in the mail';
CREATE INDEX mails_of_tenant ON mails (tenant_id, due_at);
CREATE INDEX mails_to_address ON mails (limit_key, created_at) WHERE limit_key IS NOT NULL;
CREATE INDEX mails_unsent ON mails (created_at) WHERE status NOT IN ('sent', 'dropped');
CREATE INDEX mails_ended ON mails (created_at)
    WHERE recipient_id IS NULL AND status IN ('sent', 'failed', 'dropped');
CREATE UNIQUE INDEX mails_by_digest ON mails (digest) WHERE digest IS NOT NULL;

-- The notifications of SPEC 2.4, which it names by these columns.
CREATE VIEW notifications WITH (security_invoker = true) AS
SELECT id, type, recipient_id, tenant_id, ARRAY['email'] AS channels, data,
       cause, status, created_at, CASE WHEN status = 'sent' THEN ended_at END AS sent_at
  FROM mails
 WHERE recipient_id IS NOT NULL;
"""

DASHBOARD = """
CREATE TABLE dashboard_sessions (
    digest     bytea PRIMARY KEY CHECK (octet_length(digest) = 32),
    issuer     text NOT NULL,
    subject    text NOT NULL,
    claims     text NOT NULL,
    name       text,
    tenant_id  text,
    address    text,
    agent      text,
    proved_at  timestamptz NOT NULL,
    started_at timestamptz NOT NULL,
    used_at    timestamptz NOT NULL,
    authenticated_at timestamptz
) WITH (fillfactor = 80);
COMMENT ON COLUMN dashboard_sessions.digest IS 'HMAC of what the cookie holds; the cookie itself is nowhere';
COMMENT ON COLUMN dashboard_sessions.proved_at IS 'when the identity provider last vouched for the claims';
CREATE INDEX dashboard_sessions_by_user ON dashboard_sessions (issuer, subject);
CREATE INDEX dashboard_sessions_by_start ON dashboard_sessions (started_at);

CREATE TABLE user_profiles (
    org_id  text COLLATE "C" NOT NULL REFERENCES tenants ON DELETE CASCADE,
    issuer  text NOT NULL,
    subject text NOT NULL,
    name    text,
    email   text,
    -- The role of the claim that names the tenant, if the user came by one.
    claimed_role text,
    seen_at timestamptz NOT NULL,
    PRIMARY KEY (org_id, issuer, subject)
);
COMMENT ON TABLE user_profiles IS 'users as the identity provider describes them, by tenant that they have used';
COMMENT ON COLUMN user_profiles.email IS 'an address that the identity provider has verified';
COMMENT ON COLUMN user_profiles.seen_at IS 'when the user last used the tenant, to the hour';
CREATE INDEX user_profiles_by_age ON user_profiles (seen_at);
-- For the operator, who finds organizations by their people.
CREATE INDEX user_profiles_of_subject ON user_profiles (lower(subject));
CREATE INDEX user_profiles_by_email ON user_profiles (lower(email)) WHERE email IS NOT NULL;
CREATE INDEX user_profiles_by_name ON user_profiles (lower(name)) WHERE name IS NOT NULL;
-- For the users who came by a claim, the last seen first; a subject has no blanks.
CREATE INDEX user_profiles_claimed ON user_profiles (org_id, seen_at DESC, (subject || ' ' || issuer) DESC)
    WHERE claimed_role IS NOT NULL;
"""

REQUESTS = """
CREATE TABLE idempotency_keys (
    principal   text NOT NULL,
    route       text NOT NULL,
    key         text NOT NULL,
    body_digest bytea NOT NULL,
    answer      jsonb NOT NULL,
    created_at  timestamptz NOT NULL,
    PRIMARY KEY (principal, route, key)
);
CREATE INDEX idempotency_keys_by_age ON idempotency_keys (created_at);

-- Accepted requests of each second. Unlogged: a crash of the database forgets at most one minute.
CREATE UNLOGGED TABLE request_counts (
    subject text COLLATE "C" NOT NULL,
    second  bigint NOT NULL,
    number  integer NOT NULL,
    PRIMARY KEY (subject, second)
) WITH (fillfactor = 50);
"""

USAGE = """
-- What a tenant used of a metered feature: a row for each period, so that none is ever reset.
-- Shares that processes have reserved for requests count as used.
CREATE TABLE usage_counters (
    org_id       text COLLATE "C" NOT NULL REFERENCES tenants ON DELETE CASCADE,
    feature      text COLLATE "C" NOT NULL,
    mode         text NOT NULL CHECK (mode IN ('live', 'test')),
    -- Seconds since the Unix epoch; the end is exclusive.
    period_start bigint NOT NULL,
    period_end   bigint NOT NULL,
    used         bigint NOT NULL CHECK (used >= 0),
    -- When live use first reached the limit, which is published once in a period.
    reached_at   timestamptz,
    PRIMARY KEY (org_id, feature, mode, period_start)
) WITH (fillfactor = 50); -- room for the next version of a row that changes often
CREATE INDEX usage_counters_by_age ON usage_counters (period_end);

-- Idempotency keys of requests that consume, which all credentials of a tenant share. Batches answer
-- them, and may not read other answers.
CREATE TABLE consumption_keys (
    org_id       text COLLATE "C" NOT NULL,
    feature      text COLLATE "C" NOT NULL,
    mode         text NOT NULL,
    key          text COLLATE "C" NOT NULL,
    body_digest  bytea NOT NULL,
    answer       json NOT NULL,
    created_at   timestamptz NOT NULL,
    -- What the counter of this period has of it, and the answer to giving that back.
    taken        bigint NOT NULL,
    period_start bigint NOT NULL,
    given_back   json,
    PRIMARY KEY (org_id, feature, mode, key)
);
CREATE INDEX consumption_keys_by_age ON consumption_keys (created_at);
"""

REQUEST_USAGE = """
-- How many requests each key of a tenant sent, by outcome; an empty key_id counts all users. The
-- time is the beginning of the hour, or of the day in UTC. Queries read the indexes alone, while
-- autovacuum marks the pages of past hours soon. No foreign key: a count must not lock a tenant.
CREATE TABLE usage_hours (
    org_id  text COLLATE "C" NOT NULL,
    key_id  text COLLATE "C" NOT NULL,
    hour    timestamptz NOT NULL,
    outcome text COLLATE "C" NOT NULL,
    number  bigint NOT NULL,
    PRIMARY KEY (org_id, key_id, hour, outcome) INCLUDE (number)
) WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_insert_scale_factor = 0.01);
CREATE INDEX usage_hours_of_tenant ON usage_hours (org_id, hour, key_id, outcome) INCLUDE (number);
CREATE INDEX usage_hours_by_age ON usage_hours (hour);

CREATE TABLE usage_days (
    org_id  text COLLATE "C" NOT NULL,
    key_id  text COLLATE "C" NOT NULL,
    day     timestamptz NOT NULL,
    outcome text COLLATE "C" NOT NULL,
    number  bigint NOT NULL,
    PRIMARY KEY (org_id, key_id, day, outcome) INCLUDE (number)
) WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_insert_scale_factor = 0.01);
CREATE INDEX usage_days_of_tenant ON usage_days (org_id, day, key_id, outcome) INCLUDE (number);
CREATE INDEX usage_days_by_age ON usage_days (day);

-- Refused requests: the equal ones of one key or user of one minute. No foreign key, as for usage.
CREATE TABLE rejections (
    id         text COLLATE "C" NOT NULL,
    org_id     text COLLATE "C" NOT NULL,
    kind       text COLLATE "C" NOT NULL CHECK (kind IN ('api_key', 'user')),
    principal  text COLLATE "C" NOT NULL,
    mode       text COLLATE "C" NOT NULL CHECK (mode IN ('live', 'test')),
    minute     timestamptz NOT NULL,
    code       text COLLATE "C" NOT NULL,
    needed     text COLLATE "C" NOT NULL,
    route      text COLLATE "C" NOT NULL,
    status     int NOT NULL,
    at         timestamptz NOT NULL,
    request_id text NOT NULL,
    address    text,
    counted    bigint NOT NULL,
    PRIMARY KEY (org_id, kind, principal, mode, minute, code, needed, route)
);
CREATE INDEX rejections_by_time ON rejections (org_id, at, id);
CREATE INDEX rejections_by_age ON rejections (at);

-- The processes that count: the batch that each wrote last, and the moment until which its counts
-- are complete.
CREATE TABLE usage_writers (
    id             text PRIMARY KEY,
    batch          bigint NOT NULL,
    complete_until timestamptz NOT NULL
) WITH (fillfactor = 50);
"""

JOBS = """
CREATE TABLE queue_migrations (
    name       text PRIMARY KEY,
    applied_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE job_runs (
    task         text PRIMARY KEY,
    succeeded    bigint NOT NULL,
    failed       bigint NOT NULL,
    succeeded_at timestamptz
) WITH (fillfactor = 50);
COMMENT ON TABLE job_runs IS 'for the metrics: the queue itself keeps nothing of a job that went well';
"""

CHECKS = """
-- The standbys that answer checks, by the name that pg_stat_replication shows. Processes register
-- them before the first check, and again every half minute; a change waits for all of them. The
-- timeline is that of the primary on which the row was written, and each write gives the row another
-- version: a standby that shows a version has the history of the primary that has shown it.
CREATE TABLE check_standbys (
    name       text PRIMARY KEY,
    timeline   bigint NOT NULL,
    -- By the primary's clock. NULL: a process has ended the registration, and will remove the row.
    expires_at timestamptz,
    version    uuid NOT NULL DEFAULT gen_random_uuid()
) WITH (fillfactor = 50);
"""

OUTBOUND = """
-- What orders the events of changes. Transaction ids begin anew in a restored copy, and a promoted
-- standby gives some of them again; so they are compared within one epoch. Copies number their
-- epochs independently: the token tells these apart.
CREATE TABLE outbound_epochs (
    epoch          integer PRIMARY KEY,
    token          text NOT NULL DEFAULT left(replace(gen_random_uuid()::text, '-', ''), 12),
    cluster        bigint NOT NULL,
    timeline       bigint NOT NULL,
    database       oid NOT NULL,
    -- The last event that retention removed; NULL: none.
    purged_xid     xid8,
    purged_version bigint
);
CREATE SEQUENCE outbound_versions;

CREATE TABLE outbound_events (
    epoch       integer NOT NULL,
    xid         xid8 NOT NULL DEFAULT pg_current_xact_id(),
    version     bigint NOT NULL DEFAULT nextval('outbound_versions'),
    type        text COLLATE "C" NOT NULL,
    org_id      text COLLATE "C" NOT NULL,
    at          timestamptz NOT NULL,
    recorded_at timestamptz NOT NULL,
    -- The whole object after the change, as the API shows it.
    data        json NOT NULL,
    PRIMARY KEY (epoch, xid, version)
);
-- The place of an event by its id.
CREATE INDEX outbound_events_by_version ON outbound_events (version);

-- One row: what tells the history of this database from that of its copies, and of its former
-- primaries. As a stable set it becomes a part of the caller's plan; PostgreSQL would plan a function
-- of another kind at each call, in every transaction that publishes.
CREATE FUNCTION outbound_history() RETURNS TABLE (cluster bigint, timeline bigint, database oid)
LANGUAGE sql STABLE AS $$
    SELECT (pg_control_system()).system_identifier,
           ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint,
           oid
      FROM pg_database
     WHERE datname = current_database()
$$;
-- Add an epoch. Its versions follow those of every history before: they begin with the time in
-- microseconds, and increase by one. If the clock was set back, they begin a billion above the last
-- known one: more than the events that a failover can lose.
CREATE FUNCTION add_outbound_epoch(number integer) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    -- Of two transactions, the second waits for the end of the first.
    INSERT INTO outbound_epochs (epoch, cluster, timeline, database)
    SELECT number, h.* FROM outbound_history() h
        ON CONFLICT DO NOTHING;
    IF FOUND THEN
        PERFORM setval('outbound_versions',
                       greatest(nextval('outbound_versions') + 1000000000,
                                (extract(epoch FROM clock_timestamp()) * 1000000)::bigint));
    END IF;
END $$;
-- The epoch of this transaction. A new one begins with the first event on a promoted standby or in
-- a copy.
CREATE FUNCTION outbound_epoch() RETURNS integer LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    newest     integer;
    is_of_here boolean;
BEGIN
    LOOP
        SELECT e.epoch, (e.cluster, e.timeline, e.database) = (h.cluster, h.timeline, h.database)
          INTO newest, is_of_here
          FROM outbound_history() h
          LEFT JOIN (SELECT * FROM outbound_epochs ORDER BY epoch DESC LIMIT 1) e ON true;
        IF is_of_here THEN
            RETURN newest;
        END IF;
        PERFORM add_outbound_epoch(coalesce(newest, 0) + 1);
    END LOOP;
END $$;
-- A database restored from a copy of its files, or in place, looks like the one that was lost:
-- the operator begins the epoch.
CREATE FUNCTION begin_outbound_epoch() RETURNS void LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    LOCK TABLE outbound_events IN SHARE ROW EXCLUSIVE MODE; -- no transaction writes in the former one
    PERFORM add_outbound_epoch((SELECT coalesce(max(epoch), 0) + 1 FROM outbound_epochs));
END $$;
REVOKE ALL ON FUNCTION outbound_history, add_outbound_epoch, outbound_epoch, begin_outbound_epoch FROM PUBLIC;
"""

WEBHOOKS = """
-- The endpoints of the plan catalog, each with the place in the order of the events up to which its
-- deliveries exist. seen_at is when a worker last had the endpoint in its catalog.
CREATE TABLE webhook_endpoints (
    name            text COLLATE "C" PRIMARY KEY,
    epoch           integer NOT NULL,
    xid             xid8 NOT NULL,
    version         bigint NOT NULL,
    seen_at         timestamptz NOT NULL,
    accepted        bigint NOT NULL DEFAULT 0,
    failed          bigint NOT NULL DEFAULT 0,
    last_success_at timestamptz,
    failing_since   timestamptz,
    paused_until    timestamptz,
    disabled_at     timestamptz,
    disabled_reason text,
    CHECK ((disabled_at IS NULL) = (disabled_reason IS NULL))
) WITH (fillfactor = 50); -- room for the next version of a row that changes often
COMMENT ON COLUMN webhook_endpoints.accepted IS 'attempts, for the metrics; failed the others';
COMMENT ON COLUMN webhook_endpoints.failing_since IS 'the first failed attempt since the last success';
COMMENT ON COLUMN webhook_endpoints.paused_until IS 'what the receiver asked for with Retry-After';

-- An event that an endpoint receives, by the event's place. One that is held has failed at all its
-- attempts, and waits for the operator.
CREATE TABLE webhook_deliveries (
    endpoint        text COLLATE "C" NOT NULL REFERENCES webhook_endpoints,
    epoch           integer NOT NULL,
    xid             xid8 NOT NULL,
    version         bigint NOT NULL,
    status          text NOT NULL CHECK (status IN ('queued', 'held', 'delivered')),
    attempts        integer NOT NULL DEFAULT 0,
    next_attempt_at timestamptz,
    last_status     integer,
    last_error      text,
    created_at      timestamptz NOT NULL,
    delivered_at    timestamptz,
    PRIMARY KEY (endpoint, version),
    CHECK ((status = 'queued') = (next_attempt_at IS NOT NULL))
);
CREATE INDEX webhook_deliveries_undelivered ON webhook_deliveries (endpoint, status, next_attempt_at, version)
    WHERE status <> 'delivered';
CREATE INDEX webhook_deliveries_by_age ON webhook_deliveries (created_at);
"""

# The functions mean these tables, whatever a session's search path or temporary tables say.
SEARCH_PATH = """
DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY[
        'owns_tenants()',
        'is_over(text)',
        'purge_audit_events(text, integer)',
        'purge_tenant(text)',
        'keep_ends_of_tenants()',
        'keep_audit_events()',
        'erased_entry(audit_events)',
        'erase_from_audit_events(tid, tid)',
        'api_time(timestamptz)',
        'project_document(text, text, text, text, text, timestamptz, timestamptz)',
        'event_body(text)',
        'outbound_epoch()',
        'begin_outbound_epoch()'
    ] LOOP
        EXECUTE format('ALTER FUNCTION %s SET search_path = %I, pg_temp', name, current_schema());
    END LOOP;
END $$;
"""


def upgrade() -> None:
    op.execute(TENANTS)
    op.execute(AUDIT)
    op.execute(ERASURES)
    op.execute(TENANT_REMOVAL)
    op.execute(MEMBERS)
    op.execute(INVITATIONS)
    op.execute(API_KEYS)
    op.execute(PROJECTS)
    op.execute(CUSTOMERS_AND_SUBSCRIPTIONS)
    op.execute(LEDGER)
    op.execute(MAILS)
    op.execute(DASHBOARD)
    op.execute(REQUESTS)
    op.execute(USAGE)
    op.execute(REQUEST_USAGE)
    op.execute(JOBS)
    op.execute(CHECKS)
    op.execute(OUTBOUND)
    op.execute(WEBHOOKS)
    op.execute(SEARCH_PATH)
