#pragma once

#include <cstdint>

// For every function that headers share with the kernels: an out-of-line copy compiled for one instruction set could be
// the one that the linker keeps for all.
#define SLIPSTREAM_INLINE inline __attribute__((always_inline))

namespace slipstream {

struct Range {
    int64_t begin, end;
    SLIPSTREAM_INLINE bool empty() const { return begin >= end; }
    SLIPSTREAM_INLINE int64_t size() const { return end - begin; }
};

}  // namespace slipstream
