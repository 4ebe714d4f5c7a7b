"""The table of mails: what is mailed, why, and how far each mail has come.

The job queue alone counts the attempts to send a mail.
"""

import math
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple
from uuid import UUID

import msgspec

from tenantry.db.connection import Connection
from tenantry.db.numbered_pages import NumberedListing, NumberedPage, PageRequest
from tenantry.db.pagination import Listing
from tenantry.domain import owner_mails as rules
from tenantry.domain.billing.events import PAYMENT_TYPES
from tenantry.domain.billing.notices import BillingNotice, access_end_notice, time_to_end
from tenantry.domain.billing.state import BillingPolicy
from tenantry.domain.owner_mails import ListedMail, MailStatus, NewMail, OwnerNotice

# Limited to one row, a tenant is found by its index however few tenants there are.
INSERT_MAILS: Final = """
INSERT INTO mails (id, type, tenant_id, cause, recipient_id, recipient, limit_key, data, status, created_at, due_at)
SELECT gen_random_uuid(), given.type, given.tenant_id, coalesce(given.cause, gen_random_uuid()::text),
       CASE WHEN given.recipient IS NULL THEN t.owner_id END, coalesce(given.recipient, t.owner_email),
       given.limit_key, given.data, CASE WHEN given.due_at IS NULL THEN 'queued' ELSE 'collecting' END,
       %(now)s, coalesce(given.due_at, %(now)s)
  FROM json_to_recordset(%(mails)s::json) AS given (
         type text, tenant_id text, cause text, recipient text, limit_key text, data jsonb, due_at timestamptz)
 CROSS JOIN LATERAL (SELECT owner_id, owner_email FROM tenants WHERE id = given.tenant_id LIMIT 1) AS t
    ON CONFLICT (cause) DO NOTHING
RETURNING id, cause
"""
# Its own statement: the conditions would cost the mail of each failed payment 0.1 ms of the
# database's processor. A recovered payment counts if its failure was mailed. If only the
# subscription that is unpaid no longer is known, it is the newest of its paid invoices whose
# failure was mailed. The cause of an end of access ends with its second: one that did not begin
# after another mailed end is that one, which a late event has moved. So is the late end of an older
# subscription.
INSERT_BILLING_NOTICES: Final = """
INSERT INTO mails (id, type, tenant_id, cause, recipient_id, recipient, data, status, created_at, due_at)
SELECT gen_random_uuid(), given.type, given.tenant_id,
       CASE WHEN given.recovered IS NULL THEN given.cause ELSE given.cause || failure.invoice_id END,
       t.owner_id, t.owner_email,
       CASE WHEN given.recovered IS NULL THEN given.data
            ELSE jsonb_build_object('invoiceUrl', failure.invoice_url) END,
       'queued', %(now)s, %(now)s
  FROM json_to_recordset(%(notices)s::json) AS given (
         type text, tenant_id text, cause text, data jsonb, paid_invoice text, recovered text, begun bigint)
  JOIN tenants t ON t.id = given.tenant_id
  LEFT JOIN LATERAL (
         SELECT e.document->>'invoice_id' AS invoice_id, e.invoice_url
           FROM mails m
           JOIN billing_events e ON e.id = m.cause
          WHERE m.tenant_id = given.tenant_id AND m.type = %(payment_failed)s
            AND (e.document->>'invoice_id' = given.paid_invoice
                 OR (coalesce(e.subscription_id, given.recovered) = given.recovered
                     AND EXISTS (SELECT FROM billing_events p
                                  WHERE p.tenant_id = given.tenant_id
                                    AND p.document->>'invoice_id' = e.document->>'invoice_id'
                                    AND p.type = ANY(%(payments)s) AND p.created >= e.created
                                    AND p.outcome IN ('applied', 'late', 'no_change'))))
          ORDER BY e.created DESC
          LIMIT 1) AS failure ON true
 WHERE (failure.invoice_id IS NOT NULL OR (given.paid_invoice IS NULL AND given.recovered IS NULL))
   AND (given.begun IS NULL
        OR NOT EXISTS (SELECT FROM mails m
                        WHERE m.tenant_id = given.tenant_id AND m.type = %(access_ended)s
                          AND split_part(m.cause, ' ', 3)::bigint >= given.begun))
    ON CONFLICT (cause) DO NOTHING
RETURNING id, cause
"""
# Access is followed by none after its first phase, before its last one, or between these, as phases
# of either kind can differ by what grants give. Three indexes find them. The cause is that of
# `access_end_notice`.
ACCESS_ENDS: Final = """
WITH ended AS (
       SELECT id,
              (access->0->>'until')::bigint AS at,
              access->0->>'state' AS state,
              access->1->>'reason' AS reason
         FROM tenants
        WHERE (access->0->>'until')::bigint BETWEEN %(since)s AND %(until)s
          AND access->1->>'state' = 'none'
        UNION
       SELECT id,
              (access->-2->>'until')::bigint,
              access->-2->>'state',
              access->-1->>'reason'
         FROM tenants
        WHERE (access->-2->>'until')::bigint BETWEEN %(since)s AND %(until)s
          AND access->-1->>'state' = 'none'
        UNION
       SELECT id,
              (phase->>'until')::bigint,
              phase->>'state',
              access->position::int->>'reason' -- positions begin with 1: this is the next phase
         FROM tenants
        CROSS JOIN LATERAL json_array_elements(access) WITH ORDINALITY AS phases (phase, position)
        WHERE json_array_length(access) > 3
          AND (phase->>'until')::bigint BETWEEN %(since)s AND %(until)s
          AND access->position::int->>'state' = 'none')
SELECT t.id, ended.at, ended.reason
  FROM ended
  JOIN tenants t USING (id)
 WHERE ended.state <> 'none' AND t.deleted_at IS NULL
   AND NOT EXISTS (SELECT FROM mails m WHERE m.cause = %(type)s || ' ' || t.id || ' ' || ended.at)
   AND NOT EXISTS (SELECT FROM mails m
                    WHERE m.tenant_id = t.id AND m.type = %(type)s
                      AND split_part(m.cause, ' ', 3)::bigint
                          >= ended.at - CASE ended.state WHEN 'grace' THEN %(grace)s ELSE %(other)s END)
 ORDER BY ended.at
 LIMIT %(most)s
"""
# A worker reads the mail under the lock of its row, while its job is under way. So either the
# worker finds no mail, or this leaves the mail to it. Two statements: the second one sees the jobs
# as they are under the lock.
LOCK_QUEUED: Final = (
    "SELECT FROM mails WHERE cause = ANY(%s) AND status = 'queued' ORDER BY id FOR UPDATE"
)
WITHDRAW: Final = """
DELETE FROM mails m
 WHERE m.cause = ANY(%s) AND m.status = 'queued'
   AND NOT EXISTS (SELECT FROM procrastinate_jobs job
                    WHERE job.status = 'doing' AND job.args->>'mail_id' = m.id::text)
"""
UNSENT_MAIL: Final = """
SELECT m.id, m.type, m.tenant_id, m.recipient, m.data::text, m.status, m.created_at, m.due_at,
       t.name, t.owner_email, t.verified_email, t.deleted_at IS NOT NULL,
       (e.document->>'amount_due')::bigint, (e.document->>'amount_remaining')::bigint, e.document->>'currency',
       i.role, i.expires_at
  FROM mails m
  JOIN tenants t ON t.id = m.tenant_id
  LEFT JOIN billing_events e ON e.id = m.cause
  LEFT JOIN invitations i ON i.id = m.data->>'invitationId' AND i.closed_as IS NULL AND i.expires_at > %(now)s
 WHERE m.id = %(id)s AND m.status IN ('collecting', 'queued')
   FOR NO KEY UPDATE OF m
"""
CLOSE_DIGEST: Final = "UPDATE mails SET status = 'queued' WHERE id = %s AND status = 'collecting'"
SET_LINK: Final = "UPDATE mails SET digest = %s, expires_at = %s WHERE id = %s"
# Of two workers that deliver one mail, the slower one may fail after the other has sent it: a mail
# that has ended is sent or stays as it is. The record of an invitation says when its last mail was
# sent.
RECORD: Final = """
WITH recorded AS (
       UPDATE mails
          SET status = %(status)s, last_error = %(error)s,
              ended_at = CASE WHEN %(status)s <> 'queued' THEN %(now)s::timestamptz END
        WHERE id = %(id)s AND (%(status)s = 'sent' OR status IN ('collecting', 'queued'))
       RETURNING type, data, status)
UPDATE invitations i
   SET sent_at = %(now)s
  FROM recorded
 WHERE recorded.type = %(invitation)s AND recorded.status = 'sent' AND i.id = recorded.data->>'invitationId'
"""
# A job is deleted after its mail is recorded, in another transaction: a crash may lose the record
# alone.
ORPHANED: Final = """
SELECT id
  FROM mails m
 WHERE status IN ('collecting', 'queued')
   AND NOT EXISTS (SELECT FROM procrastinate_jobs job
                    WHERE job.task_name = %(task)s AND job.status IN ('todo', 'doing')
                      AND job.args->>'mail_id' = m.id::text)
 ORDER BY created_at
 LIMIT %(most)s
   FOR UPDATE SKIP LOCKED
"""
GIVE_UP: Final = """
UPDATE mails
   SET status = 'failed', last_error = %s, ended_at = now()
 WHERE status IN ('collecting', 'queued')
"""
READ_QUEUE: Final = """
SELECT count(*) FILTER (WHERE status <> 'failed'), count(*) FILTER (WHERE status = 'failed'),
       greatest(coalesce(extract(epoch FROM now() - min(due_at) FILTER (WHERE status <> 'failed')), 0), 0)::float8
  FROM mails
 WHERE status NOT IN ('sent', 'dropped')
"""
READ_UNSENT: Final = """
SELECT type, tenant_id, status, created_at, due_at, last_error
  FROM mails
 WHERE status NOT IN ('sent', 'dropped')
 ORDER BY status <> 'failed', created_at DESC
 LIMIT %s
"""
LATEST_NOTICES: Final = """
SELECT due_at FROM mails
 WHERE tenant_id = %(tenant)s AND due_at > %(since)s AND type = ANY(%(notices)s)
 ORDER BY due_at DESC LIMIT %(most)s
"""
COUNT_RECENT: Final = """
SELECT count(*) FILTER (WHERE tenant_id = %(tenant)s AND created_at > %(hour)s),
       count(*) FILTER (WHERE tenant_id = %(tenant)s),
       count(*) FILTER (WHERE limit_key = %(key)s AND created_at > %(hour)s),
       count(*) FILTER (WHERE limit_key = %(key)s)
  FROM mails
 WHERE type = %(type)s
   AND ((tenant_id = %(tenant)s AND due_at > %(day)s) OR (limit_key = %(key)s AND created_at > %(day)s))
"""
# The row's lock decides between this and a worker that has started to deliver the digest.
ADD_TO_DIGEST: Final = """
UPDATE mails
   SET data = CASE WHEN jsonb_array_length(data->'leaked') + jsonb_array_length(data->'changed') < %(most)s
                   THEN jsonb_set(data, ARRAY[%(list)s::text], (data->%(list)s) || %(notice)s::jsonb)
                   ELSE jsonb_set(data, '{more}', to_jsonb((data->>'more')::int + 1)) END
 WHERE tenant_id = %(tenant)s AND recipient = %(recipient)s AND status = 'collecting'
"""
CONFIRMATION: Final = "SELECT tenant_id, recipient FROM mails WHERE digest = %s AND expires_at > %s"
END_LINKS: Final = "UPDATE mails SET digest = NULL WHERE tenant_id = %s AND digest IS NOT NULL"
# Without the content. Those of a tenant are found by `mails_of_tenant`.
_LISTING: Final = Listing(
    "type, recipient, status, last_error, created_at, due_at, ended_at",
    "mails",
    "due_at",
    "id::text",
)

