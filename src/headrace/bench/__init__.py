# SPDX-License-Identifier: Apache-2.0
"""Measuring: speed of one request, launch of a process, perplexity. Works on the words of core alone."""
