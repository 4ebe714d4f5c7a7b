"""The change feed through both clients: whatever comes between, each event comes once, in order."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing
from typing import Any, Final

import httpx2
import pytest

from tenantry_sdk import (
    ApiKeyEvent,
    AuditTrailEvent,
    ChangeEvent,
    MemberEvent,
    TenantEvent,
    errors,
)
from tests.sdk.faulty_proxy import Failure, faulty_proxy
from tests.sdk.sdk_support import Flavour, Served, answered_by
from tests.support.app import OPERATOR_TOKEN
from tests.support.cases import cases
from tests.support.service import Organization

FAILURES: Final = [failure for failure in Failure if failure is not Failure.NONE]
ALL: Final = ("tenant.*", "member.*", "api_key.*", "audit.*")
LAST: Final = "the last name"


def operator(flavour: Flavour, url: str, **options: Any) -> Any:
    return flavour.client(OPERATOR_TOKEN, base_url=url, **options)


async def rename(organization: Organization, name: str) -> None:
    response = await organization.owner.patch(
        f"/api/v1/tenants/{organization.id}", {"name": name, "ownerEmail": "owner@x.example"}
    )
    assert response.status_code == 200, response.text


async def take(events: AsyncIterator[Any], count: int) -> list[Any]:
    """The next events of a follower, which is then left."""
    taken = []
    async with aclosing(aiter(events)) as iterator:  # type: ignore[type-var]
        async for event in iterator:
            taken.append(event)
            if len(taken) == count:
                break
    return taken


async def until(events: AsyncIterator[Any], name: str) -> list[Any]:
    """The events up to the one that gives a tenant this name."""
    taken = []
    async for event in events:
        taken.append(event)
        if event.data.name == name:
            break
    return taken


async def test_events_have_the_objects_that_were_changed(served: Served, flavour: Flavour) -> None:
    async with operator(flavour, served.url) as client:
        start = (await client.operator.events.list(after="now").first_page()).next_cursor
        org = await served.service.organization()
        await org.owner.post("/api/v1/members", {"userId": "ann", "role": "member"})
        wanted = client.operator.events.list(after=start, types=ALL, org_id=org.id, limit=100)
        page = await wanted.first_page()
        tenant = await client.operator.tenants.get(org.id)
    by_class = {type(event): event for event in page.data}
    assert by_class[TenantEvent].type == "tenant.created"
    assert by_class[TenantEvent].data == tenant
    assert by_class[ApiKeyEvent].data.id == org.key.id
    assert by_class[MemberEvent].data.user_id == "ann"
    assert by_class[AuditTrailEvent].data.action
    assert page.data[0].response.status_code == 200


async def test_an_event_of_an_unknown_kind_has_its_fields(flavour: Flavour) -> None:
    event = {
        "id": "evt_7",
        "type": "robot.built",
        "orgId": "acme",
        "at": "2026-11-02T09:45:10Z",
        "version": 7,
        "data": {"id": "robot_1"},
        "origin": "api",
    }
    answer = {"data": [event], "nextCursor": "end"}
    async with answered_by(flavour, lambda _: httpx2.Response(200, json=answer)) as client:
        [received] = (await client.operator.events.list().first_page()).data
    assert type(received) is ChangeEvent
    assert (received.data, received.extra_fields) == ({"id": "robot_1"}, {"origin": "api"})
    assert received.to_dict() == event


async def test_an_answer_that_is_no_page_is_unreadable(flavour: Flavour) -> None:
    answer = {"data": [{"id": "evt_7"}], "nextCursor": "end"}
    async with answered_by(flavour, lambda _: httpx2.Response(200, json=answer)) as client:
        with pytest.raises(errors.UnreadableAnswerError):
            await take(client.operator.events.follow(), 1)


async def test_the_cursor_after_each_event_continues_with_the_next(
    served: Served, flavour: Flavour
) -> None:
    org = await served.service.organization()
    async with operator(flavour, served.url) as client:
        wanted = {"types": ALL, "org_id": org.id}
        whole = [event async for event in client.operator.events.list(**wanted, limit=3)]
        assert len(whole) >= 4
        cursor, seen = None, []
        for _ in whole:
            follower = client.operator.events.follow(after=cursor, limit=3, **wanted)
            seen += await take(follower, 1)
            cursor = follower.cursor
            assert cursor == seen[-1].id
        assert seen == whole
        follower = client.operator.events.follow(limit=3, **wanted)
        again = [(await take(follower, 1))[0] for _ in whole]  # one follower, continued
        assert again == whole


async def test_pages_have_the_cursor_of_the_next_one(served: Served, flavour: Flavour) -> None:
    org = await served.service.organization()
    async with operator(flavour, served.url) as client:
        events = client.operator.events
        listed = events.list(types=ALL, org_id=org.id, limit=2)
        whole = [event async for event in listed]
        assert [event async for event in listed] == whole
        assert [len(page.data) async for page in listed.pages()][-1] == 0
        follower = events.follow(types=ALL, org_id=org.id, limit=2, wait=1)
        seen = []
        async for page in follower.pages():
            assert follower.cursor == page.next_cursor
            seen += page.data
            if not page.data:  # after a second without an event
                break
        assert seen == whole
        rest = events.list(after=follower.cursor, types=ALL, org_id=org.id)
        assert [event async for event in rest] == []


async def test_events_are_followed_as_they_come(served: Served, flavour: Flavour) -> None:
    org = await served.service.organization()
    async with operator(flavour, served.url) as client:
        start = (await client.operator.events.list(after="now").first_page()).next_cursor
        follower = client.operator.events.follow(after=start, types=["tenant.*"], org_id=org.id)
        following = asyncio.create_task(until(follower, LAST))
        for number in range(3):
            await rename(org, f"name {number}")
        await rename(org, LAST)
        seen = await following
    assert [event.data.name for event in seen] == ["name 0", "name 1", "name 2", LAST]
    versions = [event.version for event in seen]
    assert versions == sorted(versions)


async def follow_renames(
    served: Served, flavour: Flavour, choose: Callable[[], Failure], count: int
) -> None:
    """Assert that a follower behind a faulty proxy gets each change once."""
    org = await served.service.organization()
    async with (
        operator(flavour, served.url) as direct,
        faulty_proxy(served.url, choose) as (url, _),
        operator(flavour, url, attempt_timeout=0.3) as client,
    ):
        start = (await direct.operator.events.list(after="now").first_page()).next_cursor
        follower = client.operator.events.follow(
            after=start, types=["tenant.updated"], org_id=org.id, limit=3, wait=1
        )
        following = asyncio.create_task(until(follower, LAST))
        for number in range(count):
            await rename(org, f"name {number}")
        await rename(org, LAST)
        async with asyncio.timeout(60):
            seen = await following
        renames = direct.operator.events.list(after=start, types=["tenant.updated"], org_id=org.id)
        listed = [event.id async for event in renames]
    assert [event.id for event in seen] == listed
    assert len(seen) == count + 1


@pytest.mark.thorough
@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: failure.name)
async def test_following_outlasts_a_failure(
    served: Served, flavour: Flavour, failure: Failure
) -> None:
    failures = iter([Failure.NONE, failure])
    await follow_renames(served, flavour, lambda: next(failures, Failure.NONE), 8)


@pytest.mark.thorough
async def test_following_outlasts_a_bad_day(served: Served, flavour: Flavour) -> None:
    chance = random.Random(45)  # noqa: S311  # the same day each time

    def bad_day() -> Failure:
        return chance.choice(FAILURES) if chance.random() < 0.4 else Failure.NONE

    await follow_renames(served, flavour, bad_day, 30)


def problem(status: int, code: str, **headers: str) -> httpx2.Response:
    return httpx2.Response(
        status,
        headers={"content-type": "application/problem+json", **headers},
        json={"code": code, "detail": "Why."},
    )


def feed_page(number: int, *, is_empty: bool = False) -> httpx2.Response:
    event = {
        "id": f"evt_{number}",
        "type": "robot.built",
        "orgId": "acme",
        "at": "2026-11-02T09:45:10Z",
        "version": number,
        "data": {},
    }
    return httpx2.Response(
        200, json={"data": [] if is_empty else [event], "nextCursor": f"end_{number}"}
    )


Answer = httpx2.Response | httpx2.TransportError


class Answers:
    """Gives answers in turn, and keeps the requests."""

    def __init__(self, *answers: Answer) -> None:
        self._answers: Iterator[Answer] = iter(answers)
        self.requests: list[httpx2.Request] = []

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(request)
        answer = next(self._answers)
        if isinstance(answer, httpx2.TransportError):
            raise answer
        return answer

    @property
    def asked(self) -> list[tuple[str | None, str | None]]:
        """The place and the wait of each request."""
        return [(one.url.params.get("after"), one.url.params.get("wait")) for one in self.requests]


async def test_what_may_pass_is_outlasted_however_often_it_comes(flavour: Flavour) -> None:
    passing: list[Answer] = [
        httpx2.ConnectError("refused"),
        httpx2.ReadTimeout("silent"),
        problem(408, "request_timeout"),
        problem(429, "rate_limited", **{"retry-after": "0"}),
        httpx2.Response(502, text="Bad gateway"),
        problem(503, "database_unavailable"),
        httpx2.Response(504),
    ]
    answers = Answers(*passing, *passing, feed_page(1), *passing, feed_page(2))
    async with answered_by(flavour, answers) as client:
        events = await take(client.operator.events.follow(after="begin"), 2)
    assert [event.id for event in events] == ["evt_1", "evt_2"]
    assert answers.asked == [("begin", "20")] * 15 + [("end_1", "20")] * 8


@cases(
    ("status", "code", "kind"),
    [
        (400, "invalid_cursor", errors.BadRequestError),
        (401, "invalid_credential", errors.AuthenticationError),
        (403, "insufficient_scope", errors.PermissionDeniedError),
        (410, "cursor_expired", errors.CursorExpiredError),
        (500, "internal_error", errors.ServerError),
    ],
)
async def test_what_does_not_pass_is_raised(
    flavour: Flavour, status: int, code: str, kind: type[errors.APIError]
) -> None:
    answers = Answers(feed_page(1), problem(status, code))
    async with answered_by(flavour, answers) as client:
        follower = client.operator.events.follow()
        with pytest.raises(kind):
            await take(follower, 2)
    assert follower.cursor == "end_1"


async def test_now_becomes_a_place_at_once(flavour: Flavour) -> None:
    answers = Answers(problem(503, "overloaded"), feed_page(1, is_empty=True), feed_page(2))
    async with answered_by(flavour, answers) as client:
        await take(client.operator.events.follow(after="now"), 1)
    assert answers.asked == [("now", None), ("now", None), ("end_1", "20")]


async def test_a_stopping_service_is_not_asked_without_pause(
    flavour: Flavour, caplog: pytest.LogCaptureFixture
) -> None:
    answers = Answers(*(feed_page(number, is_empty=True) for number in range(5)), feed_page(5))
    async with answered_by(flavour, answers) as client:
        follower = client.operator.events.follow()
        [event] = await take(follower, 1)
    assert (event.id, follower.cursor) == ("evt_5", "evt_5")
    assert sum("the service is stopping" in each.message for each in caplog.records) == 5


async def test_time_limits_count_from_the_end_of_the_wait(flavour: Flavour) -> None:
    answers = Answers(*(feed_page(number) for number in range(3)))
    async with answered_by(flavour, answers, timeout=9, attempt_timeout=3) as client:
        await client.operator.events.list().first_page()
        await client.operator.events.list(wait=20, attempt_timeout=5).first_page()
        await take(client.operator.events.follow(), 1)
    limits = [request.extensions["timeout"]["read"] for request in answers.requests]
    assert limits == [3, 25, 23]


async def test_a_follower_must_wait(flavour: Flavour) -> None:
    async with answered_by(flavour, Answers()) as client:
        with pytest.raises(ValueError, match="1 to 20"):
            client.operator.events.follow(wait=0)
        with pytest.raises(TypeError, match="types must be a list"):
            client.operator.events.follow(types="tenant.*")


async def test_other_credentials_cannot_follow(served: Served, flavour: Flavour) -> None:
    org = await served.service.organization()
    async with flavour.client_of(served, org) as owner:
        with pytest.raises((errors.AuthenticationError, errors.PermissionDeniedError)):
            await take(owner.operator.events.follow(), 1)


async def test_a_cursor_that_is_not_kept_is_a_typed_error(served: Served, flavour: Flavour) -> None:
    async with operator(flavour, served.url) as client:
        with pytest.raises(errors.CursorExpiredError) as raised:
            await take(client.operator.events.follow(after="evt_1"), 1)
    assert raised.value.next_step