_LONGEST_ERROR: Final = 500


class UnsentMail(NamedTuple):
    """A mail that has not ended, and what it depends on: its tenant, the invoice of a failed
    payment, and an invitation that can be accepted.
    """

    id: UUID
    type: str
    tenant_id: str
    recipient: str
    encoded_data: str
    status: str
    created_at: datetime
    due_at: datetime
    tenant_name: str
    owner_email: str
    verified_email: str
    tenant_deleted: bool
    amount_due: int | None
    amount_remaining: int | None
    currency: str | None
    invited_role: str | None
    invited_until: datetime | None

    @property
    def is_to_be_confirmed(self) -> bool:
        """Whether the recipient is the owner's address, and not verified yet."""
        address = rules.OwnerAddress(self.owner_email, self.verified_email)
        is_current = rules.same_address(self.recipient, self.owner_email)
        return is_current and not address.is_verified and not self.tenant_deleted

    @property
    def data(self) -> rules.MailData:
        """What the mail's template needs, of what is stored."""
        data: rules.MailData = msgspec.json.decode(
            self.encoded_data, type=rules.MAIL_KINDS[self.type].data
        )
        return data


class MailQueue(NamedTuple):
    """How many mails are queued and have failed, and for how many seconds the oldest queued one has
    been due.
    """

    queued: int
    failed: int
    oldest_seconds: float


