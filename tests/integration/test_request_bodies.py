"""Invalid request bodies."""

import json
from collections.abc import AsyncIterator

from tests.support.cases import cases
from tests.support.service import KEYS, PROJECTS, TENANTS, Service, refusal

JSON = {"Content-Type": "application/json"}
MALFORMED = (400, "invalid_json")
UNFIT = (422, "validation_failed")

BODIES = {
    "empty": (b"", UNFIT, "body"),
    "blank": (b"  ", MALFORMED, None),
    "half an object": (b'{"name": ', MALFORMED, None),
    "two objects": (b'{"name": "a"} {}', MALFORMED, None),
    "no JSON": (b"name=a", MALFORMED, None),
    "NaN": (b'{"name": NaN}', MALFORMED, None),
    "single quotes": (b"{'name': 'a'}", MALFORMED, None),
    "not UTF-8": (b'{"name": "\xff"}', MALFORMED, None),
    "UTF-16": '{"name": "a"}'.encode("utf-16"),
    "byte order mark": b'\xef\xbb\xbf{"name": "a"}',
    "lone surrogate": (b'{"name": "\\ud800"}', MALFORMED, None),
    "NUL": (b'{"name": "a\x00"}', MALFORMED, None),
    "array": (b"[]", UNFIT, "body"),
    "null": (b"null", UNFIT, "body"),
    "number": (b"1", UNFIT, "body"),
    "text": (b'"name"', UNFIT, "body"),
    "truth": (b"true", UNFIT, "body"),
    "deep array": (b"[" * 100_000, UNFIT, "body"),
    "deep value": (b'{"x": ' + b"[" * 100_000, None, None),
    "huge number": (b'{"name": ' + b"9" * 100_000 + b"}", UNFIT, "name"),
}


@cases("name", BODIES)
async def test_invalid_body_is_rejected_without_an_internal_error(
    service: Service, name: str
) -> None:
    org = await service.organization()
    case = BODIES[name]
    body, expected, location = case if isinstance(case, tuple) else (case, MALFORMED, None)
    for method, path in (
        ("POST", PROJECTS),
        ("POST", KEYS),
        ("PATCH", org.key.path),
        ("PATCH", f"{PROJECTS}/proj_1"),
        ("PATCH", org.path),
    ):
        answer = await org.owner.call(method, path, content=body, headers=JSON)
        assert refusal(answer)[0] in (400, 422)
        if expected is not None and path == PROJECTS:
            assert refusal(answer) == expected
        if location is not None and path == PROJECTS:
            assert answer.json()["errors"][0]["location"] == location


@cases(
    "content_type",
    [
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "application/xml",
        "application/msgpack",
        ";",
        "text/json",
    ],
)
async def test_other_content_types_are_refused(service: Service, content_type: str) -> None:
    org = await service.organization()
    answer = await org.owner.call(
        "POST", PROJECTS, content=b'{"name": "a"}', headers={"Content-Type": content_type}
    )
    assert refusal(answer) == (415, "unsupported_media_type")
    assert (await org.owner.get(PROJECTS)).json()["data"] == []


@cases(
    "content_type",
    [None, "application/json", "Application/JSON; charset=utf-8", "application/merge-patch+json"],
)
async def test_json_is_accepted_with_its_media_types_or_none(
    service: Service, content_type: str | None
) -> None:
    org = await service.organization()
    headers = {"Content-Type": content_type} if content_type else {}
    answer = await org.owner.call("POST", PROJECTS, content=b'{"name": "a"}', headers=headers)
    assert answer.status_code == 201


async def chunks(count: int, size: int) -> AsyncIterator[bytes]:
    for _ in range(count):
        yield b" " * size


async def test_body_over_a_mebibyte_is_413(service: Service) -> None:
    org = await service.organization()
    for content in (b'{"name": "' + b"a" * (10 << 20) + b'"}', chunks(11, 100_000)):
        answer = await org.owner.call("POST", PROJECTS, content=content, headers=JSON)
        assert refusal(answer) == (413, "payload_too_large")
    for caller, path in ((service.operator, f"{TENANTS}/big"), (service.user("big"), TENANTS)):
        method = "PUT" if caller is service.operator else "POST"
        answer = await caller.call(method, path, content=b" " * ((1 << 20) + 1), headers=JSON)
        assert refusal(answer) == (413, "payload_too_large")


async def test_body_of_a_mebibyte_is_read(service: Service) -> None:
    org = await service.organization()
    body = b'{"name": "a"}'.rjust(1 << 20)
    assert (await org.owner.call("POST", PROJECTS, content=body, headers=JSON)).status_code == 201


async def test_credential_is_checked_before_the_body(service: Service) -> None:
    for content in (b"{", b" " * (2 << 20)):
        answer = await service.anonymous.call("POST", PROJECTS, content=content, headers=JSON)
        assert refusal(answer) == (401, "missing_credential")


async def test_unknown_field_is_named(service: Service) -> None:
    org = await service.organization()
    answer = await org.owner.post(PROJECTS, {"name": "a", "colour": "red"})
    assert refusal(answer) == UNFIT
    assert answer.json()["errors"] == [
        {"location": "colour", "message": "Object contains unknown field `colour`"}
    ]


async def test_unexpected_body_is_ignored(service: Service) -> None:
    org = await service.organization()
    for method, path, status in (("GET", org.key.path, 200), ("DELETE", f"{PROJECTS}/proj_1", 404)):
        answer = await org.owner.call(method, path, content=b"{", headers=JSON)
        assert answer.status_code == status


@cases(
    ("method", "path", "body", "location", "message"),
    [
        (
            "POST",
            KEYS,
            {"scopes": ["projects"]},
            "scopes[0]",
            "must be <resource>:<action>, such as projects:read",
        ),
        (
            "PATCH",
            "/api/v1/tenants/acme",
            {"ownerEmail": "olivia"},
            "ownerEmail",
            "is not an email address",
        ),
        ("POST", KEYS, {"orgId": "a/b"}, "orgId", "must contain only letters, digits, _ and -"),
        ("POST", PROJECTS, {"description": "a\0"}, "description", "must not contain a NUL"),
        (
            "POST",
            "/api/v1/members",
            {"userId": "a b"},
            "userId",
            "must be visible ASCII characters",
        ),
        (
            "POST",
            "/api/v1/billing/portal-sessions",
            {"returnUrl": "/x"},
            "returnUrl",
            "is not an http or https address",
        ),
        ("GET", "/api/v1/members?userId=a%20b", None, "userId", "must be visible ASCII characters"),
    ],
)
async def test_fault_of_a_form_is_in_words(
    service: Service, method: str, path: str, body: object, location: str, message: str
) -> None:
    org = await service.organization()
    answer = await org.owner.call(method, path, content=json.dumps(body), headers=JSON)
    assert refusal(answer) == UNFIT
    (fault,) = answer.json()["errors"]
    assert fault["location"] == location
    assert fault["message"].startswith(message)
