// The tensor types of GGML files, dequantised to float exactly as the format defines: each value is one or two rounded
// float operations on the block's scales.
#pragma once

#include <cstddef>
#include <cstdint>

namespace slipstream {

struct Format {
    const char* name;
    int block;  // values in a block
    int bytes;  // of a block
    void (*dequantise)(const std::byte* blocks, int64_t count, float* out);
};

// Null if the name isn't known.
const Format* find_format(const char* name);

uint16_t bf16_of_float(float x);  // to nearest even; NaN stays NaN

}  // namespace slipstream
