"""Stores of tokens between runs: a file that only its owner can read, or the system's keyring."""

from __future__ import annotations

import errno
import importlib
import os
import sys
from pathlib import Path
from typing import Any, Final

import msgspec

from tenantry_sdk._encoding import NOT_JSON
from tenantry_sdk._files import write_private
from tenantry_sdk._response import converted
from tenantry_sdk._tokens import Token
from tenantry_sdk.errors import ConfigurationError

_HELD: Final = {errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES}
_SERVICE: Final = "tenantry"


class FileStore:
    """A token in a file of mode 0600; a missing folder is created with mode 0700.

    A `TokenStore`. It raises `ConfigurationError` for a file that is unreadable, or readable by
    others.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path).expanduser()

    def load(self) -> Token | None:
        """Return the stored token. Raises `ConfigurationError` if the file is unreadable, or
        readable by others.
        """
        try:
            content = self._path.read_bytes()
            mode = self._path.stat().st_mode
        except FileNotFoundError:
            return None
        except OSError as error:
            raise ConfigurationError(f"{self._path} cannot be read: {error.strerror}") from error
        if os.name == "posix" and mode & 0o077:
            raise ConfigurationError(
                f"{self._path} can be read by others (mode {mode & 0o777:o}): chmod 600 it."
            )
        try:
            return _decoded(content)
        except NOT_JSON as error:
            raise ConfigurationError(
                f"{self._path} is not a stored token: sign in again."
            ) from error

    def save(self, token: Token) -> None:
        """Store this token; the file is replaced atomically. Raises `ConfigurationError`."""
        try:
            write_private(self._path, _encoded(token))
        except OSError as error:
            raise ConfigurationError(f"{self._path} cannot be written: {error.strerror}") from error

    def clear(self) -> None:
        """Delete the stored token."""
        self._path.unlink(missing_ok=True)

    def try_lock(self) -> int | None:
        """Lock a file next to it; the lock ends with the process. Raises `ConfigurationError`."""
        return _try_lock(self._path.with_name(self._path.name + ".lock"))

    def unlock(self, lock: int) -> None:
        """Unlock the token."""
        _unlock(lock)


class KeyringStore:
    """A token in the system's keyring, by the ``keyring`` package, which has to be installed.

    A `TokenStore`. The lock is on a file in the home folder. Raises `ConfigurationError`.
    """

    def __init__(self, name: str) -> None:
        """``name`` tells tokens apart: a profile, say. Raises `ConfigurationError` without the
        package.
        """
        try:
            self._keyring: Any = importlib.import_module("keyring")
        except ImportError as error:
            raise ConfigurationError("The keyring needs a package: pip install keyring") from error
        self._name = name

    def load(self) -> Token | None:
        """Return the stored token, if there is one. Raises `ConfigurationError`."""
        content = self._keyring.get_password(_SERVICE, self._name)
        try:
            return None if content is None else _decoded(content.encode())
        except NOT_JSON as error:
            raise ConfigurationError(
                "The keyring's entry is not a stored token: sign in again."
            ) from error

    def save(self, token: Token) -> None:
        """Store this token instead."""
        self._keyring.set_password(_SERVICE, self._name, _encoded(token).decode())

    def clear(self) -> None:
        """Delete the stored token."""
        if self._keyring.get_password(_SERVICE, self._name) is not None:
            self._keyring.delete_password(_SERVICE, self._name)

    def try_lock(self) -> int | None:
        """Keyrings have no locks: one on a file in the home folder. Raises `ConfigurationError`."""
        name = "".join(c if c.isalnum() or c in "-_" else "_" for c in self._name)
        return _try_lock(Path.home() / ".cache" / "tenantry" / f"{name}.lock")

    def unlock(self, lock: int) -> None:
        """Unlock the token."""
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
    # Closing is not enough: a process forked in the meantime has it open too.
    if sys.platform == "win32":
        import msvcrt  # noqa: PLC0415  # only there

        msvcrt.locking(descriptor, msvcrt.LK_UNLCK, 1)
    else:
        import fcntl  # noqa: PLC0415  # only there

        fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


def _decoded(content: bytes) -> Token:
    token: Token = converted(msgspec.json.decode(content), Token)
    return token


def _encoded(token: Token) -> bytes:
    return msgspec.json.encode(token, enc_hook=lambda value: value.reveal())
