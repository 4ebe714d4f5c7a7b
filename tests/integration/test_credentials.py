"""The `Authorization` header: one credential, of one kind, in one place."""

from typing import Any

from tenantry.domain.api_keys import DEFAULT_FORMAT
from tenantry.domain.permissions import Mode
from tests.support.cases import cases
from tests.support.service import PROJECTS, VERIFY, WHOAMI, Service, refusal, running_service

INVALID = (401, "invalid_credential")
CHALLENGE = 'Bearer realm="api", error="invalid_token", error_description="'
PATHS = (PROJECTS, WHOAMI, f"{VERIFY}-")
UNKNOWN_KEY = DEFAULT_FORMAT.compose(Mode.LIVE, bytes(32))


async def test_without_a_credential_the_challenge_has_no_error(service: Service) -> None:
    for path in PATHS:
        answer = await service.anonymous.get(path)
        assert refusal(answer) == (401, "missing_credential")
        assert answer.headers["www-authenticate"] == 'Bearer realm="api"'


NONSENSE = {
    "other scheme": b"Basic dXNlcjpwYXNz",
    "scheme alone": b"Bearer",
    "scheme and blanks": b"Bearer   ",
    "no scheme": UNKNOWN_KEY.encode(),
    "one part": b"Bearer abc",
    "two parts": b"Bearer a.b",
    "three empty parts": b"Bearer ..",
    "three parts": b"Bearer a.b.c",
    "four parts": b"Bearer a.b.c.d",
    "key that was never made": f"Bearer {UNKNOWN_KEY}".encode(),
    "key with a wrong checksum": f"Bearer {UNKNOWN_KEY[:-1]}!".encode(),
    "prefix of keys alone": b"Bearer svc_",
    "key with three parts": b"Bearer svc_live_a.b.c",
    "not ASCII": "Bearer svc_live_ä".encode(),
    "latin-1": b"Bearer \xe4.\xf6.\xfc",
    "NUL": b"Bearer a\x00b.c.d",
    "control characters": b"Bearer a.\x1b[31m.c",
    "too long": b"Bearer " + b"a" * 9000 + b".b.c",
    "two credentials": f"Bearer {UNKNOWN_KEY}, Bearer {UNKNOWN_KEY}".encode(),
}


@cases("value", NONSENSE.values(), ids=NONSENSE)
async def test_anything_else_is_an_invalid_credential(service: Service, value: bytes) -> None:
    for path in PATHS:
        answer = await service.anonymous.call("GET", path, headers={"Authorization": value})
        assert refusal(answer) == INVALID
        assert answer.headers["www-authenticate"].startswith(CHALLENGE)
        assert answer.headers["www-authenticate"].isascii()


async def test_credential_counts_in_one_header_only(service: Service) -> None:
    org = await service.organization()
    good = f"Bearer {org.owner.credential}".encode()
    for values in ([good, good], [b"", good], [good, b"Bearer x"]):
        for path in PATHS:
            headers = [(b"Authorization", value) for value in values]
            answer = await service.client.request("GET", path, headers=headers)
            assert refusal(answer) == INVALID


async def test_credential_counts_nowhere_else(service: Service) -> None:
    org = await service.organization()
    key = str(org.owner.credential)
    for path in PATHS:
        for name in ("access_token", "api_key", "token", "key"):
            assert refusal(await service.anonymous.get(path, **{name: key})) == (
                401,
                "missing_credential",
            )
        for header in ("Cookie", "X-Api-Key", "Proxy-Authorization", "X-Authorization"):
            value = f"session={key}" if header == "Cookie" else f"Bearer {key}"
            answer = await service.anonymous.call("GET", path, headers={header: value})
            assert refusal(answer) == (401, "missing_credential")


async def test_scheme_has_no_case(service: Service) -> None:
    org = await service.organization()
    for scheme in ("bearer", "BEARER", "bEaReR"):
        answer = await service.anonymous.call(
            "GET", PROJECTS, headers={"Authorization": f"{scheme} {org.owner.credential}"}
        )
        assert answer.status_code == 200


async def test_key_differing_in_the_last_random_character_is_not_the_key(service: Service) -> None:
    org = await service.organization()
    key = str(org.owner.credential)
    for other in (
        key[:-1] + ("0" if key[-1] != "0" else "1"),
        key.lower(),
        key[:9] + key[9:].swapcase(),
    ):
        assert refusal(await service.caller(other).get(PROJECTS)) == INVALID


async def test_token_expired_is_reported_only_for_an_otherwise_valid_token(
    service: Service,
) -> None:
    org = await service.organization()
    now = int(service.clock.now.timestamp())
    old: dict[str, Any] = {"iat": now - 7200, "exp": now - 3600}
    answer = await service.user(org=org.id, **old).get(PROJECTS)
    assert refusal(answer) == (401, "token_expired")
    assert answer.headers["www-authenticate"].startswith(CHALLENGE)
    assert refusal(await service.user(org=org.id, aud="other", **old).get(PROJECTS)) == INVALID
    good = str(service.user(org=org.id, **old).credential)
    assert refusal(await service.caller(good[:-4] + "AAAA").get(PROJECTS)) == INVALID


async def test_without_an_identity_provider_tokens_are_rejected_and_keys_work(
    service: Service, conninfo: str
) -> None:
    org = await service.organization()
    token = str(service.user(org=org.id).credential)
    async with running_service(service.conninfo, OIDC_ISSUER="") as alone:
        assert refusal(await alone.caller(token).get(PROJECTS)) == INVALID
        assert (await alone.caller(org.owner.credential).get(PROJECTS)).status_code == 200


async def test_unreachable_identity_provider_is_503_and_never_401(fresh_service: Service) -> None:
    org = await fresh_service.organization()
    token = str(fresh_service.user(org=org.id, role="owner").credential)
    await fresh_service.issuer.stop()
    async with running_service(
        fresh_service.conninfo, OIDC_ISSUER=fresh_service.issuer.url
    ) as service:
        for path in PATHS:
            answer = await service.caller(token).get(path)
            assert refusal(answer) == (503, "auth_unavailable")
            assert answer.headers["retry-after"] == "1"
        assert (await service.caller(org.owner.credential).get(PROJECTS)).status_code == 200


async def test_without_the_setting_a_header_and_a_scheme_for_keys_are_nothing(
    service: Service,
) -> None:
    org = await service.organization()
    key = str(org.owner.credential)
    for path in PATHS:
        alone = await service.anonymous.call("GET", path, headers={"X-API-Key": key})
        assert refusal(alone) == (401, "missing_credential")
        scheme = {"Authorization": f"Api-Key {key}"}
        assert refusal(await service.anonymous.call("GET", path, headers=scheme)) == INVALID
        both = await org.owner.call("GET", path, headers={"X-API-Key": "anything"})
        assert both.status_code == 200
