"""The key scanner on bytes, streams and folders, and the rules for other secret scanners."""

import ast
import io
import itertools
import re
import tomllib
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from tenantry.cli.key_scan import ScanReport, list_files, scan_stream
from tenantry.domain.api_keys import DEFAULT_FORMAT, KeyFormat
from tenantry.domain.permissions import Mode
from tests.support.cases import cases

KEY: Final = DEFAULT_FORMAT.compose(Mode.LIVE, bytes(range(32)))
TEST_KEY: Final = DEFAULT_FORMAT.compose(Mode.TEST, bytes(range(32)))
BLOCK: Final = 1024 * 1024
REACH: Final = 4096
RULES: Final = Path(__file__).parents[2] / "examples" / "secret-scanners"


def scanned(text: bytes) -> list[dict[str, Any]]:
    """Scan a stream and return the rows of its keys."""
    report = ScanReport()
    scan_stream(io.BytesIO(text), "a", report)
    assert (report.files, report.bytes) == (1, len(text))
    return [msgspec.to_builtins(key) for key in report.keys]


def places(text: bytes) -> list[tuple[int, int]]:
    """Line and column of each key."""
    return [(key["line"], key["column"]) for key in scanned(text)]


def no_error(error: OSError) -> None:
    raise error


def files_in(path: Path, *globs: str) -> list[str]:
    errors: list[OSError] = []
    found = list_files(str(path), globs, errors.append)
    files = [str(Path(file).relative_to(path)) for file in found]
    assert not errors
    return files


@cases("key", [KEY, TEST_KEY])
@cases(
    ("before", "after"),
    [
        ("", ""),
        ('token = "', '"'),
        ("x", "x"),
        ("Bearer ", "\n"),
        ("svc_live_", ""),
        ("\x00\xff", "\x00"),
        ("é", "é"),
    ],
)
def test_key_is_found_between_any_characters(key: str, before: str, after: str) -> None:
    assert places(f"{before}{key}{after}".encode()) == [(1, len(before.encode()) + 1)]


def test_report_shows_only_the_first_and_last_characters() -> None:
    assert scanned(KEY.encode()) == [
        {"path": "a", "line": 1, "column": 1, "start": KEY[:13], "last4": KEY[-4:]}
    ]


@cases("encoding", ["utf-8", "utf-16-le", "utf-16-be"])
def test_key_with_any_prefix_is_found_where_it_begins(encoding: str) -> None:
    for prefix, before in itertools.product(
        ("ab", "acme", "0123456789abcdef"),
        ("", "key=", "x", "test", "acme_live_", "\\n", "0123456789abcdef"),
    ):
        key = KeyFormat(prefix).compose(Mode.LIVE, bytes(range(32)))
        [found] = scanned(f"first line\n{before}{key}x".encode(encoding))
        column = len(before.encode(encoding)) + 1
        if encoding != "utf-8":
            column += 1  # of the line's end, or of the first character
        assert (found["line"], found["column"]) == (2, column), (prefix, before)
        assert (found["start"], found["last4"]) == (key[: len(prefix) + 10], key[-4:]), before


@cases("position", [9, 30, 51, 52, 57])
def test_wrong_checksum_is_not_a_key(position: int) -> None:
    other = "0" if KEY[position] != "0" else "1"
    assert places(f"{KEY[:position]}{other}{KEY[position + 1 :]}".encode()) == []


@cases("text", [KEY[:-1], KEY[1:], KEY.replace("svc", "SVC"), KEY.replace("live", "prod"), ""])
def test_part_of_a_key_is_not_a_key(text: str) -> None:
    assert places(text.encode()) == []


def test_key_inside_the_start_of_a_lookalike_is_found() -> None:
    assert places(b"svc_live_" + b"A" * 46 + KEY.encode()) == [(1, 56)]


@cases("encoding", ["utf-16-le", "utf-16-be", "utf-16"])
def test_key_in_utf_16_is_found(encoding: str) -> None:
    assert [line for line, _ in places(f"first\nkey: {KEY}\n".encode(encoding))] == [2]


def test_keys_in_both_encodings_are_in_order() -> None:
    assert places(KEY.encode() + KEY.encode("utf-16-le") + KEY.encode()) == [
        (1, 1),
        (1, 59),
        (1, 175),
    ]


def test_lines_and_columns_count_from_one_and_columns_in_bytes() -> None:
    assert places(f"é\n  {KEY} {KEY}\n\n{KEY}".encode()) == [(2, 3), (2, 62), (4, 1)]


@pytest.mark.thorough
def test_lines_longer_than_a_block_have_correct_columns() -> None:
    many = 5 * BLOCK // 4 // len(KEY)
    columns = [1 + number * len(KEY) for number in range(many)]
    text = b"\n".join([b"a", KEY.encode() * many, b"", b"b" + KEY.encode() * many])
    assert places(text) == [(2, column) for column in columns] + [
        (4, column + 1) for column in columns
    ]


