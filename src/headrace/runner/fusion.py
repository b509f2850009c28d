# SPDX-License-Identifier: Apache-2.0
"""From recorded nodes to the fewer, larger ops that the native program replays: norms and gates move into
the products that read them, residual sums into the products that feed them, q/k/v and gate/up become one
product each, head norms and rotation move into attention. Pure data in, pure data out."""

from __future__ import annotations

from typing import NamedTuple

from headrace.models.ops import Activation, AttentionSpec, RopeSpec
from headrace.runner import recorder as rec
from headrace.runner.recorder import Node, Recorded, inputs_of
from headrace.weights.checkpoint import StoredTensor


class NormPrologue(NamedTuple):
    weight: StoredTensor
    eps: float


class GatedPrologue(NamedTuple):
    up: int
    activation: Activation


class Product(NamedTuple):
    """One matrix of a linear op. `out` and `residual` are values."""

    weight: StoredTensor
    bias: StoredTensor | None
    out: int
    residual: int | None


class LinearOp(NamedTuple):
    x: int
    prologue: NormPrologue | GatedPrologue | None
    products: tuple[Product, ...]


class EmbedOp(NamedTuple):
    weight: StoredTensor
    scale: float
    out: int


class NormOp(NamedTuple):
    x: int
    weight: StoredTensor
    eps: float
    add_to: int | None
    out: int


class AttentionOp(NamedTuple):
    q: int
    k: int
    v: int
    q_norm: StoredTensor | None
    k_norm: StoredTensor | None
    eps: float
    rope: RopeSpec | None
    layer: int
    spec: AttentionSpec
    out: int


class AddOp(NamedTuple):
    x: int
    y: int
    out: int


class SoftcapOp(NamedTuple):
    x: int
    cap: float
    out: int


class SelectOp(NamedTuple):
    x: int
    out: int


FusedOp = LinearOp | EmbedOp | NormOp | AttentionOp | AddOp | SoftcapOp | SelectOp


class FusedProgram(NamedTuple):
    """Values are numbered as the recorded nodes were; `widths` of all, used or not."""

    ops: tuple[FusedOp, ...]
    widths: tuple[int, ...]
    logits: int


def values_read(op: FusedOp) -> tuple[int, ...]:
    match op:
        case LinearOp():
            second = (op.prologue.up,) if isinstance(op.prologue, GatedPrologue) else ()
            return (op.x, *second, *(p.residual for p in op.products if p.residual is not None))
        case EmbedOp():
            return ()
        case NormOp():
            return (op.x,) if op.add_to is None else (op.x, op.add_to)
        case AttentionOp():
            return (op.q, op.k, op.v)
        case AddOp():
            return (op.x, op.y)
        case SoftcapOp() | SelectOp():
            return (op.x,)


def values_written(op: FusedOp) -> tuple[int, ...]:
    return tuple(product.out for product in op.products) if isinstance(op, LinearOp) else (op.out,)


def fuse(nodes: list[Node], logits: Recorded) -> FusedProgram:
    """Raises ValueError for a pass that holds a pattern the native program has no op for."""
    return _Fusion(nodes, logits).run()


