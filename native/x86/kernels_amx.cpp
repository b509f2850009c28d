// SPDX-License-Identifier: Apache-2.0
// AMX: products of many tokens by tiles, all else as with AVX512-VNNI.
#include "kernels.h"
#include "products_amx.h"

namespace headrace {

const Kernels& amx_kernels() {
  static const Kernels table = [] {
    Kernels kernels = vnni_kernels();
    kernels.name = "amx";
    kernels.matmul = matmul_amx;
    kernels.fewest_for_panels = kFewestForPanels;
    return kernels;
  }();
  return table;
}

}  // namespace headrace
