# SPDX-License-Identifier: Apache-2.0
"""Records a forward pass: an `Ops` whose values are numbers of nodes in a list. It knows the ops' shapes
and nothing of how they will be computed. Its records, and those of `fusion`, are named tuples: two dozen
frozen dataclasses would take twenty milliseconds of every start to build."""

from __future__ import annotations

from typing import NamedTuple

from headrace.models.ops import Activation, AttentionSpec, RopeSpec
from headrace.weights.checkpoint import StoredTensor


class Recorded(NamedTuple):
    """A value of the recorded pass: the node that makes it, and its width (floats a token)."""

    node: int
    width: int


class Embed(NamedTuple):
    weight: StoredTensor
    scale: float


class RmsNorm(NamedTuple):
    x: Recorded
    weight: StoredTensor
    eps: float


class HeadNorm(NamedTuple):
    x: Recorded
    weight: StoredTensor
    num_heads: int
    eps: float


class Linear(NamedTuple):
    x: Recorded
    weight: StoredTensor
    bias: StoredTensor | None


class Rope(NamedTuple):
    x: Recorded
    num_heads: int
    spec: RopeSpec


class Attention(NamedTuple):
    q: Recorded
    k: Recorded
    v: Recorded
    layer: int
    spec: AttentionSpec


class Gated(NamedTuple):
    gate: Recorded
    up: Recorded
    activation: Activation


class Add(NamedTuple):
    x: Recorded
    y: Recorded


class Softcap(NamedTuple):
    x: Recorded
    cap: float


class SelectOutputs(NamedTuple):
    x: Recorded


Node = Embed | RmsNorm | HeadNorm | Linear | Rope | Attention | Gated | Add | Softcap | SelectOutputs


def inputs_of(node: Node) -> tuple[Recorded, ...]:
    match node:
        case Embed():
            return ()
        case Attention():
            return (node.q, node.k, node.v)
        case Gated():
            return (node.gate, node.up)
        case Add():
            return (node.x, node.y)
        case _:
            return (node.x,)


class Recorder:
    """Implements `models.ops.Ops`."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []

    def _record(self, node: Node, width: int) -> Recorded:
        self.nodes.append(node)
        return Recorded(len(self.nodes) - 1, width)

    def embed(self, weight: StoredTensor, scale: float) -> Recorded:
        return self._record(Embed(weight, scale), weight.shape[1])

    def rms_norm(self, x: Recorded, weight: StoredTensor, eps: float) -> Recorded:
        return self._record(RmsNorm(x, weight, eps), x.width)

    def head_norm(self, x: Recorded, weight: StoredTensor, num_heads: int, eps: float) -> Recorded:
        return self._record(HeadNorm(x, weight, num_heads, eps), x.width)

    def linear(self, x: Recorded, weight: StoredTensor, bias: StoredTensor | None = None) -> Recorded:
        return self._record(Linear(x, weight, bias), weight.shape[0])

    def rope(self, x: Recorded, num_heads: int, spec: RopeSpec) -> Recorded:
        return self._record(Rope(x, num_heads, spec), x.width)

    def attention(self, q: Recorded, k: Recorded, v: Recorded, layer: int, spec: AttentionSpec) -> Recorded:
        return self._record(Attention(q, k, v, layer, spec), q.width)

    def gated(self, gate: Recorded, up: Recorded, activation: Activation) -> Recorded:
        return self._record(Gated(gate, up, activation), gate.width)

    def add(self, x: Recorded, y: Recorded) -> Recorded:
        return self._record(Add(x, y), x.width)

    def softcap(self, x: Recorded, cap: float) -> Recorded:
        return self._record(Softcap(x, cap), x.width)

    def select_outputs(self, x: Recorded) -> Recorded:
        return self._record(SelectOutputs(x), x.width)
