"""The change feed through the TypeScript client."""

import asyncio
import json
import random

from tests.sdk.faulty_proxy import Failure, faulty_proxy
from tests.sdk.sdk_support import Served
from tests.support.app import OPERATOR_TOKEN
from tests.support.service import Organization
from tests.support.typescript_client import ANOTHER_SERVER, Package

ENDS: list[Failure] = [
    Failure.RESET_BEFORE,
    Failure.RESET_AFTER,
    Failure.UNAVAILABLE_BEFORE,
    Failure.UNAVAILABLE_AFTER,
    Failure.TRUNCATED,
    Failure.TRUNCATED_HEAD,
]
"""Failures after which an attempt ends at once."""


async def rename(organization: Organization, *names: str) -> None:
    for name in names:
        body = {"name": name, "ownerEmail": "owner@x.example"}
        response = await organization.owner.patch(f"/api/v1/tenants/{organization.id}", body)
        assert response.status_code == 200, response.text


async def test_the_cursor_after_each_event_continues_with_the_next(
    package: Package, served: Served, acme: Organization
) -> None:
    program = """
        const { events } = tenantry.operator;
        const wanted = { types: "tenant.*,api_key.*,audit.*", orgId: ORG };
        const whole = [];
        for await (const event of events.list({ ...wanted, limit: 3 })) whole.push(event);
        const seen = [];
        let cursor;
        for (const _ of whole) {
            const follower = events.follow({ ...wanted, limit: 3, ...(cursor && { after: cursor }) });
            for await (const event of follower) { seen.push(event); break; }
            cursor = follower.cursor;
        }
        const again = [];
        const one = events.follow({ ...wanted, limit: 3 });
        while (again.length < whole.length) {
            for await (const event of one) { again.push(event); break; }
        }
        print([whole.length, whole, seen, again].map((each) => JSON.stringify(each)));
    """.replace("ORG", json.dumps(acme.id))
    count, whole, seen, again = await package.result_of(program, served.url, OPERATOR_TOKEN)
    assert int(count) >= 4
    assert seen == again == whole


async def test_following_outlasts_a_bad_day(
    package: Package, served: Served, acme: Organization
) -> None:
    chance = random.Random(45)  # noqa: S311  # the same day each time
    program = """
        const seen = [];
        const parameters = { types: "tenant.*", orgId: ORG, limit: 3, wait: 1 };
        const client = new Tenantry({ baseUrl, apiKey, retries: 0 });
        for await (const event of client.operator.events.follow(parameters)) {
            seen.push(event.data.name);
            if (event.data.name === "last") break;
        }
        print(seen);
    """.replace("ORG", json.dumps(acme.id))

    def bad_day() -> Failure:
        return chance.choice(ENDS) if chance.random() < 0.3 else Failure.NONE

    names = [f"name {number}" for number in range(12)]
    async with faulty_proxy(served.url, bad_day) as (url, _):
        following = asyncio.create_task(package.result_of(program, url, OPERATOR_TOKEN))
        await rename(acme, *names, "last")
        assert await following == [acme.id, *names, "last"]


async def test_pages_and_the_signal_that_ends_them(
    package: Package, served: Served, acme: Organization
) -> None:
    program = """
        const controller = new AbortController();
        const parameters = { orgId: ORG, limit: 1, wait: 1 };
        const follower = tenantry.operator.events.follow(parameters, { signal: controller.signal });
        const types = [];
        const error = await rejection((async () => {
            for await (const page of follower.pages()) {
                types.push(page.data.map(({ type }) => type));
                if (page.data.length === 0) controller.abort(new Error("enough"));
            }
        })());
        print([types, error.cause.message]);
    """.replace("ORG", json.dumps(acme.id))
    types, message = await package.result_of(program, served.url, OPERATOR_TOKEN)
    assert (types, message) == ([["tenant.created"], ["api_key.created"], []], "enough")


async def test_what_does_not_pass_is_thrown(package: Package, served: Served) -> None:
    program = """
        const next = (follower) => rejection(follower[Symbol.asyncIterator]().next());
        const expired = await next(tenantry.operator.events.follow({ after: "evt_1" }));
        const stranger = new Tenantry({ baseUrl, apiKey: "nobody" });
        const refused = await next(stranger.operator.events.follow());
        print([expired instanceof CursorExpiredError, expired.code, refused.code]);
    """
    result = await package.result_of(program, served.url, OPERATOR_TOKEN)
    assert result == [True, "cursor_expired", "invalid_credential"]


async def test_a_stopping_service_is_asked_again_and_now_becomes_a_place(
    package: Package, served: Served
) -> None:
    program = (
        ANOTHER_SERVER
        + """
        const asked = [];
        const answer = (request, response) => {
            const { searchParams } = new URL(request.url, "http://x");
            asked.push([searchParams.get("after"), searchParams.get("wait")]);
            const number = asked.length;
            const event = { id: `evt_${number}`, type: "tenant.created" };
            response.setHeader("Content-Type", "application/json");
            response.end(JSON.stringify({ data: number < 4 ? [] : [event], nextCursor: `end_${number}` }));
        };
        const follower = elsewhere.operator.events.follow({ after: "now" });
        for await (const event of follower) break;
        print([asked, follower.cursor]);
        process.exit();
    """
    )
    assert await package.result_of(program, served.url, OPERATOR_TOKEN) == [
        [["now", "0"], ["end_1", "20"], ["end_2", "20"], ["end_3", "20"]],
        "evt_4",
    ]


async def test_time_limits_count_from_the_end_of_the_wait(
    package: Package, served: Served, acme: Organization
) -> None:
    program = """
        const client = new Tenantry({ baseUrl, apiKey, timeout: 2000, attemptTimeout: 900, retries: 0 });
        const page = await client.operator.events.list({ after: "now", orgId: ORG, wait: 1 }).firstPage();
        print(page.data.length);
    """.replace("ORG", json.dumps(acme.id))
    assert await package.result_of(program, served.url, OPERATOR_TOKEN) == 0
