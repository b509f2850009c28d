# SPDX-License-Identifier: Apache-2.0
"""The ops that a forward pass calls by name. An architecture is written once against this protocol:
the reference backend runs each op as called (numpy), the CPU backend records them once at load.

Values are opaque to an architecture. Shapes in glossary letters: T new tokens in the step, D model
width, H query heads, G KV heads, K head width, V vocabulary, O outputs wanted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, TypeVar

Value = TypeVar("Value")  # a (T, n) float32 array or a stand-in for one
Weight = TypeVar("Weight", contravariant=True)  # a weight handle made by the backend

Activation = Literal["silu", "gelu_tanh"]


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary embedding (Su et al. 2021).

    Angle of pair i at position p: p * base**(-2i/dim) / freq_factors[i] (1 where None) / linear_scale.
    `attention_factor` multiplies cos and sin (YaRN). Rotates the first `dim` places of each head."""

    dim: int
    base: float
    interleaved: bool  # pairs (2i, 2i+1); False: pairs (i, i + dim/2)
    freq_factors: tuple[float, ...] | None = None  # (dim/2,) divides the frequency
    linear_scale: float = 1.0
    attention_factor: float = 1.0


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    num_heads: int  # H
    num_kv_heads: int  # G
    head_dim: int  # K
    scale: float  # multiplies q . k
    window: int | None  # a token sees itself and the window-1 before it; None: all before it
    softcap: float | None  # cap * tanh(score / cap)


class Ops(Protocol[Value, Weight]):
    def embed(self, weight: Weight, scale: float) -> Value:
        """(T, D): rows of `weight` (V, D) for the step's token ids, times scale."""
        ...

    def rms_norm(self, x: Value, weight: Weight, eps: float) -> Value:
        """x / sqrt(mean(x**2) + eps) * weight, over the last axis. weight (D,)."""
        ...

    def head_norm(self, x: Value, weight: Weight, num_heads: int, eps: float) -> Value:
        """rms_norm of each head of x (T, num_heads * K) by itself. weight (K,)."""
        ...

    def linear(self, x: Value, weight: Weight, bias: Weight | None = None) -> Value:
        """x @ weight.T (+ bias). weight (N, D), bias (N,), result (T, N)."""
        ...

    def rope(self, x: Value, num_heads: int, spec: RopeSpec) -> Value:
        """Rotate each head of x (T, num_heads * K) by its token's position."""
        ...

    def attention(self, q: Value, k: Value, v: Value, layer: int, spec: AttentionSpec) -> Value:
        """Write k, v (T, G * K) to the layer's paged cache, then attend causally with q (T, H * K)
        over all of each row's places. Result (T, H * K)."""
        ...

    def gated(self, gate: Value, up: Value, activation: Activation) -> Value:
        """activation(gate) * up."""
        ...

    def add(self, x: Value, y: Value) -> Value: ...

    def softcap(self, x: Value, cap: float) -> Value:
        """cap * tanh(x / cap)."""
        ...

    def select_outputs(self, x: Value) -> Value:
        """(O, D): only the tokens whose logits the plan wants, in the plan's order."""
        ...
