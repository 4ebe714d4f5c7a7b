"""A service whose identity provider is the demo's, for tests of signing in."""

import json
import re
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx2

from tenantry.common.secret import Secret
from tenantry_devkit.demo.companion import Companion
from tenantry_devkit.identity_tokens import DemoUser
from tests.cli.command_support import Home
from tests.sdk.sdk_support import Served, serving
from tests.support.command_runner import Command
from tests.support.commands import Done
from tests.support.issuer import NOW
from tests.support.service import ManualClock
from tests.support.sign_in import ADA, AUDIENCE, BOB, CLIENT_ID, CLIENT_SECRET, Form

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
"""A replacement for the package ``keyring``, with a file."""


CARL: Final = DemoUser("user_carl", "Carl Example", "carl@demo.example")
EVE: Final = DemoUser("user_eve", "Eve Example", "eve@demo.example", "org_ended", "owner")
"""Her organization has been deleted."""


class RunningClock(ManualClock):
    """A clock that runs from the time at which the service's clock begins."""

    def __init__(self) -> None:
        super().__init__()
        self._begun = time.monotonic()

    def __call__(self) -> datetime:
        self.now = NOW + timedelta(seconds=time.monotonic() - self._begun)
        return self.now


class SignInServices(NamedTuple):
    """A service with ADA's organization, and its identity provider."""

    served: Served
    companion: Companion


class SignInHome(NamedTuple):
    """The same, and a home whose default profile names both."""

    served: Served
    companion: Companion
    home: Home

    @classmethod
    def at(cls, sign_in_services: SignInServices, home: Home) -> "SignInHome":
        """Configure the default profile of a home."""
        home.configure(
            f'[profiles.default]\nbase_url = "{sign_in_services.served.url}"\n'
            f'issuer = "{sign_in_services.companion.issuer}"\nclient_id = "{CLIENT_ID}"\n'
        )
        return cls(*sign_in_services, home)

    @property
    def tokens(self) -> Path:
        """The file with the tokens of the default profile."""
        return self.home.token_folder / "default" / "token.json"

    @property
    def stored_tokens(self) -> dict[str, Any]:
        """The content of that file."""
        stored_tokens: dict[str, Any] = json.loads(self.tokens.read_text())
        return stored_tokens

    def expire(self) -> None:
        """Make the access token have expired an hour ago."""
        self.tokens.write_text(json.dumps({**self.stored_tokens, "expires_at": time.time() - 3600}))

    async def choose(self, user_code: str, **fields: str) -> str:
        """Enter the code and choose a user; return the page."""
        async with browser_client() as client:
            form = {"user_code": user_code, **fields}
            return (await client.post(f"{self.companion.issuer}/device/choice", data=form)).text

    async def sign_in(self, *arguments: str, user: str = ADA.sub, **values: str) -> Done:
        """Run `tenantry login` with these arguments, and sign this user in at the printed
        address.
        """
        async with (
            self.start_login("--no-browser", *arguments, **values) as command,
            browser_client() as client,
        ):
            address = await address_in(command)
            form = Form((await client.get(address)).text)
            chosen = {**form.fields, "user": user}
            answer = await client.post(
                self.companion.issuer + form.action, data=chosen, follow_redirects=True
            )
            assert answer.status_code == 200, answer.text
            return await command.done()

    def start_login(self, *arguments: str, **values: str) -> AbstractAsyncContextManager[Command]:
        """Start `tenantry login` with these arguments; it ends within 30 s if a test fails."""
        return self.home.running("login", "--timeout", "30", *arguments, **values)


def browser_client() -> httpx2.AsyncClient:
    """Return an HTTP client, such as a browser."""
    return httpx2.AsyncClient(trust_env=False, verify=False, timeout=30)


async def address_in(command: Command) -> str:
    """Return the address that the command prints."""
    await command.until("\n\n", "err")
    found = ADDRESS.search(command.text["err"])
    assert found is not None
    return found[1]


async def code_in(command: Command) -> str:
    """Return the code that the command prints."""
    await command.until("Waiting ...", "err")
    found = USER_CODE.search(command.text["err"])
    assert found is not None
    return found[1]


@asynccontextmanager
async def running_sign_in_services(conninfo: str, folder: Path) -> AsyncIterator[SignInServices]:
    """Start both; the identity provider stores its key in ``folder``."""
    clock = RunningClock()
    with Companion(
        folder,
        users=[ADA, BOB, CARL, EVE],
        audience=AUDIENCE,
        client_id=CLIENT_ID,
        client_secret=Secret(CLIENT_SECRET),
        clock=clock,
    ) as companion:
        async with serving(
            conninfo, clock, OIDC_ISSUER=companion.issuer, OIDC_CLIENT_ID=CLIENT_ID
        ) as served:
            operator = served.service.operator
            for user in (ADA, EVE):
                body = {"name": "Demo", "ownerEmail": "a@x.example"}
                answer = await operator.put(f"/api/v1/tenants/{user.org_id}", body)
                assert answer.status_code == 201, answer.text
            assert (await operator.delete(f"/api/v1/tenants/{EVE.org_id}")).status_code == 204
            yield SignInServices(served, companion)


def with_keyring(home: Home, package: str = KEYRING) -> dict[str, str]:
    """Make the default profile, the last in the file, use this keyring; return the variables that
    find it.
    """
    (home.folder / "keyring.py").write_text(package)
    config = home.folder / "config" / "tenantry" / "config.toml"
    text = config.read_text()
    config.write_text(text if "keyring = true" in text else text + "keyring = true\n")
    return {
        "PYTHONPATH": f"{home.folder}:{Path(__file__).parents[2]}",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
