# SPDX-License-Identifier: Apache-2.0
"""RopeSpec from a Hugging Face config: `rope_theta` + `rope_scaling` of transformers 4, `rope_parameters`
of transformers 5. Kinds of scaling not listed here are refused by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from headrace.models.fields import Fields
from headrace.models.geometry import Geometry
from headrace.models.ops import RopeSpec
from headrace.models.rope_scaling import llama3_freq_factors, yarn_attention_factor, yarn_freq_factors


def one_rope(config: Fields, geometry: Geometry) -> RopeSpec:
    """The rotation of a model whose layers all turn alike."""
    if config.has("rope_parameters"):
        params = config.section("rope_parameters")
        return _rope(config, params, geometry, params.positive("rope_theta", _theta(config, 10000.0)))
    return _rope(config, _scaling(config), geometry, _theta(config, 10000.0))


def full_rope(config: Fields, geometry: Geometry) -> RopeSpec:
    """The rotation of Gemma 3's global layers, the only ones that transformers 4 stretches."""
    if config.has("rope_parameters"):
        params = config.section("rope_parameters").section("full_attention")
        return _rope(config, params, geometry, params.positive("rope_theta", 1e6))
    return _rope(config, _scaling(config), geometry, _theta(config, 1e6))


def local_rope(config: Fields, geometry: Geometry) -> RopeSpec:
    """The rotation of Gemma 3's windowed layers."""
    if config.has("rope_parameters"):
        params = config.section("rope_parameters").section("sliding_attention")
        return _rope(config, params, geometry, params.positive("rope_theta", 10000.0))
    base = config.positive("rope_local_base_freq", 10000.0)
    return RopeSpec(geometry.head_dim, base, interleaved=False)


def _theta(config: Fields, default: float) -> float:
    return config.positive("rope_theta", default)


def _scaling(config: Fields) -> Fields:
    return config.section("rope_scaling") if config.has("rope_scaling") else Fields(config.path, {})


def _rope(config: Fields, params: Fields, geometry: Geometry, base: float) -> RopeSpec:
    for holder in (config, params):
        if holder.positive("partial_rotary_factor", 1.0) != 1.0:
            raise holder.fault("partial_rotary_factor", "rotating part of each head is not supported")
    key = "rope_type" if params.has("rope_type") else "type"  # transformers' spelling before 4.43
    kind = params.text(key, "default")
    if kind not in _KINDS:
        raise params.fault(key, f"rope type {kind!r} is not supported; supported: {', '.join(_KINDS)}")
    return _KINDS[kind](params, geometry, base)


def _default(params: Fields, geometry: Geometry, base: float) -> RopeSpec:
    return RopeSpec(geometry.head_dim, base, interleaved=False)


def _linear(params: Fields, geometry: Geometry, base: float) -> RopeSpec:
    return RopeSpec(geometry.head_dim, base, interleaved=False, linear_scale=params.positive("factor"))


def _llama3(params: Fields, geometry: Geometry, base: float) -> RopeSpec:
    low, high = params.positive("low_freq_factor"), params.positive("high_freq_factor")
    if low >= high:
        raise params.fault("low_freq_factor", f"must be below high_freq_factor {high}, got {low}")
    factors = llama3_freq_factors(
        dim=geometry.head_dim,
        base=base,
        factor=params.positive("factor"),
        low_freq_factor=low,
        high_freq_factor=high,
        original=params.count("original_max_position_embeddings", geometry.context_length),
    )
    return RopeSpec(geometry.head_dim, base, interleaved=False, freq_factors=factors)


def _yarn(params: Fields, geometry: Geometry, base: float) -> RopeSpec:
    original = params.count("original_max_position_embeddings", geometry.context_length)
    factor = params.positive("factor", geometry.context_length / original)
    factors = yarn_freq_factors(
        dim=geometry.head_dim,
        base=base,
        factor=factor,
        original=original,
        beta_fast=params.positive("beta_fast", 32.0),
        beta_slow=params.positive("beta_slow", 1.0),
        truncate=params.flag("truncate", True),
    )
    return RopeSpec(
        geometry.head_dim,
        base,
        interleaved=False,
        freq_factors=factors,
        attention_factor=_attention_factor(params, factor),
    )


def _attention_factor(params: Fields, factor: float) -> float:
    if params.has("attention_factor"):
        return params.positive("attention_factor")
    if params.has("mscale") and params.has("mscale_all_dim"):
        above = yarn_attention_factor(factor, params.positive("mscale"))
        return above / yarn_attention_factor(factor, params.positive("mscale_all_dim"))
    return yarn_attention_factor(factor)


_Kind = Callable[[Fields, Geometry, float], RopeSpec]
_KINDS: Mapping[str, _Kind] = {
    "default": _default,
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
}
