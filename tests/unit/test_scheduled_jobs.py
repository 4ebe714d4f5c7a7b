"""Jobs on a schedule that must not run twice at the same time."""

import procrastinate
import pytest
from procrastinate.testing import InMemoryConnector

from tenantry.db.job_names import KEY_REMINDERS, RECONCILE, RECORD_ACCESS_ENDS
from tenantry.jobs.tasks import register


async def _nothing() -> None:
    """Requeue no job."""


@pytest.mark.parametrize("reminds", [False, True])
def test_reminders_of_keys_are_scheduled_only_where_they_are_wanted(*, reminds: bool) -> None:
    app = procrastinate.App(connector=InMemoryConnector())
    register(app, _nothing, reminds_of_keys=reminds)
    scheduled = {name for name, _ in app.periodic_registry.periodic_tasks}
    assert (KEY_REMINDERS in scheduled) is reminds


@pytest.mark.parametrize("name", [RECONCILE, RECORD_ACCESS_ENDS, KEY_REMINDERS])
async def test_a_job_waits_while_one_of_its_task_runs(name: str) -> None:
    app = procrastinate.App(connector=InMemoryConnector())
    register(app, _nothing, reminds_of_keys=True)
    async with app.open_async():
        worker = await app.job_manager.register_worker()
        first, second = [await app.tasks[name].defer_async(timestamp=due) for due in (0, 300)]
        running = await app.job_manager.fetch_job(None, worker)
        assert running is not None
        assert running.id == first
        assert await app.job_manager.fetch_job(None, worker) is None
        await app.job_manager.finish_job(
            running, procrastinate.jobs.Status.SUCCEEDED, delete_job=False
        )
        following = await app.job_manager.fetch_job(None, worker)
        assert following is not None
        assert following.id == second
