"""Where tokens are kept between runs: a file that only its owner reads, or the system's keyring."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from tenantry_sdk._models import decoder
from tenantry_sdk._secret import Secret
from tenantry_sdk.errors import ConfigurationError

_AHEAD: Final = 30.0
_SERVICE: Final = "tenantry"


class Token(msgspec.Struct, frozen=True):
    """An access token. ``expires_at`` is Unix time in seconds and ``lifetime`` in seconds; None where nobody says."""

    access_token: Secret
    expires_at: float | None = None
    refresh_token: Secret | None = None
    lifetime: float | None = None

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
        """What `unlock` takes, if nobody else renews the token now; else None."""

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
        if os.name == "posix" and mode & 0o077:
            raise ConfigurationError(f"{self._path} can be read by others (mode {mode & 0o777:o}): chmod 600 it.")
        try:
            return _read(content)
        except msgspec.MsgspecError as error:
            raise ConfigurationError(f"{self._path} cannot be read as a token: sign in again.") from error

    def save(self, token: Token) -> None:
        """Keep this one: the file is replaced as a whole."""
        import tempfile  # noqa: PLC0415  # slow to import

        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=self._path.parent, prefix=self._path.name)  # of mode 0600
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(_written(token))
                file.flush()
                os.fsync(file.fileno())
            Path(name).replace(self._path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise

    def clear(self) -> None:
        """Keep nothing any more."""
        self._path.unlink(missing_ok=True)

    def try_lock(self) -> int | None:
        """A lock on a file beside it, which ends with the process."""
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self._path.with_name(self._path.name + ".lock"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            _lock(descriptor)
        except OSError:
            os.close(descriptor)
            return None
        return descriptor

    def unlock(self, lock: int) -> None:
        """Let others renew it."""
        os.close(lock)


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
        """What was kept, if anything."""
        content = self._keyring.get_password(_SERVICE, self._name)
        return None if content is None else _read(content.encode())

    def save(self, token: Token) -> None:
        """Keep this one from now on."""
        self._keyring.set_password(_SERVICE, self._name, _written(token).decode())

    def clear(self) -> None:
        """Keep nothing any more."""
        if self._keyring.get_password(_SERVICE, self._name) is not None:
            self._keyring.delete_password(_SERVICE, self._name)

    def try_lock(self) -> bool:
        """Keyrings have no locks."""
        return True

    def unlock(self, lock: bool) -> None:  # noqa: FBT001
        """Nothing to do."""


def _lock(descriptor: int) -> None:
    """Lock an open file at once, or raise `OSError`."""
    if os.name == "posix":
        import fcntl  # noqa: PLC0415  # only there

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _read(content: bytes) -> Token:
    token: Token = decoder(Token).decode(content)
    return token


def _written(token: Token) -> bytes:
    return msgspec.json.encode(token, enc_hook=lambda value: value.reveal())
