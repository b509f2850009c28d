# SPDX-License-Identifier: Apache-2.0
"""What makes a model another one for those who keep its packed weights."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest

from headrace.weights.checkpoint import StoredTensor
from headrace.weights.formats import BY_NAME
from headrace.weights.packed.identity import identity_of


@dataclass(frozen=True)
class Model:
    """A `weights.checkpoint.Checkpoint`."""

    tensors: dict[str, StoredTensor]
    path: Path = Path("model")
    metadata: dict[str, object] = field(default_factory=dict)


def model_in(file: Path, seed: int = 0) -> Model:
    rng = np.random.default_rng(seed)
    data = rng.integers(0, 256, 34 * 1000, dtype=np.uint8)
    if not file.exists():
        file.write_bytes(data.tobytes())
    row = BY_NAME["Q8_0"]
    made = [StoredTensor(name, (10, 3200), row, data, file) for name in ("b", "a")]
    return Model({tensor.name: tensor for tensor in made})


def with_byte(tensor: StoredTensor, place: int) -> StoredTensor:
    data = tensor.data.copy()
    data[place] ^= 1
    return replace(tensor, data=data)


CHANGES: dict[str, Callable[[StoredTensor], StoredTensor]] = {
    "its name": lambda tensor: replace(tensor, name="c"),
    "its shape": lambda tensor: replace(tensor, shape=(20, 1600)),
    "its type": lambda tensor: replace(tensor, format=BY_NAME["Q4_0"]),
    "its first byte": lambda tensor: with_byte(tensor, 0),
    "a byte in the middle": lambda tensor: with_byte(tensor, 17_000),
    "its last byte": lambda tensor: with_byte(tensor, -1),
}


def test_the_same_model(tmp_path: Path) -> None:
    model = model_in(tmp_path / "x")
    name = identity_of(model, 1)
    assert name is not None
    assert len(name) == 40
    assert identity_of(model_in(tmp_path / "x"), 1) == name
    turned = Model(dict(reversed(model.tensors.items())))
    assert identity_of(turned, 1) == name, "whatever the order of its tensors"
    (tmp_path / "link").symlink_to(tmp_path / "x")
    assert identity_of(model_in(tmp_path / "link"), 1) == name, "whatever it is called"


def test_another_layout(tmp_path: Path) -> None:
    model = model_in(tmp_path / "x")
    assert identity_of(model, 1) != identity_of(model, 2)


@pytest.mark.parametrize("change", CHANGES)
def test_another_tensor(change: str, tmp_path: Path) -> None:
    model = model_in(tmp_path / "x")
    other = Model({name: CHANGES[change](tensor) for name, tensor in model.tensors.items()})
    assert identity_of(other, 1) != identity_of(model, 1)


def test_a_file_written_since(tmp_path: Path) -> None:
    file = tmp_path / "x"
    model = model_in(file)
    first = identity_of(model, 1)
    times = (file.stat().st_atime_ns, file.stat().st_mtime_ns)
    with file.open("r+b") as opened:
        opened.seek(5000)
        opened.write(b"other")
    os.utime(file, ns=times)  # as if nothing had been
    second = identity_of(model, 1)
    assert second != first
    os.utime(file)
    assert identity_of(model, 1) not in (first, second)


def test_a_file_that_is_gone(tmp_path: Path) -> None:
    model = model_in(tmp_path / "x")
    (tmp_path / "x").unlink()
    assert identity_of(model, 1) is None
