"""What ``tenantry login`` keeps: where somebody is signed in, and the tokens, for one profile."""

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from tenantry.cli.exit_codes import FAILED, CommandError
from tenantry.common.encoding import NOT_JSON
from tenantry_sdk import FileStore, KeyringStore, Secret, Token, TokenStore
from tenantry_sdk.errors import ConfigurationError

_SESSION: Final = "session.json"
# longer than the SDK lets a renewal take, which holds the lock meanwhile
_PATIENCE: Final = 35.0
_POLL: Final = 0.05
_TOKEN: Final = "token.json"  # noqa: S105  # a file's name
_TRIAL: Final = ".trial"


class Session(msgspec.Struct, frozen=True):
    """A sign-in: its tokens are for the service at ``base_url`` and for no other."""

    base_url: str
    issuer: str
    client_id: str
    organization: str | None = None
    keyring: bool = False


class StoreError(ConfigurationError):
    """What is kept cannot be read or written, and signing in again would not help."""


class FaultySessionError(CommandError):
    """The file of a sign-in cannot be read; ``sessions`` removes it all the same."""

    def __init__(self, message: str, sessions: "Sessions") -> None:
        super().__init__(message, FAILED)
        self.sessions = sessions


class Removed(NamedTuple):
    """What was there, and in words what could not be read, and what could not be removed."""

    tokens: list[Token]
    unread: list[str]
    left: list[str]


