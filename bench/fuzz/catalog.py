"""All targets by name; each imports its parser."""

from importlib import import_module
from typing import Final

from bench.fuzz.target import Target

NAMES: Final = {
    "signature": "provider",
    "event": "provider",
    "subscription": "provider",
    "provider-list": "provider",
    "api-key": "credentials",
    "cursor": "credentials",
    "cursor-content": "credentials",
    "cookies": "credentials",
    "headers": "credentials",
    "log-line": "credentials",
    "token": "identity",
    "token-content": "identity",
    "jwks": "identity",
    "discovery": "identity",
    "userinfo": "identity",
    "sign-in": "identity",
    "sdk-answer": "sdk",
    "sdk-token": "sdk",
    "sdk-webhook": "sdk",
    "terminal": "sdk",
    "http": "lines",
    "http-overloaded": "lines",
}
"""The module of each target."""


def target(name: str) -> Target:
    """Import and return a target."""
    targets: tuple[Target, ...] = import_module(f"bench.fuzz.{NAMES[name]}").TARGETS
    return next(one for one in targets if one.name == name)
