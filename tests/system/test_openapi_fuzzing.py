"""The service conforms to its OpenAPI document under generated requests: the values within and
beyond the bounds of each parameter and field, and random ones.
"""

from pathlib import Path

import pytest

from tests.support.conformance import AS_OPERATOR, described_service


@pytest.mark.parametrize("phases", ["coverage", "fuzzing"])
@pytest.mark.parametrize(("caller", "options"), [("owner", ()), ("operator", AS_OPERATOR)])
async def test_service_conforms_to_its_description_under_generated_requests(
    conninfo: str, tmp_path: Path, caller: str, options: tuple[str, ...], phases: str
) -> None:
    async with described_service(conninfo) as service:
        credential = getattr(service, caller)
        code, report = await service.conformance(credential, tmp_path, "--phases", phases, *options)
    assert code == 0, report
    assert "No issues found" in report
