# SPDX-License-Identifier: Apache-2.0
"""What happened, as numbers: counts and histograms kept on the way, and the page that shows them."""