class Sessions:
    """The sign-in of one profile, in a folder that only its owner may read."""

    def __init__(self, state: Path, profile: str) -> None:
        self._folder = state / profile
        self._profile = profile
        self._file = FileStore(self._folder / _TOKEN)

    def load(self) -> Session | None:
        """The sign-in, if there is one. Raises `FaultySessionError` where its file cannot be read."""
        path = self._folder / _SESSION
        try:
            return msgspec.json.decode(path.read_bytes(), type=Session)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, *NOT_JSON) as error:
            raise FaultySessionError(
                f"{path} cannot be read ({error}). Remove it, and sign in again: tenantry logout, tenantry login", self
            ) from None

    def tokens(self, session: Session) -> TokenStore:
        """The tokens of this sign-in. Raises `CommandError` where they are in the keyring and there is none."""
        return _Tokens(self, session, self._keyring() if session.keyring else self._file, self._file)

    def has_tokens(self) -> bool:
        """Whether tokens are left in the folder, with or without a sign-in."""
        return (self._folder / _TOKEN).exists()

    def try_out(self, *, keyring: bool) -> None:
        """Write as `keep` will, and keep nothing of it. Raises `CommandError` where that is not possible."""
        with _not_kept():
            for folder in (self._folder.parent, self._folder):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self.alone(), _not_kept():
            with tempfile.TemporaryFile(dir=self._folder) as file:
                file.write(b"-")
            if keyring:
                trial = self._keyring(_TRIAL)
                with _told():
                    trial.save(Token(Secret("-")))
                    trial.clear()

    def keep(self, session: Session, token: Token) -> None:
        """Keep this sign-in, or nothing. It takes `alone`. Raises `CommandError`."""
        try:
            store = self._keyring() if session.keyring else self._file
            with _not_kept(), _told():
                store.save(token)
                self._write(session)  # last: tokens without a sign-in are nobody's
        except BaseException:
            self.remove(keyring=session.keyring)
            raise

    def remove(self, *, keyring: bool = False) -> Removed:
        """Keep nothing any more, and give what there was. It takes `alone`.

        The keyring is looked into where the sign-in or ``keyring`` says so, or where nothing can tell.
        """
        removed = Removed([], [], [])
        for store in self._stores(removed, keyring=keyring):
            try:
                with _told():
                    token = store.load()
            except ConfigurationError as error:
                removed.unread.append(str(error))
            else:
                removed.tokens.extend([] if token is None else [token])
            try:
                with _told():
                    store.clear()
            except ConfigurationError as error:
                removed.left.append(str(error))
        try:
            (self._folder / _SESSION).unlink(missing_ok=True)
        except OSError as error:
            removed.left.append(str(error))
        return removed

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other commands from using or changing what is kept. Raises `CommandError` where they go on with it."""
        ends = time.monotonic() + _PATIENCE
        try:
            while (lock := self._file.try_lock()) is None:
                if time.monotonic() >= ends:
                    raise CommandError("Another command is still fetching a token. Try again in a moment.")
                time.sleep(_POLL)
        except ConfigurationError as error:
            raise CommandError(f"What is kept cannot be used: {error}") from None
        try:
            yield
        finally:
            self._file.unlock(lock)

    def _stores(self, removed: Removed, *, keyring: bool) -> Iterator[TokenStore]:
        with contextlib.suppress(OSError):
            # that others could read it is no reason to leave it as it is
            (self._folder / _TOKEN).chmod(0o600)
        yield self._file
        known = True
        try:
            session = self.load()
        except FaultySessionError:
            known, session = False, None
        if known and not keyring and not (session is not None and session.keyring):
            return
        try:
            store = self._keyring()
        except CommandError as error:
            if known:
                removed.unread.append(str(error))
        else:
            yield store

    def _write(self, session: Session) -> None:
        descriptor, name = tempfile.mkstemp(dir=self._folder, prefix=_SESSION)  # of mode 0600
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(msgspec.json.encode(session))
            Path(name).replace(self._folder / _SESSION)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise

    def _keyring(self, suffix: str = "") -> KeyringStore:
        # by the folder: another one has other sign-ins under the same names
        try:
            return KeyringStore(f"{self._folder}{suffix}")
        except ConfigurationError as error:
            raise CommandError(f"The profile {self._profile} says keyring = true. {error}") from None
        except Exception as error:  # noqa: BLE001  # backends raise what they like
            raise CommandError(f"The system's keyring cannot be used: {error}") from None


class _Tokens:
    """Tokens that are there only as long as their sign-in is the one that is kept.

    Whoever changes what is kept has the same lock, so a token is never taken for that of another sign-in.
    """

    def __init__(self, sessions: Sessions, session: Session, store: TokenStore, locks: FileStore) -> None:
        self._sessions = sessions
        self._session = session
        self._store = store
        self._locks = locks

    def load(self) -> Token | None:
        """What was kept, if anything. Raises `ConfigurationError`."""
        try:
            if self._sessions.load() != self._session:
                return None
        except FaultySessionError:
            return None
        with _told():
            return self._store.load()

    def save(self, token: Token) -> None:
        """Keep this one from now on. Raises `ConfigurationError`."""
        with _told():
            self._store.save(token)

    def clear(self) -> None:
        """Keep nothing any more. Raises `ConfigurationError`."""
        with _told():
            self._store.clear()

    def try_lock(self) -> int | None:
        """What `unlock` takes, if nobody else is at it now; else None. Raises `ConfigurationError`."""
        with _told():
            return self._locks.try_lock()

    def unlock(self, lock: Any) -> None:  # noqa: ANN401
        """Let others go on."""
        self._locks.unlock(lock)


@contextmanager
def _told() -> Iterator[None]:
    """Whatever a store fails with, as `ConfigurationError`; as `StoreError` where the machine is at fault."""
    try:
        yield
    except ConfigurationError as error:
        if isinstance(error.__cause__, OSError):
            raise StoreError(str(error)) from error
        raise
    except OSError as error:
        raise StoreError(str(error)) from error
    except Exception as error:
        raise StoreError(f"The system's keyring cannot be used: {error}") from error  # backends raise what they like


@contextmanager
def _not_kept() -> Iterator[None]:
    try:
        yield
    except (OSError, ConfigurationError) as error:
        raise CommandError(f"The sign-in cannot be kept: {error}") from None
