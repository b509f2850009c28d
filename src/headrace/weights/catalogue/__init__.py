# SPDX-License-Identifier: Apache-2.0
"""Models by name: what is known, what is on this machine, and how it gets here. Knows files and
checksums; what is inside a model file is none of its business."""

from headrace.weights.catalogue.lookup import Listed, list_models, remove, resolve
from headrace.weights.catalogue.pulling import pull

__all__ = ["Listed", "list_models", "pull", "remove", "resolve"]
