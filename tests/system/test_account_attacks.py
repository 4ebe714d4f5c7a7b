"""Attacks on accounts and access, against two processes of the service behind nginx, and how often
each got through.

What each single request must answer is in `tests/integration`; here many come at once, through a
load balancer.
"""

import asyncio
import itertools
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Iterable
from datetime import UTC, datetime
from typing import Final, NamedTuple
from urllib.parse import parse_qs, urlsplit

import httpx2
import psycopg
import pytest

from tests.contract.test_openapi import operations
from tests.support import events, figures
from tests.support.app import OPERATOR_TOKEN
from tests.support.commands import SECRETS
from tests.support.deployment import Deployment, deployed
from tests.support.figures import RecordProperty
from tests.support.issuer import (
    AUDIENCE,
    CLIENT_ID,
    DISCOVERY,
    JWKS,
    Answer,
    Issuer,
    running_issuer,
)
from tests.support.members import MEMBERS, accept_path, add_member, path_of, remove_member
from tests.support.postgres import PostgresServer, as_url
from tests.support.proxies import running_balancer
from tests.support.service import (
    KEYS,
    PROJECTS,
    TENANTS,
    VERIFY,
    WHOAMI,
    Caller,
    ManualClock,
    Service,
)
from tests.support.signing import deliver
from tests.support.slow_request import SlowRequest
from tests.support.smtp import LOOPBACK, MailServer, running
from tests.system.test_immediate_revocation import (
    Site,
    add_keys,
    add_members,
    add_tenants,
    check_keys,
    check_members,
)

TENANTS_PER_USER: Final = 20
MEMBERS_OF_A_TENANT: Final = 25
CATALOG: Final = f"""
[[plans]]
id = "free"
[[plans]]
id = "small"
[plans.limits]
members = {MEMBERS_OF_A_TENANT}
"""
TOKEN: Final = "/token"
CALLBACK: Final = "/sign-in/callback"
BASE_URL: Final = "http://127.0.0.1:3001"
EVIL: Final = "ACTION REQUIRED https://evil.example/pay"
ATTACKERS: Final = 20
AT_ONCE: Final = 16
FORMATTING: Final = ("\x00", "\x1b[2J", "\n", "\u200f", "\u202e", "\u2066", "\x9b", "\u2028")


class Target(NamedTuple):
    """The service behind nginx, each of its processes alone, and what stands around it."""

    service: Service
    address: str
    processes: tuple[Deployment, Deployment]
    issuer: Issuer
    mail: MailServer
    conninfo: str

    @property
    def site(self) -> Site:
        """Behind nginx, as the checks of immediate revocation take it."""
        return Site(
            self.conninfo, self.issuer, {}, Deployment(self.processes[0].command, self.address, "")
        )


@pytest.fixture(scope="module")
async def target(
    postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Target]:
    folder = tmp_path_factory.mktemp("target")
    (folder / "plans.toml").write_text(CATALOG)
    with postgres.database() as conninfo:
        async with running_issuer() as issuer, running(MailServer()) as mail:
            describe(issuer)
            values = {
                "OPERATOR_TOKEN": OPERATOR_TOKEN,
                "WORKERS": "1",
                "TENANTRY_PLANS": str(folder / "plans.toml"),
                "OIDC_ISSUER": issuer.url,
                "OIDC_AUDIENCE": AUDIENCE,
                "OIDC_CLIENT_ID": CLIENT_ID,
                "BASE_URL": BASE_URL,
                "SMTP_URL": f"smtp://{LOOPBACK}:{mail.port}",
                "MAIL_FROM": "keys@acme.example",
                "TENANTS_PER_USER": str(TENANTS_PER_USER),
                "RUN_JOBS": "true",
            }
            async with (
                deployed(as_url(conninfo), folder, **values) as one,
                deployed(as_url(conninfo), folder, **values) as two,
                running_balancer("nginx", folder, [port_of(one), port_of(two)]) as port,
                httpx2.AsyncClient(
                    base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=30
                ) as client,
            ):
                service = Service(client, ManualClock(datetime.now(UTC)), issuer, conninfo)
                yield Target(
                    service, f"http://127.0.0.1:{port}", (one, two), issuer, mail, conninfo
                )


def port_of(deployment: Deployment) -> int:
    return int(deployment.base_url.rpartition(":")[2])


def describe(issuer: Issuer) -> None:
    """Let the provider have the endpoints of a sign-in."""
    metadata = {
        "issuer": issuer.url,
        "jwks_uri": issuer.url + JWKS,
        "authorization_endpoint": f"{issuer.url}/authorize",
        "token_endpoint": issuer.url + TOKEN,
    }
    issuer.answers[DISCOVERY] = Answer(200, json.dumps(metadata).encode())


