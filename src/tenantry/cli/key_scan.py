"""``tenantry keys scan``: API keys that lie where they should not."""

import fnmatch
import io
import os
import re
import sys
from collections.abc import Sequence

import click
import msgspec

from tenantry.auth.key_scan import Excluded, LeakedKey, ScanResult, Unreadable, scan
from tenantry.cli.text import counted, printable

REPORT_PATH = "/api/v1/api-keys/report-leak"
_FOUND = 1
_ADVICE = f"""\
Each of them has a true checksum: it is a key, or was one. Report it, and it is revoked at once and its owner told:
  curl -H 'Content-Type: application/json' --data @- BASE_URL{REPORT_PATH}
and type {{"secret": "the whole key"}}, Return and Ctrl-D. Then take it out of the file, and of the history.
If it is meant to be there, such as a test vector: write tenantry:allow on the same line."""


@click.command("scan")
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=click.Path())
@click.option("--exclude", "globs", metavar="GLOB", multiple=True, help="Leave out files and folders named so.")
@click.option("--json", "as_json", is_flag=True, help="What was found as one JSON document.")
def scan_command(paths: tuple[str, ...], *, globs: tuple[str, ...], as_json: bool) -> None:
    """Look for API keys in files and folders (- is standard input), as a hook does before a commit.

    Whatever has the form of a key and a true checksum is found, in text, UTF-16 and binary files of any size. Works
    offline, and needs no settings. Folders named .git are passed over, symbolic links in folders are not followed, and
    a line with tenantry:allow is let pass. A glob without / is for names at any depth, one with / for paths below PATH.

    Exits with 0 if there is none, and with 1 if there is one or something could not be read.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # the name of a file may be any bytes
    total = ScanResult()
    for result in scan(paths, excluded_by(globs)):
        if not as_json:
            for key in result.keys:
                click.echo(_line(key))
        total.add(result)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(_printable(total)), indent=2).decode())
    for one in total.unreadable:
        click.echo(f"{printable(one.path)}: cannot be read: {one.reason}", err=True)
    click.echo(_summary(total), err=True)
    sys.exit(_FOUND if total.keys or total.unreadable else 0)


def excluded_by(globs: Sequence[str]) -> Excluded:
    """What any of these globs is about."""
    names = [glob for glob in globs if "/" not in glob.rstrip("/")]
    paths = [glob for glob in globs if glob not in names]
    if not globs:
        return lambda _: False
    by_name, by_path = _any_of(names), _any_of(paths)
    return lambda path: bool(by_name.fullmatch(os.path.basename(path)) or by_path.fullmatch(path))  # noqa: PTH119


def _any_of(globs: Sequence[str]) -> re.Pattern[str]:
    return re.compile("|".join(fnmatch.translate(glob.strip("/")) for glob in globs) or r"(?!)")


def _line(key: LeakedKey) -> str:
    return f"{printable(key.path)}:{key.line}:{key.column}: {key.start}...{key.last4}"


def _summary(total: ScanResult) -> str:
    looked = f"{counted(total.files, 'file')}, {total.bytes / 1e6:,.1f} MB"
    if not total.keys:
        return f"No API key in {looked}."
    files = len({key.path for key in total.keys})
    return f"{counted(len(total.keys), 'API key')} in {counted(files, 'file')} ({looked} looked through).\n{_ADVICE}"


def _printable(total: ScanResult) -> ScanResult:
    """The same with paths that are text: a file's name may be any bytes."""
    return ScanResult(
        [msgspec.structs.replace(key, path=printable(key.path)) for key in total.keys],
        [Unreadable(printable(one.path), one.reason) for one in total.unreadable],
        total.files,
        total.bytes,
    )
