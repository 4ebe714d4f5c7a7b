"""Suites with the pytest plugin that take long: several workers, many mails, and sessions that are
killed.
"""

import signal
from pathlib import Path

from tenantry_devkit.inbox import MAX_MESSAGES
from tenantry_devkit.testing import SuiteTenantry
from tests.e2e.testing.test_secrets_in_reports import check_comparisons, check_log, run_both
from tests.support.suites import Suite
from tests.system.test_what_is_left import check_ended_session, check_forked_child


async def test_nothing_is_left_of_a_session_that_is_killed(suite: Suite, place: Path) -> None:
    await check_ended_session(suite, place, signal.SIGKILL, -signal.SIGKILL)


async def test_nothing_is_left_of_a_killed_session_whose_test_leaves_a_child_that_shares_its_files(
    suite: Suite, place: Path
) -> None:
    await check_forked_child(suite, place, signal.SIGKILL, -signal.SIGKILL)


async def test_nothing_is_left_where_a_test_leaves_a_child_that_shares_its_files(
    suite: Suite, place: Path
) -> None:
    await check_forked_child(suite, place, signal.SIGUSR1, 0)


def test_each_worker_has_a_service_of_its_own_and_starts_it_once(suite: Suite) -> None:
    suite.write(
        "test_workers.py",
        """
        import os
        import pytest

        @pytest.mark.parametrize("number", range(8))
        def test_worker(tenantry, number):
            assert tenantry.tenant(plan="pro", tenant_id=f"acme-{number}").plan == "pro"
            with open("addresses", "a") as file:
                file.write(f"{os.environ['PYTEST_XDIST_WORKER']} {tenantry.base_url}\\n")
        """,
    )
    suite.run("-n", "2", "--dist", "load").assert_outcomes(passed=8)
    lines = (suite.folder / "addresses").read_text().splitlines()
    used = {tuple(line.split()) for line in lines}
    assert len(lines) == 8
    assert (
        len({worker for worker, _ in used})
        == len({address for _, address in used})
        == len(used)
        == 2
    )


def test_mails_of_more_events_than_a_development_inbox_keeps_messages(
    tenantry: SuiteTenantry,
) -> None:
    tenant = tenantry.tenant()
    count = MAX_MESSAGES + 1
    for number in range(count):
        tenantry.events.payment_failed(tenant, invoice_url=f"https://pay.example/i/{number}/")
    mails = tenant.mails(within=60)
    assert len(mails) == count
    assert all(f"/i/{number}/" in mail.text for number, mail in enumerate(mails))


def test_failed_tests_show_no_secret_without_options(tmp_path: Path) -> None:
    run = run_both(tmp_path)
    check_log(run)
    check_comparisons(run)
