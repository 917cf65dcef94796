#include <atomic>
#include <cstring>

#include "kernels.h"

namespace slipstream {

int available_levels(const Kernels** levels) {
    int count = 0;
#if defined(__x86_64__)
    __builtin_cpu_init();
    // The checks cover the operating system's support of the wide registers too.
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
        levels[count++] = &kernels_avx512;
    if (avx2) levels[count++] = &kernels_avx2;
#elif defined(__aarch64__)
    levels[count++] = &kernels_neon;
#endif
    levels[count++] = &kernels_portable;
    return count;
}

namespace {

const Kernels* best_level() {
    const Kernels* levels[4];
    available_levels(levels);
    return levels[0];
}

std::atomic<const Kernels*> current{best_level()};

}  // namespace

const Kernels& kernels() {
    return *current.load(std::memory_order_relaxed);
}

bool use_level(const char* name) {
    const Kernels* levels[4];
    const int count = available_levels(levels);
    for (int i = 0; i < count; ++i)
        if (std::strcmp(levels[i]->name, name) == 0) {
            current = levels[i];
            return true;
        }
    return false;
}

}  // namespace slipstream
