# SPDX-License-Identifier: Apache-2.0
"""A place in a GGUF file that only moves forward, and only over bytes that are there. Whoever reads
through it can follow the file's own lengths without being led astray."""

from __future__ import annotations

import struct

from headrace.core.errors import ModelFileError
from headrace.weights.file_map import FileMap

MAX_NAME_BYTES = 1024  # of a key or tensor name; the format says 65535 and 64
MAX_TEXT_BYTES = 1 << 24  # of a string value; chat templates, the longest, have some ten thousand

U32 = struct.Struct("<I")
U64 = struct.Struct("<Q")


class Cursor:
    __slots__ = ("file", "position")

    def __init__(self, file: FileMap) -> None:
        self.file = file
        self.position = 0

    def fail(self, field: str, message: str) -> ModelFileError:
        return ModelFileError(self.file.path, field, message)

    def skip(self, num_bytes: int, field: str) -> int:
        """Where the next `num_bytes` start; moves behind them."""
        start = self.position
        left = self.file.size - start
        if num_bytes > left:
            raise self.fail(field, f"needs {num_bytes} bytes at byte {start}, the file has {left} more")
        self.position = start + num_bytes
        return start

    def number(self, layout: struct.Struct, field: str) -> int | float:
        value: int | float = layout.unpack_from(self.file.content, self.skip(layout.size, field))[0]
        return value

    def count(self, layout: struct.Struct, field: str) -> int:
        return int(self.number(layout, field))

    def text(self, field: str) -> str:
        return self._text(field, 0, MAX_TEXT_BYTES)

    def name(self, field: str) -> str:
        """A key or tensor name."""
        return self._text(field, 1, MAX_NAME_BYTES)

    def _text(self, field: str, least: int, most: int) -> str:
        length = self.count(U64, field)
        if not least <= length <= most:
            raise self.fail(field, f"has {length} bytes of text ({least} to {most} allowed)")
        start = self.skip(length, field)
        try:
            return self.file.content[start : start + length].decode()
        except UnicodeDecodeError as error:
            raise self.fail(field, f"is not valid UTF-8 ({error.reason} at byte {error.start})") from None
