# SPDX-License-Identifier: Apache-2.0
"""What a caller asks for, after all text has become token ids: frozen, checked once, then only read."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from headrace.core.errors import RequestError

MAX_TOP_LOGPROBS = 20
MAX_LOGIT_BIAS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the next token is drawn.

    Order of application: logit bias, repetition / presence / frequency penalties, temperature,
    top-k, top-p, min-p. `temperature` below 1e-5 is greedy, and so is `top_p == 0`. What is left out has
    these defaults, whatever the model's files suggest.
    """

    temperature: float = 1.0
    top_k: int = 0  # 0 and -1 mean off
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0  # over prompt and output (Keskar et al. 2019, CTRL)
    presence_penalty: float = 0.0  # over output only, as OpenAI defines it
    frequency_penalty: float = 0.0  # over output only
    seed: int | None = None  # None: drawn at submission; -2**63 .. 2**64-1, modulo 2**64
    logit_bias: tuple[tuple[int, float], ...] = ()
    max_tokens: int | None = None  # None: up to the remaining room
    min_tokens: int = 0
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()  # applied by the text side, never by the engine
    include_stop_str_in_output: bool = False
    logprobs: int | None = None  # None: no log probabilities; n: also the n most likely
    prompt_logprobs: int | None = None  # the same for the prompt's own tokens

    def __post_init__(self) -> None:
        def check(name: str, ok: bool, rule: str) -> None:
            if not ok:
                raise RequestError(f"{name} must be {rule}, got {getattr(self, name)!r}", param=name)

        def number(name: str, low: float, high: float, rule: str) -> None:
            value = getattr(self, name)
            good = isinstance(value, (int, float)) and not isinstance(value, bool)
            check(name, good and math.isfinite(value) and low <= value <= high, rule)

        number("temperature", 0.0, 100.0, "a number from 0 to 100")
        number("top_p", 0.0, 1.0, "a number from 0 to 1")
        number("min_p", 0.0, 1.0, "a number from 0 to 1")
        number("presence_penalty", -2.0, 2.0, "a number from -2 to 2")
        number("frequency_penalty", -2.0, 2.0, "a number from -2 to 2")
        number("repetition_penalty", 1e-3, 100.0, "a number from 0.001 to 100")
        check("top_k", self.top_k >= -1, "-1 or 0 (off) or a positive integer")
        check("seed", self.seed is None or _is_64_bits(self.seed), "an integer from -2**63 to 2**64 - 1")
        check("max_tokens", self.max_tokens is None or self.max_tokens >= 0, "a non-negative integer")
        check("min_tokens", self.min_tokens >= 0, "a non-negative integer")
        for name in ("logprobs", "prompt_logprobs"):
            value = getattr(self, name)
            check(name, value is None or 0 <= value <= MAX_TOP_LOGPROBS, f"from 0 to {MAX_TOP_LOGPROBS}")
        check("logit_bias", len(self.logit_bias) <= MAX_LOGIT_BIAS, f"at most {MAX_LOGIT_BIAS} entries")
        for token, bias in self.logit_bias:
            if token < 0 or not (math.isfinite(bias) and -100 <= bias <= 100):
                raise RequestError(
                    f"logit_bias maps token ids to numbers from -100 to 100, got {token}: {bias}",
                    param="logit_bias",
                )
        check("stop", all(self.stop), "one or more non-empty strings")

    @property
    def is_greedy(self) -> bool:
        return self.temperature < 1e-5 or self.top_p == 0.0 or self.top_k == 1


def _is_64_bits(seed: object) -> bool:
    return isinstance(seed, int) and not isinstance(seed, bool) and -(2**63) <= seed < 2**64


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """One call: a prompt and how many answers to it. Sequence k of a request draws with seed + k."""

    request_id: str
    prompt_ids: tuple[int, ...]
    params: SamplingParams = field(default_factory=SamplingParams)
    n: int = 1
    arrival_s: float | None = None  # `time.monotonic()` when it was first heard of; None: at submission
    priority: int = 0  # for the priority policy: lower runs sooner, as vLLM has it
    tenant: str = ""  # for the fair policy: who shares with whom
    ttft_slo_s: float | None = None  # refused at once when the first token is predicted later after arrival
    cache_salt: str = ""  # requests find each other's cached prefixes only under an equal salt
    # Refused where the backend cannot promise the same tokens in any company.
    deterministic: bool = False

    def __post_init__(self) -> None:
        if self.ttft_slo_s is not None and not 0 < self.ttft_slo_s < math.inf:
            raise RequestError(
                f"a TTFT target must be a positive time, got {self.ttft_slo_s} s", param="slo_ttft_ms"
            )
