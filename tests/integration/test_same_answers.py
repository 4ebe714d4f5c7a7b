"""One table of callers with expected answers, for the service and every way to authenticate in an
own process.

Statuses, codes, headers and words are those of the service wherever a request comes in. The service
is asked the whole table; the middlewares and frameworks, which share its authenticator, are asked
the `EVERYWHERE` rows of it: at least one for each step at which a request is refused.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final, NamedTuple

import httpx2
import psycopg
import pytest

from tenantry.api.auth import VERIFY_PREFIX
from tenantry.common.clock import Timeouts
from tenantry.domain.api_keys import DEFAULT_FORMAT
from tenantry.domain.permissions import Mode
from tenantry_sdk._verify import ACCESS_HEADERS, PRINCIPAL_HEADERS
from tests.support.cases import cases
from tests.support.catalogs import catalog_file
from tests.support.database_link import DatabaseLink, database_link
from tests.support.in_process import (
    DJANGO,
    DJANGO_ASGI,
    FASTAPI,
    FLASK,
    MIDDLEWARE,
    SERVICE,
    WSGI,
    AuthenticatedApp,
    running_app,
)
from tests.support.issuer import running_issuer
from tests.support.logs import watched
from tests.support.patience import PATIENT
from tests.support.postgres import PostgresServer
from tests.support.service import (
    SHORT_TIMEOUTS,
    WHOAMI,
    Caller,
    Organization,
    Service,
    refusal,
    running_service,
)

KINDS: Final = (SERVICE, MIDDLEWARE, FASTAPI, WSGI, FLASK, DJANGO, DJANGO_ASGI)
MISSING: Final = 'Bearer realm="api"'
SUSPENDED: Final = {"name": "x", "ownerEmail": "a@x.example", "suspended": True}
LEFT: Final = re.compile(r"r=\d+")
UNKNOWN_KEY: Final = DEFAULT_FORMAT.compose(Mode.LIVE, bytes(32))
CATALOG: Final = """
[[plans]]
id = "free"

