"""How often each job has run, and when it last went well.

Revision ID: 0006
"""

from alembic import op

revision = "0006"
down_revision = "0005"

STATEMENTS = """
CREATE TABLE job_runs (
    task text PRIMARY KEY,
    succeeded bigint NOT NULL,
    failed bigint NOT NULL,
    succeeded_at timestamptz
) WITH (fillfactor = 50);
COMMENT ON TABLE job_runs IS 'for the metrics: the queue itself keeps nothing of a job that went well';
"""


def upgrade() -> None:
    op.execute(STATEMENTS)
