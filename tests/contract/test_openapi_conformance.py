"""The service conforms to its OpenAPI document under the examples of the document.

`tests/system/test_openapi_fuzzing.py` adds, for each parameter and field, the values within and
beyond its bounds, and random requests.
"""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.conformance import AS_OPERATOR, Described, described_service
from tests.support.postgres import PostgresServer


@pytest.fixture(scope="module")
async def service(postgres: PostgresServer) -> AsyncIterator[Described]:
    with postgres.database() as conninfo:
        async with described_service(conninfo) as service:
            yield service


@pytest.mark.parametrize(("caller", "options"), [("owner", ()), ("operator", AS_OPERATOR)])
async def test_service_conforms_to_its_description(
    service: Described, tmp_path: Path, caller: str, options: tuple[str, ...]
) -> None:
    credential = getattr(service, caller)
    code, report = await service.conformance(credential, tmp_path, "--phases", "examples", *options)
    assert code == 0, report
    assert "No issues found" in report
