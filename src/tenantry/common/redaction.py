"""Masks credentials in texts. The client's commands have this file too, by a link.

It masks API keys of any prefix (``svc_``, ``..._live_`` or ``..._test_``); credentials with another
known prefix (``whsec_``, ``sk_`` or ``rk_``, ``eyJ``); the link of an invitation; and user and
password in a URL.
"""

import re
from typing import Final

MASK: Final = "[redacted]"
_CREDENTIAL: Final = re.compile(
    r"svc_(?:[a-z]{1,16}_)?[A-Za-z0-9]{20,}"
    r"|[a-z0-9]{2,16}_(?:live|test)_[A-Za-z0-9]{20,}"
    r"|whsec_[A-Za-z0-9_+/=%-]{8,}"
    r"|(?<![A-Za-z0-9_])[sr]k_(?:(?:live|test)_[A-Za-z0-9_]{8,}|[A-Za-z0-9_]{16,})"
    r"|eyJ[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)*"
    r"|(?<=inv_)[0-9a-f]{32}\.[A-Za-z0-9_-]{43}(?:(?:&|&amp;|%26)proof(?:=|%3D)[A-Za-z0-9_-]+)?"
    r"|(?<=://)[^/\s:@]*:[^/\s]+(?=@)"
)
# parts of every credential; faster to find than the expression
_HINTS: Final = ("svc_", "_live_", "_test_", "whsec_", "k_", "eyJ", "inv_", "://")


def redact(text: str) -> str:
    """Mask credentials with a known prefix, and user and password in a URL."""
    if any(hint in text for hint in _HINTS):
        return _CREDENTIAL.sub(MASK, text)
    return text
