"""Finding keys in bytes, in streams and in trees of files."""

import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from tenantry.auth.key_scan import LINE_REACH, LeakedKey, ScanResult, find_in_stream, scan
from tenantry.cli.key_scan import excluded_by
from tenantry.domain.access import Mode
from tenantry.domain.api_keys import compose_secret
from tenantry.domain.key_scan import find_keys, may_hold_key

KEY: Final = compose_secret(Mode.LIVE, bytes(range(32)))
TEST_KEY: Final = compose_secret(Mode.TEST, bytes(range(32)))
BLOCK: Final = 1024 * 1024


def offsets(text: bytes) -> list[int]:
    """Where keys begin; the quick look must agree that there may be some."""
    found = [one.offset for one in find_keys(text)]
    assert not found or may_hold_key(text, len(text))
    return found


def in_stream(text: bytes, most: int = BLOCK) -> list[tuple[int, int]]:
    """Line and column of each key in a stream that gives at most so many bytes at a time."""
    stream = io.BytesIO(text)
    keys, size = find_in_stream("a", lambda wanted: stream.read(min(most, wanted)))
    assert size == len(text)
    return [(key.line, key.column) for key in keys]


def in_files(*paths: Path | str, globs: Sequence[str] = (), processes: int = 1) -> ScanResult:
    total = ScanResult()
    for result in scan([str(path) for path in paths], excluded_by(globs), processes):
        total.add(result)
    return total


def paths_in(found: ScanResult, folder: Path) -> list[str]:
    return [str(Path(key.path).relative_to(folder)) for key in found.keys]


@pytest.mark.parametrize("key", [KEY, TEST_KEY])
@pytest.mark.parametrize(
    ("before", "after"),
    [("", ""), ('token = "', '"'), ("x", "x"), ("Bearer ", "\n"), ("svc_live_", ""), ("\x00\xff", "\x00"), ("é", "é")],
)
def test_key_is_found_wherever_it_stands(key: str, before: str, after: str) -> None:
    assert offsets(f"{before}{key}{after}".encode()) == [len(before.encode())]


def test_only_its_first_and_last_characters_are_given() -> None:
    [found] = find_keys(KEY.encode())
    assert (found.start, found.last4) == (KEY[:13], KEY[-4:])


@pytest.mark.parametrize("position", [9, 30, 51, 52, 57])
def test_wrong_checksum_is_no_key(position: int) -> None:
    other = "0" if KEY[position] != "0" else "1"
    assert offsets(f"{KEY[:position]}{other}{KEY[position + 1 :]}".encode()) == []


@pytest.mark.parametrize("text", [KEY[:-1], KEY[1:], KEY.replace("svc", "SVC"), KEY.replace("live", "prod"), ""])
def test_what_is_not_a_whole_key_is_none(text: str) -> None:
    assert offsets(text.encode()) == []


def test_key_that_begins_in_what_looked_like_another_is_found() -> None:
    assert offsets(b"svc_live_" + b"A" * 46 + KEY.encode()) == [55]


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-16"])
def test_key_in_utf_16_is_found(encoding: str) -> None:
    assert len(offsets(f"first\nkey: {KEY}\n".encode(encoding))) == 1


def test_keys_in_both_widths_come_in_order() -> None:
    text = KEY.encode() + KEY.encode("utf-16-le") + KEY.encode()
    assert offsets(text) == [0, 58, 58 * 3]


def test_place_is_the_line_and_the_byte_in_it() -> None:
    assert in_stream(f"é\n  {KEY} {KEY}\n\n{KEY}".encode()) == [(2, 3), (2, 62), (4, 1)]


def test_places_are_right_on_long_lines_full_of_keys() -> None:
    many = 5 * BLOCK // 4 // len(KEY)
    columns = [1 + number * len(KEY) for number in range(many)]
    text = b"\n".join([b"a", KEY.encode() * many, b"", b"b" + KEY.encode() * many])
    assert in_stream(text) == [(2, column) for column in columns] + [(4, column + 1) for column in columns]


@pytest.mark.parametrize("shift", [0, 1, 8, 9, 57, 58, 115, LINE_REACH - 1, LINE_REACH, LINE_REACH + 116])
def test_key_across_the_border_of_two_blocks_is_found_once(shift: int) -> None:
    text = b"a\n" * 10 + b"b" * (BLOCK - 20 - shift) + KEY.encode() + b"\n" + b"c" * BLOCK + b"\n" + KEY.encode()
    assert in_stream(text) == [(11, BLOCK - 20 - shift + 1), (13, 1)]


