"""Pictures."""

import struct
import zlib


def png(width: int, height: int) -> bytes:
    """A transparent PNG of this size."""
    header = struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0)
    rows = zlib.compress((b"\0" + b"\0\0\0\0" * width) * height)
    chunks = ((b"IHDR", header), (b"IDAT", rows), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(*chunk) for chunk in chunks)


def _chunk(name: bytes, content: bytes) -> bytes:
    length = struct.pack(">I", len(content))
    checksum = struct.pack(">I", zlib.crc32(name + content))
    return length + name + content + checksum
