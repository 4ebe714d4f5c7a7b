"""The examples of docs/how-to/simulator.md, as they are printed there."""

import re
import runpy
from pathlib import Path
from typing import Any, Final

from tenantry_devkit.simulator import State
from tests.support.app import WEBHOOK_SECRET
from tests.support.commands import run
from tests.support.service import Service

_PAGE: Final = Path(__file__).parents[2] / "docs" / "how-to" / "simulator.md"


def blocks(language: str) -> list[str]:
    """The code blocks of the page in this language."""
    return re.findall(rf"```{language}\n(.*?)```", _PAGE.read_text(encoding="utf-8"), re.DOTALL)


def example(tmp_path: Path) -> dict[str, Any]:
    """What the first block of code on the page defines."""
    file = tmp_path / "example.py"
    file.write_text(blocks("python")[0], encoding="utf-8")
    return runpy.run_path(str(file))


async def test_the_documented_example_ends_as_documented(service: Service, tmp_path: Path) -> None:
    organization = await service.organization()
    run = example(tmp_path)["subscribe_then_fail"]
    sim = await run(service.client, WEBHOOK_SECRET, organization.id, clock=service.clock)
    assert {delivery.state for delivery in sim.deliveries()} == {State.DELIVERED}
    tenant = (await organization.owner.get(organization.path)).json()
    assert (tenant["plan"], tenant["subscriptionStatus"]) == ("pro", "past_due")


async def test_the_documented_server_answers_the_providers_package_as_documented(
    tmp_path: Path,
) -> None:
    (tmp_path / "example.py").write_text(blocks("python")[1], encoding="utf-8")
    done = await run(folder=tmp_path, module="example")
    assert (done.code, done.err, done.out) == (0, "", blocks("text")[0])
