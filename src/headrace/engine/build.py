# SPDX-License-Identifier: Apache-2.0
"""The one place that wires rooms together: from a model's name to an engine that serves it. Everything
heavy is imported inside the functions, so that importing this file costs nothing."""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from headrace.core.config import ModelConfig
from headrace.core.resolve import BLOCK_SIZE, ModelShape, ResolvedConfig, resolve

if TYPE_CHECKING:
    from headrace.core.events import StepSink
    from headrace.core.plan import Backend, BackendInfo
    from headrace.engine.loop import Engine
    from headrace.models.spec import ModelSpec
    from headrace.text.chat_template import ChatTemplate
    from headrace.text.tokenizer import Tokenizer
    from headrace.weights.checkpoint import Checkpoint
    from headrace.weights.packed.folder import PackedFolder

T = TypeVar("T")

_log = logging.getLogger(__name__)

KV_VALUE_BYTES = {"cpu": 2, "reference": 4}  # of one number in K or V
# The reference backend fills its K/V with NaN, and so touches all of it at load.
REFERENCE_KV_BYTES = 256 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model being served. Whoever loaded it closes the engine."""

    name: str  # what it is called in answers
    path: Path
    spec: ModelSpec
    info: BackendInfo  # with the ids that the tokenizer has
    resolved: ResolvedConfig
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    engine: Engine  # started


def load_model(
    source: str, config: ModelConfig | None = None, *, on_step: StepSink | None = None
) -> LoadedModel:
    """Open a model that is on this machine (a catalogue name, hf:..., a path), and start an engine on it.

    Tokenizer and template are read while the backend packs the weights, which holds no GIL."""
    from headrace.engine.loop import Engine
    from headrace.models.registry import spec_from_checkpoint
    from headrace.weights import catalogue
    from headrace.weights.open import open_checkpoint

    config = config or ModelConfig()
    path = catalogue.resolve(source)
    checkpoint = open_checkpoint(path)
    spec = spec_from_checkpoint(checkpoint)
    resolved = _resolve(config, spec)
    with _collector_paused():
        text = _Background(lambda: _load_text(checkpoint, config.chat_template))
        backend = _load_backend(checkpoint, config, resolved)
        tokenizer, chat_template = text.result()
    engine = Engine(
        backend,
        config.engine,
        tokenizer.eos_ids,
        tokenizer.vocab_size,
        model_key=_model_key(path, config),
        on_step=on_step,
    )
    engine.start()
    return LoadedModel(
        name=name_of(source),
        path=path,
        spec=spec,
        info=engine.info,
        resolved=resolved,
        tokenizer=tokenizer,
        chat_template=chat_template,
        engine=engine,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedBackend:
    """A model without an engine, for what drives a backend itself. Whoever loaded it closes the backend."""

    checkpoint: Checkpoint
    spec: ModelSpec
    resolved: ResolvedConfig
    backend: Backend


def load_backend(source: str, config: ModelConfig | None = None) -> LoadedBackend:
    """As `load_model`, but without text and engine."""
    from headrace.models.registry import spec_from_checkpoint
    from headrace.weights import catalogue
    from headrace.weights.open import open_checkpoint

    config = config or ModelConfig()
    checkpoint = open_checkpoint(catalogue.resolve(source))
    spec = spec_from_checkpoint(checkpoint)
    resolved = _resolve(config, spec)
    backend = _load_backend(checkpoint, config, resolved)
    return LoadedBackend(checkpoint=checkpoint, spec=spec, resolved=resolved, backend=backend)


@contextmanager
def _collector_paused() -> Iterator[None]:
    """A vocabulary is a hundred thousand new objects, none of them garbage: looking through them time and
    again while it is built took a tenth of the start."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def name_of(source: str) -> str:
    """A short name as it is; of a path, hub name or URL the last part without its ending."""
    last = source.rstrip("/").replace("\\", "/").rsplit("/", 1)[-1]
    return last.removesuffix(".gguf")


def _model_key(path: Path, config: ModelConfig) -> str:
    """What this model's K/V depend on: its files as they are now, and how they are computed."""
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    stats = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return repr((str(path.resolve()), stats, config.backend))


def _resolve(config: ModelConfig, spec: ModelSpec) -> ResolvedConfig:
    from headrace.core.machine import this_machine

    if config.backend == "reference" and config.kv_cache_bytes is None:
        config = replace(config, kv_cache_bytes=REFERENCE_KV_BYTES)
    shape = ModelShape(
        context_length=spec.context_length,
        kv_bytes_per_token=2
        * spec.num_layers
        * spec.num_kv_heads
        * spec.head_dim
        * KV_VALUE_BYTES[config.backend],
    )
    resolved = resolve(config, shape, this_machine())
    for line in resolved.lines():
        _log.info("%s", line)
    return resolved


def _load_text(checkpoint: Checkpoint, template_source: str | None) -> tuple[Tokenizer, ChatTemplate | None]:
    from headrace.text.chat_template import ChatTemplate, load_chat_template
    from headrace.text.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(checkpoint)
    if template_source is not None:
        return tokenizer, ChatTemplate(template_source, tokenizer)
    return tokenizer, load_chat_template(checkpoint, tokenizer)


def _load_backend(checkpoint: Checkpoint, config: ModelConfig, resolved: ResolvedConfig) -> Backend:
    if config.backend == "reference":
        from headrace.runner.backends.reference import load_reference_backend

        return load_reference_backend(
            checkpoint,
            max_model_len=resolved.max_model_len.value,
            num_blocks=resolved.num_blocks,
            block_size=BLOCK_SIZE,
        )
    from headrace.runner.backends.cpu import load_cpu_backend

    return load_cpu_backend(
        checkpoint,
        num_threads=resolved.num_threads.value,
        max_model_len=resolved.max_model_len.value,
        kv_cache_bytes=resolved.kv_cache_bytes.value,
        packed=_packed_folder() if config.packed_cache else None,
    )


def _packed_folder() -> PackedFolder | None:
    from headrace.core.env import home_directory, read_environment
    from headrace.weights.packed.folder import PackedFolder

    max_bytes = read_environment().packed_cache_bytes
    return PackedFolder(home_directory() / "packed", max_bytes) if max_bytes else None


class _Background(Generic[T]):
    """A call on a thread of its own. (`concurrent.futures` would do, at ten times the import time.)"""

    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        self._value: list[T] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def result(self) -> T:
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._value[0]

    def _run(self) -> None:
        try:
            self._value.append(self._call())
        except BaseException as error:
            self._error = error
