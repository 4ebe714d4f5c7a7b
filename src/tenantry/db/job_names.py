"""Names of the job queue's queues and tasks."""

from typing import Final

MAIL: Final = "mail"
MAINTENANCE: Final = "maintenance"
PROVIDER: Final = "provider"
WEBHOOKS: Final = "webhooks"
DELIVER_MAIL: Final = "deliver_mail"
FETCH_SNAPSHOT: Final = "ask_provider"
FOLLOW_SEATS: Final = "follow_seats"
DELIVER_WEBHOOKS: Final = "deliver_webhooks"
RUN_OF_TENANT: Final = "replay_or_reconcile_tenant"
FIND_SEAT_DRIFT: Final = "find_seat_drift"
RECONCILE: Final = "reconcile_due_tenants"
COUNT_STALE: Final = "count_stale_tenants"
REQUEUE: Final = "requeue_stalled_jobs"
RETENTION: Final = "remove_old_data"
ACCESS_ENDS: Final = "mail_access_ends"
RECORD_ACCESS_ENDS: Final = "record_access_ends"
PLACE_REVERSALS: Final = "place_refunds_and_disputes"
KEY_REMINDERS: Final = "mail_key_reminders"
"""Runs on a schedule where KEY_EXPIRY_MAILS is set, and is not among `TASKS`."""
PERIODIC: Final = (
    RECONCILE,
    COUNT_STALE,
    REQUEUE,
    RETENTION,
    ACCESS_ENDS,
    RECORD_ACCESS_ENDS,
    FIND_SEAT_DRIFT,
    PLACE_REVERSALS,
)
"""The tasks that run on a schedule."""
TASKS: Final = (
    *PERIODIC,
    DELIVER_MAIL,
    FETCH_SNAPSHOT,
    FOLLOW_SEATS,
    DELIVER_WEBHOOKS,
    RUN_OF_TENANT,
)
