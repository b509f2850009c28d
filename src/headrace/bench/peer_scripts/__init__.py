# SPDX-License-Identifier: Apache-2.0
"""Scripts that are run by their path: a folder of their own, which Python puts first where it looks for
modules, so that none of bench/ takes the place of one of its own."""