class _Fusion:
    def __init__(self, nodes: list[Node], logits: Recorded) -> None:
        self.nodes = nodes
        self.logits = logits.node
        self.readers: dict[int, list[int]] = {}
        self.widths = [0] * len(nodes)
        self.widths[logits.node] = logits.width
        for number, node in enumerate(nodes):
            for value in inputs_of(node):
                self.readers.setdefault(value.node, []).append(number)
                self.widths[value.node] = value.width
        self.done: set[int] = set()

    def run(self) -> FusedProgram:
        ops: list[FusedOp] = []
        for number in range(len(self.nodes)):
            if number not in self.done and not self._moves_into_readers(number):
                ops.append(self._emit(number))
        return FusedProgram(tuple(ops), tuple(self.widths), self.logits)

    def _read_only_by(self, number: int, kind: type[Node]) -> bool:
        readers = self.readers.get(number, [])
        return bool(readers) and all(isinstance(self.nodes[reader], kind) for reader in readers)

    def _moves_into_readers(self, number: int) -> bool:
        match self.nodes[number]:
            case rec.RmsNorm() | rec.Gated():
                return self._read_only_by(number, rec.Linear)
            case rec.Rope():
                return self._read_only_by(number, rec.Attention)
            case rec.HeadNorm():
                return self._read_only_by(number, rec.Rope) or self._read_only_by(number, rec.Attention)
            case _:
                return False

    def _emit(self, number: int) -> FusedOp:
        node = self.nodes[number]
        match node:
            case rec.Embed():
                return EmbedOp(node.weight, node.scale, number)
            case rec.Linear():
                return self._linear(node)
            case rec.RmsNorm():
                out, add_to = self._sum_after(number)
                return NormOp(node.x.node, node.weight, node.eps, add_to, out)
            case rec.Attention():
                return self._attention(number, node)
            case rec.Add():
                return AddOp(node.x.node, node.y.node, number)
            case rec.Softcap():
                return SoftcapOp(node.x.node, node.cap, number)
            case rec.SelectOutputs():
                return SelectOp(node.x.node, number)
            case _:
                raise ValueError(f"the native program has no op for {type(node).__name__} standing alone")

    def _sum_after(self, number: int) -> tuple[int, int | None]:
        """(value written, value added): a node's only reader being a sum, the node can write the sum."""
        readers = self.readers.get(number, [])
        if len(readers) != 1:
            return number, None
        reader = self.nodes[readers[0]]
        if not isinstance(reader, rec.Add):
            return number, None
        other = reader.y.node if reader.x.node == number else reader.x.node
        if other >= number:
            return number, None
        self.done.add(readers[0])
        return readers[0], other

    def _linear(self, first: rec.Linear) -> LinearOp:
        siblings = [
            number
            for number in self.readers[first.x.node]
            if number not in self.done and isinstance(self.nodes[number], rec.Linear)
        ]
        products = []
        for number in siblings:
            node = self.nodes[number]
            assert isinstance(node, rec.Linear)
            out, residual = self._sum_after(number) if len(siblings) == 1 else (number, None)
            products.append(Product(node.weight, node.bias, out, residual))
            self.done.add(number)
        x, prologue = self._prologue(first.x)
        return LinearOp(x, prologue, tuple(products))

    def _prologue(self, x: Recorded) -> tuple[int, NormPrologue | GatedPrologue | None]:
        node = self.nodes[x.node]
        if self._moves_into_readers(x.node):
            if isinstance(node, rec.RmsNorm):
                return node.x.node, NormPrologue(node.weight, node.eps)
            if isinstance(node, rec.Gated):
                return node.gate.node, GatedPrologue(node.up.node, node.activation)
        return x.node, None

    def _attention(self, number: int, node: rec.Attention) -> AttentionOp:
        q, q_norm, q_eps, q_rope = self._head_steps(node.q)
        k, k_norm, k_eps, k_rope = self._head_steps(node.k)
        if q_rope != k_rope or (q_norm is not None and k_norm is not None and q_eps != k_eps):
            raise ValueError("the native program rotates and norms queries and keys alike")
        return AttentionOp(
            q=q,
            k=k,
            v=node.v.node,
            q_norm=q_norm,
            k_norm=k_norm,
            eps=q_eps if q_norm is not None else k_eps,
            rope=q_rope,
            layer=node.layer,
            spec=node.spec,
            out=number,
        )

    def _head_steps(self, x: Recorded) -> tuple[int, StoredTensor | None, float, RopeSpec | None]:
        """Back from attention's input over rotation and head norm to the value that a product wrote."""
        rope: RopeSpec | None = None
        weight: StoredTensor | None = None
        eps = 0.0
        node = self.nodes[x.node]
        if isinstance(node, rec.Rope):
            rope, x = node.spec, node.x
            node = self.nodes[x.node]
        if isinstance(node, rec.HeadNorm):
            weight, eps, x = node.weight, node.eps, node.x
        if len(self.readers[x.node]) != 1:
            raise ValueError("queries and keys are changed in place, so nothing else may read them")
        return x.node, weight, eps, rope
