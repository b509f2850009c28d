# SPDX-License-Identifier: Apache-2.0
"""The key-value pairs of a GGUF header as Python values: int, float, bool, str, numpy views for arrays
of numbers, StringArray for arrays of strings."""

from __future__ import annotations

import struct

import numpy as np

from headrace.weights.gguf_cursor import U32, U64, Cursor
from headrace.weights.string_array import read_string_array

# GGUF value types: number -> layout of one value
SCALARS = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: U32,
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    7: struct.Struct("<B"),  # bool
    10: U64,
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
BOOL, STRING, ARRAY = 7, 8, 9
# How values should look that some converters have written as arrays of arrays.
ADVICE = {
    "tokenizer.ggml.merges": 'a merge is one string, "left right"; convert the model again with a current '
    "converter"
}


def read_metadata(cursor: Cursor, num_pairs: int) -> dict[str, object]:
    metadata: dict[str, object] = {}
    for index in range(num_pairs):
        key = cursor.name(f"metadata key {index}")
        field = key if key.isprintable() else repr(key)
        if key in metadata:
            raise cursor.fail(field, "this metadata key stands in the file twice")
        metadata[key] = _read_value(cursor, cursor.count(U32, field), field)
    return metadata


def _read_value(cursor: Cursor, value_type: int, field: str) -> object:
    if value_type == STRING:
        return cursor.text(field)
    if value_type == ARRAY:
        return _read_array(cursor, field)
    layout = SCALARS.get(value_type)
    if layout is None:
        raise cursor.fail(field, f"has unknown value type {value_type} (0 to 12 are known)")
    value = cursor.number(layout, field)
    if value_type != BOOL:
        return value
    if value not in (0, 1):
        raise cursor.fail(field, f"is a bool of value {value} (0 or 1 allowed)")
    return bool(value)


def _read_array(cursor: Cursor, field: str) -> object:
    item_type = cursor.count(U32, field)
    count = cursor.count(U64, field)
    if item_type == STRING:
        strings, cursor.position = read_string_array(cursor.file, field, cursor.position, count)
        return strings
    if item_type == ARRAY:
        advice = ADVICE.get(field, "supported: arrays of numbers, bools and strings")
        raise cursor.fail(field, f"is an array of arrays, which is not supported; {advice}")
    layout = SCALARS.get(item_type)
    if layout is None:
        raise cursor.fail(field, f"is an array of unknown value type {item_type} (0 to 12 are known)")
    start = cursor.skip(count * layout.size, field)
    numbers = cursor.file.array[start : cursor.position].view(np.dtype(layout.format))
    if item_type != BOOL:
        return numbers
    if (numbers > 1).any():
        raise cursor.fail(field, "is an array of bools with values other than 0 and 1")
    return numbers.view(np.bool_)
