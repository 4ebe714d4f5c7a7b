"""Time limits so generous that a test does not fail where the machine stands still for seconds."""

from functools import partial
from typing import Final

from tenantry.common.clock import Timeouts
from tenantry.db.database import Database
from tenantry.integrations.oidc.keys import KeySet
from tenantry.jobs.queue import JobQueue

PATIENT: Final = Timeouts(
    request=25.0,
    batch=24.0,
    batch_start=10.0,
    rate_limits=10.0,
    connect=15.0,
    statement=20.0,
    identity_provider=20.0,
    token_endpoint=20.0,
    metrics=0.0,
    usage=60.0,
)
patient_database: Final = partial(Database, timeouts=PATIENT)
"""Makes a `Database`. A test whose subject is an unreachable database takes the class."""
patient_queue: Final = partial(JobQueue, timeouts=PATIENT)
patient_keys: Final = partial(KeySet, timeout=PATIENT.identity_provider)
