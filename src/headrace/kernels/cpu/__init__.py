# SPDX-License-Identifier: Apache-2.0
"""Native code for the CPU, with types. Importing a module of this folder loads the extension."""