async def at_once(calls: Iterable[Awaitable[httpx2.Response]]) -> list[httpx2.Response]:
    """The answers to requests of which so many are under way at once."""
    free = asyncio.Semaphore(AT_ONCE)

    async def one(call: Awaitable[httpx2.Response]) -> httpx2.Response:
        async with free:
            return await call

    return await asyncio.gather(*(one(call) for call in calls))


def statuses(answers: Iterable[httpx2.Response]) -> dict[int, int]:
    return dict(Counter(answer.status_code for answer in answers))


async def own_tenant(service: Service, sub: str) -> str:
    """The id of a tenant that this user made."""
    made = await service.user(sub).post(TENANTS, {"name": sub, "ownerEmail": f"{sub}@x.example"})
    assert made.status_code == 201, made.text
    return str(made.json()["id"])


async def test_membership_without_consent(target: Target, record_property: RecordProperty) -> None:
    service = target.service
    victims = {
        sub: await own_tenant(service, sub) for sub in (f"victim-{number}" for number in range(5))
    }
    newcomers = [f"newcomer-{number}" for number in range(5)]
    invitations = 0
    for number in range(ATTACKERS):
        attacker = service.user(
            f"inviting-{number}", asks_for=await own_tenant(service, f"inviting-{number}")
        )
        for sub in (*victims, *newcomers):
            await add_member(attacker, sub, "owner")
            invitations += 1
    homes = {sub: service.user(sub) for sub in victims}
    answers = await at_once(homes[sub].get(WHOAMI) for _ in range(20) for sub in victims)
    expected = list(victims.values()) * 20
    led_astray = sum(
        answer.json().get("orgId") != org for answer, org in zip(answers, expected, strict=True)
    )
    made = await at_once(homes[sub].post(PROJECTS, {"name": "own"}) for sub in victims)
    led_astray += sum(
        answer.json().get("orgId") != victims[sub]
        for sub, answer in zip(victims, made, strict=True)
    )
    answers += made
    lost = [service.user(sub) for sub in newcomers]
    tries = await at_once(
        call
        for _ in range(10)
        for user in lost
        for call in (user.get(WHOAMI), user.post(PROJECTS, {"name": "lost"}))
    )
    let_in = sum(answer.status_code != 403 for answer in tries)
    figures.record(
        record_property,
        "Requests of users whom attackers have invited",
        {"requests": len(answers) + len(tries), "invitations": invitations},
        {"in the tenant of an attacker": led_astray + let_in},
    )
    assert (led_astray, let_in) == (0, 0)
    assert {answer.json()["code"] for answer in tries} == {"no_organization"}


async def test_one_user_makes_tenants_without_pause(
    target: Target, record_property: RecordProperty
) -> None:
    flooding, tries = target.service.user("flooding"), 300
    answers = await at_once(
        flooding.post(TENANTS, {"name": "x", "ownerEmail": "x@x.example"}) for _ in range(tries)
    )
    found = statuses(answers)
    figures.record(
        record_property,
        "Tenants that one user tried to make",
        {"requests": tries, "made": found[201]},
        {"beyond the limit": found[201] - TENANTS_PER_USER},
    )
    assert found[201] == TENANTS_PER_USER
    assert set(found) == {201, 403, 429}


async def test_one_tenant_invites_without_pause(
    target: Target, record_property: RecordProperty
) -> None:
    org = await target.service.organization()
    with psycopg.connect(target.conninfo) as connection:
        connection.execute("UPDATE tenants SET plan = 'small' WHERE id = %s", [org.id])
    tries = 100
    answers = await at_once(
        org.owner.post(MEMBERS, {"userId": f"u-{n}", "role": "member"}) for n in range(tries)
    )
    found = statuses(answers)
    figures.record(
        record_property,
        "Users that one tenant tried to invite",
        {"requests": tries, "invited": found[201]},
        {"beyond the plan": found[201] - MEMBERS_OF_A_TENANT},
    )
    assert found == {201: MEMBERS_OF_A_TENANT, 403: tries - MEMBERS_OF_A_TENANT}


async def test_revoked_credentials_are_used_continuously(
    target: Target, record_property: RecordProperty
) -> None:
    await check_keys(target.site, 60, record_property)
    await check_members(target.site, 30, record_property)


