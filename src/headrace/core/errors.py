# SPDX-License-Identifier: Apache-2.0
"""Every error that Headrace raises on purpose. Each carries a sentence for the person who
caused it: what was asked, why not, and what would work. It knows nothing of HTTP but a status."""

from __future__ import annotations


class HeadraceError(Exception):
    """Base of all deliberate errors. `str(error)` is fit to show to a user."""


class RequestError(HeadraceError):
    """A request that cannot be served as sent.

    Args:
        message: what is wrong and what would work.
        param: the body field at fault, None when no single field is.
        code: machine-readable reason, e.g. `context_length_exceeded`.
        status: the HTTP status that fits, 400 unless said otherwise.
    """

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        status: int = 400,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code
        self.status = status


class Overloaded(RequestError):
    """A request that is refused because of the others: the same one may be served later.

    Args:
        code: `queue_full` or `slo_unreachable`.
        retry_after_s: when it is expected to be served if sent again.
        predicted_ttft_s: the wait for the first token that was foreseen, None when it was not looked at.
    """

    def __init__(
        self,
        message: str,
        *,
        code: str,
        retry_after_s: float,
        predicted_ttft_s: float | None = None,
        param: str | None = None,
    ) -> None:
        super().__init__(message, param=param, code=code, status=429)
        self.retry_after_s = retry_after_s
        self.predicted_ttft_s = predicted_ttft_s


class ModelFileError(HeadraceError):
    """A model file that is broken, hostile or not supported.

    Args:
        path: the file.
        field: the header field, metadata key or tensor at fault.
        message: what is wrong with it.
    """

    def __init__(self, path: object, field: str, message: str) -> None:
        super().__init__(f"{path}: {field}: {message}")
        self.path = str(path)
        self.field = field


class CatalogueError(HeadraceError):
    """A model that cannot be found or fetched."""


class ConfigError(HeadraceError):
    """A bad option, environment variable or combination of them."""


class EngineStopped(HeadraceError):
    """The engine has stopped or is draining and takes nothing new."""
