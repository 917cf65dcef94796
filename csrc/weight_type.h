// What kinds of packed matrices there are.
#pragma once

#include <cstddef>
#include <cstdint>

#include "range.h"

namespace slipstream {

constexpr int PANEL = 16;  // outputs that a packed matrix keeps together

enum class WeightType : uint8_t { f32, bf16, q4_0, q4_1, q4_k, q5_0, q5_1, q5_k, q6_k, q8_0 };

SLIPSTREAM_INLINE constexpr bool is_quantised(WeightType type) {
    return type >= WeightType::q4_0;
}

}  // namespace slipstream
