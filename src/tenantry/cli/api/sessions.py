"""What ``tenantry login`` keeps: where somebody is signed in, and the tokens, for one profile."""

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from tenantry.cli.exit_codes import FAILED, CommandError
from tenantry_sdk import FileStore, KeyringStore, TokenStore
from tenantry_sdk.errors import ConfigurationError

_SESSION: Final = "session.json"
_PATIENCE: Final = 15.0
_POLL: Final = 0.05
_TOKEN: Final = "token.json"  # noqa: S105  # a file's name


class Session(msgspec.Struct, frozen=True):
    """A sign-in: its tokens are for the service at ``base_url`` and for no other."""

    base_url: str
    issuer: str
    client_id: str
    organization: str | None = None
    keyring: bool = False


class Sessions:
    """The sign-in of one profile, in a folder that only its owner may read."""

    def __init__(self, state: Path, profile: str) -> None:
        self._folder = state / profile
        self._profile = profile

    def load(self) -> Session | None:
        """The sign-in, if there is one. Raises `CommandError` where its file cannot be read."""
        path = self._folder / _SESSION
        try:
            return msgspec.json.decode(path.read_bytes(), type=Session)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise CommandError(
                f"{path} cannot be read ({error}). Remove it and sign in again: tenantry login", FAILED
            ) from None

    def save(self, session: Session) -> None:
        """Keep this sign-in; the file is replaced as a whole. Raises `OSError`."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=self._folder, prefix=_SESSION)  # of mode 0600
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(msgspec.json.encode(session))
            Path(name).replace(self._folder / _SESSION)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise

    def store(self, *, keyring: bool) -> TokenStore:
        """Where the tokens are. Raises `CommandError` where a keyring is asked for and there is none."""
        if not keyring:
            return FileStore(self._folder / _TOKEN)
        try:
            store = KeyringStore(self._profile)
            store.load()
        except ConfigurationError as error:
            raise CommandError(f"The profile {self._profile} says keyring = true. {error}") from None
        except Exception as error:  # noqa: BLE001  # backends raise what they like
            raise CommandError(f"The system's keyring cannot be used: {error}") from None
        return store

    def clear(self, session: Session) -> None:
        """Keep nothing any more, neither tokens nor sign-in. Raises `OSError`."""
        self.store(keyring=session.keyring).clear()
        (self._folder / _SESSION).unlink(missing_ok=True)


@contextmanager
def held(store: TokenStore) -> Iterator[None]:
    """Keep other commands from renewing the same token meanwhile. Raises `CommandError` where they go on with it."""
    ends = time.monotonic() + _PATIENCE
    while (lock := store.try_lock()) is None:
        if time.monotonic() >= ends:
            raise CommandError("Another command is still fetching a token. Try again in a moment.")
        time.sleep(_POLL)
    try:
        yield
    finally:
        store.unlock(lock)
