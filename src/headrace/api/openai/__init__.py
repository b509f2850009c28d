# SPDX-License-Identifier: Apache-2.0
"""The OpenAI routes: bodies checked, answers shaped. Begin at chat.py."""
