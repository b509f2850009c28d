# SPDX-License-Identifier: Apache-2.0
"""A list of strings that stays in its file: only where each one starts is kept, and text is decoded
when asked for. A vocabulary of 262144 tokens opens in milliseconds this way."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import overload

import numpy as np
import numpy.typing as npt

from headrace.core.errors import ModelFileError
from headrace.weights.file_map import FileMap

LENGTH = struct.Struct("<Q")  # each string stands behind its length
LENGTH_BYTES = LENGTH.size
MAX_STRINGS = 1 << 21  # no vocabulary comes near; keeps a hostile file from costing seconds
WINDOW_BYTES = 1 << 16  # looked through at once
MIN_CHAIN = 256  # strings; where a window gives fewer, they are stepped over one by one


class StringArray(Sequence[str]):
    """Strings of a GGUF array. `strings[i]` decodes one, `raw(i)` gives its bytes, `to_list()` all.

    Text that is not UTF-8 raises ModelFileError naming the key; `raw` takes any bytes."""

    __slots__ = ("_field", "_file", "_starts")

    def __init__(self, file: FileMap, field: str, starts: npt.NDArray[np.int64]) -> None:
        self._file = file
        self._field = field
        self._starts = starts  # (n + 1,) where each text starts; the last is where one more would

    def __len__(self) -> int:
        return len(self._starts) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        try:
            return self.raw(index).decode()
        except UnicodeDecodeError as error:
            message = f"string {index} is not valid UTF-8 ({error.reason})"
            raise ModelFileError(self._file.path, self._field, message) from None

    def raw(self, index: int) -> bytes:
        place = range(len(self))[index]
        return self._file.content[int(self._starts[place]) : int(self._starts[place + 1]) - LENGTH_BYTES]

    def to_list(self) -> list[str]:
        """All strings in one pass, many times faster than one by one."""
        if not len(self):
            return []
        base = int(self._starts[0])
        ends = self._starts[1:] - (base + LENGTH_BYTES)
        region = self._file.array[base : base + int(ends[-1])].copy()
        separators = ends[:-1]
        kept = np.ones(len(region), bool)
        for place in range(1, LENGTH_BYTES):
            kept[separators + place] = False
        region[separators] = 0  # of the eight bytes between two texts one stays, a NUL
        joined = region[kept]
        if np.count_nonzero(joined == 0) != len(separators):
            return self[:]  # a NUL within a text
        try:
            return joined.tobytes().decode().split("\0")
        except UnicodeDecodeError:
            return self[:]  # raises, naming the string

    def __repr__(self) -> str:
        return f"StringArray({self._field!r}, {len(self)} strings)"


def read_string_array(file: FileMap, field: str, position: int, count: int) -> tuple[StringArray, int]:
    """The `count` strings from byte `position` on, and the position after them.

    Memory grows with the strings found, never with the count that the file claims."""
    most = min(MAX_STRINGS, (file.size - position) // LENGTH_BYTES)
    if count > most:
        raise ModelFileError(file.path, field, f"claims {count} strings where at most {most} can be")
    start = position + LENGTH_BYTES
    found = [np.array([start], np.int64)]
    num_found, num_steps = 0, MIN_CHAIN
    while num_found < count:
        starts = _chain_short_strings(file, start, count - num_found)
        if len(starts) >= MIN_CHAIN:
            num_steps = MIN_CHAIN
        else:
            starts = _step_strings(file, field, start, range(num_found, min(num_found + num_steps, count)))
            num_steps *= 2  # where chains do not work, spend ever less time on looking for them
        found.append(starts)
        num_found += len(starts)
        start = int(starts[-1])
    end = start - LENGTH_BYTES
    if end > file.size:
        raise ModelFileError(file.path, field, f"string {count - 1}, its last, leaves the file")
    return StringArray(file, field, np.concatenate(found)), end


def _chain_short_strings(file: FileMap, start: int, most: int) -> npt.NDArray[np.int64]:
    """(n,) where the next texts start, as far as strings of 1 to 255 bytes follow from `start` on.

    Such a string's length is a byte that is not zero before seven that are. All places in a window that
    look so are found at once; they are lengths for certain as long as each points to the next one."""
    window = file.array[start - LENGTH_BYTES : start + WINDOW_BYTES]
    zero = window == 0
    twos = zero[:-1] & zero[1:]
    fours = twos[:-2] & twos[2:]
    sevens = fours[:-3] & fours[3:]
    zeros_follow = sevens[1:]
    places = np.flatnonzero(zeros_follow & ~zero[: len(zeros_follow)])[:most]
    if not len(places) or places[0] != 0:
        return np.empty(0, np.int64)
    following = places + window[places] + LENGTH_BYTES
    breaks = np.flatnonzero(following[:-1] != places[1:])
    num_linked = int(breaks[0]) + 1 if len(breaks) else len(places)
    starts: npt.NDArray[np.int64] = following[:num_linked] + start
    return starts


def _step_strings(file: FileMap, field: str, start: int, numbers: range) -> npt.NDArray[np.int64]:
    """(len(numbers),) where the texts after strings `numbers` start; strings of any length."""
    content, size, length_at = file.content, file.size, LENGTH.unpack_from
    starts = []
    for number in numbers:
        if start > size:
            raise ModelFileError(file.path, field, f"the file ends within the length of string {number}")
        length = length_at(content, start - LENGTH_BYTES)[0]
        if length > size - start:
            message = f"string {number} of {length} bytes leaves the file, which has {size - start} more"
            raise ModelFileError(file.path, field, message)
        start += length + LENGTH_BYTES
        starts.append(start)
    return np.array(starts, np.int64)
