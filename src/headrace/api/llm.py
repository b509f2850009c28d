# SPDX-License-Identifier: Apache-2.0
"""Models without a server: `LLM("smollm2").generate(...)` in one's own process. It serves through the
same engine and the same text path as the HTTP routes, and imports no HTTP library."""

from __future__ import annotations

import itertools
import uuid
import weakref
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Self, cast

from headrace.api.answers import Answer
from headrace.api.generation import Gain, Generation, choices_of, stream
from headrace.api.outputs import RequestOutput, completion_output, prompt_logprobs_of
from headrace.api.transcript import Delta
from headrace.core.config import EngineConfig, ModelConfig, PolicyName
from headrace.core.errors import RequestError
from headrace.core.request import GenerateRequest, SamplingParams
from headrace.engine.build import LoadedModel, load_model
from headrace.text.chat_template import read_template

PromptLike = str | Sequence[int]  # text, or token ids
Message = Mapping[str, object]  # role and content
Params = SamplingParams | Sequence[SamplingParams] | None


class LLM:
    """One model, loaded when made, until `close`, the end of a `with`, or nobody holds it any more.

    Args:
        model: a pulled model's short name, hf:org/name, or a path.
        backend: "cpu", or "reference": the numpy definition, slow.
        num_threads: None means one for each physical core.
        max_model_len: tokens of prompt and output together.
        kv_cache_bytes: memory for K and V.
        packed_cache: keep the packed weights on the disk, so that the next start packs nothing.
        chat_template: a Jinja file, or the template itself, in place of the model's own.
        max_num_seqs: answers computed at once; more wait their turn.
        max_num_batched_tokens: tokens one step computes at most.
        max_itl_ms: prompts are cut so that no running answer waits longer for its next token.
        enable_prefix_caching: keep K and V for prompts that begin alike.
        scheduling_policy: "fcfs", "priority", "fair" or "deadline".
    """

    def __init__(
        self,
        model: str,
        *,
        backend: str = "cpu",
        num_threads: int | None = None,
        max_model_len: int | None = None,
        kv_cache_bytes: int | None = None,
        packed_cache: bool = ModelConfig().packed_cache,
        chat_template: str | None = None,
        max_num_seqs: int = EngineConfig().max_num_seqs,
        max_num_batched_tokens: int = EngineConfig().max_num_batched_tokens,
        max_itl_ms: float = EngineConfig().max_itl_ms,
        enable_prefix_caching: bool = EngineConfig().enable_prefix_caching,
        scheduling_policy: PolicyName = "fcfs",
    ) -> None:
        config = ModelConfig(
            backend=backend,  # type: ignore[arg-type]  # checked there
            num_threads=num_threads,
            max_model_len=max_model_len,
            kv_cache_bytes=kv_cache_bytes,
            packed_cache=packed_cache,
            chat_template=None if chat_template is None else read_template(chat_template),
            engine=EngineConfig(
                max_num_seqs=max_num_seqs,
                max_num_batched_tokens=max_num_batched_tokens,
                max_itl_ms=max_itl_ms,
                enable_prefix_caching=enable_prefix_caching,
                scheduling_policy=scheduling_policy,
            ),
        )
        self._model = load_model(model, config)
        # Without it a model that nobody closed would live on in its engine's thread.
        weakref.finalize(self, self._model.engine.close)

    @classmethod
    def of(cls, model: LoadedModel) -> LLM:
        """Around a model that is loaded already; `close` closes it."""
        self = cls.__new__(cls)
        self._model = model
        return self

    @property
    def model(self) -> LoadedModel:
        return self._model

    def generate(
        self,
        prompts: PromptLike | Sequence[PromptLike],
        params: Params = None,
        *,
        n: int = 1,
        use_tqdm: bool = False,
    ) -> list[RequestOutput]:
        """Continue each prompt, all of them at once, and give the answers in the prompts' order.

        A list of ints is one prompt of token ids. `params` is one for all, or one for each. Answer k of n
        draws with seed + k."""
        given = _prompt_list(prompts)
        texts = [prompt if isinstance(prompt, str) else None for prompt in given]
        return self._answer(texts, [self._ids(prompt) for prompt in given], params, n, use_tqdm)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        params: Params = None,
        *,
        n: int = 1,
        use_tqdm: bool = False,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template_kwargs: Mapping[str, object] | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation, or each of several, through the model's chat template."""
        ids = [
            self.encode_chat(
                conversation,
                add_generation_prompt=add_generation_prompt and not continue_final_message,
                continue_final_message=continue_final_message,
                chat_template_kwargs=chat_template_kwargs,
            )
            for conversation in _conversations(messages)
        ]
        return self._answer([None] * len(ids), ids, params, n, use_tqdm)

    def stream(self, prompt: PromptLike, params: SamplingParams | None = None) -> Iterator[Delta]:
        """The continuation as it comes. Closing the iterator gives up the rest."""
        return self._deltas(self._ids(prompt), params)

    def stream_chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        *,
        chat_template_kwargs: Mapping[str, object] | None = None,
    ) -> Iterator[Delta]:
        """The answer as it comes. Closing the iterator gives up the rest."""
        return self._deltas(self.encode_chat(messages, chat_template_kwargs=chat_template_kwargs), params)

    def encode_chat(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template_kwargs: Mapping[str, object] | None = None,
    ) -> list[int]:
        """The token ids that a conversation becomes."""
        template = self._model.chat_template
        if template is None:
            raise RequestError(
                f"{self._model.name} has no chat template; use generate, or LLM(chat_template=...)"
            )
        return template.encode(
            messages,
            tools=None,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            **(chat_template_kwargs or {}),
        )

    def close(self) -> None:
        """Stop the engine and free the model. May be called twice."""
        self._model.engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ids(self, prompt: PromptLike) -> list[int]:
        return self._model.tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)

    def _deltas(self, ids: Sequence[int], params: SamplingParams | None) -> Iterator[Delta]:
        request = _request(ids, params or SamplingParams(), 1)
        for gain in stream(self._generation(choices_of(request))):
            if isinstance(gain, Delta):
                yield gain

    def _generation(self, requests: Sequence[GenerateRequest]) -> Generation:
        return Generation(self._model.engine, self._model.tokenizer, requests)

    def _answer(
        self,
        texts: Sequence[str | None],
        ids: Sequence[Sequence[int]],
        params: Params,
        n: int,
        use_tqdm: bool,
    ) -> list[RequestOutput]:
        requests = [
            _request(prompt, one, n) for prompt, one in zip(ids, _params_list(params, len(ids)), strict=True)
        ]
        choices = list(itertools.chain.from_iterable(map(choices_of, requests)))
        answers = [Answer() for _ in choices]
        gains = stream(self._generation(choices))
        for gain in _with_bar(gains, len(choices)) if use_tqdm else gains:
            answers[gain.choice].add(gain)
        return [
            self._output(request, text, answers[i * n : (i + 1) * n])
            for i, (request, text) in enumerate(zip(requests, texts, strict=True))
        ]

    def _output(self, request: GenerateRequest, text: str | None, answers: Sequence[Answer]) -> RequestOutput:
        tokenizer = self._model.tokenizer
        has_logprobs = request.params.logprobs is not None
        return RequestOutput(
            request_id=request.request_id,
            prompt=text,
            prompt_token_ids=list(request.prompt_ids),
            prompt_logprobs=prompt_logprobs_of(answers[0].prompt_scores, tokenizer),
            outputs=[
                completion_output(k, answer, tokenizer, logprobs=has_logprobs)
                for k, answer in enumerate(answers)
            ],
        )