@pytest.mark.parametrize("way", ["through nginx", "to the other process"])
async def test_body_is_completed_after_its_key_or_member_is_revoked(
    target: Target, record_property: RecordProperty, way: str
) -> None:
    """nginx keeps an unfinished request to itself; a process that is reached without it has begun
    to read it.
    """
    slow, fast = (
        (target.address,) * 2
        if way == "through nginx"
        else [each.base_url for each in target.processes]
    )
    ((tenant_id, owner),) = add_tenants(target.conninfo, 1)
    project = (await target.service.caller(owner).post(PROJECTS, {"name": "before"})).json()
    one = f"{PROJECTS}/{project['id']}"
    takings = []
    for key_id, secret in add_keys(target.conninfo, tenant_id, 60, "{*:*}"):
        takings.append((secret, f"{KEYS}/{key_id}"))
    for member_id, token in add_members(target.conninfo, target.issuer, tenant_id, 60):
        takings.append((token, f"{MEMBERS}/{member_id}"))
    wishes = itertools.cycle(
        [("POST", PROJECTS, b'{"name": "late"}'), ("PATCH", one, b'{"name": "late"}')]
    )
    refused = 0
    async with httpx2.AsyncClient(base_url=fast, trust_env=False, timeout=30) as client:
        caller = Caller(client, owner)
        for (credential, path), (method, wish, body) in zip(takings, wishes, strict=False):
            headers = {"Authorization": f"Bearer {credential}", "Content-Type": "application/json"}
            half = await SlowRequest.begin(slow, method, wish, body, headers)
            assert (await caller.delete(path)).status_code == 204
            refused += (await half.finish())[0] in (401, 403)
        projects = (await caller.get(PROJECTS)).json()["data"]
    figures.record(
        record_property,
        f"Bodies completed after the revocation, {way}",
        {"requests": len(takings)},
        {"accepted": len(takings) - refused},
    )
    assert refused == len(takings)
    assert [each["name"] for each in projects] == ["before"]


async def test_test_keys_act_live(target: Target, record_property: RecordProperty) -> None:
    service = target.service
    org = await service.organization()
    test = (await service.key(org.owner, org.id, mode="test", accessLevel="OWNER")).caller
    paths = [f"{VERIFY}-", f"{VERIFY}projects:read", f"{VERIFY}projects:read/mode/live"]
    forged = [{}, {"X-Mode": "live"}, {"X-Mode": "any"}]
    tries = await at_once(
        test.call("GET", path, headers=more) for _ in range(30) for path in paths for more in forged
    )
    writes = [
        test.call(method.upper(), path.replace("{tenant_id}", org.id), {"name": "x"})
        for path, method, operation in operations()
        for needed in operation["security"]
        if needed.get("bearer") in (["tenants:write"], ["billing:write"])
    ]
    tries += await at_once(writes)
    asked = await at_once(
        test.call("GET", f"{VERIFY}projects:read/mode/{mode}", headers=more)
        for mode in ("test", "any")
        for more in forged
    )
    let_in = sum(
        answer.json().get("code") != "mode_mismatch" if answer.content else True for answer in tries
    )
    unnamed = sum(
        (answer.status_code, answer.headers.get("x-mode")) != (200, "test") for answer in asked
    )
    figures.record(
        record_property,
        "Test keys where only live ones may act",
        {"requests": len(tries) + len(asked)},
        {"accepted": let_in, "without their mode": unnamed},
    )
    assert len(writes) == 5
    assert (let_in, unnamed) == (0, 0)


async def test_mails_to_an_unrelated_person(
    target: Target, record_property: RecordProperty
) -> None:
    service, outsider = target.service, "victim@other.example"
    reports = []
    for number in range(ATTACKERS):
        sub = f"mailing-{number}"
        made = await service.user(sub).post(TENANTS, {"name": EVIL, "ownerEmail": outsider})
        assert made.status_code == 201, made.text
        org = made.json()["id"]
        user = service.user(sub, asks_for=org)
        keys = [await service.key(user, org, "projects:read", name=EVIL) for _ in range(10)]
        reports += [
            service.anonymous.post(f"{KEYS}/report-leak", {"secret": key.caller.credential})
            for key in keys
        ]
    assert statuses(await at_once(reports)) == {200: len(reports)}
    # a tenant of the operator's, whose address is verified
    org = await service.organization(
        ownerEmail="verified@x.example", stripeCustomerId="cus_verified", name=EVIL
    )
    keys = [await service.key(org.owner, org.id, "projects:read", name=EVIL) for _ in range(30)]
    leaks = [
        service.anonymous.post(f"{KEYS}/report-leak", {"secret": key.caller.credential})
        for key in keys
    ]
    assert statuses(await at_once(leaks)) == {200: len(leaks)}
    now = int(datetime.now(UTC).timestamp())
    failed = events.failed(customer="cus_verified", event_id="evt_after_all_leaks", created=now)
    assert (
        await deliver(service.client, failed, secret=SECRETS["PROVIDER_WEBHOOK_SECRET"], at=now)
    ).text == "OK"
    mail = target.mail
    await mail.wait_for(
        lambda server: any(one.message["Subject"] == "Payment failed" for one in server.received)
    )
    to_outsider = [one for one in mail.received if one.recipients == [outsider]]
    notices = [
        one
        for one in mail.received
        if one.recipients == ["verified@x.example"] and one.message["Subject"] != "Payment failed"
    ]
    written = [
        one
        for one in to_outsider
        if "ACTION" in one.message.as_string() or "evil" in one.part("plain")
    ]
    named = [
        one
        for one in mail.received
        if "evil" in one.message["Subject"] or "https://evil" in one.part("plain")
    ]
    figures.record(
        record_property,
        "Leak reports and the mails that came of them",
        {
            "reports": len(reports) + len(leaks),
            "mails to a outsider": len(to_outsider),
            "to an owner": len(notices),
        },
        {
            "with the attacker's text to the victim": len(written),
            "with a link or subject of theirs": len(named),
        },
    )
    assert (written, named) == ([], [])
    assert {one.message["Subject"] for one in to_outsider} == {"Confirm your e-mail address"}
    assert len(to_outsider) == 3
    assert len(notices) <= 6  # five in an hour, and what the rest is announced by


