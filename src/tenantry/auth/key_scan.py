"""Looking for API keys in files and folders, without any connection."""

import errno
import os
import signal
import stat
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec

from tenantry.domain.key_scan import LONGEST, find_keys, may_hold_key

ALLOWED: Final = b"tenantry:allow"
"""A key on a line with this is not reported."""
LINE_REACH: Final = 4096
"""How many bytes before and after a key `ALLOWED` counts, where lines are longer."""
STDIN: Final = "-"

_SKIPPED: Final = ".git"
_BUFFER: Final = 256 * 1024
_BLOCK: Final = 1024 * 1024
_BATCH_FILES: Final = 256
_BATCH_BYTES: Final = 32 * 1024 * 1024
_ALONE: Final = 2
"""So many batches are scanned before it pays to start further processes."""
_MOST_PROCESSES: Final = 8
_READ: Final = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
_NO_LINK: Final = getattr(os, "O_NOFOLLOW", 0)

Excluded = Callable[[str], bool]
"""Whether a file or folder is left out, by its name or its path below where the search began."""
Read = Callable[[int], bytes]


class LeakedKey(msgspec.Struct, frozen=True):
    """A key in a file: the line and the byte in it, both from 1, and the characters that tell keys apart."""

    path: str
    line: int
    column: int
    start: str
    last4: str


class Unreadable(msgspec.Struct, frozen=True):
    """A file or folder that could not be read, and why."""

    path: str
    reason: str


class ScanResult(msgspec.Struct):
    """What was found in some files."""

    keys: list[LeakedKey] = []
    unreadable: list[Unreadable] = []
    files: int = 0
    bytes: int = 0

    def add(self, other: "ScanResult") -> None:
        """Take in what was found in further files."""
        self.keys += other.keys
        self.unreadable += other.unreadable
        self.files += other.files
        self.bytes += other.bytes


class _File(msgspec.Struct, frozen=True):
    path: str
    named: bool
    """By the caller, who may name a symbolic link; those met on the way are not followed."""


def scan(paths: Sequence[str], excluded: Excluded, processes: int | None = None) -> Iterator[ScanResult]:
    """Look through files and folders, ``-`` being standard input; results come in order, some files at a time.

    ``processes`` is how many to share the work among, at most; as many as there are processors where it is None.
    Folders named ``.git`` are passed over, and symbolic links below a folder are not followed.
    """
    most = min(os.cpu_count() or 1, _MOST_PROCESSES) if processes is None else processes
    found = ScanResult()
    batches = _batches(paths, excluded, found)
    for _, batch in zip(range(_ALONE if most > 1 else sys.maxsize), batches, strict=False):
        yield scan_files(batch)
    if most > 1 and (first := next(batches, None)) is not None:
        yield from _scan_together(first, batches, most)
    yield found


def scan_files(batch: "Sequence[_File]") -> ScanResult:
    """Look through these files."""
    result, buffer = ScanResult(), bytearray(_BUFFER)
    for file in batch:
        if file.path == STDIN:
            keys, size = find_in_stream(STDIN, sys.stdin.buffer.read)
            _take(result, keys, size)
            continue
        try:
            _scan_file(file, buffer, result)
        except OSError as error:
            if error.errno != errno.ENOENT or file.named:  # what is gone by now is not there
                result.unreadable.append(Unreadable(file.path, error.strerror or type(error).__name__))
    return result


def find_in_stream(path: str, read: Read) -> tuple[list[LeakedKey], int]:
    """Every key in what ``read`` gives until it gives nothing, and how many bytes that were."""
    keys = list[LeakedKey]()
    window, base, done = b"", 0, 0  # where the window begins in the whole, and what of it has been looked at
    lines, line_start = 0, 0  # before the window: lines ended, and where the last one began
    while True:
        block = read(_BLOCK)
        window += block
        end = len(window) - LINE_REACH - LONGEST if block else len(window)
        counted, newline = 0, -1  # how far lines are counted, and where the last one ended
        number = lines + 1
        for found in find_keys(window):
            if not done <= found.offset < end:
                continue
            if ended := window.count(b"\n", counted, found.offset):
                number += ended
                newline = window.rfind(b"\n", counted, found.offset)
            counted = found.offset
            if _is_allowed(window, newline + 1, found.offset, wide=found.wide):
                continue
            begin = base + newline + 1 if newline >= 0 else line_start
            keys.append(LeakedKey(path, number, base + found.offset - begin + 1, found.start, found.last4))
        if not block:
            return keys, base + len(window)
        cut = max(0, end - LINE_REACH)
        lines += window.count(b"\n", 0, cut)
        if (newline := window.rfind(b"\n", 0, cut)) >= 0:
            line_start = base + newline + 1
        window, base, done = window[cut:], base + cut, max(done, end) - cut


