"""The metadata of a key as a form shows it: a name and a value a line, or JSON."""

from collections.abc import Mapping

import msgspec

from tenantry.common.encoding import NOT_JSON
from tenantry.dashboard.forms import InvalidFormError

_NOT_LINES = "Use one line for each, such as team=growth."


def metadata_text(metadata: Mapping[str, str]) -> str:
    """Return metadata as lines of ``name=value``; as JSON if lines cannot hold all of it."""
    lines = "\n".join(map("=".join, metadata.items()))
    is_exact = not lines.startswith("{") and _parse_lines(lines) == metadata
    return lines if is_exact else msgspec.json.encode(metadata).decode()


def parse_metadata(text: str) -> dict[str, str]:
    """Parse what `metadata_text` returns. Raises `InvalidFormError`."""
    if text.startswith("{"):
        return _parse_json(text)
    metadata = _parse_lines(text)
    if metadata is None:
        raise InvalidFormError({"metadata": _NOT_LINES})
    return metadata


def _parse_lines(text: str) -> dict[str, str] | None:
    """Return None if a line has no name or no value, or if two have one name."""
    lines = [line for line in text.split("\n") if line.strip()]
    metadata = {}
    for line in lines:
        name, separator, value = line.partition("=")
        if not separator:
            return None
        metadata[name.strip()] = value.strip()
    return metadata if len(metadata) == len(lines) else None


def _parse_json(text: str) -> dict[str, str]:
    try:
        return msgspec.json.decode(text, type=dict[str, str])
    except NOT_JSON:
        raise InvalidFormError({"metadata": "Use a JSON object of strings."}) from None
