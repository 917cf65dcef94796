#include <atomic>
#include <cstring>

#include "kernels.h"

#if defined(__x86_64__)
#    include <cpuid.h>
#endif

namespace slipstream {

namespace {

#if defined(SLIPSTREAM_HAS_AVXVNNI)
bool has_avxvnni() {
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 4 & 1);
}
#endif

}  // namespace

int available_levels(const Kernels** levels) {
    int count = 0;
#if defined(__x86_64__)
    __builtin_cpu_init();
    // The checks cover the operating system's support of the wide registers too.
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) {
        if (__builtin_cpu_supports("avx512vnni")) levels[count++] = &kernels_avx512vnni;
        levels[count++] = &kernels_avx512;
    }
#    if defined(SLIPSTREAM_HAS_AVXVNNI)
    if (avx2 && has_avxvnni()) levels[count++] = &kernels_avxvnni;
#    endif
    if (avx2) levels[count++] = &kernels_avx2;  // processors that have AVX2 have F16C too
#elif defined(__aarch64__)
    levels[count++] = &kernels_neon;
#endif
    levels[count++] = &kernels_portable;
    return count;
}

namespace {

const Kernels* best_level() {
    const Kernels* levels[MOST_LEVELS];
    available_levels(levels);
    return levels[0];
}

std::atomic<const Kernels*> current{best_level()};

}  // namespace

const Kernels& kernels() {
    return *current.load(std::memory_order_relaxed);
}

bool use_level(const char* name) {
    const Kernels* levels[MOST_LEVELS];
    const int count = available_levels(levels);
    for (int i = 0; i < count; ++i)
        if (std::strcmp(levels[i]->name, name) == 0) {
            current = levels[i];
            return true;
        }
    return false;
}

}  // namespace slipstream
