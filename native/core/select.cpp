// SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "kernels.h"

namespace headrace {

#if !defined(HEADRACE_X86)
const Kernels* avx2_kernels() { return nullptr; }
const Kernels* vnni_kernels() { return nullptr; }
#endif

const Kernels* select_kernels(const char* name) {
  const Kernels* fastest_first[] = {vnni_kernels(), avx2_kernels(), &reference_kernels()};
  for (const Kernels* table : fastest_first)
    if (table && (!std::strcmp(name, "auto") || !std::strcmp(name, table->name))) return table;
  return nullptr;
}

}  // namespace headrace
