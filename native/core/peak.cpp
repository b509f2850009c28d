// SPDX-License-Identifier: Apache-2.0
// Which chain belongs to which table, by the table's name.
#include "peak.h"

#include <cstring>

namespace headrace {

const ByteChain* byte_chain(const char* table) {
#if defined(HEADRACE_X86)
  if (!std::strcmp(table, "amx")) return &amx_chain();
  if (!std::strcmp(table, "avx512vnni")) return &vnni_chain();
  if (!std::strcmp(table, "avx2")) return &avx2_chain();
#elif defined(__aarch64__)
  if (std::strstr(table, "i8mm")) return &neon_i8mm_chain();
  if (std::strstr(table, "dot")) return &neon_dot_chain();
  if (std::strstr(table, "neon")) return &neon_chain();
#endif
  (void)table;
  return nullptr;
}

}  // namespace headrace