def _is_allowed(window: bytes, line_start: int, offset: int, *, wide: bool) -> bool:
    line_end = window.find(b"\n", offset, offset + LINE_REACH + LONGEST)
    line = window[max(line_start, offset - LINE_REACH) : line_end if line_end >= 0 else offset + LINE_REACH + LONGEST]
    return ALLOWED in (line.replace(b"\0", b"") if wide else line)


def _scan_file(file: _File, buffer: bytearray, result: ScanResult) -> None:
    """Look through one file; where there may be a key, once more and closely."""
    descriptor = os.open(file.path, _READ | (0 if file.named else _NO_LINK))
    try:
        kept = size = 0
        view = memoryview(buffer)
        while count := os.readv(descriptor, [view[kept:]]):
            size += count
            length = kept + count
            if may_hold_key(buffer, length):
                os.lseek(descriptor, 0, os.SEEK_SET)
                keys, size = find_in_stream(file.path, lambda most: os.read(descriptor, most))
                _take(result, keys, size)
                return
            kept = min(length, LONGEST)
            buffer[:kept] = buffer[length - kept : length]
        _take(result, [], size)
    finally:
        os.close(descriptor)


def _take(result: ScanResult, keys: list[LeakedKey], size: int) -> None:
    result.keys += keys
    result.files += 1
    result.bytes += size


def _batches(paths: Sequence[str], excluded: Excluded, trouble: ScanResult) -> Iterator[list[_File]]:
    """The files to look through, some at a time; folders that cannot be read are noted in ``trouble``."""
    batch, size = list[_File](), 0
    for file, file_size in _files(paths, excluded, trouble):
        batch.append(file)
        size += file_size
        if len(batch) >= _BATCH_FILES or size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _files(paths: Sequence[str], excluded: Excluded, trouble: ScanResult) -> Iterator[tuple[_File, int]]:
    for path in paths:
        if path == STDIN:
            yield _File(path, named=True), 0
            continue
        if excluded(os.path.normpath(path)):
            continue
        try:
            found = os.stat(path)  # noqa: PTH116  # text paths throughout: pathlib takes longer than the reading
        except OSError as error:
            trouble.unreadable.append(Unreadable(path, error.strerror or type(error).__name__))
            continue
        if stat.S_ISDIR(found.st_mode):
            yield from _files_below(path, excluded, trouble)
        elif stat.S_ISREG(found.st_mode):
            yield _File(path, named=True), found.st_size
        else:
            trouble.unreadable.append(Unreadable(path, "Not a file or folder"))


def _files_below(root: str, excluded: Excluded, trouble: ScanResult) -> Iterator[tuple[_File, int]]:
    waiting = [root]
    beginning = len(os.path.join(root, ""))  # noqa: PTH118
    while waiting:
        folder = waiting.pop()
        try:
            with os.scandir(folder) as listing:
                entries = sorted(listing, key=lambda entry: entry.name)
        except OSError as error:
            trouble.unreadable.append(Unreadable(folder, error.strerror or type(error).__name__))
            continue
        folders = list[str]()
        for entry in entries:
            if entry.name == _SKIPPED or excluded(entry.path[beginning:]):
                continue
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.path)
            elif entry.is_file(follow_symlinks=False):
                yield _File(entry.path, named=False), _size(entry)
        waiting += reversed(folders)


def _size(entry: "os.DirEntry[str]") -> int:
    try:
        return entry.stat(follow_symlinks=False).st_size
    except OSError:  # whoever reads it will see
        return 0


def _scan_together(first: list[_File], batches: Iterator[list[_File]], processes: int) -> Iterator[ScanResult]:
    """Share the batches among several processes, and give back what they find in the batches' order."""
    # slow to import, and a commit's few files do without
    import multiprocessing  # noqa: PLC0415
    from concurrent.futures import Future, ProcessPoolExecutor  # noqa: PLC0415

    # Linux's own way starts a process in a millisecond; nothing runs beside us that it could hurt.
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else None)
    pool = ProcessPoolExecutor(processes, context, initializer=_leave_interrupts_to_parent)
    under_way = deque[Future[ScanResult]]([pool.submit(scan_files, first)])
    try:
        for batch in batches:
            under_way.append(pool.submit(scan_files, batch))
            if len(under_way) > 4 * processes:
                yield under_way.popleft().result()
        while under_way:
            yield under_way.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def _leave_interrupts_to_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
