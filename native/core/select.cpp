// SPDX-License-Identifier: Apache-2.0
// Which kernel tables this CPU runs. It is compiled without any extension, so that it runs everywhere itself.
#include <cstring>
#include <initializer_list>

#if defined(HEADRACE_X86)
#include <cpuid.h>
#endif
#if defined(HEADRACE_X86) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#if defined(HEADRACE_ARM) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#elif defined(HEADRACE_ARM) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

#include "kernels.h"

namespace headrace {
namespace {

struct Need {
  bool is_here;
  const char* name;
};

TableStatus status_of(const char* name, const Kernels& (*table)(), std::initializer_list<Need> needs) {
  std::string lacks;
  for (const Need& need : needs)
    if (!need.is_here) lacks += (lacks.empty() ? "" : ", ") + std::string(need.name);
  return {name, lacks.empty() ? &table() : nullptr, lacks};
}

#if defined(HEADRACE_X86)
bool has_f16c() {  // which clang's __builtin_cpu_supports does not know
  unsigned a, b, c, d;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}

// Tiles are there and multiply bytes: EDX of leaf 7, bits 24 and 25 (Intel's manual, volume 2, CPUID).
bool has_tiles() {
  unsigned a, b, c, d;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d >> 24 & 3) == 3;
}

// Linux keeps a thread's tiles over a switch only in a process that has asked for it (arch_prctl(2)).
bool may_use_tiles() {
#if defined(__linux__)
  constexpr long kAskForState = 0x1023, kTileData = 18;
  static const bool may = syscall(SYS_arch_prctl, kAskForState, kTileData) == 0;
  return may;
#else
  return false;
#endif
}
#elif defined(HEADRACE_ARM)
bool has_dot_products() {
#if defined(__linux__)
  return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
#elif defined(__APPLE__)
  int has = 0;
  size_t size = sizeof has;
  return sysctlbyname("hw.optional.arm.FEAT_DotProd", &has, &size, nullptr, 0) == 0 && has != 0;
#else
  return false;
#endif
}
#endif

}  // namespace

std::vector<TableStatus> kernel_tables() {
  std::vector<TableStatus> tables;
#if defined(HEADRACE_X86)
  const Need avx2{__builtin_cpu_supports("avx2") != 0, "AVX2"}, fma{__builtin_cpu_supports("fma") != 0, "FMA"},
      f16c{has_f16c(), "F16C"};
  const Need f{__builtin_cpu_supports("avx512f") != 0, "AVX512F"}, bw{__builtin_cpu_supports("avx512bw") != 0, "AVX512BW"},
      vl{__builtin_cpu_supports("avx512vl") != 0, "AVX512VL"},
      vnni{__builtin_cpu_supports("avx512vnni") != 0, "AVX512-VNNI"}, tiles{has_tiles(), "AMX-INT8"};
  const Need leave{!tiles.is_here || may_use_tiles(), "the system's leave to use AMX"};
  tables.push_back(status_of("amx", amx_kernels, {avx2, fma, f16c, f, bw, vl, vnni, tiles, leave}));
  tables.push_back(status_of("avx512vnni", vnni_kernels, {avx2, fma, f16c, f, bw, vl, vnni}));
  tables.push_back(status_of("avx2", avx2_kernels, {avx2, fma, f16c}));
#elif defined(HEADRACE_ARM)
  tables.push_back(status_of("dotprod", dotprod_kernels, {{has_dot_products(), "DotProd"}}));
  tables.push_back(status_of("neon", neon_kernels, {}));  // which every 64-bit ARM has
#endif
  tables.push_back(status_of("reference", reference_kernels, {}));
  return tables;
}

const Kernels* select_kernels(const char* name) {
  for (const TableStatus& status : kernel_tables())
    if (status.table && (!std::strcmp(name, "auto") || !std::strcmp(name, status.name))) return status.table;
  return nullptr;
}

}  // namespace headrace