def test_stream_that_gives_little_at_a_time_is_looked_through_all_the_same() -> None:
    line = b"some text\n" * 50
    text = (line + KEY.encode() + b"\n") * 40
    assert in_stream(text, most=333) == [(51 * number, 1) for number in range(1, 41)]


def test_wide_key_across_the_border_is_found(tmp_path: Path) -> None:
    text = b"\0b" * (BLOCK // 2 - 20) + KEY.encode("utf-16-be")
    assert len(in_stream(text)) == 1


@pytest.mark.parametrize("line", [f"{KEY} # tenantry:allow", f"/* tenantry:allow */ {KEY} {TEST_KEY}"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_line_that_says_so_is_let_pass(line: str, encoding: str) -> None:
    assert len(in_stream(f"{line}\n{KEY}\n".encode(encoding))) == 1


def test_permission_on_another_line_does_not_count() -> None:
    assert in_stream(f"tenantry:allow\n{KEY}\ntenantry:allow".encode()) == [(2, 1)]


def test_permission_far_away_on_a_long_line_does_not_count() -> None:
    far = b"x" * (LINE_REACH + 200)
    assert in_stream(b"tenantry:allow" + far + KEY.encode() + far + b"tenantry:allow") == [(1, LINE_REACH + 215)]


def test_tree_is_looked_through_in_order(tmp_path: Path) -> None:
    for name in ("b/two.txt", "a/one.bin", "top.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"\0\xff" + KEY.encode())
    (tmp_path / "empty").touch()
    found = in_files(tmp_path)
    assert paths_in(found, tmp_path) == ["top.txt", "a/one.bin", "b/two.txt"]
    assert (found.files, found.bytes, found.unreadable) == (4, 3 * 60, [])


def test_large_file_is_looked_through_to_its_end(tmp_path: Path) -> None:
    large = tmp_path / "large"
    with large.open("wb") as file:
        file.truncate(40_000_000)
        file.seek(0, os.SEEK_END)
        file.write(b"\n" + KEY.encode())
    found = in_files(large)
    assert found.keys == [LeakedKey(str(large), 2, 1, KEY[:13], KEY[-4:])]
    assert found.bytes == 40_000_059


def test_key_across_the_border_of_two_reads_is_found(tmp_path: Path) -> None:
    for distance in range(250):
        text = KEY.encode("utf-16-le") if distance % 2 else KEY.encode()
        (tmp_path / "file").write_bytes(b"x" * (256 * 1024 - distance) + text + b"y" * 300_000)
        assert len(in_files(tmp_path).keys) == 1, f"a key that begins {distance} bytes before the border"


def test_folders_of_git_are_passed_over_and_files_in_them_can_be_named(tmp_path: Path) -> None:
    hidden = tmp_path / "sub" / ".git" / "config"
    hidden.parent.mkdir(parents=True)
    hidden.write_text(KEY)
    assert in_files(tmp_path).keys == []
    assert len(in_files(hidden).keys) == 1


def test_links_in_a_folder_are_not_followed_and_a_link_that_is_named_is(tmp_path: Path) -> None:
    outside, tree = tmp_path / "outside", tmp_path / "tree"
    outside.mkdir()
    tree.mkdir()
    (outside / "file").write_text(KEY)
    (tree / "to-file").symlink_to(outside / "file")
    (tree / "to-folder").symlink_to(outside)
    (tree / "loop").symlink_to(tree)
    (tree / "broken").symlink_to("nowhere")
    assert in_files(tree) == ScanResult()
    assert len(in_files(tree / "to-file").keys) == 1


def test_pipe_in_a_folder_stops_nothing_and_one_that_is_named_is_told(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert in_files(tmp_path) == ScanResult()
    assert [one.reason for one in in_files(pipe).unreadable] == ["Not a file or folder"]


def test_what_is_not_there_is_told(tmp_path: Path) -> None:
    [missing] = in_files(tmp_path / "nowhere").unreadable
    assert (missing.path, missing.reason) == (str(tmp_path / "nowhere"), "No such file or directory")


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
def test_globs_leave_out_names_and_paths(tmp_path: Path, globs: list[str], left: list[str]) -> None:
    for name in ("a.py", "lib/b.py", "lib/vectors/c.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(KEY)
    assert paths_in(in_files(tmp_path, globs=globs), tmp_path) == left


def test_glob_is_about_files_that_are_named_too(tmp_path: Path) -> None:
    (tmp_path / "a.lock").write_text(KEY)
    assert in_files(tmp_path / "a.lock", globs=["*.lock"]) == ScanResult()
