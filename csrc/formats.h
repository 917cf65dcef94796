// The tensor types of GGML files, dequantised to float exactly as the format defines: each value is one or two rounded
// float operations on the block's scales.
#pragma once

#include "weight_type.h"

namespace slipstream {

struct Format {
    const char* name;
    int block;  // values in a block
    int bytes;  // of a block
    void (*dequantise)(const std::byte* blocks, int64_t count, float* out);
    WeightType native;  // what keeps its values; bf16 for floats

    int64_t row_bytes(int64_t values) const { return values / block * bytes; }
};

// Null if the name isn't known.
const Format* find_format(const char* name);

// The 6-bit scale and minimum of one of the eight groups of a Q4_K or Q5_K block, which lie in 12 bytes.
struct KScale {
    uint8_t scale, minimum;
};
KScale k_scale(const uint8_t* packed, int group);

float float_of_half(uint16_t half);
uint16_t half_of_float(float x);  // to nearest even; NaN stays NaN
uint16_t bf16_of_float(float x);  // likewise

}  // namespace slipstream
