"""The lines that the dashboard shows beside a new key, run as they are."""

import asyncio
import html
import os
import re
import shutil
import sys
from pathlib import Path

from tests.support.dashboard import AT_ACME, OLIVIA, running_dashboard

CODE = re.compile(r'<pre [^>]*aria-label="([^"]*)"[^>]*><code>([^<]*)</code>')


async def run(folder: Path, *command: str, **environment: str) -> str:
    """What a command prints, which must do well."""
    surroundings = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(folder),
        **environment,
    }
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=folder,
        env=surroundings,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()
    return out.decode()


async def test_lines_send_the_first_request_of_a_key(
    conninfo: str, people: Path, tmp_path: Path
) -> None:
    async with running_dashboard(conninfo, people) as dashboard:
        olivia = await dashboard.sign_in(OLIVIA)
        form = await olivia.open(f"{AT_ACME}/settings/api-keys/new")
        shown = await olivia.send(form, name="CI", access="ci")
        secret, curl, command_line, python = [
            html.unescape(text) for _, text in CODE.findall(shown.html)
        ]
        printed = [
            await run(tmp_path, "bash", "-c", command_line, TENANTRY_API_KEY=secret),
            await run(tmp_path, sys.executable, "-c", python, TENANTRY_API_KEY=secret),
        ]
        if shutil.which("curl"):
            printed.append(await run(tmp_path, "bash", "-c", curl, TENANTRY_API_KEY=secret))
    assert all("projects:read" in text for text in printed)