class StoppedMail(NamedTuple):
    """A mail that has failed or still waits, and the error of its last attempt."""

    type: str
    tenant_id: str
    status: MailStatus
    created_at: datetime
    due_at: datetime
    last_error: str | None


async def insert_mails(
    connection: Connection, mails: Sequence[NewMail], now: datetime
) -> dict[UUID, str]:
    """Store the mails whose cause has none; return the causes of new ones by id."""
    values = {"mails": msgspec.json.encode(mails).decode(), "now": now}
    return dict(await connection.fetch(INSERT_MAILS, values))


async def insert_billing_notices(
    connection: Connection, notices: Sequence[BillingNotice], now: datetime
) -> dict[UUID, str]:
    """Store the notices that count and whose cause has none; return the causes of new ones by
    id.
    """
    values = {
        "notices": msgspec.json.encode(notices).decode(),
        "payment_failed": rules.PAYMENT_FAILED,
        "payments": sorted(PAYMENT_TYPES),
        "access_ended": OwnerNotice.ACCESS_ENDED.mail_type,
        "now": now,
    }
    return dict(await connection.fetch(INSERT_BILLING_NOTICES, values))


async def find_access_ends(
    connection: Connection, since: datetime, until: datetime, most: int, policy: BillingPolicy
) -> list[NewMail]:
    """Return the notices of at most so many ends of access by time that were not mailed, oldest
    first.
    """
    values = {
        "type": OwnerNotice.ACCESS_ENDED.mail_type,
        "most": most,
        "since": math.ceil(since.timestamp()),
        "until": math.floor(until.timestamp()),
        "grace": time_to_end("grace", policy),
        "other": time_to_end("full", policy),
    }
    return [access_end_notice(*row) for row in await connection.fetch(ACCESS_ENDS, values)]


