"""Stores the sign-in of a profile: the service, the identity provider and the tokens."""

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from tenantry_sdk import FileStore, KeyringStore, Token, TokenStore
from tenantry_sdk._encoding import NOT_JSON
from tenantry_sdk._files import write_private
from tenantry_sdk._sync._token_renewal import locked
from tenantry_sdk.errors import ConfigurationError

_SIGN_IN: Final = "session.json"
_TOKEN: Final = "token.json"  # noqa: S105  # a file's name


class StoredSignIn(msgspec.Struct, frozen=True):
    """A sign-in; its tokens are only for the service at ``base_url``."""

    base_url: str
    issuer: str
    client_id: str
    org: str | None = None
    keyring: bool = False


class StoreError(ConfigurationError):
    """The storage cannot be read or written; another sign-in would not help."""


@contextmanager
def store_errors() -> Iterator[None]:
    """Raise what the machine causes, such as a full disk or a missing keyring, as `StoreError`."""
    try:
        yield
    except ConfigurationError as error:
        if isinstance(error.__cause__, (OSError, ImportError)):
            raise StoreError(str(error)) from error
        raise
    except Exception as error:  # keyrings raise anything
        raise StoreError(f"The sign-in cannot be stored or read: {error}") from error


class SignInStorage:
    """The sign-in of one profile, in a folder that only its owner may read."""

    def __init__(self, state: Path, profile: str) -> None:
        self._folder = state / profile
        self.file = FileStore(self._folder / _TOKEN)

    def load(self) -> StoredSignIn | None:
        """Read the sign-in; None without one, and for a malformed file. Raises `StoreError` if it
        cannot be read.
        """
        try:
            return msgspec.json.decode((self._folder / _SIGN_IN).read_bytes(), type=StoredSignIn)
        except (FileNotFoundError, NotADirectoryError, *NOT_JSON):
            return None
        except OSError as error:
            raise StoreError(f"The stored sign-in cannot be read: {error}") from None

    def exists(self) -> bool:
        """Whether a sign-in, or a part of one, is stored."""
        return any((self._folder / name).exists() for name in (_SIGN_IN, _TOKEN))

    def tokens(self, sign_in: StoredSignIn) -> TokenStore:
        """Return the tokens of this sign-in. Raises `ConfigurationError` if the keyring is not
        installed.
        """
        return _SignInTokens(self, sign_in, self._store(keyring=sign_in.keyring))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other commands from using the storage. Raises an error of the SDK, also if one uses
        it for too long.
        """
        with store_errors():
            for folder in (self._folder.parent, self._folder):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with locked(self.file, []):
            yield

    def check(self, *, keyring: bool) -> None:
        """Check before a sign-in that it can be stored. Raises an error of the SDK."""
        self._store(keyring=keyring)
        with self.locked():
            pass

    @store_errors()
    def save(self, sign_in: StoredSignIn, token: Token) -> None:
        """Store this sign-in. The caller holds `locked`. Raises an error of the SDK."""
        self._store(keyring=sign_in.keyring).save(token)
        # last, because tokens without a sign-in are not used
        write_private(self._folder / _SIGN_IN, msgspec.json.encode(sign_in))

    @store_errors()
    def remove(self, *, keyring: bool) -> tuple[list[Token], list[str]]:
        """Remove the sign-in; return its tokens, and messages about those that cannot be read.

        The caller holds `locked`. Looks into the keyring too if ``keyring`` or the sign-in says so.
        Raises an error of the SDK if something cannot be removed.
        """
        sign_in = self.load()
        keyring = keyring or (sign_in is not None and sign_in.keyring)
        tokens: list[Token | None] = []
        unread: list[str] = []
        (self._folder / _SIGN_IN).unlink(missing_ok=True)
        with contextlib.suppress(FileNotFoundError):
            (self._folder / _TOKEN).chmod(0o600)  # the store refuses a file that others can read
        for in_keyring in sorted({False, keyring}):
            store = self._store(keyring=in_keyring)
            try:
                with store_errors():
                    tokens.append(store.load())
            except ConfigurationError as error:
                unread.append(str(error))
            store.clear()
        return list(filter(None, tokens)), unread

    @store_errors()
    def _store(self, *, keyring: bool) -> FileStore | KeyringStore:
        # named after the folder, because other folders have profiles of the same name
        return KeyringStore(str(self._folder)) if keyring else self.file


@dataclass
class _SignInTokens:
    """The tokens of a sign-in, for the SDK: none once another sign-in has replaced it.

    Commands change the storage under the same lock, so the tokens never belong to another sign-in.
    """

    storage: SignInStorage
    sign_in: StoredSignIn
    store: TokenStore

    @store_errors()
    def load(self) -> Token | None:
        if self.storage.load() == self.sign_in:
            return self.store.load()
        return None

    @store_errors()
    def save(self, token: Token) -> None:
        self.store.save(token)

    @store_errors()
    def clear(self) -> None:
        self.store.clear()

    @store_errors()
    def try_lock(self) -> int | None:
        return self.storage.file.try_lock()

    def unlock(self, lock: Any) -> None:  # noqa: ANN401
        self.storage.file.unlock(lock)
