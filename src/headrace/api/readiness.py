# SPDX-License-Identifier: Apache-2.0
"""Whether the server can answer, and why not. Written by whoever runs the server, on the event loop's
thread; routes ask `model()` and get the model or the 503 that fits."""

from __future__ import annotations

from headrace.api.http.errors import Unavailable
from headrace.api.served_model import ServedModel


class Readiness:
    """loading -> ready -> draining. An engine that has died is found out by asking it."""

    def __init__(self) -> None:
        self._model: ServedModel | None = None
        self._is_draining = False

    def set_ready(self, model: ServedModel) -> None:
        self._model = model

    def set_draining(self) -> None:
        self._is_draining = True

    def loaded(self) -> ServedModel:
        """The model, whether or not it takes anything new."""
        if self._model is None:
            raise Unavailable("The model is still loading; try again in a moment", "model_loading")
        return self._model

    def model(self) -> ServedModel:
        if self._is_draining:
            raise Unavailable("The server is shutting down and takes nothing new", "draining")
        model = self.loaded()
        if not model.engine.alive:
            raise Unavailable("The engine has died; the server must be restarted", "engine_dead")
        return model
