"""When a mail is tried again."""

from itertools import count, takewhile

from tenantry.notifications.mail_delivery import standard_schedule


def test_waits_double_up_to_an_hour() -> None:
    assert [standard_schedule(attempt) for attempt in (1, 2, 3, 9, 10, 11, 80)] == [
        10,
        20,
        40,
        2560,
        3600,
        3600,
        3600,
    ]


def test_it_ends_after_about_three_days() -> None:
    waits = [
        wait
        for wait in takewhile(lambda wait: wait is not None, map(standard_schedule, count(1)))
        if wait
    ]
    assert 3 * 86400 <= sum(waits) <= 3.1 * 86400