async def withdraw(connection: Connection, causes: Sequence[str]) -> None:
    """Delete the mails of these causes: they name another owner than the right one.

    One that is sent, or that a worker is sending, stays: each cause is mailed once.
    """
    await connection.execute(LOCK_QUEUED, (list(causes),))
    await connection.execute(WITHDRAW, (list(causes),))


async def lock_unsent(connection: Connection, mail_id: UUID, now: datetime) -> UnsentMail | None:
    """Lock and return a mail; None if it has ended or was withdrawn."""
    row = await connection.fetch_row(UNSENT_MAIL, {"id": mail_id, "now": now})
    return UnsentMail(*row) if row else None


async def close_digest(connection: Connection, mail_id: UUID) -> None:
    """Let a digest collect no further notices."""
    await connection.execute(CLOSE_DIGEST, (mail_id,))


async def set_link(
    connection: Connection, mail_id: UUID, digest: bytes, expires_at: datetime
) -> None:
    """Store the hash of a confirmation's token, which replaces an earlier one."""
    await connection.execute(SET_LINK, (digest, expires_at, mail_id))


async def record(
    connection: Connection, mail_id: UUID, status: MailStatus, now: datetime, error: str = ""
) -> None:
    """Record how an attempt ended; one that is to be repeated leaves the mail queued."""
    values = {
        "id": mail_id,
        "status": status,
        "now": now,
        "error": error[:_LONGEST_ERROR] or None,
        "invitation": rules.INVITATION,
    }
    await connection.execute(RECORD, values)


