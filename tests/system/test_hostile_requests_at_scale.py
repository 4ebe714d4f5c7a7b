"""More of the hostile requests that `tests/integration` sends."""

import logging
from collections.abc import AsyncIterator
from typing import Final

import pytest

from tests.integration.test_hostile_requests import CALLERS, METHODS, send_hostile_requests
from tests.support.postgres import PostgresServer
from tests.support.service import Service, running_service

REQUESTS: Final = 120


@pytest.fixture(scope="module")
async def service(postgres: PostgresServer) -> AsyncIterator[Service]:
    with postgres.database() as conninfo:
        async with running_service(conninfo) as service:
            yield service


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("who", CALLERS)
async def test_malformed_request_causes_no_internal_error(
    service: Service, caplog: pytest.LogCaptureFixture, who: str, method: str
) -> None:
    caplog.set_level(logging.ERROR)
    await send_hostile_requests(service, who, method, REQUESTS)
    assert [record.getMessage() for record in caplog.records] == []
