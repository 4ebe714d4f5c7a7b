"""Stores the sign-in of a profile: the service, the identity provider and the tokens."""

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from tenantry.cli.output import FAILED, CommandError
from tenantry.common.encoding import NOT_JSON
from tenantry_sdk import FileStore, KeyringStore, Secret, Token, TokenStore
from tenantry_sdk.errors import ConfigurationError

_SIGN_IN: Final = "session.json"
_TOKEN: Final = "token.json"  # noqa: S105  # a file's name
# longer than the SDK's limit for a token refresh, which holds the lock
_LOCK_TIMEOUT: Final = 35.0
_POLL: Final = 0.05


class StoredSignIn(msgspec.Struct, frozen=True):
    """A sign-in; its tokens are only for the service at ``base_url``."""

    base_url: str
    issuer: str
    client_id: str
    organization: str | None = None
    keyring: bool = False


class StoreError(ConfigurationError):
    """The storage cannot be read or written; another sign-in would not help."""


class FaultySignInError(CommandError):
    """The file of a sign-in cannot be read; ``storage`` can remove it."""

    def __init__(self, message: str, storage: "SignInStorage") -> None:
        super().__init__(message, FAILED)
        self.storage = storage


class RemovedSignIn(NamedTuple):
    """The removed tokens, and messages about tokens that could not be read or removed."""

    tokens: list[Token]
    unread: list[str]
    left: list[str]


class SignInStorage:
    """The sign-in of one profile, in a folder that only its owner may read."""

    def __init__(self, state: Path, profile: str) -> None:
        self._folder = state / profile
        self._profile = profile
        self.file = FileStore(self._folder / _TOKEN)

    def load(self) -> StoredSignIn | None:
        """Read the sign-in; None without one. Raises `FaultySignInError`."""
        path = self._folder / _SIGN_IN
        try:
            return msgspec.json.decode(path.read_bytes(), type=StoredSignIn)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, *NOT_JSON) as error:
            raise FaultySignInError(
                f"{path} cannot be read ({error}). Remove it, and sign in again: tenantry logout, tenantry login", self
            ) from None

    def tokens(self, sign_in: StoredSignIn) -> TokenStore:
        """Return the tokens of this sign-in. Raises `CommandError` if they are in a keyring that is not installed."""
        return _SignInTokens(self, sign_in, self._keyring() if sign_in.keyring else self.file)

    def has_tokens(self) -> bool:
        return (self._folder / _TOKEN).exists()

    def check_writable(self, *, keyring: bool) -> None:
        """Write and remove test data. Raises `CommandError` if that fails."""
        with _storing():
            for folder in (self._folder.parent, self._folder):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self.locked(), _storing():
            with tempfile.TemporaryFile(dir=self._folder) as file:
                file.write(b"-")
            if keyring:
                trial = self._keyring(".trial")
                with _converted_errors():
                    trial.save(Token(Secret("-")))
                    trial.clear()

    def save(self, sign_in: StoredSignIn, token: Token) -> None:
        """Store this sign-in, or nothing. The caller holds `locked`. Raises `CommandError`."""
        try:
            store = self._keyring() if sign_in.keyring else self.file
            with _storing(), _converted_errors():
                store.save(token)
                self._write(sign_in)  # last, because tokens without a sign-in are not used
        except BaseException:
            self.remove(keyring=sign_in.keyring)
            raise

    def remove(self, *, keyring: bool = False) -> RemovedSignIn:
        """Remove and return the stored sign-in. The caller holds `locked`.

        Looks into the keyring if ``keyring`` or the sign-in says so, or if the sign-in is unreadable.
        """
        removed = RemovedSignIn([], [], [])
        for store in self._stores(removed, keyring=keyring):
            try:
                with _converted_errors():
                    token = store.load()
            except ConfigurationError as error:
                removed.unread.append(str(error))
            else:
                removed.tokens.extend([] if token is None else [token])
            try:
                with _converted_errors():
                    store.clear()
            except ConfigurationError as error:
                removed.left.append(str(error))
        try:
            (self._folder / _SIGN_IN).unlink(missing_ok=True)
        except OSError as error:
            removed.left.append(str(error))
        return removed

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other commands from using the storage. Raises `CommandError` if one does not release it in time."""
        ends = time.monotonic() + _LOCK_TIMEOUT
        try:
            while (lock := self.file.try_lock()) is None:
                if time.monotonic() >= ends:
                    raise CommandError("Another command is still fetching a token. Try again in a moment.")
                time.sleep(_POLL)
        except ConfigurationError as error:
            raise CommandError(f"The stored sign-in cannot be used: {error}") from None
        try:
            yield
        finally:
            self.file.unlock(lock)

    def _stores(self, removed: RemovedSignIn, *, keyring: bool) -> Iterator[TokenStore]:
        with contextlib.suppress(OSError):
            (self._folder / _TOKEN).chmod(0o600)  # the store refuses a file that others can read
        yield self.file
        is_readable = True
        try:
            sign_in = self.load()
            keyring = keyring or (sign_in is not None and sign_in.keyring)
        except FaultySignInError:
            is_readable, keyring = False, True
        if not keyring:
            return
        try:
            store = self._keyring()
        except CommandError as error:
            if is_readable:
                removed.unread.append(str(error))
        else:
            yield store

    def _write(self, sign_in: StoredSignIn) -> None:
        descriptor, name = tempfile.mkstemp(dir=self._folder, prefix=_SIGN_IN)  # of mode 0600
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(msgspec.json.encode(sign_in))
            Path(name).replace(self._folder / _SIGN_IN)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise

    def _keyring(self, suffix: str = "") -> KeyringStore:
        try:
            # named after the folder, because other folders have profiles of the same name
            return KeyringStore(f"{self._folder}{suffix}")
        except ConfigurationError as error:
            raise CommandError(f"The profile {self._profile} says keyring = true. {error}") from None
        except Exception as error:  # noqa: BLE001  # backends raise anything
            raise CommandError(f"The system's keyring cannot be used: {error}") from None


@contextmanager
def _converted_errors() -> Iterator[None]:
    """Raise errors of a store as `ConfigurationError`; as `StoreError` if the machine causes them."""
    try:
        yield
    except ConfigurationError as error:
        if isinstance(error.__cause__, OSError):
            raise StoreError(str(error)) from error
        raise
    except OSError as error:
        raise StoreError(str(error)) from error
    except Exception as error:
        raise StoreError(f"The system's keyring cannot be used: {error}") from error  # backends raise anything


class _SignInTokens:
    """The tokens of a sign-in, for the SDK: none once another sign-in has replaced it.

    Commands change the storage under the same lock, so the tokens never belong to another sign-in.
    """

    def __init__(self, storage: SignInStorage, sign_in: StoredSignIn, store: TokenStore) -> None:
        self._storage = storage
        self._sign_in = sign_in
        self._store = store

    def load(self) -> Token | None:
        try:
            is_current = self._storage.load() == self._sign_in
        except FaultySignInError:
            return None
        return self._store.load() if is_current else None

    @_converted_errors()
    def save(self, token: Token) -> None:
        self._store.save(token)

    @_converted_errors()
    def clear(self) -> None:
        self._store.clear()

    @_converted_errors()
    def try_lock(self) -> int | None:
        return self._storage.file.try_lock()

    def unlock(self, lock: Any) -> None:  # noqa: ANN401
        self._storage.file.unlock(lock)


@contextmanager
def _storing() -> Iterator[None]:
    try:
        yield
    except (OSError, ConfigurationError) as error:
        raise CommandError(f"The sign-in cannot be stored: {error}") from None
