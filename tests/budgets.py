# SPDX-License-Identifier: Apache-2.0
"""How far a computation may be from its oracle: one named constant each, with the reason beside it."""

# Log probabilities of tiny float32 models against transformers, as a share of the spread (standard
# deviation) of that place's logits. Both sides compute in float32 and differ in the order of their sums,
# which these models, with weights drawn wide, amplify: the worst seen is 2e-5. A wrong window, scale, norm
# or rotation shows at 1e-2 and more.
LOGPROB_REFERENCE = 1e-4

# The same for the native CPU backend, whose K/V is stored as float16: eleven significant bits, so each key
# and value is off by up to 2**-12 of itself.
LOGPROB_CPU = 1e-2

# Perplexity of a real quantised file against transformers on the same dequantised weights. The CPU backend
# also rounds activations to 8 bits before it multiplies them with quantised weights.
PERPLEXITY_REAL_MODEL = 0.005
