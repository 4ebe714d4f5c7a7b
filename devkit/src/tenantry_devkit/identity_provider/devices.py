"""Sign-ins of devices that have no browser of their own (RFC 8628): codes that a person enters elsewhere."""

import secrets
from datetime import datetime, timedelta
from typing import Final

import msgspec

from tenantry.common.clock import Clock
from tenantry_devkit.identity_provider.grants import Grant, OAuthError

DEVICE_GRANT: Final = "urn:ietf:params:oauth:grant-type:device_code"
LIFETIME: Final = timedelta(minutes=10)
INTERVAL: Final = timedelta(seconds=1)
"""How long a device has to wait between two questions: short, since there is one developer and no load."""
_SLOWER: Final = timedelta(seconds=5)
# RFC 8628 section 6.1: no vowels, so no words, and nothing that is taken for something else.
_LETTERS: Final = "BCDFGHJKLMNPQRSTVWXZ"


class _Device(msgspec.Struct):
    user_code: str
    scopes: tuple[str, ...]
    expires_at: datetime
    next_question: datetime
    interval: timedelta = INTERVAL
    grant: Grant | None = None
    is_denied: bool = False


class Devices:
    """Device codes, in memory, each for one sign-in within ten minutes."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._devices: dict[str, _Device] = {}

    def begin(self, scopes: tuple[str, ...]) -> tuple[str, str]:
        """A device code, and the user code that goes with it."""
        now = self._clock()
        self._devices = {code: device for code, device in self._devices.items() if device.expires_at > now}
        letters = "".join(secrets.choice(_LETTERS) for _ in range(8))
        user_code, device_code = f"{letters[:4]}-{letters[4:]}", secrets.token_urlsafe(32)
        self._devices[device_code] = _Device(user_code, scopes, now + LIFETIME, now + INTERVAL)
        return device_code, user_code

    def is_waiting(self, user_code: str) -> bool:
        """Whether somebody may enter this code now."""
        return self._waiting(user_code) is not None

    def decide(self, user_code: str, grant: Grant | None) -> bool:
        """Let the device act so, or deny it; whether there was one that waited. The scopes are those it asked for."""
        device = self._waiting(user_code)
        if device is None:
            return False
        device.is_denied = grant is None
        device.grant = None if grant is None else msgspec.structs.replace(grant, scopes=device.scopes)
        return True

    def ask(self, device_code: str) -> Grant:
        """What the device may do, once. Raises `OAuthError` as long as that is not decided, and ever after."""
        now, device = self._clock(), self._devices.get(device_code)
        if device is None:
            raise OAuthError("invalid_grant", "The device code is unknown or was used before.")
        if device.expires_at <= now:
            raise OAuthError("expired_token", "The device code has expired.")
        if device.is_denied:
            raise OAuthError("access_denied", "The sign-in was denied.")
        if device.grant is not None:
            del self._devices[device_code]
            return device.grant
        too_soon = now < device.next_question
        if too_soon:
            device.interval += _SLOWER
        device.next_question = now + device.interval
        if too_soon:
            raise OAuthError("slow_down", "The device asks too often.")
        raise OAuthError("authorization_pending", "Nobody has entered the code yet.")

    def _waiting(self, user_code: str) -> _Device | None:
        wanted, now = _plain(user_code), self._clock()
        for device in self._devices.values():
            decided = device.is_denied or device.grant is not None
            if _plain(device.user_code) == wanted and device.expires_at > now and not decided:
                return device
        return None


def _plain(user_code: str) -> str:
    """The letters alone: people leave the hyphen out, and type in lower case."""
    return "".join(letter for letter in user_code.upper() if letter in _LETTERS)
