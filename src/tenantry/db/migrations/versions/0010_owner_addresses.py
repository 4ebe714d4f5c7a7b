"""Verified owner addresses, the mails about security, and what remains to be paid of an invoice.

Revision ID: 0010
"""

from alembic import op

revision = "0010"
down_revision = "0009"

STATEMENTS = """
ALTER TABLE tenants ADD COLUMN verified_email text;
COMMENT ON COLUMN tenants.verified_email IS
    'the address that was verified last, empty if none was; NULL: from before 0010, owner_email counts as verified';
-- For tenants that the release before makes from now on: it verifies nothing.
ALTER TABLE tenants ALTER COLUMN verified_email SET DEFAULT '';
ALTER TABLE notifications ADD COLUMN recipient text;
COMMENT ON COLUMN notifications.recipient IS 'the address when the notification was queued; NULL: from before 0010';
ALTER TABLE billing_events ADD COLUMN amount_remaining bigint;

-- Not in notifications: a worker of the release before would send each of these as a mail about a failed payment.
CREATE TABLE owner_mails (
    id          uuid PRIMARY KEY,
    tenant_id   text COLLATE "C" NOT NULL REFERENCES tenants ON DELETE CASCADE,
    type        text NOT NULL,
    recipient   text NOT NULL,
    limit_key   text NOT NULL,
    data        jsonb NOT NULL,
    status      text NOT NULL CHECK (status IN ('collecting', 'queued', 'sent', 'failed', 'dropped')),
    attempts    integer NOT NULL DEFAULT 0,
    last_error  text,
    created_at  timestamptz NOT NULL,
    due_at      timestamptz NOT NULL,
    sent_at     timestamptz,
    -- of a confirmation
    digest      bytea UNIQUE CHECK (octet_length(digest) = 32),
    expires_at  timestamptz
);
CREATE INDEX owner_mails_of_tenant ON owner_mails (tenant_id, due_at);
CREATE INDEX owner_mails_to_address ON owner_mails (limit_key, created_at);
CREATE INDEX owner_mails_unsent ON owner_mails (created_at) WHERE status NOT IN ('sent', 'dropped');
COMMENT ON COLUMN owner_mails.recipient IS 'fixed when the mail was queued';
COMMENT ON COLUMN owner_mails.limit_key IS 'the recipient, spelled so that one mailbox counts once';
COMMENT ON COLUMN owner_mails.digest IS 'SHA-256 of the token in the link; the token itself is only in the mail';
"""


def upgrade() -> None:
    op.execute(STATEMENTS)
