# SPDX-License-Identifier: Apache-2.0
"""`python -m headrace` is the `headrace` command."""

import sys

from headrace.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
