# SPDX-License-Identifier: Apache-2.0
"""Text from engine events, however tokens are grouped into them, without HTTP."""

from __future__ import annotations

import random
import time

import pytest

from headrace.api.generation import Generation, GenerationFailed, choices_of, stream
from headrace.api.transcript import Delta, Transcript
from headrace.core.errors import RequestError
from headrace.core.events import Finished, FinishReason, TokenEvent
from headrace.core.plan import TokenResult
from headrace.core.request import GenerateRequest, SamplingParams
from unit.api.byte_tokenizer import END, VOCAB_SIZE, byte_tokenizer, piece, spell
from unit.api.live_server import serve_backend
from unit.api.reciting_backend import RecitingBackend


def transcribe(
    tokens: list[int], params: SamplingParams, cuts: list[int], reason: FinishReason
) -> list[Delta]:
    """The deltas when tokens come in groups that end at `cuts`."""
    transcript = Transcript(0, byte_tokenizer(), params, skip_special=True)
    deltas: list[Delta | None] = []
    for begin, end in zip([0, *cuts], [*cuts, len(tokens)], strict=True):
        if not transcript.is_finished and begin < end:
            deltas.append(transcript.push(tuple(TokenResult(t, -1.0, ()) for t in tokens[begin:end])))
    if not transcript.is_finished:
        deltas.append(transcript.finish(Finished("r", 0, reason, 3, len(tokens))))
    return [delta for delta in deltas if delta is not None]


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(logprobs=0),
        SamplingParams(stop=("Wednesday",), logprobs=0),
        SamplingParams(stop=("Wednesday",), include_stop_str_in_output=True, logprobs=0),
        SamplingParams(stop=("🫠", "Tue 🫠 W", "ue"), logprobs=0),
        SamplingParams(stop=("Thu and more", "hu"), logprobs=0),
        SamplingParams(stop_token_ids=(piece("nesday"),)),
    ],
)
def test_grouping_of_tokens_changes_nothing(params: SamplingParams) -> None:
    """A2, A3, B2: an engine may hand over several tokens at once."""
    tokens = [*spell("Mon Tue 🫠 "), piece("Wed"), piece("nesday"), *spell(" Thu"), END]
    if params.stop_token_ids:
        tokens = tokens[: tokens.index(piece("nesday")) + 1]
    whole = transcribe(tokens, params, [], "stop")
    rng = random.Random(1)
    for _ in range(50):
        cuts = sorted(rng.sample(range(1, len(tokens)), rng.randint(0, len(tokens) - 1)))
        deltas = transcribe(tokens, params, cuts, "stop")
        assert "".join(delta.text for delta in deltas) == "".join(delta.text for delta in whole)
        assert [t for delta in deltas for t in delta.token_ids] == [t for d in whole for t in d.token_ids]
        assert [t for delta in deltas for t in delta.traced] == [t for delta in whole for t in delta.traced]
        assert deltas[-1].num_output == whole[-1].num_output
        assert deltas[-1].finish == whole[-1].finish
        assert all(delta.finish is None for delta in deltas[:-1])
        assert all(delta.text for delta in deltas[:-1])


def test_traced_bytes_are_the_text() -> None:
    """B3"""
    tokens = [*spell("é🫠"), piece("Wed"), *spell("z"), END]
    for stop in ((), ("ed",), ("🫠",), ("z",)):
        deltas = transcribe(tokens, SamplingParams(stop=stop, logprobs=0), [3, 4, 8], "stop")
        text = "".join(delta.text for delta in deltas)
        assert b"".join(token.shown for delta in deltas for token in delta.traced).decode() == text


def test_stop_match_that_waits_for_a_longer_one() -> None:
    deltas = transcribe(spell("abx"), SamplingParams(stop=("abxy", "b")), [1, 2], "length")
    assert "".join(delta.text for delta in deltas) == "a"
    assert deltas[-1].finish is not None
    assert (deltas[-1].finish.reason, deltas[-1].finish.stop) == ("stop", "b")


def generation(backend: RecitingBackend, *requests: GenerateRequest) -> tuple[Generation, RecitingBackend]:
    model = serve_backend(backend, byte_tokenizer())
    choices = [choice for request in requests for choice in choices_of(request)]
    return Generation(model.engine, model.tokenizer, choices), backend


def test_stream_gives_every_choice() -> None:
    backend = RecitingBackend(spell("hello"), end=END, vocab_size=VOCAB_SIZE)
    first = GenerateRequest(request_id="a", prompt_ids=(1,), n=2)
    second = GenerateRequest(request_id="b", prompt_ids=(1, 2), params=SamplingParams(max_tokens=2))
    gains, _ = generation(backend, first, second)
    texts = ["", "", ""]
    for gain in stream(gains):
        assert isinstance(gain, Delta)
        texts[gain.choice] += gain.text
    assert texts == ["hello", "hello", "he"]


def test_stop_string_ends_the_engines_work() -> None:
    backend = RecitingBackend(spell("x" * 500), end=END, vocab_size=VOCAB_SIZE, step_s=0.002)
    gains, _ = generation(
        backend, GenerateRequest(request_id="a", prompt_ids=(1,), params=SamplingParams(stop=("xxx",)))
    )
    assert [gain for gain in stream(gains) if isinstance(gain, Delta)][-1].finish is not None
    assert backend.num_steps < 100


def test_closing_the_stream_ends_the_engines_work() -> None:
    backend = RecitingBackend(spell("x" * 500), end=END, vocab_size=VOCAB_SIZE, step_s=0.002)
    gains, _ = generation(backend, GenerateRequest(request_id="a", prompt_ids=(1,)))
    iterator = stream(gains)
    next(iterator)
    iterator.close()  # type: ignore[attr-defined]
    assert gains.is_done
    assert backend.num_steps < 100


def test_failures_are_raised() -> None:
    backend = RecitingBackend(spell("hello"), end=END, vocab_size=VOCAB_SIZE, fail_at=2)
    gains, _ = generation(backend, GenerateRequest(request_id="a", prompt_ids=(1,)))
    with pytest.raises(GenerationFailed):
        list(stream(gains))


def test_one_bad_request_keeps_out_the_others() -> None:
    backend = RecitingBackend(spell("x" * 500), end=END, vocab_size=VOCAB_SIZE, step_s=0.002)
    good = GenerateRequest(request_id="a", prompt_ids=(1,))
    bad = GenerateRequest(request_id="b", prompt_ids=(VOCAB_SIZE,))
    gains, _ = generation(backend, good, bad)
    with pytest.raises(RequestError):
        list(stream(gains))
    time.sleep(0.05)
    assert backend.num_steps == 0


def test_answers_of_one_request_draw_with_following_seeds() -> None:
    request = GenerateRequest(
        request_id="r", prompt_ids=(1,), n=3, params=SamplingParams(seed=2**64 - 1, prompt_logprobs=1)
    )
    choices = choices_of(request)
    assert [choice.params.seed for choice in choices] == [2**64 - 1, 0, 1]
    assert [choice.params.prompt_logprobs for choice in choices] == [1, None, None]
    assert len({choice.request_id for choice in choices}) == 3


def test_events_of_strangers_are_ignored() -> None:
    backend = RecitingBackend(spell("x"), end=END, vocab_size=VOCAB_SIZE)
    gains, _ = generation(backend, GenerateRequest(request_id="a", prompt_ids=(1,)))
    assert list(gains.take(TokenEvent("other", 0, (TokenResult(1, 0.0, ()),)))) == []
