# SPDX-License-Identifier: Apache-2.0
"""The folder that keeps packed weights from one start to the next. A file appears under its name when it is
whole, by renaming, so that writers need not know of each other; what nobody used for longest goes first. All
of it is a convenience: whatever fails is told once and the model is served from memory."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.core.errors import ModelFileError
from headrace.weights.packed.packed_file import (
    PackedFileError,
    PackedTensor,
    WriteStopped,
    packed_size,
    read_packed,
    write_packed,
)

ENDING = ".packed"
TEMPORARY_ENDING = ".tmp"
ABANDONED_S = 3600.0  # nothing was written to it for so long: its writer is dead

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PackedFolder:
    """Made when something is kept. `max_bytes`: of all its files together."""

    path: Path
    max_bytes: int

    def find(self, identity: str) -> dict[str, PackedTensor]:
        """What was kept of a model; nothing where nothing was, or nothing that can be used."""
        with contextlib.suppress(OSError):
            self._remove_abandoned()
        file = self.path / f"{identity}{ENDING}"
        try:
            tensors = read_packed(file, identity)
        except FileNotFoundError:
            return {}
        except (PackedFileError, ModelFileError, OSError) as error:
            log.warning("packed weights are made anew: %s", error)
            return {}
        with contextlib.suppress(OSError):
            os.utime(file)  # used now; the system's own access times are often off
        return tensors

    def keep(self, identity: str, tensors: Sequence[PackedTensor], is_stopped: Callable[[], bool]) -> bool:
        """Write the matrices for later starts, and say whether they are there now."""
        temporary = self.path / f"{identity}.{os.getpid()}-{os.urandom(4).hex()}{TEMPORARY_ENDING}"
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            if not self._has_room(packed_size(tensors)):
                return False
            write_packed(temporary, identity, tensors, is_stopped)
            os.replace(temporary, self.path / f"{identity}{ENDING}")
        except WriteStopped:
            return False
        except OSError as error:
            log.warning("packed weights are not kept, so the next start packs again: %s", error)
            return False
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink()  # gone already, where all went well
        return True

    def _has_room(self, needed: int) -> bool:
        if needed > self.max_bytes:
            log.info("packed weights are not kept: %d bytes are more than %d", needed, self.max_bytes)
            return False
        self._shrink(self.max_bytes - needed)
        import shutil  # brings the compressors along: 10 ms of a start that seldom writes

        free = shutil.disk_usage(self.path).free
        if free < 2 * needed:  # others want to write as well
            log.warning("packed weights are not kept: %d bytes, and the disk has %d free", needed, free)
            return False
        return True

    def _shrink(self, max_bytes: int) -> None:
        """Remove what was used longest ago. Who has it mapped goes on reading it."""
        files = sorted(self._files(), reverse=True)
        total = 0
        for _, size, file in files:
            total += size
            if total > max_bytes and file.suffix == ENDING:
                with contextlib.suppress(OSError):
                    file.unlink()

    def _remove_abandoned(self) -> None:
        for modified_s, _, file in self._files():
            if file.suffix == TEMPORARY_ENDING and modified_s < time.time() - ABANDONED_S:
                with contextlib.suppress(OSError):
                    file.unlink()

    def _files(self) -> list[tuple[float, int, Path]]:
        """When each was used last, its size, and the file."""
        found = []
        for file in self.path.iterdir():
            with contextlib.suppress(OSError):
                if file.suffix in (ENDING, TEMPORARY_ENDING):
                    status = file.stat()
                    found.append((status.st_mtime, status.st_size, file))
        return found
