# SPDX-License-Identifier: Apache-2.0
"""Stop strings over token boundaries, against a look through the whole text."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic import bpe_metadata, load

from headrace.text.assembler import TextAssembler
from headrace.text.stop_strings import StopScanner

TOKENIZER = load(bpe_metadata())


def spec(text: str, stops: Sequence[str], *, include_stop: bool) -> tuple[str, str | None]:
    """What is right: the earliest match in the whole text, the shorter of two at one place."""
    matches = [(text.find(stop), len(stop), stop) for stop in stops if stop in text]
    if not matches:
        return text, None
    start, length, stop = min(matches)
    return text[: start + length if include_stop else start], stop


def scanned(pieces: Sequence[str], stops: Sequence[str], *, include_stop: bool) -> tuple[str, str | None]:
    scanner = StopScanner(stops, include_stop=include_stop)
    shown = ""
    for piece in pieces:
        scan = scanner.feed(piece)
        shown += scan.text
        if scan.stopped is not None:
            return shown, scan.stopped
    last = scanner.flush()
    return shown + last.text, last.stopped


TEXTS = st.text(alphabet="abc", max_size=25)


@given(
    text=TEXTS,
    stops=st.lists(st.text(alphabet="abc", min_size=1, max_size=5), min_size=1, max_size=4),
    cuts=st.lists(st.integers(0, 25), max_size=8),
    include_stop=st.booleans(),
)
def test_the_earliest_match_in_the_text_wins(
    text: str, stops: list[str], cuts: list[int], include_stop: bool
) -> None:
    places = sorted(min(cut, len(text)) for cut in cuts)
    pieces = [text[start:end] for start, end in zip([0, *places], [*places, len(text)], strict=True)]
    expected = spec(text, stops, include_stop=include_stop)
    assert scanned(pieces, stops, include_stop=include_stop) == expected


@pytest.mark.parametrize("stop", ["HIJKLMN", "G H", "Z"])
@pytest.mark.parametrize("per_push", [1, 3, 100])
@pytest.mark.parametrize("include_stop", [False, True])
def test_streamed_equals_whole(stop: str, per_push: int, include_stop: bool) -> None:
    text = "A B C D E F G H ABCDEFGHIJKLMNOPQRSTUVWXY"
    ids = TOKENIZER.encode(text)
    assembler = TextAssembler(TOKENIZER, (stop,), include_stop=include_stop)
    deltas = [assembler.push(ids[i : i + per_push]) for i in range(0, len(ids), per_push)]
    joined = "".join(delta.text for delta in deltas) + assembler.flush()
    expected, stopped = spec(text, (stop,), include_stop=include_stop)
    assert (joined, assembler.stopped) == (expected, stopped)
    end = text.find(stop) + len(stop) if stopped else len(text)
    assert sum(delta.num_tokens_used for delta in deltas) == end  # every token here is one character


def test_nothing_of_a_stop_string_leaves_before_it_is_settled() -> None:
    scanner = StopScanner(["</tool>"], include_stop=False)
    assert scanner.feed("a </to").text == "a "
    assert scanner.feed("ast").text == "</toast"
    assert scanner.feed("</too").text == ""
    assert scanner.flush().text == "</too"


def test_an_earlier_match_that_may_still_come_is_waited_for() -> None:
    """ "bc" ends first, but "abcd" begins first: the whole text decides."""
    for tail, expected in (("d", ("x", "abcd")), ("e", ("xa", "bc")), ("", ("xa", "bc"))):
        assert scanned(["xabc", tail], ["abcd", "bc"], include_stop=False) == expected


def test_the_shorter_of_two_at_one_place() -> None:
    assert scanned(["xabcd"], ["abc", "ab", "b"], include_stop=True) == ("xab", "ab")


def test_after_a_match_nothing_is_taken() -> None:
    assembler = TextAssembler(TOKENIZER, ("b",))
    ids = TOKENIZER.encode("abc")
    delta = assembler.push(ids)
    assert (delta.text, delta.stopped, delta.num_tokens_used) == ("a", "b", 2)
    assert assembler.push(ids).num_tokens_used == 0
    assert assembler.flush() == ""


def test_a_stop_string_inside_a_split_character_is_found() -> None:
    ids = TOKENIZER.encode("x🫠y")
    assembler = TextAssembler(TOKENIZER, ("🫠",))
    texts = [assembler.push([token]).text for token in ids]
    assert "".join(texts) + assembler.flush() == "x"
    assert assembler.stopped == "🫠"


def test_without_stop_strings_all_is_shown() -> None:
    assembler = TextAssembler(TOKENIZER)
    ids = TOKENIZER.encode("hello 🫠")
    assert "".join(assembler.push([token]).text for token in ids) + assembler.flush() == "hello 🫠"


def test_the_cost_of_a_character_does_not_grow() -> None:
    """Text that nearly matches all the time, in one push: far from quadratic."""
    text = "a" * 20_000 + "".join(random.Random(1).choice("ab") for _ in range(20_000))
    start = time.process_time()
    shown, stopped = scanned([text], ["a" * 500 + "b" * 500, "ba" * 300 + "c"], include_stop=False)
    assert (len(shown), stopped) == (40_000, None)
    assert time.process_time() - start < 5