[[plans]]
id = "limited"
[plans.limits]
requests_per_minute = 100
requests_per_minute_per_key = 2
"""

Headers = list[tuple[bytes, bytes]]
Apps = Sequence[AuthenticatedApp]
Prepare = Callable[[Service, Apps], Awaitable[Headers]]


def sent(*values: str | bytes, **others: str) -> Headers:
    """One ``Authorization`` header for each value, and others."""
    texts = [value if isinstance(value, bytes) else value.encode() for value in values]
    named = [(name.replace("_", "-").encode(), text.encode()) for name, text in others.items()]
    return [*((b"authorization", text) for text in texts), *named]


def by(caller: Caller, **others: str) -> Headers:
    """The headers of this caller."""
    return sent(f"Bearer {caller.credential}", **others)


def fixed(*values: str | bytes, **others: str) -> Prepare:
    """Always the same headers, whatever there is in the database."""

    async def prepare(_service: Service, _apps: Apps) -> Headers:
        return sent(*values, **others)

    return prepare


async def authorized(headers: Headers, *apps: AuthenticatedApp) -> None:
    """Let all apps accept, and perhaps remember, a caller."""
    for app in apps:
        answer = await app.get(headers)
        assert answer.status_code == 200, (app.kind, answer.text)


async def owner(service: Service, _apps: Apps) -> Headers:
    return by((await service.organization()).owner)


async def owner_in_other_case(service: Service, _apps: Apps) -> Headers:
    return sent(f"bEaReR {(await service.organization()).owner.credential}")


async def reader(service: Service, _apps: Apps) -> Headers:
    org = await service.organization()
    return by((await service.key(org.owner, org.id, "projects:read")).caller)


async def key_of_test_mode(service: Service, _apps: Apps) -> Headers:
    org = await service.organization()
    return by((await service.key(org.owner, org.id, "projects:read", mode="test")).caller)


async def revoked_a_moment_ago(service: Service, apps: Apps) -> Headers:
    org = await service.organization()
    key = await service.key(org.owner, org.id, "projects:read")
    await authorized(by(key.caller), *apps)
    assert (await org.owner.delete(key.path)).status_code == 204
    return by(key.caller)


async def rotated_a_moment_ago(service: Service, apps: Apps) -> Headers:
    org = await service.organization()
    key = await service.key(org.owner, org.id, "projects:read")
    await authorized(by(key.caller), *apps)
    assert (await org.owner.post(f"{key.path}/rotate", {})).status_code == 201
    return by(key.caller)


async def expired_a_moment_ago(service: Service, _apps: Apps) -> Headers:
    org = await service.organization()
    key = await service.key(org.owner, org.id, "projects:read")
    await _execute(
        service, "UPDATE api_keys SET expires_at = %s WHERE id = %s", service.clock.now, key.id
    )
    return by(key.caller)


async def suspended_a_moment_ago(service: Service, apps: Apps) -> Headers:
    org = await service.organization()
    await authorized(by(org.owner), *apps)
    await service.operator.put(org.path, SUSPENDED)
    return by(org.owner)


async def ended_a_moment_ago(service: Service, apps: Apps) -> Headers:
    org = await service.organization()
    await authorized(by(org.owner), *apps)
    assert (await service.operator.delete(org.path)).status_code == 204
    return by(org.owner)


async def user_suspended_a_moment_ago(service: Service, apps: Apps) -> Headers:
    org = await service.organization()
    user = service.user(org=org.id, role="owner")
    await authorized(by(user), *apps)
    await service.operator.put(org.path, SUSPENDED)
    return by(user)


async def user_of_an_ended_tenant(service: Service, apps: Apps) -> Headers:
    org = await service.organization()
    user = service.user(org=org.id, role="owner")
    await authorized(by(user), *apps)
    await service.operator.delete(org.path)
    return by(user)


async def removed_member(service: Service, apps: Apps) -> Headers:
    org = await service.organization()
    member = service.user("leaving", org=org.id, role="owner")
    await authorized(by(member), *apps)
    await _add_membership(service, org, "leaving", removed=True)
    return by(member)


async def owner_who_is_a_member_only(service: Service, _apps: Apps) -> Headers:
    org = await service.organization()
    await _add_membership(service, org, "lowered", removed=False)
    return by(service.user("lowered", org=org.id, role="owner"))


async def member(service: Service, _apps: Apps) -> Headers:
    return by(service.user(org=(await service.organization()).id))


async def member_of_157_groups(service: Service, _apps: Apps) -> Headers:
    """A user with as many groups as Microsoft Entra ID puts into a token at most."""
    caller = service.user(org=(await service.organization()).id, groups=GROUPS)
    assert len(caller.credential or "") > MOST_OF_OTHERS
    return by(caller)


async def narrowed_owner(service: Service, _apps: Apps) -> Headers:
    org = await service.organization()
    return by(service.user(org=org.id, role="owner", scope="openid projects:write"))


async def unknown_user(service: Service, _apps: Apps) -> Headers:
    return by(service.user("unknown_user"))


async def user_of_an_unknown_tenant(service: Service, _apps: Apps) -> Headers:
    return by(service.user(org="missing", role="owner"))


async def user_asking_for_another_tenant(service: Service, _apps: Apps) -> Headers:
    org, other = await service.organization(), await service.organization()
    return by(service.user(org=org.id, role="owner"), X_Organization_Id=other.id)


async def expired_token(service: Service, _apps: Apps) -> Headers:
    org, now = await service.organization(), int(service.clock.now.timestamp())
    return by(service.user(org=org.id, iat=now - 7200, exp=now - 3600))


async def id_token(service: Service, _apps: Apps) -> Headers:
    return by(service.user(org=(await service.organization()).id, nonce="n"))


async def forged_token(service: Service, _apps: Apps) -> Headers:
    good = str(service.user(org=(await service.organization()).id).credential)
    return sent(f"Bearer {good[:-4]}AAAA")


async def unsigned_token(service: Service, _apps: Apps) -> Headers:
    good = str(service.user(org=(await service.organization()).id).credential)
    return sent(f"Bearer eyJhbGciOiJub25lIn0.{good.split('.')[1]}.")


async def key_with_another_checksum(service: Service, _apps: Apps) -> Headers:
    key = str((await service.organization()).owner.credential)
    return sent(f"Bearer {key[:-1]}{'0' if key[-1] != '0' else '1'}")


async def same_header_twice(service: Service, _apps: Apps) -> Headers:
    good = f"Bearer {(await service.organization()).owner.credential}"
    return sent(good, good)


async def good_header_after_an_empty_one(service: Service, _apps: Apps) -> Headers:
    return sent("", f"Bearer {(await service.organization()).owner.credential}")


async def key_in_other_headers(service: Service, _apps: Apps) -> Headers:
    key = str((await service.organization()).owner.credential)
    return sent(
        Cookie=f"session={key}",
        X_Api_Key=key,
        Proxy_Authorization=f"Bearer {key}",
        X_Tenant_Id="org-1",
    )


async def third_of_two_requests(service: Service, apps: Apps) -> Headers:
    org = await service.organization()
    key = await service.key(org.owner, org.id, "projects:read")
    await _execute(service, "UPDATE tenants SET plan = 'limited' WHERE id = %s", org.id)
    for _ in range(2):
        await authorized(by(key.caller), apps[0])
    return by(key.caller)


async def _add_membership(service: Service, org: Organization, user: str, *, removed: bool) -> None:
    await _execute(
        service,
        "INSERT INTO memberships (tenant_id, issuer, subject, role, removed_at) "
        "VALUES (%s, %s, %s, 'member', CASE WHEN %s THEN now() END)",
        org.id,
        service.issuer.url,
        user,
        removed,
    )


async def _execute(service: Service, statement: str, *values: object) -> None:
    async with await psycopg.AsyncConnection.connect(service.conninfo) as connection:
        await connection.execute(statement.encode(), values)


class Refused(NamedTuple):
    """Who asks for what, and how they are refused."""

    prepare: Prepare
    status: int
    code: str
    challenge: str | None
    scope: str | None = None


def invalid(prepare: Prepare, code: str = "invalid_credential", detail: str = "") -> Refused:
    return Refused(
        prepare,
        401,
        code,
        f'Bearer realm="api", error="invalid_token", error_description="{detail}',
    )


def forbidden(prepare: Prepare, code: str, scope: str | None = None) -> Refused:
    return Refused(prepare, 403, code, None, scope)


def lacking(prepare: Prepare, scope: str) -> Refused:
    challenge = f'Bearer realm="api", error="insufficient_scope", scope="{scope}"'
    return Refused(prepare, 403, "insufficient_scope", challenge, scope)


GROUPS: Final = [f"11111111-2222-4333-8444-{number:012}" for number in range(157)]
MOST_OF_OTHERS: Final = 8192
"""The longest token, or header, that many servers accept."""
TOO_LONG: Final = "The credential is too long: at most 16,384 bytes."
SHAPELESS: Final = "The credential is neither an API key nor a token."
REFUSED: Final = {
    "no credential": Refused(fixed(), 401, "missing_credential", MISSING),
    "empty header": Refused(fixed(""), 401, "missing_credential", MISSING),
    "key in other headers": Refused(key_in_other_headers, 401, "missing_credential", MISSING),
    "other scheme": invalid(fixed("Basic dXNlcjpwYXNz")),
    "scheme alone": invalid(fixed("Bearer")),
    "scheme and blanks": invalid(fixed("Bearer   ")),
    "no scheme": invalid(fixed(UNKNOWN_KEY)),
    "one part": invalid(fixed("Bearer abc"), detail=SHAPELESS),
    "three empty parts": invalid(fixed("Bearer ..")),
    "four parts": invalid(fixed("Bearer a.b.c.d"), detail=SHAPELESS),
    "key that was never made": invalid(
        fixed(f"Bearer {UNKNOWN_KEY}"), detail="The API key is not valid."
    ),
    "key with another checksum": invalid(
        key_with_another_checksum, detail="The API key is not valid."
    ),
    "prefix of keys alone": invalid(fixed("Bearer svc_"), detail="The API key is not valid."),
    "key that is not ASCII": invalid(fixed("Bearer svc_live_ä"), detail=SHAPELESS),
    "token that is not ASCII": invalid(fixed(b"Bearer \xe4.\xf6.\xfc"), detail=SHAPELESS),
    "NUL": invalid(fixed(b"Bearer a\x00b.c.d")),
    "too long": invalid(fixed(b"Bearer " + b"a" * 17_000 + b".b.c"), detail=TOO_LONG),
    "two credentials in one header": invalid(fixed(f"Bearer {UNKNOWN_KEY}, Bearer {UNKNOWN_KEY}")),
    "same header twice": invalid(same_header_twice),
    "good header after an empty one": invalid(good_header_after_an_empty_one),
    "revoked a moment ago": invalid(
        revoked_a_moment_ago, "api_key_revoked", "The API key has been revoked."
    ),
    "rotated a moment ago": invalid(
        rotated_a_moment_ago, "api_key_revoked", "The API key has been revoked."
    ),
    "expired a moment ago": invalid(
        expired_a_moment_ago, "api_key_expired", "The API key has expired."
    ),
    "suspended a moment ago": forbidden(suspended_a_moment_ago, "org_suspended"),
    "ended a moment ago": invalid(ended_a_moment_ago, "api_key_revoked"),
    "user suspended a moment ago": forbidden(user_suspended_a_moment_ago, "org_suspended"),
    "user of an ended tenant": invalid(user_of_an_ended_tenant),
    "removed member": forbidden(removed_member, "no_organization"),
    "unknown_user": forbidden(unknown_user, "no_organization"),
    "user of an unknown tenant": forbidden(user_of_an_unknown_tenant, "no_organization"),
    "user asking for another tenant": forbidden(user_asking_for_another_tenant, "org_mismatch"),
    "expired token": invalid(expired_token, "token_expired"),
    "ID token": invalid(id_token),
    "forged token": invalid(forged_token),
    "unsigned token": invalid(unsigned_token),
    "reader who writes": lacking(reader, "projects:write"),
    "member who manages keys": lacking(member, "api-keys:read"),
    "owner who is a member only": lacking(owner_who_is_a_member_only, "api-keys:read"),
    "narrowed owner who reads": lacking(narrowed_owner, "projects:read"),
    "test key that wants everything": lacking(key_of_test_mode, "*:*"),
    "test key": forbidden(key_of_test_mode, "mode_mismatch", "projects:read"),
    "third of two requests": Refused(third_of_two_requests, 429, "rate_limited", None),
}

ACCEPTED: Final[dict[str, tuple[Prepare, str | None]]] = {
    "owner": (owner, None),
    "owner, scheme in another case": (owner_in_other_case, None),
    "owner who writes": (owner, "projects:write"),
    "reader who reads": (reader, "projects:read"),
    "member who reads": (member, "projects:read"),
    "member of 157 groups": (member_of_157_groups, "projects:read"),
    "narrowed owner who writes": (narrowed_owner, "projects:write"),
}

EVERYWHERE: Final = frozenset(
    {
        # the header
        "no credential",
        "key in other headers",
        "two credentials in one header",
        "good header after an empty one",
        "token that is not ASCII",
        "too long",
        # the key
        "key that was never made",
        "revoked a moment ago",
        "rotated a moment ago",
        "expired a moment ago",
        # the token
        "expired token",
        "forged token",
        "ID token",
        # the tenant and its member
        "suspended a moment ago",
        "user suspended a moment ago",
        "removed member",
        "user asking for another tenant",
        "ended a moment ago",
        "user of an ended tenant",
        "unknown_user",
        "test key",
        # the scope, and the limits
        "reader who writes",
        "owner who is a member only",
        "third of two requests",
        "owner",
        "reader who reads",
        "narrowed owner who writes",
        "member of 157 groups",
    }
)
"""The rows that each kind of app is asked."""


@pytest.fixture(scope="module")
async def service(postgres: PostgresServer) -> AsyncIterator[Service]:
    with postgres.database() as conninfo:
        async with running_service(conninfo, TENANTRY_PLANS=catalog_file(CATALOG)) as service:
            yield service


@pytest.fixture(scope="module")
async def apps(service: Service) -> AsyncIterator[Apps]:
    """An app of each kind beside the service."""
    async with every_app(service, TENANTRY_PLANS=catalog_file(CATALOG)) as apps:
        yield apps


@pytest.fixture(params=KINDS)
def app(request: pytest.FixtureRequest, apps: Apps) -> AuthenticatedApp:
    [found] = [app for app in apps if app.kind == request.param]
    return found


def asked(apps: Apps, name: str) -> Apps:
    """The apps that are asked a row of the table: the service always."""
    return [app for app in apps if app.kind == SERVICE or name in EVERYWHERE]


def comparable(answer: httpx2.Response) -> tuple[int, dict[str, str], Any]:
    """Status, headers and body, without what differs from request to request, or is there for
    gateways alone.
    """
    request_id = answer.headers["x-request-id"]
    headers = {name.lower(): text for name, text in answer.headers.items() if text != request_id}
    headers.pop("x-problem", None)
    if "ratelimit" in headers:
        headers["ratelimit"] = LEFT.sub("r=", headers["ratelimit"])
    body = answer.json()
    assert body.pop("requestId") == request_id
    return answer.status_code, headers, body


@cases("name", REFUSED)
async def test_rejections_are_equal_in_every_app(service: Service, apps: Apps, name: str) -> None:
    row = REFUSED[name]
    headers = await row.prepare(service, asked(apps, name))
    of_service = comparable(await apps[0].get(headers, row.scope))
    for app in asked(apps, name):
        answer = await app.get(headers, row.scope)
        assert refusal(answer) == (row.status, row.code), app.kind
        challenge = answer.headers.get("www-authenticate")
        assert (challenge is None) == (row.challenge is None), app.kind
        assert (challenge or "").startswith(row.challenge or ""), app.kind
        assert (challenge or "").isascii(), app.kind
        assert ("retry-after" in answer.headers) == (row.status == 429), app.kind
        assert comparable(answer) == of_service, app.kind


async def test_refused_token_leaves_one_line_in_every_application(
    service: Service, app: AuthenticatedApp
) -> None:
    prepare = REFUSED["expired token"].prepare
    headers = await prepare(service, [app])
    with watched("tenantry") as log:
        answer = await app.get(headers, None)
    assert answer.status_code == 401
    request_id = answer.headers["x-request-id"]
    assert log.count(f"bearer token refused: reason=expiry request={request_id}: expired") == 1
    assert log.count("bearer token refused") == 1


@cases("name", ACCEPTED)
async def test_accepted_callers_are_the_same_and_have_the_same_name(
    service: Service, apps: Apps, name: str
) -> None:
    prepare, scope = ACCEPTED[name]
    headers = await prepare(service, apps)
    who = (await service.client.get(WHOAMI, headers=headers)).json()
    for app in asked(apps, name):
        answer = await app.get(headers, scope)
        assert answer.status_code == 200, (app.kind, answer.text)
        if app.kind == SERVICE:
            assert scope is None or answer.headers["x-tenant-id"] == who["orgId"]
        else:
            shown = {**who, "effectivePlan": who["access"]["plan"]}
            assert answer.json() == shown, app.kind


@pytest.mark.parametrize("app", [kind for kind in KINDS if kind != SERVICE], indirect=True)
async def test_principal_has_all_that_the_sdk_knows_of_it(
    service: Service, app: AuthenticatedApp
) -> None:
    headers = await reader(service, [app])
    checked = await service.client.get(f"{VERIFY_PREFIX}-", headers=headers)
    of_sdk = {field: checked.headers[name] for field, name in PRINCIPAL_HEADERS.items()}
    shown = (await app.get(headers)).json()
    assert {field: shown[field] for field in of_sdk} == of_sdk
    access = {field: checked.headers[name] for field, name in ACCESS_HEADERS.items()}
    assert {field: shown["access"][field] for field in access} == access


async def test_principal_has_the_keys_external_id_and_metadata(
    service: Service, app: AuthenticatedApp
) -> None:
    org = await service.organization()
    given = {"externalId": "cus_4711", "metadata": {"team": "growth"}}
    key = await service.key(org.owner, org.id, "projects:read", **given)
    for caller, expected in (
        (key.caller, given),
        (org.owner, {"externalId": None, "metadata": {}}),
    ):
        shown = (await app.get(by(caller))).json()
        assert {field: shown[field] for field in expected} == expected


async def test_limits_are_counted_together_and_shown_alike(
    service: Service, app: AuthenticatedApp
) -> None:
    org = await service.organization()
    key = await service.key(org.owner, org.id, "projects:read")
    await _execute(service, "UPDATE tenants SET plan = 'limited' WHERE id = %s", org.id)
    for answer in (
        await app.get(by(key.caller)),
        await service.client.get(WHOAMI, headers=by(key.caller)),
    ):
        assert answer.status_code == 200
        assert answer.headers["ratelimit-policy"] == '"tenant";q=100;w=60, "key";q=2;w=60'
        assert answer.headers["ratelimit"].startswith('"tenant";r=')
    assert refusal(await app.get(by(key.caller))) == (429, "rate_limited")


async def test_request_id_of_the_client_is_kept_if_it_is_plain(app: AuthenticatedApp) -> None:
    for own, kept in (
        (b"word-1.2_3", True),
        (b"two words", False),
        (b"x" * 129, False),
        (b"", False),
    ):
        answer = await app.get([(b"x-request-id", own)])
        assert (answer.headers["x-request-id"].encode() == own) is kept
        assert answer.json()["requestId"] == answer.headers["x-request-id"]


@asynccontextmanager
async def every_app(
    service: Service, timeouts: Timeouts = PATIENT, /, **values: str
) -> AsyncIterator[Apps]:
    """An app of each kind beside the service, which is the first."""
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(running_app(kind, service, timeouts, **values))
            for kind in KINDS
        ]


@pytest.fixture
async def link(service: Service) -> AsyncIterator[DatabaseLink]:
    async with database_link(service.conninfo) as link:
        yield link


@pytest.mark.thorough
async def test_unreachable_database_is_503_until_it_returns(
    service: Service, link: DatabaseLink
) -> None:
    org = await service.organization()
    async with (
        running_service(link.conninfo, SHORT_TIMEOUTS) as linked,
        every_app(linked, SHORT_TIMEOUTS) as apps,
    ):
        callers = [linked.caller(org.owner.credential), linked.user(org=org.id, role="owner")]
        for app in apps:
            for caller in callers:
                await authorized(by(caller), app)
        await link.cut()
        for app in apps:
            for caller in callers:
                answer = await app.get(by(caller), "projects:read")
                assert refusal(answer) == (503, "auth_unavailable"), app.kind
                assert answer.headers["retry-after"] == "1", app.kind
            assert refusal(await app.get(sent("Bearer nonsense"))) == (401, "invalid_credential"), (
                app.kind
            )
            assert refusal(await app.get([])) == (401, "missing_credential"), app.kind
        await link.restore()
        for app in apps:
            for caller in callers:
                await authorized(by(caller), app)


@pytest.mark.thorough
async def test_database_that_does_not_answer_is_503(service: Service, link: DatabaseLink) -> None:
    org = await service.organization()
    async with (
        running_service(link.conninfo, SHORT_TIMEOUTS) as linked,
        every_app(linked, SHORT_TIMEOUTS) as apps,
    ):
        for app in apps:
            await authorized(by(org.owner), app)
        link.block()
        answers = await asyncio.gather(*(app.get(by(org.owner)) for app in apps))
        assert [refusal(answer) for answer in answers] == [(503, "auth_unavailable")] * len(KINDS)
        link.unblock()


async def test_unreachable_identity_provider_is_503_for_tokens_only(service: Service) -> None:
    org = await service.organization()
    async with running_issuer() as away:
        await away.stop()
        async with running_service(service.conninfo, OIDC_ISSUER=away.url) as other:
            other.issuer = away
            token = other.user(org=org.id, role="owner")
            async with every_app(other) as apps:
                for app in apps:
                    answer = await app.get(by(token))
                    assert refusal(answer) == (503, "auth_unavailable"), app.kind
                    assert answer.headers["retry-after"] == "1", app.kind
                    await authorized(by(org.owner), app)


KEY_SETTINGS: Final = {
    "KEY_PREFIX": "acme",
    "FORMER_KEY_PREFIXES": "old",
    "API_KEY_HEADER": "X-API-Key",
}


async def test_keys_of_every_prefix_may_come_in_the_header_for_keys(service: Service) -> None:
    org = await service.organization()
    keys = [str(org.owner.credential)]
    for prefix in ("old", "acme"):
        async with running_service(service.conninfo, KEY_PREFIX=prefix) as other:
            made = await other.key(other.caller(keys[0]), org.id, accessLevel="OWNER")
            keys.append(str(made.caller.credential))
    async with (
        running_service(service.conninfo, **KEY_SETTINGS) as other,
        every_app(other, **KEY_SETTINGS) as apps,
    ):
        for app in apps:
            for key in keys:
                await authorized(sent(f"Bearer {key}"), app)
                await authorized(sent(f"Api-Key {key}"), app)
                await authorized(sent(x_api_key=key), app)
                await authorized(sent("", x_api_key=key), app)
                answer = await app.get(sent(x_api_key=key), "projects:read")
                assert "X-API-Key" in answer.headers["vary"].split(", "), app.kind


async def test_header_for_keys_beside_another_credential_is_refused(service: Service) -> None:
    org = await service.organization()
    key = str(org.owner.credential)
    async with (
        running_service(service.conninfo, **KEY_SETTINGS) as other,
        every_app(other, **KEY_SETTINGS) as apps,
    ):
        token = str(other.user("first", org=org.id, role="owner").credential)
        wrong = {
            "two credentials": sent(f"Bearer {key}", x_api_key=key),
            "a token and a key": sent(f"Bearer {token}", x_api_key=key),
            "another scheme and a key": sent("Basic eDp5", x_api_key=key),
            "the header twice": [(b"x-api-key", key.encode())] * 2,
            "a token": sent(x_api_key=token),
            "a token with the scheme": sent(f"Api-Key {token}"),
            "a scheme in the header": sent(x_api_key=f"Bearer {key}"),
        }
        for app in apps:
            for name, headers in wrong.items():
                answer = await app.get(headers)
                assert refusal(answer) == (401, "invalid_credential"), (app.kind, name)
            assert refusal(await app.get(sent(x_api_key=""))) == (401, "missing_credential")


async def test_without_an_identity_provider_tokens_are_refused(service: Service) -> None:
    org = await service.organization()
    token = service.user(org=org.id, role="owner")
    async with (
        running_service(service.conninfo, OIDC_ISSUER="") as other,
        every_app(other, OIDC_ISSUER="") as apps,
    ):
        for app in apps:
            assert refusal(await app.get(by(token))) == (401, "invalid_credential"), app.kind
            await authorized(by(org.owner), app)
