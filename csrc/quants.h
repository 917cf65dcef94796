// The packed form of quantised matrices. Every type of GGML files that the integer kernels take is kept as it is: the
// same values, scales and minimums, in another order. docs/kernels.md draws it.
//
// A panel (16 outputs) is a row of spans of 8 blocks (the last may have fewer); a block is 32 k. In a span lie
//     what holds for the whole span, the scales of each block, the values of each block.
// Values are unsigned. Four consecutive k of one output lie side by side in a 32-bit lane, the 16 lanes of a group of
// four k in 64 bytes; a block has 8 groups. Of 4 bits: byte i of 64-byte line j has group j in its low and group j + 4
// in its high half. Of 5 or 6 bits: the low 4 bits so, then the rest: one line with bit g for group g, or two, of which
// line g / 4 has bits 2 (g % 4) and the next for group g. Of 8 bits: 8 lines, one a group.
#pragma once

#include "weight_type.h"

namespace slipstream {

// What scales the values v of a block (offset is subtracted first, exactly).
enum class Scales : uint8_t {
    half,        // d v, d a 16-bit float
    half_pair,   // d v + m, both 16-bit floats
    of_span,     // (d s) v - (dmin m): d, dmin 16-bit floats of the span; s, m unsigned bytes of the block
    sixteenths,  // (d s) v: d a 16-bit float of the span, s a signed byte for each half of the block
};

constexpr int64_t BLOCK = 32, SPAN_BLOCKS = 8, SPAN = BLOCK * SPAN_BLOCKS;

struct Packing {
    int bits;
    int offset_shift;  // the offset is 1 << offset_shift, or none where this is 0
    Scales scales;

    SLIPSTREAM_INLINE constexpr int64_t value_bytes() const { return PANEL * BLOCK * bits / 8; }
    SLIPSTREAM_INLINE constexpr int64_t scale_bytes() const { return scales == Scales::half_pair ? 64 : 32; }
    SLIPSTREAM_INLINE constexpr int64_t span_bytes() const {
        return scales == Scales::of_span ? 64 : scales == Scales::sixteenths ? 32 : 0;
    }
    SLIPSTREAM_INLINE constexpr int64_t panel_bytes(int64_t in_features) const {
        const int64_t blocks = in_features / BLOCK, spans = (blocks + SPAN_BLOCKS - 1) / SPAN_BLOCKS;
        return blocks * (value_bytes() + scale_bytes()) + spans * span_bytes();
    }
    SLIPSTREAM_INLINE constexpr int offset() const { return offset_shift ? 1 << offset_shift : 0; }
};

SLIPSTREAM_INLINE constexpr Packing packing_of(WeightType type) {
    switch (type) {
        case WeightType::q4_0:
            return {4, 3, Scales::half};
        case WeightType::q4_1:
            return {4, 0, Scales::half_pair};
        case WeightType::q4_k:
            return {4, 0, Scales::of_span};
        case WeightType::q5_0:
            return {5, 4, Scales::half};
        case WeightType::q5_1:
            return {5, 0, Scales::half_pair};
        case WeightType::q5_k:
            return {5, 0, Scales::of_span};
        case WeightType::q6_k:
            return {6, 5, Scales::sixteenths};
        default:
            return {8, 7, Scales::half};
    }
}

// A row's activations, 32 at a time: x ≈ scale · value.
struct QuantisedBlock {
    float scale, sum;                 // sum: scale · Σ values
    int32_t minus_all, minus_second;  // -Σ of all values, and of the last 16
    int8_t values[BLOCK];
};

// Packs `blocks` blocks of 16 outputs, a span at most. rows[i]: the source's blocks of output i, null for a padding
// one.
void pack_span(WeightType type, const std::byte* const* rows, int64_t blocks, std::byte* out);

// The values of output `lane` of a packed panel.
void unpack_lane(WeightType type, const std::byte* panel, int64_t lane, int64_t in_features, float* out);

// Blocks of Q8_0 from floats, as the format's reference quantiser makes them: d = max|x| / 127 as a 16-bit float.
void quantise_q8_0(const float* values, int64_t count, std::byte* out);

}  // namespace slipstream
