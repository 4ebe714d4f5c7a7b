"""The product that customers see: its name, its logo, and the accent color of pages."""

import re
from typing import Final

import msgspec

from tenantry.domain.product_samples import Sample

DEFAULT_NAME: Final = "tenantry"
LONGEST_NAME: Final = 40
"""In characters: the name is in titles and in the subjects of mails."""
MOST_LOGO_BYTES: Final = 32 * 1024
"""A third of what a first page may load."""
SMALLEST_LOGO: Final = 16
LARGEST_LOGO: Final = 1024
"""The bounds of each side, in pixels."""
CONTRAST: Final = 4.5
"""The least contrast of text (WCAG 2.2, success criterion 1.4.3)."""
LIGHT_BACKGROUND: Final = "#ededea"
DARK_BACKGROUND: Final = "#262a31"
"""The backgrounds of text that are nearest to it: `--grey-wash` of `base.css`."""
LIGHT_INK: Final = "#fdfdfb"
DARK_INK: Final = "#14161a"
"""The text on buttons of the accent color."""
_STEPS: Final = 64
_COLOR: Final = re.compile(r"#[0-9a-fA-F]{6}")
_PNG: Final = b"\x89PNG\r\n\x1a\n"
_FIRST_CHUNK: Final = b"\0\0\0\rIHDR"
"""The length and name of the chunk that every PNG begins with (PNG specification, 11.2.1)."""


class Accent(msgspec.Struct, frozen=True):
    """The accent color on light and on dark pages, and the text on each."""

    light: str
    on_light: str
    dark: str
    on_dark: str


class Branding(msgspec.Struct, frozen=True):
    """What pages and mails show of the product. ``logo`` is a PNG.

    ``support`` is a web address or a ``mailto:`` address. ``variable`` holds an API key in samples.
    """

    name: str = DEFAULT_NAME
    color: str | None = None
    accent: Accent | None = None
    logo: bytes | None = None
    docs_url: str | None = None
    support: str | None = None
    samples: tuple[Sample, ...] = ()
    variable: str | None = None

    @property
    def is_own(self) -> bool:
        """Whether the operator's product has a name of its own."""
        return self.name != DEFAULT_NAME

    @property
    def key_variable(self) -> str:
        """The environment variable that samples on pages read an API key from."""
        return self.variable or ("API_KEY" if self.is_own else "TENANTRY_API_KEY")

    @property
    def adapted(self) -> str:
        """Say which other colors pages use, if the chosen one has too little contrast; else
        empty.
        """
        accent = self.accent
        if accent is None or {accent.light, accent.dark} == {self.color}:
            return ""
        return (
            f"{self.color} has too little contrast as text on some pages: light pages use {accent.light}, "
            f"dark pages {accent.dark}"
        )


DEFAULT_BRANDING: Final = Branding()


def accent_of(color: str) -> Accent:
    """Return a color for both themes: mixed with black or white until text in it, and text on it,
    can be read.

    Raises `ValueError` unless it is ``#rrggbb``.
    """
    if _COLOR.fullmatch(color) is None:
        raise ValueError("must be a color, # and six hexadecimal digits, such as #0b5d55")
    light = _readable(color, LIGHT_BACKGROUND, toward="#000000")
    dark = _readable(color, DARK_BACKGROUND, toward="#ffffff")
    return Accent(light, _ink_on(light), dark, _ink_on(dark))


def check_logo(content: bytes) -> None:
    """Raise `ValueError` with one message for each fault of a logo.

    Only PNG is accepted: browsers run the scripts of an SVG that is opened by itself.
    """
    if len(content) > MOST_LOGO_BYTES:
        raise ValueError(f"has more than {MOST_LOGO_BYTES // 1024} KiB: every page loads it")
    header = len(_PNG) + len(_FIRST_CHUNK)
    if not content.startswith(_PNG + _FIRST_CHUNK) or len(content) < header + 8:
        raise ValueError(
            "is not a PNG: convert the logo, for example with rsvg-convert --height 96"
        )
    sides = [int.from_bytes(content[at : at + 4]) for at in (header, header + 4)]
    if not all(SMALLEST_LOGO <= side <= LARGEST_LOGO for side in sides):
        shown = " x ".join(map(str, sides))
        raise ValueError(
            f"has {shown} pixels: each side must have {SMALLEST_LOGO} to {LARGEST_LOGO}; 96 are enough for its height"
        )


def contrast(one: str, other: str) -> float:
    """Return the contrast ratio of two colors, 1 to 21 (WCAG 2.2)."""
    lighter, darker = sorted(map(_luminance, (one, other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def _readable(color: str, background: str, toward: str) -> str:
    """Return the color with as little of ``toward`` as text on the background needs."""
    mixed = (_mix(color, toward, step / _STEPS) for step in range(_STEPS + 1))
    return next(one for one in mixed if contrast(one, background) >= CONTRAST)


def _ink_on(color: str) -> str:
    return max(LIGHT_INK, DARK_INK, key=lambda ink: contrast(ink, color))


def _mix(color: str, other: str, share: float) -> str:
    parts = zip(_channels(color), _channels(other), strict=True)
    return "#" + "".join(f"{round(one + (two - one) * share):02x}" for one, two in parts)


def _channels(color: str) -> list[int]:
    return list(bytes.fromhex(color[1:]))


def _luminance(color: str) -> float:
    """Return the relative luminance, 0 to 1 (WCAG 2.2)."""
    red, green, blue = (_linear(channel / 255) for channel in _channels(color))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def _linear(channel: float) -> float:
    return channel / 12.92 if channel <= 0.04045 else ((channel + 0.055) / 1.055) ** 2.4  # noqa: PLR2004  # of sRGB
