"""Keys with a prefix of the deployment's own, in a header of its own."""

from collections.abc import AsyncIterator
from typing import Final

import httpx2
import pytest

from tenantry.domain.api_keys import KeyFormat
from tenantry.domain.permissions import Mode
from tests.support.app import OPERATOR_TOKEN
from tests.support.emptying import SharedDatabase
from tests.support.service import (
    KEYS,
    PROJECTS,
    TENANTS,
    VERIFY,
    WHOAMI,
    Service,
    refusal,
    running_service,
)

INVALID: Final = (401, "invalid_credential")
PATHS: Final = (PROJECTS, f"{PROJECTS}/", WHOAMI, f"{VERIFY}-", KEYS)
LEAKS: Final = f"{KEYS}/report-leak"
HEADER: Final = "X-API-Key"
APP: Final = "https://app.example"
SECOND_TOKEN: Final = "second-operator-token-of-the-tests-012345"


@pytest.fixture(scope="module")
async def acme(shared_database: SharedDatabase) -> AsyncIterator[Service]:
    """A service with a prefix, a former one, and a header for keys."""
    async with running_service(
        shared_database.conninfo,
        KEY_PREFIX="acme",
        FORMER_KEY_PREFIXES="old",
        API_KEY_HEADER=HEADER,
        CORS_ORIGINS=APP,
        PUBLIC_PLANS="true",
        OPERATOR_TOKEN=f"{OPERATOR_TOKEN},{SECOND_TOKEN}",
    ) as service:
        yield service


async def ask(service: Service, path: str, **headers: str) -> httpx2.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return await service.anonymous.call("GET", path, headers=named)


async def secret_of_a_service(conninfo: str, prefix: str) -> str:
    """Return a key that a service with another prefix made on the same database."""
    async with running_service(conninfo, KEY_PREFIX=prefix) as service:
        tenant = {"name": prefix, "ownerEmail": "owner@x.example"}
        assert (await service.operator.put(f"{TENANTS}/{prefix}", tenant)).status_code == 201
        owner = service.user("first", org=prefix, role="owner")
        key = await service.key(owner, prefix, accessLevel="OWNER")
        return str(key.caller.credential)


async def test_new_key_has_the_prefix_and_shows_four_characters_behind_its_mode(
    acme: Service,
) -> None:
    org = await acme.organization()
    for mode in Mode:
        key = await acme.key(org.owner, org.id, "projects:read", mode=mode)
        secret = str(key.caller.credential)
        assert secret.startswith(f"acme_{mode}_")
        assert KeyFormat("acme").is_well_formed(secret.encode())
        assert key.record["start"] == secret[: len(f"acme_{mode}_") + 4]
        assert (await key.caller.get(PROJECTS)).status_code == 200


async def test_rotated_key_has_the_prefix(acme: Service, conninfo: str) -> None:
    async with running_service(conninfo, KEY_PREFIX="acme") as service:
        org = await service.organization()
        answer = await org.owner.post(f"{KEYS}/{org.key.id}/rotate", {})
        assert answer.json()["secret"].startswith("acme_live_")


async def test_keys_of_former_prefixes_and_svc_stay_accepted(conninfo: str) -> None:
    secrets = [await secret_of_a_service(conninfo, prefix) for prefix in ("svc", "old", "acme")]
    async with running_service(
        conninfo, KEY_PREFIX="acme", FORMER_KEY_PREFIXES="other,old"
    ) as service:
        for secret in secrets:
            for path in PATHS:
                assert (await service.caller(secret).get(path)).status_code == 200, secret[:4]


async def test_key_of_a_prefix_that_no_setting_names_is_invalid(conninfo: str) -> None:
    secret = await secret_of_a_service(conninfo, "old")
    async with running_service(conninfo, KEY_PREFIX="acme") as service:
        for path in PATHS:
            assert refusal(await service.caller(secret).get(path)) == INVALID


@pytest.mark.parametrize("mode", Mode)
async def test_key_may_come_in_the_header_or_with_the_scheme(acme: Service, mode: Mode) -> None:
    org = await acme.organization()
    key = await acme.key(org.owner, org.id, "projects:*", "api-keys:*", mode=mode)
    secret = str(key.caller.credential)
    for path in (*PATHS[:3], f"{VERIFY}-/mode/any", KEYS):
        for headers in ({"X_API_Key": secret}, {"Authorization": f"Api-Key {secret}"}):
            answer = await ask(acme, path, **headers)
            assert answer.status_code == 200, (path, answer.text)
    sent = await acme.anonymous.call(
        "POST", PROJECTS, json={"name": "by the header"}, headers={"x-api-key": secret}
    )
    assert (sent.status_code, sent.json()["mode"]) == (201, mode)


