"""What the check-up makes of a server, its disk, its jobs and the settings; each with why it matters."""

from datetime import UTC, datetime, timedelta
from typing import Final

import pytest

from tenantry.cli.doctor.database import judge_jobs
from tenantry.cli.doctor.finding import Finding, Level
from tenantry.cli.doctor.server import (
    LARGEST_SKEW,
    MOST_KEPT_FOR_SLOT,
    OLDEST_ROW,
    in_units,
    judge_age,
    judge_archive,
    judge_autovacuum,
    judge_clock,
    judge_disk,
    judge_durability,
    judge_room,
    judge_size,
    judge_slots,
    judge_transactions,
    judge_unconfirmed,
    judge_untidy,
    judge_writing,
)
from tenantry.cli.doctor.server_store import OldTransaction, Room, UntidyTable
from tenantry.cli.doctor.settings import judge_address, judge_secrets, judge_traces
from tenantry.common.secret import Secret
from tenantry.jobs.runs_store import JobRuns
from tests.support.findings import levels, only

NOW: Final = datetime(2026, 6, 1, tzinfo=UTC)
DURABLE: Final = {"fsync": "on", "full_page_writes": "on", "synchronous_commit": "on"}
SERVER: Final = {"max_connections": "100", "superuser_reserved_connections": "3", "reserved_connections": "2"}


def told(findings: list[Finding], level: Level = Level.WARNING) -> Finding:
    """The one finding; it says why it matters and what to do."""
    return only(findings, level)


# What is acknowledged


@pytest.mark.parametrize("value", ["on", "local", "remote_write", "remote_apply"])
def test_a_server_that_writes_before_it_answers_is_in_order(value: str) -> None:
    assert levels(judge_durability({**DURABLE, "synchronous_commit": value})) == {Level.OK}


@pytest.mark.parametrize("name", sorted(DURABLE))
def test_a_setting_that_loses_what_was_acknowledged_is_named(name: str) -> None:
    finding = told(judge_durability({**DURABLE, name: "off"}))
    assert finding.message == f"{name} is off"
    assert f"SET {name} = on" in (finding.remedy or "")


def test_a_primary_that_takes_no_writes_does_not_work() -> None:
    settings = {"transaction_read_only": "on", "in_hot_standby": "off"}
    assert told(judge_writing(settings), Level.ERROR).message == "is read-only"


def test_a_database_of_another_encoding_does_not_work() -> None:
    assert told(judge_writing({"server_encoding": "LATIN1"}), Level.ERROR).message == "has the encoding LATIN1"
    assert judge_writing({"server_encoding": "UTF8", "transaction_read_only": "off"}) == []


# Room


@pytest.mark.parametrize(
    ("room", "needed", "level", "most"),
    [
        (Room(None, None, 7), 95, Level.OK, "95 to be had (max_connections, less those reserved)"),
        (Room(None, None, 7), 96, Level.WARNING, "95 to be had (max_connections, less those reserved)"),
        (Room(20, None, 7), 21, Level.WARNING, "20 to be had (the limit of the database)"),
        (Room(20, 10, 7), 11, Level.WARNING, "10 to be had (the limit of the user)"),
        (Room(20, 10, 7), 10, Level.OK, "10 to be had (the limit of the user)"),
    ],
)
def test_the_connections_that_are_needed_are_held_against_the_narrowest_limit(
    room: Room, needed: int, level: Level, most: str
) -> None:
    finding = judge_room(SERVER, room, needed)
    assert finding.level is level
    assert finding.message == f"up to {needed} needed by this set-up, 7 open now, {most}"


def test_a_server_before_16_reserves_none_for_others() -> None:
    server = {"max_connections": "10", "superuser_reserved_connections": "3"}
    assert judge_room(server, Room(None, None, 0), 7).level is Level.OK


@pytest.mark.parametrize(("free", "level"), [(10, Level.OK), (9, Level.WARNING)])
def test_a_disk_that_is_almost_full_is_told_of(free: int, level: Level) -> None:
    assert judge_disk(free, 100).level is level


def test_sizes_are_for_people() -> None:
    assert [in_units(number) for number in (12, 2048, 5 * 2**30 + 2**29)] == ["12 bytes", "2.0 KiB", "5.5 GiB"]
    finding = judge_size(2**20, [("billing_events", 2**19), ("api_keys", 2**13)])
    assert finding.message == "1.0 MiB; biggest: billing_events 512.0 KiB, api_keys 8.0 KiB"


# The clock


@pytest.mark.parametrize(
    ("theirs", "message"),
    [
        (NOW + timedelta(seconds=10), "the database's is 9 s ahead of this machine's"),
        (NOW - timedelta(seconds=10), "the database's is 10 s behind this machine's"),
    ],
)
def test_a_clock_that_goes_wrong_is_told_of(theirs: datetime, message: str) -> None:
    finding = told([judge_clock(NOW, theirs, NOW + timedelta(seconds=1))])
    assert finding.message == message


@pytest.mark.parametrize("theirs", [NOW, NOW + timedelta(seconds=3), NOW + timedelta(seconds=3) + LARGEST_SKEW])
def test_time_that_passes_while_we_ask_is_no_difference(theirs: datetime) -> None:
    assert judge_clock(NOW, theirs, NOW + timedelta(seconds=3)).level is Level.OK


# Upkeep


def test_a_server_that_does_not_tidy_up_is_told_of() -> None:
    assert told(judge_autovacuum({"autovacuum": "off"})).message == "autovacuum is off"
    assert judge_autovacuum({"autovacuum": "on"}) == []


def test_a_table_of_dead_rows_is_named() -> None:
    finding = told(judge_untidy([UntidyTable("billing_events", 10, 200_000)]))
    assert finding.message == "the table billing_events has 200000 dead rows beside 10 living ones"


