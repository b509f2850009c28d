# SPDX-License-Identifier: Apache-2.0
"""How far a computation may be from its oracle: one named constant each, with the reason beside it."""

# Log probabilities of tiny float32 models against transformers, as a share of the spread (standard
# deviation) of that place's logits. Both sides compute in float32 and differ in the order of their sums: the
# worst seen is 5e-6. A wrong window, scale, norm or rotation shows at 5e-2 and more.
LOGPROB_REFERENCE = 5e-5

# The same for the native CPU backend, whose K/V is stored as float16: eleven significant bits. The reference
# backend with its K/V rounded to float16 is off by 4e-3 at worst.
LOGPROB_CPU = 1.5e-2

# The same with quantised weights, by the root of the mean square: their products round activations to 8 bits
# by groups of 32, half a percent of each product, which tiny random models do not average out. Seen: 0.035.
LOGPROB_CPU_INT8 = 0.07

# Perplexity of a real quantised file on the CPU backend against transformers on the same dequantised weights
# in float32. The backend rounds K/V to float16, and activations to 8 bits before it multiplies them with
# quantised weights. (The reference backend, all in float32, is within 1e-4.)
PERPLEXITY_REAL_MODEL = 5e-3

# A native product against numpy in float64 on the same 8-bit inputs, as a share of |x| . |w|. Integers are
# summed exactly; what is left is float32 rounding over the groups.
PRODUCT_FLOAT = 2e-6

# The same where packing rounds a product of two stored scales to float16 (half a unit in the last of
# 11 bits).
PRODUCT_SCALES = 5e-4

# Two kernel tables on the same packed matrix, as a share of the largest result: the order of float32 sums.
PRODUCT_TABLES = 1e-5

# Two tokens whose log probabilities are this close may change places between implementations.
NEAR_TIE = 0.1