async def test_operator_tokens_count_as_bearer_credentials_alone(acme: Service) -> None:
    org = await acme.organization()
    path = f"/api/v1/tenants/{org.id}/export"
    for token in (OPERATOR_TOKEN, SECOND_TOKEN):
        assert (await ask(acme, path, Authorization=f"Bearer {token}")).status_code == 200
        for headers in ({"X_API_Key": token}, {"Authorization": f"Api-Key {token}"}):
            assert refusal(await ask(acme, path, **headers)) == INVALID
    key = str(org.owner.credential)
    for headers in ({"X_API_Key": key}, {"Authorization": f"Bearer {key}"}):
        answer = await ask(acme, path, **headers)
        assert refusal(answer) == INVALID
        assert "needs the operator's token" in answer.json()["detail"]


async def test_two_credentials_are_refused_whatever_they_are(acme: Service) -> None:
    org = await acme.organization()
    key, token = str(org.owner.credential), acme.user("first", org=org.id, role="owner").credential
    for path in (*PATHS, TENANTS):
        for authorization in (f"Bearer {key}", f"Api-Key {key}", f"Bearer {token}", "Basic eDp5"):
            answer = await ask(acme, path, Authorization=authorization, X_API_Key=key)
            assert refusal(answer) == INVALID, (path, authorization[:9])
            assert "one credential" in answer.json()["detail"]


async def test_two_credentials_change_nothing(acme: Service) -> None:
    org = await acme.organization()
    operator = str(acme.operator.credential)
    user = str(acme.user("new-user").credential)
    for method, path, credential in (
        ("PUT", f"{TENANTS}/{org.id}", operator),
        ("POST", TENANTS, user),
        ("DELETE", f"{KEYS}/{org.key.id}", str(org.owner.credential)),
    ):
        answer = await acme.anonymous.call(
            method,
            path,
            json={"name": "changed", "ownerEmail": "other@x.example"},
            headers={"Authorization": f"Bearer {credential}", HEADER: str(org.owner.credential)},
        )
        assert refusal(answer) == INVALID, path
    assert (await org.owner.get(f"{TENANTS}/{org.id}")).json()["name"] == org.id


async def test_header_takes_keys_alone_and_only_one(acme: Service) -> None:
    org = await acme.organization()
    key = str(org.owner.credential)
    wrong = {
        "token": str(acme.user("first", org=org.id, role="owner").credential),
        "operator token": str(acme.operator.credential),
        "with a scheme": f"Bearer {key}",
        "twice": f"{key}, {key}",
        "blank": " ",
        "unknown key": KeyFormat("acme").compose(Mode.LIVE, bytes(32)),
    }
    for path in (*PATHS, f"{TENANTS}/{org.id}/export"):
        for name, value in wrong.items():
            assert refusal(await ask(acme, path, X_API_Key=value)) in (
                INVALID,
                (401, "missing_credential"),
            ), (path, name)
        for values in ([key, key], ["", key]):
            repeated = [(HEADER.lower().encode(), value.encode()) for value in values]
            answer = await acme.client.get(path, headers=repeated)
            assert refusal(answer) == INVALID, path


async def test_empty_header_counts_as_none(acme: Service) -> None:
    org = await acme.organization()
    key = str(org.owner.credential)
    for path in PATHS:
        sent = await ask(acme, path, Authorization=f"Bearer {key}", X_API_Key="")
        assert sent.status_code == 200
        assert (await ask(acme, path, Authorization="", X_API_Key=key)).status_code == 200
        answer = await ask(acme, path, Authorization="", X_API_Key="")
        assert refusal(answer) == (401, "missing_credential")
        assert HEADER in answer.json()["detail"]
        assert answer.headers["www-authenticate"] == 'Bearer realm="api"'


