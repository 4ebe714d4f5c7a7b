"""Browsers in words, from what they call themselves."""

import re
from typing import Final

# In this order: most browsers also name those that they descend from.
_BROWSERS: Final = (
    (r"Edg(?:e|A|iOS)?/", "Edge"),
    (r"OPR/|Opera", "Opera"),
    (r"SamsungBrowser/", "Samsung Internet"),
    (r"Vivaldi/", "Vivaldi"),
    (r"Firefox/|FxiOS/", "Firefox"),
    (r"Chrome/|CriOS/|Chromium/", "Chrome"),
    (r"Version/.*Safari/", "Safari"),
)
_SYSTEMS: Final = (
    (r"iPhone", "an iPhone"),
    (r"iPad", "an iPad"),
    (r"Android", "Android"),
    (r"CrOS", "ChromeOS"),
    (r"Windows", "Windows"),
    (r"Macintosh|Mac OS X", "a Mac"),
    (r"Linux|X11", "Linux"),
)


def browser_in_words(agent: str | None) -> str:
    """What a ``User-Agent`` probably is, such as "Firefox on Linux"."""
    browser, system = _first(_BROWSERS, agent or ""), _first(_SYSTEMS, agent or "")
    if browser is None:
        return f"A browser on {system}" if system else "An unknown browser"
    return f"{browser} on {system}" if system else browser


def _first(patterns: tuple[tuple[str, str], ...], agent: str) -> str | None:
    return next((name for pattern, name in patterns if re.search(pattern, agent)), None)
