# SPDX-License-Identifier: Apache-2.0
"""The door: refuses what could never be served, in words for the caller, and turns the rest into
sequences. Reads nothing that changes, so any thread may call it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from headrace.core.errors import RequestError
from headrace.core.plan import BackendInfo
from headrace.core.request import GenerateRequest, SamplingParams
from headrace.engine.sampling import resolve_seed, seed_of
from headrace.engine.sequence import Sequence
from headrace.engine.wait_clock import WaitClock
from headrace.kv.lease import BlockLease
from headrace.kv.prefix_keys import block_key, extend_keys, root_key

MAX_N = 128


def max_tokens_in(info: BackendInfo) -> int:
    """The longest sequence, prompt and output together, that the model and all of the KV blocks allow."""
    return min(info.max_model_len, info.num_blocks * info.block_size)


def check_request(request: GenerateRequest, info: BackendInfo) -> None:
    """Raise RequestError, naming the field and what would work."""
    params = request.params
    if not 1 <= request.n <= MAX_N:
        raise RequestError(f"n must be from 1 to {MAX_N}, got {request.n}", param="n")
    if not request.prompt_ids:
        raise RequestError("The prompt is empty; it must hold at least one token", param="prompt")
    _check_ids("prompt", request.prompt_ids, info.vocab_size)
    _check_ids("logit_bias", (token for token, _ in params.logit_bias), info.vocab_size)
    _check_ids("stop_token_ids", params.stop_token_ids, info.vocab_size)
    _check_length(len(request.prompt_ids), params, max_tokens_in(info))
    if request.deterministic and not info.is_batch_invariant:
        raise RequestError(
            "deterministic cannot be promised here: this backend's numbers depend on what else it computes. "
            "Serve the model with the cpu backend, or leave the field out",
            param="deterministic",
        )


def sequences_of(
    request: GenerateRequest,
    info: BackendInfo,
    eos_ids: frozenset[int],
    next_id: Callable[[], int],
    new_lease: Callable[[], BlockLease],
    *,
    model_key: str = "",
    now_s: float = 0.0,
) -> list[Sequence]:
    """The request's n sequences. `request` has passed `check_request`. `now_s`: `time.monotonic()`."""
    params = request.params
    num_prompt = len(request.prompt_ids)
    arrival_s = now_s if request.arrival_s is None else request.arrival_s
    root = root_key(model=model_key, salt=request.cache_salt)
    keys, tail_key = _prompt_keys(root, request.prompt_ids, info.block_size)
    room = max_tokens_in(info) - num_prompt
    seed = resolve_seed(params.seed)
    end_ids = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else eos_ids)
    return [
        Sequence(
            sequence_id=next_id(),
            request_id=request.request_id,
            index=index,
            params=params,
            seed=seed_of(seed, index),
            max_output=room if params.max_tokens is None else params.max_tokens,
            end_ids=end_ids,
            num_to_score=num_prompt - 1 if _owes_scores(params, index) else 0,
            owes_scores=_owes_scores(params, index),
            num_prompt=num_prompt,
            tokens=list(request.prompt_ids),
            lease=new_lease(),
            arrival_s=arrival_s,
            clock=WaitClock(arrival_s, now_s),
            priority=request.priority,
            tenant=request.tenant,
            deadline_s=None if request.ttft_slo_s is None else arrival_s + request.ttft_slo_s,
            root_key=root,
            keys=list(keys),
            tail_key=tail_key,
        )
        for index in range(request.n)
    ]


def _prompt_keys(
    root: bytes, prompt_ids: tuple[int, ...], block_size: int
) -> tuple[list[bytes], bytes | None]:
    """Of the blocks that the prompt fills, and of what it leaves in its last one."""
    keys: list[bytes] = []
    extend_keys(keys, root, prompt_ids, block_size, len(prompt_ids))
    rest = prompt_ids[len(keys) * block_size :]
    return keys, block_key(keys[-1] if keys else root, rest) if rest else None


def _owes_scores(params: SamplingParams, index: int) -> bool:
    """The n sequences share one prompt; the first, which is never behind the others, scores it."""
    return params.prompt_logprobs is not None and index == 0


def _check_ids(param: str, ids: Iterable[int], vocab_size: int) -> None:
    for token in ids:
        if not 0 <= token < vocab_size:
            raise RequestError(
                f"{param} holds token id {token}, but this model's ids are 0 to {vocab_size - 1}", param=param
            )


def _check_length(num_prompt: int, params: SamplingParams, limit: int) -> None:
    num_wanted = 1 if params.max_tokens is None else params.max_tokens
    if params.max_tokens is not None and params.min_tokens > params.max_tokens:
        raise RequestError(
            f"min_tokens ({params.min_tokens}) is more than max_tokens ({params.max_tokens})",
            param="min_tokens",
        )
    num_wanted = max(num_wanted, params.min_tokens)
    if num_prompt + num_wanted <= limit:
        return
    asked = (
        f"{num_wanted} for the answer" if params.max_tokens or params.min_tokens else "at least 1 to answer"
    )
    raise RequestError(
        f"This request needs {num_prompt + num_wanted} tokens ({num_prompt} in the prompt and {asked}), "
        f"but at most {limit} fit in this model's context as it is served here. "
        f"Shorten the prompt or ask for fewer tokens.",
        param="prompt" if num_prompt >= limit else "max_tokens",
        code="context_length_exceeded",
    )
