"""The SDK's types, as other people's tools see them."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.sdk.sdk_support import SDK
from tests.support.required import node, node_package

USE: Final = """
from datetime import datetime
from typing import Literal

from tenantry_sdk import AsyncPage, AsyncTenantry, NewApiKey, Page, Principal, Project, TenantEvent, Tenantry
from tenantry_sdk.types import Mode


def use(client: Tenantry) -> str:
    made: NewApiKey = client.api_keys.create(name="CI", scopes=["projects:read"], mode="test", timeout=5)
    ends: datetime | None = made.expires_at
    mode: Mode = made.mode
    projects: list[Project] = [*client.with_options(retries=0).projects.list(headers={"X-Request-Id": "1"})]
    page: Page[Project] = client.projects.list().first_page()
    if page.has_next:
        page = page.next()
    client.api_keys.update("key", scopes=("projects:read",))
    client.api_keys.create(name=client.base_url, scopes={"projects:read"})
    principal: Principal = client.auth.verify({"Authorization": "Bearer x"}, "projects:read", attempt_timeout=2)
    state: Literal["full", "grace", "none"] = principal.access.state
    request_id: str | None = made.response.request_id
    return f"{made.secret.reveal()} {ends} {mode} {projects[0].to_dict()} {page.data[0].name} {state} {request_id}"


async def use_async(client: AsyncTenantry) -> list[str]:
    page: AsyncPage[Project] = await client.projects.list().first_page()
    if page.has_next:
        page = await page.next()
    async for event in client.operator.events.follow(after="now", types=["tenant.*"]):
        if isinstance(event, TenantEvent):
            return [event.data.owner_email]
    return [project.name async for project in client.projects.list()]
"""
WRONG: Final = """
from tenantry_sdk import ApiKey, MemberEvent, Tenantry
from tenantry_sdk.types import KeyStatus


def use(client: Tenantry, key: ApiKey) -> None:
    client.api_keys.create(name="CI", mode="sandbox")  # no mode
    client.api_keys.create(name="CI", scopes="projects:read")  # no list
    client.api_keys.update("key", scopes=b"projects:read")  # no list either
    client.members.update("m", role=1)  # no role
    client.auth.whoami(max_retries=3)  # no option
    client.auth.whoami(timeout="3")  # no number
    if key.status == "activ":  # no status
        return
    known: list[KeyStatus] = ["active", "ended"]  # no status either
    print(known, key.nmae)  # no field
    for event in client.operator.events.follow():
        if isinstance(event, MemberEvent):
            print(event.data.last4)  # no field either
"""
MARK: Final = re.compile(r"# no ")


def check(folder: Path, name: str, source: str) -> subprocess.CompletedProcess[str]:
    """What pyright says of a program."""
    (folder / name).write_text(source)
    settings = {
        # The command line beside it is a program: nobody writes code against its types.
        "include": [name, os.path.relpath(SDK / "src" / "tenantry_sdk", folder)],
        "extraPaths": [str(SDK / "src")],
        "pythonVersion": "3.10",
        "typeCheckingMode": "strict",
        # Both clients use modules of the package that are private to others.
        "reportPrivateUsage": False,
    }
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    return pyright("--project", str(folder), "--pythonpath", sys.executable)


def pyright(*arguments: str) -> subprocess.CompletedProcess[str]:
    """What pyright says."""
    script = node_package("pyright", "pyright") / "index.js"
    # --verifytypes takes Python from there
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        [node(), str(script), *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PATH": path},
    )


def test_pyright_finds_nothing_to_complain_of(tmp_path: Path) -> None:
    done = check(tmp_path, "use.py", USE)
    assert done.returncode == 0, done.stdout + done.stderr


def test_pyright_finds_wrong_values_and_names(tmp_path: Path) -> None:
    done = check(tmp_path, "wrong.py", WRONG)
    found = {int(number) for number in re.findall(r"wrong\.py:(\d+):\d+ - error", done.stdout)}
    expected = {number for number, line in enumerate(WRONG.splitlines(), 1) if MARK.search(line)}
    assert found == expected, done.stdout


def test_types_of_the_public_interface_are_complete() -> None:
    done = pyright("--ignoreexternal", "--verifytypes", "tenantry_sdk", "--outputjson")
    report = json.loads(done.stdout)["typeCompleteness"]
    unknown = [
        symbol["name"]
        for symbol in report["symbols"]
        if symbol["isExported"] and not symbol["isTypeKnown"]
    ]
    assert report["packageName"] == "tenantry_sdk"
    assert report["completenessScore"] >= 0.95, unknown
    assert report["missingFunctionDocStringCount"] == 0
