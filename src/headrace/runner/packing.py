# SPDX-License-Identifier: Apache-2.0
"""Where a program's matrices come from: from a folder of packed weights, as far as it has them, else from the
checkpoint's tensors by packing. What had to be packed is kept in that folder after the model is loaded."""

from __future__ import annotations

from collections.abc import Mapping

from headrace import _native
from headrace.weights.checkpoint import Checkpoint, StoredTensor
from headrace.weights.packed.folder import PackedFolder
from headrace.weights.packed.identity import identity_of
from headrace.weights.packed.later import Later
from headrace.weights.packed.packed_file import PackedTensor


class Packing:
    """Gives each matrix of a model once. `num_packed` counts those that were not found packed."""

    def __init__(self, team: _native.Team, found: Mapping[str, PackedTensor] | None = None) -> None:
        self.num_packed = 0
        self.num_bytes = 0  # of all given so far
        self._team = team
        self._found = found or {}
        self._given: dict[str, tuple[StoredTensor, _native.PackedMatrix]] = {}

    def matrix(self, tensor: StoredTensor) -> _native.PackedMatrix:
        packed = self._packed_before(tensor)
        if packed is None:
            rows, columns = tensor.shape
            packed = _native.pack(tensor.format.gguf_id, tensor.data, rows, columns, self._team)
            self.num_packed += 1
        self.num_bytes += packed.num_bytes
        self._given[tensor.name] = tensor, packed
        return packed

    def _packed_before(self, tensor: StoredTensor) -> _native.PackedMatrix | None:
        found = self._found.get(tensor.name)
        if found is None or (found.gguf_id, (found.rows, found.columns)) != (
            tensor.format.gguf_id,
            tensor.shape,
        ):
            return None
        try:
            packed = _native.packed_before(
                found.gguf_id, found.data, found.rows, found.columns, found.multiplier
            )
        except ValueError:  # of another size than this program's
            return None
        return packed if packed.kind == found.kind else None

    def packed_tensors(self) -> list[PackedTensor]:
        """All that were given, as a file keeps them."""
        return [
            PackedTensor(
                name=tensor.name,
                gguf_id=tensor.format.gguf_id,
                kind=packed.kind,
                rows=tensor.shape[0],
                columns=tensor.shape[1],
                multiplier=packed.multiplier,
                data=packed.data,
            )
            for tensor, packed in self._given.values()
        ]


class KeptPacking(Packing):
    """A `Packing` that begins with what a folder has of the model, and lets it have the rest."""

    def __init__(self, team: _native.Team, checkpoint: Checkpoint, folder: PackedFolder) -> None:
        self._checkpoint = checkpoint
        self._folder = folder
        self._identity = identity_of(checkpoint, _native.PACKED_LAYOUT)
        super().__init__(team, None if self._identity is None else folder.find(self._identity))

    def keep(self) -> Later | None:
        """Begin to keep the matrices, where any was packed; None where nothing is to be done."""
        identity = self._identity
        # A file that was written to while it was read: what of it is in the matrices nobody knows.
        if not self.num_packed or identity is None or not self._is_unchanged():
            return None
        tensors = self.packed_tensors()
        return Later(lambda is_stopped: self._folder.keep(identity, tensors, is_stopped))

    def _is_unchanged(self) -> bool:
        return self._identity == identity_of(self._checkpoint, _native.PACKED_LAYOUT)
