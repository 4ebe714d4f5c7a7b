"""The first requests that customers copy: samples of the operator's API, one a language."""

import re
from collections.abc import Iterator
from typing import Final

import msgspec

MOST_BYTES: Final = 16 * 1024
MOST_SAMPLES: Final = 8
LONGEST_LANGUAGE: Final = 30
_FENCE: Final = re.compile(r" {0,3}(`{3,}|~{3,})(.*)")
_NO_BLOCK: Final = (
    "has no code block: put each sample between lines of ```, with its language after the first"
)


class Sample(msgspec.Struct, frozen=True):
    """A request in one language, with ``{key}`` and ``{base}`` as places for values."""

    language: str
    code: str

    def filled(self, key: str, base: str) -> str:
        """Return the lines with a key, or the variable of one, and the service's address."""
        return self.code.replace("{base}", base).replace("{key}", key)


def parse_samples(content: bytes) -> tuple[Sample, ...]:
    """Read the fenced code blocks of Markdown (CommonMark, section 4.5). The text after an opening
    fence is the language; text outside of code blocks is left out.

    Raises `ValueError`.
    """
    if len(content) > MOST_BYTES:
        raise ValueError(f"has more than {MOST_BYTES // 1024} KiB")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError("is not UTF-8 text") from None
    samples = tuple(_blocks(iter(text.replace("\r\n", "\n").split("\n"))))
    _check(samples)
    return samples


def _blocks(lines: Iterator[str]) -> Iterator[Sample]:
    for line in lines:
        if opening := _FENCE.fullmatch(line):
            fence, language = opening.groups()
            yield Sample(language.strip(), "\n".join(_lines_before(fence, lines)))


def _lines_before(fence: str, lines: Iterator[str]) -> Iterator[str]:
    """Yield the lines of a block; its end has at least the characters of its opening ``fence``."""
    for line in lines:
        text = line.strip()
        if text.startswith(fence) and not text.strip(fence[0]):
            return
        yield line
    raise ValueError(f"has a code block without an end: close it with {fence}")


def _check(samples: tuple[Sample, ...]) -> None:
    if not 1 <= len(samples) <= MOST_SAMPLES:
        raise ValueError(f"has more than {MOST_SAMPLES} code blocks" if samples else _NO_BLOCK)
    seen = set[str]()
    for sample in samples:
        _check_sample(sample)
        if sample.language in seen:
            raise ValueError(f"has two code blocks of {sample.language}")
        seen.add(sample.language)


def _check_sample(sample: Sample) -> None:
    language = sample.language
    if not language or len(language) > LONGEST_LANGUAGE or not language.isprintable():
        raise ValueError(
            f"has a code block whose language is not 1 to {LONGEST_LANGUAGE} printable characters"
        )
    if not sample.code.strip():
        raise ValueError(f"has an empty code block of {language}")
    # bidirectional controls would show other lines than those that are copied
    if not sample.code.replace("\n", "").replace("\t", "").isprintable():
        raise ValueError(f"has characters in {language} that people can't see")