async def test_wrong_key_in_the_header_is_refused_where_none_is_needed(acme: Service) -> None:
    plans = "/api/v1/plans"
    org = await acme.organization()
    assert (await ask(acme, plans)).status_code == 200
    assert (await ask(acme, plans, X_API_Key=str(org.owner.credential))).status_code == 200
    assert refusal(await ask(acme, plans, X_API_Key="acme_live_nothing")) == INVALID
    assert refusal(await ask(acme, plans, X_API_Key="")) == (401, "missing_credential")


@pytest.mark.parametrize("prefix", ["acme", "other"])
async def test_key_sent_as_a_request_id_is_not_repeated(acme: Service, prefix: str) -> None:
    key = KeyFormat(prefix).compose(Mode.LIVE, bytes(32))
    for path in PATHS:
        answer = await ask(acme, path, X_Request_Id=key)
        assert key not in answer.text + str(answer.headers)
        plain = await ask(acme, path, X_Request_Id="load_test_0123456789abcdef0123456789abcdef")
        assert plain.headers["x-request-id"] == "load_test_0123456789abcdef0123456789abcdef"


async def test_report_of_a_leak_knows_every_accepted_prefix(conninfo: str) -> None:
    secrets = [await secret_of_a_service(conninfo, prefix) for prefix in ("svc", "old", "acme")]
    async with running_service(conninfo, KEY_PREFIX="acme", FORMER_KEY_PREFIXES="old") as service:
        for secret in secrets:
            answer = await service.anonymous.post(LEAKS, {"secret": secret})
            assert (answer.status_code, answer.json()["status"]) == (200, "revoked")
            assert refusal(await service.caller(secret).get(PROJECTS)) == (401, "api_key_revoked")
        foreign = KeyFormat("foreign").compose(Mode.LIVE, bytes(32))
        assert (await service.anonymous.post(LEAKS, {"secret": foreign})).status_code == 422


async def test_operator_finds_keys_of_every_prefix_by_what_a_log_shows(conninfo: str) -> None:
    secrets = [await secret_of_a_service(conninfo, prefix) for prefix in ("svc", "old", "acme")]
    async with running_service(conninfo, KEY_PREFIX="acme", FORMER_KEY_PREFIXES="old") as service:
        for secret in secrets:
            digits = secret.rindex("_") + 1
            start, end = secret[: digits + 4], secret[-4:]
            for text in (f"{start}...{end}", start, secret[digits : digits + 4], f"...{end}"):
                found = await service.operator.get(f"/api/v1/operator/api-keys?search={text}")
                starts = [key["start"] for key in found.json()["data"]]
                assert start in starts, text
            refused = await service.operator.get(f"/api/v1/operator/api-keys?search={secret}")
            assert refused.status_code == 422
            assert secret not in refused.text
            refused = await service.operator.get(f"/api/v1/operator/tenants?search={secret}")
            assert refused.status_code == 422


async def test_caches_and_pages_of_other_origins_know_the_header(acme: Service) -> None:
    org = await acme.organization()
    for path in PATHS:
        answer = await org.owner.get(path)
        assert answer.headers.get_list("cache-control") == ["no-store"]
        varying = answer.headers["vary"].split(", ")
        assert {"Authorization", "X-Organization-Id", HEADER} <= {*varying}
        preflight = await acme.anonymous.call(
            "OPTIONS", path, headers={"Origin": APP, "Access-Control-Request-Method": "GET"}
        )
        assert HEADER in preflight.headers["access-control-allow-headers"].split(", ")


async def test_reference_page_shows_the_prefix_and_the_header(
    acme: Service, service: Service
) -> None:
    page = (await acme.anonymous.get("/docs")).text
    assert "svc_" not in page
    assert "acme_live_" in page
    assert "X-API-Key: &lt;key&gt;" in page
    ordinary = (await service.anonymous.get("/docs")).text
    assert "X-API-Key" not in ordinary
    assert "svc_live_" in ordinary


async def test_rejected_key_in_the_header_is_counted_as_a_key(acme: Service) -> None:
    async def counted() -> float:
        text = (await acme.anonymous.get("/metrics")).text
        name = 'tenantry_credentials_refused_total{kind="api_key",reason="invalid_credential"}'
        return sum(
            float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(name)
        )

    before = await counted()
    await ask(acme, PROJECTS, X_API_Key="acme_live_nothing")
    await ask(acme, KEYS, Authorization="Api-Key nothing")
    await ask(acme, WHOAMI, Authorization="Bearer old_live_nothing")
    assert await counted() == before + 3