async def test_admins_lower_and_throw_out_claimed_owners(
    target: Target, record_property: RecordProperty
) -> None:
    service = target.service
    org = await service.organization()
    attackers = [
        service.user("admin", org=org.id, role="admin"),
        (await service.key(org.owner, org.id, "*:*")).caller,
    ]
    owners = [
        service.user(f"owner-{number}", org=org.id, role="owner") for number in range(2 * ATTACKERS)
    ]
    for number in range(len(owners)):
        attacker = attackers[number % 2]
        member = await add_member(attacker, f"owner-{number}", ("member", "admin")[number // 2 % 2])
        if number >= ATTACKERS:
            await remove_member(attacker, member)
            assert (await attacker.get(path_of(member))).json()["status"] == "removed"
    answers = await at_once(owner.get(WHOAMI) for _ in range(5) for owner in owners)
    lowered = sum(answer.json().get("accessLevel") != "OWNER" for answer in answers)
    figures.record(
        record_property,
        "Requests of claimed owners whom an admin has lowered or removed",
        {"requests": len(answers), "owners": len(owners)},
        {"not as an owner": lowered},
    )
    assert lowered == 0


async def test_state_of_a_sign_in_is_used_again_and_again(
    target: Target, record_property: RecordProperty
) -> None:
    sign_ins, times = 10, 10
    before = target.issuer.fetches[TOKEN]
    for _ in range(sign_ins):
        async with httpx2.AsyncClient(
            base_url=target.address, trust_env=False, timeout=30
        ) as browser:
            started = await browser.get("/sign-in/start", params={"return_to": "/", "here": "1"})
            [state] = parse_qs(urlsplit(started.headers["location"]).query)["state"]
            cookies = "; ".join(f"{name}={value}" for name, value in browser.cookies.items())
        outsider = target.service.caller(None, Cookie=cookies)
        query = {"code": "a-code", "state": state, "iss": target.issuer.url}
        answers = await at_once(outsider.get(CALLBACK, **query) for _ in range(times))
        assert 303 not in statuses(answers)
    redeemed = target.issuer.fetches[TOKEN] - before
    figures.record(
        record_property,
        "Answers of the provider for one state of a sign-in",
        {"requests": sign_ins * times, "redeemed": redeemed},
        {"redeemed again": redeemed - sign_ins},
    )
    assert redeemed == sign_ins


async def test_names_with_characters_that_format(
    target: Target, record_property: RecordProperty
) -> None:
    service = target.service
    org = await service.organization()
    tries = []
    for text in FORMATTING:
        name = f"a{text}b"
        tries += [
            org.owner.patch(org.path, {"name": name}),
            org.owner.post(PROJECTS, {"name": name}),
            org.owner.post(KEYS, {"orgId": org.id, "name": name, "scopes": []}),
            service.user("naming").post(TENANTS, {"name": name, "ownerEmail": "x@x.example"}),
        ]
    answers = await at_once(tries)
    figures.record(
        record_property,
        "Names with control or formatting characters",
        {"names": len(answers)},
        {"taken": sum(answer.is_success for answer in answers)},
    )
    assert set(statuses(answers)) <= {400, 422}


async def test_those_invited_get_in_once_they_accept(target: Target) -> None:
    """That all of the above are refused is no accident of the setup."""
    service = target.service
    org = await service.organization()
    member = await add_member(org.owner, "willing")
    willing = service.user("willing")
    assert (await willing.get(WHOAMI)).status_code == 403
    assert (await willing.post(accept_path(member))).status_code == 200
    assert (await willing.get(WHOAMI)).json()["orgId"] == org.id