async def orphaned(connection: Connection, task: str, most: int) -> list[UUID]:
    """Lock and return the oldest mails to be delivered that have no job of this name."""
    return await connection.fetch_column(ORPHANED, {"task": task, "most": most})


async def give_up(connection: Connection, why: str) -> int:
    """Mark every queued mail as failed; return their number."""
    return (await connection.execute(GIVE_UP, (why,))).rowcount


async def read_queue(connection: Connection) -> MailQueue:
    [row] = await connection.fetch(READ_QUEUE)
    return MailQueue(*row)


async def read_unsent(connection: Connection, most: int) -> list[StoppedMail]:
    """Return the latest mails that have failed, and then those that wait."""
    return [StoppedMail(*row) for row in await connection.fetch(READ_UNSENT, (most,))]


async def latest_notices(connection: Connection, tenant_id: str, since: datetime) -> list[datetime]:
    """Return when a tenant's latest security notices after ``since`` are due, newest first, at most
    an hour's limit.
    """
    values = {
        "tenant": tenant_id,
        "since": since,
        "notices": list(rules.SECURITY_NOTICES),
        "most": rules.NOTICES_PER_HOUR,
    }
    return await connection.fetch_column(LATEST_NOTICES, values)


async def count_recent(connection: Connection, mail: NewMail, now: datetime) -> rules.RecentMails:
    """Count the mails of the type, tenant and address of a new one in the last hour and 24 hours.
    No other transaction adds one to the address until this one ends.
    """
    await connection.lock_name(f"{mail.type} to {mail.limit_key}")
    values = {
        "type": mail.type,
        "tenant": mail.tenant_id,
        "key": mail.limit_key,
        "hour": now - timedelta(hours=1),
        "day": now - timedelta(days=1),
    }
    [row] = await connection.fetch(COUNT_RECENT, values)
    return rules.RecentMails(*row)


async def add_to_digest(
    connection: Connection, tenant_id: str, recipient: str, notice: rules.SecurityNotice
) -> bool:
    """Add a notice to the digest that collects for this recipient; return False if there is
    none.
    """
    values = {
        "tenant": tenant_id,
        "recipient": recipient,
        "list": "leaked" if isinstance(notice, rules.KeyLeakedData) else "changed",
        "most": rules.DIGEST_DETAILS,
        "notice": msgspec.json.encode([notice]).decode(),
    }
    cursor = await connection.execute(ADD_TO_DIGEST, values)
    return cursor.rowcount > 0


async def find_confirmation(
    connection: Connection, digest: bytes, now: datetime
) -> tuple[str, str] | None:
    """Return the tenant and address that a link confirms; None for a link that is unknown, used or
    expired.
    """
    row = await connection.fetch_row(CONFIRMATION, (digest, now))
    return (row[0], row[1]) if row else None


async def end_links(connection: Connection, tenant_id: str) -> None:
    await connection.execute(END_LINKS, (tenant_id,))


async def read_page(
    connection: Connection, tenant_id: str, request: PageRequest
) -> NumberedPage[ListedMail]:
    """Read a numbered page of a tenant's mails, the last one due first. Raises
    `InvalidCursorError`.
    """
    listing = NumberedListing(_LISTING, "tenant_id = %(tenant)s", {"tenant": tenant_id})
    return await listing.read(connection, request, lambda row: ListedMail(*row))
