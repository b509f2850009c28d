# SPDX-License-Identifier: Apache-2.0
"""Shared frozen words: requests, plans, events, configuration, errors. Imports stdlib and numpy only."""
