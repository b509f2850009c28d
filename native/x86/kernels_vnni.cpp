// SPDX-License-Identifier: Apache-2.0
// AVX512-VNNI: four byte products and their sum in one instruction, at 512 bits where it pays.
#include "../simd/attention.h"
#include "attention_avx512.h"
#include "elementwise_avx2.h"
#include "kernels.h"
#include "products_avx512.h"

namespace headrace {

const Kernels& vnni_kernels() {
  static const Kernels table{"avx512vnni", matmul_512, quantize, rms_norm, halves, gated,
                             attention<Attention512>, attention_shared<Attention512>, attention_parts<Attention512>,
                             merge_parts<Attention512>};
  return table;
}

}  // namespace headrace
