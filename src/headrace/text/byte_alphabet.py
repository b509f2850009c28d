# SPDX-License-Identifier: Apache-2.0
"""The alphabet of byte-level BPE: each of the 256 bytes has one printable character that stands for it
in token texts (GPT-2, 2019). Printable Latin-1 characters stand for themselves."""

from __future__ import annotations


def _alphabet() -> dict[int, str]:
    own = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    chars = {byte: chr(byte) for byte in own}
    others = (byte for byte in range(256) if byte not in chars)
    chars.update({byte: chr(256 + place) for place, byte in enumerate(others)})
    return chars


CHAR_OF_BYTE = _alphabet()
BYTE_OF_CHAR = {char: byte for byte, char in CHAR_OF_BYTE.items()}


def piece_bytes(text: str) -> bytes:
    """The bytes a token text stands for. Text outside the alphabet (a token added later on) is itself."""
    try:
        return bytes([BYTE_OF_CHAR[char] for char in text])
    except KeyError:
        return text.encode()
