"""Where tokens are kept between runs: a file that only its owner reads, or the system's keyring."""

from __future__ import annotations

import errno
import importlib
import os
import sys
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from tenantry_sdk._models import NOT_JSON, decoder
from tenantry_sdk._secret import Secret
from tenantry_sdk.errors import ConfigurationError

_AHEAD: Final = 30.0
_HELD: Final = {errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES}
_SERVICE: Final = "tenantry"


class Token(msgspec.Struct, frozen=True):
    """An access token. ``expires_at`` is Unix time in seconds and ``lifetime`` in seconds; None if unknown.

    ``issuer`` and ``client_id`` say where it is from, so that no other identity provider is sent it.
    """

    access_token: Secret
    expires_at: float | None = None
    refresh_token: Secret | None = None
    lifetime: float | None = None
    issuer: str | None = None
    client_id: str | None = None

    def is_of(self, issuer: str, client_id: str) -> bool:
        """Whether it may be from this issuer, for this client."""
        return self.issuer in {None, issuer} and self.client_id in {None, client_id}

    def is_due(self, now: float) -> bool:
        """Whether it is time for another one: in its last quarter, half a minute at most."""
        if self.expires_at is None:
            return False
        ahead = _AHEAD if self.lifetime is None else min(_AHEAD, self.lifetime / 4)
        return now >= self.expires_at - ahead

    def is_over(self, now: float) -> bool:
        """Whether it has expired."""
        return self.expires_at is not None and now >= self.expires_at


class TokenStore(Protocol):
    """Keeps one token, for one process at a time to renew."""

    def load(self) -> Token | None:
        """What was kept, if anything."""

    def save(self, token: Token) -> None:
        """Keep this one from now on."""

    def clear(self) -> None:
        """Keep nothing any more."""

    def try_lock(self) -> Any:  # noqa: ANN401
        """Lock the token; return the argument for `unlock`, or None if another process holds the lock."""

    def unlock(self, lock: Any) -> None:  # noqa: ANN401
        """Let others renew it."""


class FileStore:
    """A token in a file of mode 0600, in a folder of mode 0700 that is made where it is missing."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path).expanduser()

    def load(self) -> Token | None:
        """What was kept. Raises `ConfigurationError` where others could read it, or it cannot be read."""
        try:
            content = self._path.read_bytes()
            mode = self._path.stat().st_mode
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ConfigurationError(f"{self._path} cannot be read: {error.strerror}") from error
        if os.name == "posix" and mode & 0o077:
            raise ConfigurationError(f"{self._path} can be read by others (mode {mode & 0o777:o}): chmod 600 it.")
        try:
            return _read(content)
        except NOT_JSON as error:
            raise ConfigurationError(f"{self._path} cannot be read as a token: sign in again.") from error

    def save(self, token: Token) -> None:
        """Keep this one: the file is replaced as a whole. Raises `ConfigurationError`."""
        try:
            self._replace(_written(token))
        except OSError as error:
            raise ConfigurationError(f"{self._path} cannot be written: {error.strerror}") from error

    def clear(self) -> None:
        """Keep nothing any more."""
        self._path.unlink(missing_ok=True)

    def try_lock(self) -> int | None:
        """A lock on a file beside it, which ends with the process. Raises `ConfigurationError`."""
        return _try_lock(self._path.with_name(self._path.name + ".lock"))

    def unlock(self, lock: int) -> None:
        """Let others renew it."""
        _unlock(lock)

    def _replace(self, content: bytes) -> None:
        import tempfile  # noqa: PLC0415  # slow to import

        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=self._path.parent, prefix=self._path.name)  # of mode 0600
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            Path(name).replace(self._path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise


class KeyringStore:
    """A token in the system's keyring, by the ``keyring`` package, which has to be installed."""

    def __init__(self, name: str) -> None:
        """``name`` tells tokens apart: a profile, say. Raises `ConfigurationError` without the package."""
        try:
            self._keyring: Any = importlib.import_module("keyring")
        except ImportError as error:
            raise ConfigurationError("The keyring needs a package: pip install 'tenantry-sdk[keyring]'") from error
        self._name = name

    def load(self) -> Token | None:
        """What was kept, if anything. Raises `ConfigurationError`."""
        content = self._keyring.get_password(_SERVICE, self._name)
        try:
            return None if content is None else _read(content.encode())
        except NOT_JSON as error:
            raise ConfigurationError("The keyring's entry cannot be read as a token: sign in again.") from error

    def save(self, token: Token) -> None:
        """Keep this one from now on."""
        self._keyring.set_password(_SERVICE, self._name, _written(token).decode())

    def clear(self) -> None:
        """Keep nothing any more."""
        if self._keyring.get_password(_SERVICE, self._name) is not None:
            self._keyring.delete_password(_SERVICE, self._name)

    def try_lock(self) -> int | None:
        """Keyrings have no locks: one on a file in the home folder. Raises `ConfigurationError`."""
        name = "".join(c if c.isalnum() or c in "-_" else "_" for c in self._name)
        return _try_lock(Path.home() / ".cache" / "tenantry" / f"{name}.lock")

    def unlock(self, lock: int) -> None:
        """Let others renew it."""
        _unlock(lock)


def _try_lock(path: Path) -> int | None:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be opened: {error.strerror}") from error
    try:
        _lock(descriptor)
    except OSError as error:
        os.close(descriptor)
        if error.errno in _HELD:
            return None
        raise ConfigurationError(f"{path} cannot be locked: {error.strerror}") from error
    return descriptor


def _lock(descriptor: int) -> None:
    if sys.platform == "win32":
        import msvcrt  # noqa: PLC0415  # only there

        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
    else:
        import fcntl  # noqa: PLC0415  # only there

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _unlock(descriptor: int) -> None:
    # Closing is not enough: a process that was forked meanwhile has it open too.
    if sys.platform == "win32":
        import msvcrt  # noqa: PLC0415  # only there

        msvcrt.locking(descriptor, msvcrt.LK_UNLCK, 1)
    else:
        import fcntl  # noqa: PLC0415  # only there

        fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


def _read(content: bytes) -> Token:
    token: Token = decoder(Token).decode(content)
    return token


def _written(token: Token) -> bytes:
    return msgspec.json.encode(token, enc_hook=lambda value: value.reveal())