@cases("shift", [0, 1, 8, 9, 57, 58, 115, REACH - 1, REACH, REACH + 116])
def test_key_across_two_blocks_is_found_once(shift: int) -> None:
    text = (
        b"a\n" * 10
        + b"b" * (BLOCK - 20 - shift)
        + KEY.encode()
        + b"\n"
        + b"c" * BLOCK
        + b"\n"
        + KEY.encode()
    )
    assert places(text) == [(11, BLOCK - 20 - shift + 1), (13, 1)]


def test_utf_16_key_across_two_blocks_is_found() -> None:
    assert len(places(b"\0b" * (BLOCK // 2 - 20) + KEY.encode("utf-16-be"))) == 1


@cases("line", [f"{KEY} # tenantry:allow", f"/* tenantry:allow */ {KEY} {TEST_KEY}"])
@cases("encoding", ["utf-8", "utf-16"])
def test_allow_mark_skips_its_line(line: str, encoding: str) -> None:
    assert len(places(f"{line}\n{KEY}\n".encode(encoding))) == 1


def test_allow_mark_has_no_effect_on_other_lines() -> None:
    assert places(f"tenantry:allow\n{KEY}\ntenantry:allow".encode()) == [(2, 1)]


def test_distant_allow_mark_on_a_long_line_has_no_effect() -> None:
    far = b"x" * (REACH + 200)
    assert places(b"tenantry:allow" + far + KEY.encode() + far + b"tenantry:allow") == [
        (1, REACH + 215)
    ]


def test_files_are_listed_in_order(tmp_path: Path) -> None:
    write(tmp_path, "b/two.txt", "a/one.bin", "top.txt", "empty", ".git/config", "a/.git/config")
    assert files_in(tmp_path) == ["empty", "top.txt", "a/one.bin", "b/two.txt"]


def test_links_in_folders_are_skipped_and_named_links_followed(tmp_path: Path) -> None:
    write(tmp_path, "outside/file")
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "to-file").symlink_to(tmp_path / "outside" / "file")
    (tree / "to-folder").symlink_to(tmp_path / "outside")
    (tree / "loop").symlink_to(tree)
    (tree / "broken").symlink_to("nowhere")
    assert files_in(tree) == []
    assert files_in(tree / "to-folder") == ["file"]
    assert list(list_files(str(tree / "to-file"), (), no_error)) == [str(tree / "to-file")]


@pytest.mark.parametrize(
    ("globs", "left"),
    [
        ([], ["a.py", "lib/b.py", "lib/vectors/c.json"]),
        (["*.py"], ["lib/vectors/c.json"]),
        (["vectors"], ["a.py", "lib/b.py"]),
        (["lib/"], ["a.py"]),
        (["lib/*.py"], ["a.py", "lib/vectors/c.json"]),
        (["/a.py", "c.*"], ["lib/b.py"]),
        (["vectors/c.json"], ["a.py", "lib/b.py", "lib/vectors/c.json"]),
    ],
)
def test_globs_exclude_names_and_paths(tmp_path: Path, globs: list[str], left: list[str]) -> None:
    write(tmp_path, "a.py", "lib/b.py", "lib/vectors/c.json")
    assert files_in(tmp_path, *globs) == left


def test_globs_apply_to_named_files(tmp_path: Path) -> None:
    write(tmp_path, "a.lock")
    assert list(list_files(str(tmp_path / "a.lock"), ("*.lock",), no_error)) == []


def write(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


def gitleaks_rule() -> dict[str, Any]:
    [rule] = tomllib.loads((RULES / "gitleaks.toml").read_text())["rules"]
    return dict(rule)


def detect_secrets_patterns() -> list[str]:
    tree = ast.parse((RULES / "detect_secrets_plugin.py").read_text())
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    return [str(ast.literal_eval(call.args[0])) for call in calls]


def found_by(patterns: list[str], text: str) -> list[str]:
    return [found for pattern in patterns for found in re.findall(pattern, text)]


PATTERNS: Final = {
    "gitleaks": [gitleaks_rule()["regex"]],
    "detect-secrets": detect_secrets_patterns(),
}


@cases("scanner", PATTERNS)
@cases("prefix", ["svc", "acme", "0123456789abcdef"])
def test_rules_for_other_scanners_match_keys_and_nothing_shorter(scanner: str, prefix: str) -> None:
    patterns = PATTERNS[scanner]
    for mode in Mode:
        for first in range(100):
            key = KeyFormat(prefix).compose(mode, bytes([first]) * 32)
            assert found_by(patterns, f'token = "{key}"; x') == [key]
            assert found_by(patterns, key[:-1]) == []


@pytest.mark.parametrize("scanner", PATTERNS)
def test_rules_for_other_scanners_match_no_key_of_the_payment_provider(scanner: str) -> None:
    assert found_by(PATTERNS[scanner], f"sk_live_51{'aB3' * 35}") == []


def test_gitleaks_rule_is_restricted_to_lines_without_the_allow_mark() -> None:
    rule = gitleaks_rule()
    assert all(any(word in key for word in rule["keywords"]) for key in (KEY, TEST_KEY))
    [allowed] = rule["allowlists"]
    assert (allowed["regexTarget"], allowed["regexes"]) == ("line", ["tenantry:allow"])