def test_transaction_numbers_that_are_being_used_up_are_told_of() -> None:
    assert "2,000,000,000" in (told(judge_age(OLDEST_ROW)).why or "")
    assert judge_age(OLDEST_ROW - 1) == []


@pytest.mark.parametrize(
    ("transaction", "message"),
    [
        (OldTransaction(900, "idle in transaction", "psql"), "a transaction of psql has been open for 15 min (idle in"),
        (OldTransaction(3600, "", ""), "a transaction has been open for 60 min (state not known)"),
        (OldTransaction(3600, "prepared", ""), "a transaction has been open for 60 min (prepared)"),
    ],
)
def test_a_transaction_that_somebody_left_open_is_told_of(transaction: OldTransaction, message: str) -> None:
    assert told(judge_transactions([transaction])).message.startswith(message)


def test_a_replication_slot_that_nobody_reads_is_told_of_once_much_is_kept_for_it() -> None:
    finding = told(judge_slots([("old_replica", MOST_KEPT_FOR_SLOT), ("new_replica", MOST_KEPT_FOR_SLOT - 1)]))
    assert "old_replica is read by nobody, and 1.0 GiB" in finding.message


def test_a_log_that_cannot_be_archived_is_told_of() -> None:
    assert judge_archive(None) == []
    finding = told(judge_archive("000000010000000000000003"))
    assert finding.message == "the archiving of the log fails at 000000010000000000000003"
    assert "Delete nothing below pg_wal" in (finding.remedy or "")


def test_commits_that_wait_for_a_standby_do_not_work() -> None:
    assert judge_unconfirmed(0) == []
    finding = told(judge_unconfirmed(3), Level.ERROR)
    assert finding.message == "commits wait for a synchronous standby, 3 now"
    assert "synchronous_standby_names = ''" in (finding.remedy or "")


# Jobs


def test_a_job_that_nobody_does_is_told_of_with_its_queue_and_the_workers() -> None:
    finding = told(judge_jobs({"mail": 600.0, "maintenance": 200.0}, [], NOW, workers=0))
    assert finding.message == "in the queue mail one has been due for 10 min"
    assert "running now: 0" in (finding.remedy or "")


def test_a_job_that_has_not_gone_well_lately_is_told_of() -> None:
    long_ago, lately = NOW - timedelta(hours=4), NOW - timedelta(hours=2)
    runs = [
        JobRuns("remove_old_data", 5, 3, long_ago),
        JobRuns("requeue_stalled_jobs", 5, 0, lately),
        JobRuns("look_for_silent_tenants", 0, 1, None),
    ]
    assert told(judge_jobs({}, runs, NOW, workers=1)).message == "remove_old_data last went well 4 h ago"


def test_jobs_in_order() -> None:
    assert levels(judge_jobs({"mail": 3.0}, [], NOW, workers=1)) == {Level.OK}


# The settings


@pytest.mark.parametrize(
    ("address", "level"),
    [
        ("https://api.example", Level.OK),
        ("http://127.0.0.1:3001", Level.OK),
        ("http://[::1]:3001", Level.OK),
        ("http://localhost:3001", Level.OK),
        ("http://api.example", Level.WARNING),
        ("http://10.0.0.7:3001", Level.WARNING),
    ],
)
def test_an_address_for_others_must_be_https(address: str, level: Level) -> None:
    assert levels(judge_address(address, is_demo=False)) == {level}


def test_the_demo_has_no_address_to_judge() -> None:
    assert judge_address("http://api.example", is_demo=True) == []


def test_one_secret_in_two_variables_is_told_of_without_being_shown() -> None:
    shared, own = Secret("the-same-secret-0123456789abcdef"), Secret("another-secret-0123456789abcdefg")
    finding = told(judge_secrets([("API_KEY_PEPPER", shared), ("SESSION_SECRET", shared), ("OPERATOR_TOKEN", own)]))
    assert finding.message == "API_KEY_PEPPER and SESSION_SECRET hold the same secret"
    assert "the-same" not in repr(finding)


def test_one_secret_twice_in_one_variable_is_told_of_as_that() -> None:
    finding = told(judge_secrets([("API_KEY_PEPPER", Secret("the-same-secret-0123456789abcdef"))] * 2))
    assert finding.message == "API_KEY_PEPPER holds the same secret twice"
    assert "the-same" not in repr(finding)


def test_one_secret_twice_in_one_variable_and_in_another_is_told_of_as_shared() -> None:
    shared = Secret("the-same-secret-0123456789abcdef")
    finding = told(judge_secrets([("API_KEY_PEPPER", shared), ("API_KEY_PEPPER", shared), ("SESSION_SECRET", shared)]))
    assert finding.message == "API_KEY_PEPPER and SESSION_SECRET hold the same secret"


def test_a_short_secret_is_told_of_without_being_shown() -> None:
    finding = told(judge_secrets([("OIDC_CLIENT_SECRET", Secret("hunter2"))]))
    assert finding.message.startswith("OIDC_CLIENT_SECRET is shorter")
    assert "hunter2" not in repr(finding)


def test_secrets_of_their_own_are_in_order() -> None:
    assert levels(judge_secrets([("A", Secret("a" * 16)), ("B", Secret("b" * 16))])) == {Level.OK}


def test_traces_that_are_asked_for_and_cannot_be_made_are_told_of() -> None:
    assert "tenantry[otel]" in (told(judge_traces(are_wanted=True, can_be_made=False)).remedy or "")
    assert judge_traces(are_wanted=True, can_be_made=True) == judge_traces(are_wanted=False, can_be_made=False) == []
