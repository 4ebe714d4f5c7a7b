"""A service whose identity provider is the demo's, for tests of signing in."""

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx2

from tenantry.demo.companion import Companion
from tenantry.kit.secret import Secret
from tests.cli.support import Home
from tests.sdk.support import Served, serving
from tests.support.commands import Done
from tests.support.issuer import NOW
from tests.support.sign_in import ADA, AUDIENCE, BOB, CLIENT_ID, CLIENT_SECRET

ADDRESS: Final = re.compile(r"^(https?://\S+/auth(?:orize)?\?\S+)$", re.MULTILINE)
USER_CODE: Final = re.compile(r"^ +([A-Z]{4}-[A-Z]{4})$", re.MULTILINE)


KEYRING: Final = """
import json, pathlib
FILE = pathlib.Path.home() / "keyring.json"
def _all(): return json.loads(FILE.read_text()) if FILE.exists() else {}
def get_password(service, name): return _all().get(f"{service}/{name}")
def set_password(service, name, text): FILE.write_text(json.dumps({**_all(), f"{service}/{name}": text}))
def delete_password(service, name):
    FILE.write_text(json.dumps({key: text for key, text in _all().items() if key != f"{service}/{name}"}))
"""
"""Stands for the package, which asks the system; this one has a file."""


class RunningClock:
    """Goes as time does, from the moment at which the service's clock begins."""

    def __init__(self) -> None:
        self._begun = time.monotonic()

    def __call__(self) -> datetime:
        return NOW + timedelta(seconds=time.monotonic() - self._begun)


class Entrance(NamedTuple):
    """A service with ADA's organization, the identity provider, and a home that knows both."""

    served: Served
    companion: Companion
    home: Home

    @property
    def tokens(self) -> Path:
        """The file with the tokens of the default profile."""
        return self.home.kept / "default" / "token.json"

    @property
    def kept(self) -> dict[str, Any]:
        """What is in that file."""
        kept: dict[str, Any] = json.loads(self.tokens.read_text())
        return kept

    def expire(self) -> None:
        """Let the access token have ended an hour ago."""
        self.tokens.write_text(json.dumps({**self.kept, "expires_at": time.time() - 3600}))

    async def choose(self, user_code: str, **fields: str) -> str:
        """The page after the choice of somebody who enters the code."""
        async with httpx2.AsyncClient(trust_env=False) as client:
            form = {"user_code": user_code, **fields}
            return (await client.post(f"{self.companion.issuer}/device/choice", data=form)).text

    async def sign_in(self, *arguments: str, user: str = ADA.sub, **values: str) -> Done:
        """`tenantry login --device` with these arguments, in which this user enters the code."""
        async with self.home.running("login", "--device", *arguments, **values) as command:
            await command.until("Waiting ...", "err")
            found = USER_CODE.search(command.text["err"])
            assert found is not None
            await self.choose(found[1], user=user)
            return Done(await command.wait(), command.text["out"], command.text["err"])


@asynccontextmanager
async def entrance(conninfo: str, home: Home) -> AsyncIterator[Entrance]:
    """All of it, running."""
    companion = Companion(
        home.folder / "companion",
        users=[ADA, BOB],
        audience=AUDIENCE,
        client_id=CLIENT_ID,
        client_secret=Secret(CLIENT_SECRET),
        clock=RunningClock(),
    )
    await asyncio.to_thread(companion.start)
    try:
        async with serving(conninfo, OIDC_ISSUER=companion.issuer, OIDC_CLIENT_ID=CLIENT_ID) as served:
            operator = served.service.operator
            await operator.put("/api/v1/tenants/org_demo", {"name": "Demo", "ownerEmail": "a@x.example"})
            home.configure(
                f'[profiles.default]\nbase_url = "{served.url}"\n'
                f'issuer = "{companion.issuer}"\nclient_id = "{CLIENT_ID}"\n'
            )
            yield Entrance(served, companion, home)
    finally:
        await asyncio.to_thread(companion.stop)


def with_keyring(home: Home, package: str = KEYRING) -> dict[str, str]:
    """Let the default profile, which is the last in the file, use this keyring; gives the variables that find it."""
    (home.folder / "keyring.py").write_text(package)
    config = home.folder / "config" / "tenantry" / "config.toml"
    text = config.read_text()
    config.write_text(text if "keyring = true" in text else text + "keyring = true\n")
    return {"PYTHONPATH": f"{home.folder}:{Path(__file__).parents[2]}", "PYTHONDONTWRITEBYTECODE": "1"}
