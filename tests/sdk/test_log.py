"""The log of requests and retries."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx2
import pytest

from tenantry_sdk import ClientCredentials, RefreshToken, errors
from tests.sdk.sdk_support import Flavour, Served, answered_by
from tests.support.commands import run

OTHER_SECRET: Final = "acme_test_0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLM"
SECRET: Final = "svc_live_0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLM"
TOKEN: Final = "eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJ1c2VyIn0.c2lnbmF0dXJlLW9mLXRoZS10b2tlbg"
CALLING: Final = """
import logging, os, sys
from tenantry_sdk import Tenantry
if "BASIC_CONFIG" in os.environ:
    logging.basicConfig(format="app %(levelname)s %(name)s %(message)s", level=logging.WARNING)
with Tenantry() as client:
    client.auth.whoami(headers={"X-Request-Id": "the-request"})
"""


def answers() -> Iterator[httpx2.Response]:
    yield httpx2.Response(
        503, json={"code": "overloaded", "detail": "Busy."}, headers={"x-request-id": "first"}
    )
    while True:
        yield httpx2.Response(
            200, json={"data": [], "nextCursor": None}, headers={"x-request-id": "second"}
        )


async def test_requests_and_retries_are_logged(
    flavour: Flavour, caplog: pytest.LogCaptureFixture
) -> None:
    given = answers()
    with caplog.at_level(logging.INFO, "tenantry"):
        async with answered_by(flavour, lambda _: next(given)) as client:
            await client.projects.list().first_page()
    first, retry, second = [
        line.getMessage() for line in caplog.records if line.name == "tenantry.sdk"
    ]
    assert first.startswith("GET /api/v1/projects: 503 in ")
    assert first.endswith(" ms (request first)")
    assert retry.startswith("GET /api/v1/projects: attempt 2 of 4 in 0.0")
    assert second.startswith("GET /api/v1/projects: 200 in ")


async def test_lost_connection_is_logged(
    flavour: Flavour, caplog: pytest.LogCaptureFixture
) -> None:
    def lose(_: httpx2.Request) -> httpx2.Response:
        raise httpx2.ReadError("reset")

    with caplog.at_level(logging.INFO, "tenantry"):
        async with answered_by(flavour, lose, retries=0) as client:
            with pytest.raises(errors.ConnectionFailedError):
                await client.projects.list().first_page()
    lines = [line.getMessage() for line in caplog.records if line.name == "tenantry.sdk"]
    assert lines == ["GET /api/v1/projects: the connection to http://127.0.0.1:3001 failed: reset"]


async def test_nothing_secret_is_logged(flavour: Flavour, caplog: pytest.LogCaptureFixture) -> None:
    key = {"id": "key_1", "status": "revoked", "revokedAt": "2026-01-01T00:00:00Z"}

    def answer(request: httpx2.Request) -> httpx2.Response:
        if request.url.host == "id.example":
            return httpx2.Response(
                200, json={"access_token": TOKEN, "expires_in": 60, "refresh_token": SECRET}
            )
        if request.method == "POST":
            return httpx2.Response(200, json=key)
        raise httpx2.ReadError("reset")

    grants: list[dict[str, Any]] = [
        {
            "tokens": ClientCredentials(
                issuer="https://id.example", client_id="c", client_secret=SECRET, token_url=URL
            )
        },
        {
            "tokens": RefreshToken(
                issuer="https://id.example", client_id="c", refresh_token=SECRET, token_url=URL
            )
        },
    ]
    with caplog.at_level(logging.DEBUG, "tenantry"):
        for values in [{"credential": SECRET}, *grants]:
            async with answered_by(
                flavour, answer, **{"credential": None, **values}, retries=1
            ) as client:
                await client.api_keys.report_leak(SECRET)
                for wrong in (SECRET, OTHER_SECRET, TOKEN):  # a secret in place of an id
                    with pytest.raises(errors.ConnectionFailedError) as raised:
                        await client.api_keys.get(wrong, headers={"X-Secret": SECRET})
                    assert wrong not in str(raised.value)
                with pytest.raises(errors.ConnectionFailedError):
                    await client.api_keys.list(search=SECRET).first_page()
    assert "GET /api/v1/api-keys/**********: attempt 1 of 2" in caplog.text
    assert "token request to id.example: 200" in caplog.text
    text = "\n".join(line.getMessage() for line in caplog.records if line.name == "tenantry.sdk")
    assert SECRET not in text
    assert OTHER_SECRET not in text
    assert TOKEN not in text


URL: Final = "https://id.example/token"


@pytest.mark.parametrize(
    ("level", "shown"),
    [("", []), ("info", ["INFO"]), ("DEBUG", ["DEBUG", "INFO"]), ("nonsense", [])],
)
async def test_variable_sets_the_level(
    served: Served, tmp_path: Path, level: str, shown: list[str]
) -> None:
    organization = await served.service.organization()
    credential = str(organization.owner.credential)
    (tmp_path / "program.py").write_text(CALLING)
    values = {
        "TENANTRY_BASE_URL": served.url,
        "TENANTRY_API_KEY": credential,
        "TENANTRY_LOG": level,
    }
    done = await run(folder=tmp_path, module="program", **values)
    assert (done.code, done.out) == (0, ""), done.err
    lines = done.err.splitlines()
    assert [line.split()[2] for line in lines] == shown
    assert all("tenantry.sdk: GET /api/v1/auth/whoami: " in line for line in lines)
    if lines:
        assert lines[-1].endswith(" (request the-request)")
    assert credential not in done.err


async def test_program_that_logs_itself_gets_each_line_once(served: Served, tmp_path: Path) -> None:
    organization = await served.service.organization()
    (tmp_path / "program.py").write_text(CALLING)
    values = {
        "TENANTRY_BASE_URL": served.url,
        "TENANTRY_API_KEY": str(organization.owner.credential),
    }
    done = await run(
        folder=tmp_path, module="program", TENANTRY_LOG="info", BASIC_CONFIG="1", **values
    )
    [line] = done.err.splitlines()
    assert line.startswith("app INFO tenantry.sdk GET /api/v1/auth/whoami: 200 in ")
