"""Makes the synchronous client from the asynchronous one: `python sdk/make_sync.py`, or with `--check` only compares.

``_compat.py`` holds what really differs, and is written by hand for each.
"""

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

PACKAGE: Final = Path(__file__).parent / "src" / "tenantry_sdk"
BY_HAND: Final = "_compat.py"
_HEADER: Final = "# Made from _async/{} by sdk/make_sync.py: change that one.\n"
_CHANGES: Final = [
    (r"\basync (def|with|for)\b", r"\1"),
    (r"\bawait ", ""),
    (r"\basynccontextmanager\b", "contextmanager"),
    (r"\bAsyncGenerator\b", "Generator"),
    (r"\bAsyncIterator\b", "Iterator"),
    (r"\b__a(iter|next|enter|exit)__\b", r"__\1__"),
    (r"\baclose\b", "close"),
    (r"\b_async\b", "_sync"),
    (r"\bhttpx2 import AsyncClient\b", "httpx2 import Client"),
    (r"\bAsync([A-Z]\w*)\b", r"\1"),
    (r"asynchronous", "synchronous"),
    (r" \(asyncio and trio\)", ""),
]


def synchronous(source: str, name: str) -> str:
    """The synchronous text of an asynchronous module."""
    for pattern, replacement in _CHANGES:
        source = re.sub(pattern, replacement, source)
    return _HEADER.format(name) + source


def formatted(source: str) -> str:
    """The text as the rest of the code is formatted."""
    command = [sys.executable, "-m", "ruff"]
    fixed = _piped([*command, "check", "--quiet", "--fix", "--select", "I", "--stdin-filename", "_.py", "-"], source)
    return _piped([*command, "format", "--stdin-filename", "_.py", "-"], fixed)


def _piped(command: list[str], text: str) -> str:
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout  # noqa: S603


def main(*, check: bool) -> int:
    """Write the synchronous modules, or say which ones are not what they should be."""
    stale = []
    for source in sorted((PACKAGE / "_async").glob("*.py")):
        if source.name == BY_HAND:
            continue
        target = PACKAGE / "_sync" / source.name
        text = formatted(synchronous(source.read_text(), source.name))
        if not target.exists() or target.read_text() != text:
            stale.append(target)
            if not check:
                target.write_text(text)
    for target in stale:
        sys.stderr.write(f"{target}: {'is not what _async says' if check else 'made'}\n")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main(check="--check" in sys.argv[1:]))
