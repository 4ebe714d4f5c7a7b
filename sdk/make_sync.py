"""Generate the synchronous client from the asynchronous one: `python sdk/make_sync.py`; `--check`
only compares.

``_compat.py`` contains the real differences and is written by hand for each.
"""

import io
import re
import subprocess
import sys
import tokenize
from pathlib import Path
from typing import Final

SDK: Final = Path(__file__).resolve().parent
PACKAGE: Final = SDK / "src" / "tenantry_sdk"
BY_HAND: Final = "_compat.py"
_HEADER: Final = "# Generated from _async/{} by sdk/make_sync.py: edit that file.\n"
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
_KEYWORD: Final = re.compile(r"\bawait\b|\basync\b(?! with)")


def synchronous(source: str, name: str) -> str:
    """Return the synchronous version of an asynchronous module.

    Raises `ValueError` if a string or comment contains a keyword that would be removed.
    """
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in {tokenize.STRING, tokenize.COMMENT} and _KEYWORD.search(token.string):
            raise ValueError(
                f"{name}:{token.start[0]}: reword this text without `async` and `await`"
            )
    for pattern, replacement in _CHANGES:
        source = re.sub(pattern, replacement, source)
    return _HEADER.format(name) + source


def formatted(source: str, target: Path) -> str:
    """Return the source formatted by ruff."""
    command, name = [sys.executable, "-m", "ruff"], ["--stdin-filename", str(target), "-"]
    fixed = _piped([*command, "check", "--quiet", "--fix", "--select", "I", *name], source)
    return _piped([*command, "format", *name], fixed)


def _piped(command: list[str], text: str) -> str:
    return subprocess.run(  # noqa: S603  # our own commands
        command, input=text, capture_output=True, text=True, check=True, cwd=SDK.parent
    ).stdout


def main(*, check: bool) -> int:
    """Write the synchronous modules, or report outdated ones."""
    sources = [
        source for source in sorted((PACKAGE / "_async").glob("*.py")) if source.name != BY_HAND
    ]
    generated = {}
    for source in sources:
        target = PACKAGE / "_sync" / source.name
        generated[target] = formatted(synchronous(source.read_text(), source.name), target)
    stale = [
        target
        for target, text in generated.items()
        if not target.exists() or target.read_text() != text
    ]
    extra = {*(PACKAGE / "_sync").glob("*.py")} - generated.keys() - {PACKAGE / "_sync" / BY_HAND}
    if not check:
        for target in stale:
            target.write_text(generated[target])
        for target in extra:
            target.unlink()
    for target in [*stale, *sorted(extra)]:
        sys.stderr.write(
            f"{target}: {'differs from _async: run make format' if check else 'generated'}\n"
        )
    return int(check and bool(stale or extra))


if __name__ == "__main__":
    sys.exit(main(check="--check" in sys.argv[1:]))