def _request(ids: Sequence[int], params: SamplingParams, n: int) -> GenerateRequest:
    if n < 1:
        raise RequestError(f"n must be at least 1, got {n}", param="n")
    return GenerateRequest(request_id=uuid.uuid4().hex, prompt_ids=tuple(ids), params=params, n=n)


def _prompt_list(prompts: PromptLike | Sequence[PromptLike]) -> list[PromptLike]:
    if isinstance(prompts, str) or (prompts and isinstance(prompts[0], int)):
        return [cast(PromptLike, prompts)]
    return list(cast(Sequence[PromptLike], prompts))


def _conversations(
    messages: Sequence[Message] | Sequence[Sequence[Message]],
) -> Sequence[Sequence[Message]]:
    if messages and isinstance(messages[0], Mapping):
        return [cast(Sequence[Message], messages)]
    return cast(Sequence[Sequence[Message]], messages)


def _params_list(params: Params, count: int) -> list[SamplingParams]:
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * count
    if len(params) != count:
        raise RequestError(f"{len(params)} params were given for {count} prompts", param="params")
    return list(params)


def _with_bar(gains: Iterator[Gain], num_answers: int) -> Iterator[Gain]:
    from tqdm import tqdm

    with tqdm(total=num_answers, unit="answer") as bar:
        for gain in gains:
            if isinstance(gain, Delta) and gain.finish is not None:
                bar.update()
            yield gain
