# SPDX-License-Identifier: Apache-2.0
"""HTTP that is the same for every route: bodies, errors, keys, streams, disconnects. No OpenAI shapes
but that of the error object."""
