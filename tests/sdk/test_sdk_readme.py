"""What the SDK's page shows is true."""

import re
from pathlib import Path
from typing import Final

from tests.sdk.sdk_support import SDK, Served
from tests.support.commands import run
from tests.support.service import TENANTS

EACH: Final = """
import runpy, sys
for file in sys.argv[1:]:
    runpy.run_path(file, run_name="__main__")
print(f"all {len(sys.argv) - 1} have run")
"""
"""A program that runs each file by itself, with names of its own; a process for each would take
half a second.
"""


def blocks(page: Path, language: str) -> list[str]:
    """The code blocks of a page in this language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)


async def test_each_block_of_the_page_runs_by_itself(served: Served, tmp_path: Path) -> None:
    service = served.service
    organization = await service.organization()
    values = {
        "TENANTRY_BASE_URL": served.url,
        "TENANTRY_API_KEY": str(organization.owner.credential),
        "HOME": str(tmp_path),
    }
    pages = [
        (tmp_path / f"block_{number}.py", block)
        for number, block in enumerate(blocks(SDK / "README.md", "python"), 1)
    ]
    for file, block in pages:
        file.write_text(block)
    (tmp_path / "each.py").write_text(EACH)
    done = await run(*(file.name for file, _ in pages), folder=tmp_path, module="each", **values)
    assert (done.code, done.err) == (0, ""), done
    assert done.out.endswith(f"\nall {len(pages)} have run\n")


async def test_code_of_the_page_runs_from_its_beginning_to_its_end(
    served: Served, tmp_path: Path
) -> None:
    service = served.service
    await service.operator.put(
        f"{TENANTS}/acme", {"name": "Acme", "ownerEmail": "owner@acme.example"}
    )
    key = await service.key(
        service.user("first", org="acme", role="owner"), "acme", accessLevel="OWNER"
    )
    await key.caller.post("/api/v1/projects", {"name": "First"})
    (tmp_path / "page.py").write_text("\n".join(blocks(SDK / "README.md", "python")))
    values = {
        "TENANTRY_BASE_URL": served.url,
        "TENANTRY_API_KEY": str(key.caller.credential),
        "HOME": str(tmp_path),
    }
    done = await run(folder=tmp_path, module="page", **values)
    assert (done.code, done.err) == (0, "")
    shown = done.out.splitlines()
    assert re.fullmatch(r"key_\w+ \*+", shown[0])
    assert any(line.startswith("422 validation_failed: ") for line in shown)
    assert "invoice.payment_failed in_1" in shown
    assert "['First']" in shown
    assert not re.search(r"svc_\w{20}", done.out)
