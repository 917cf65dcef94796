#include "quants.h"

#include <cmath>
#include <cstring>

#include "formats.h"

namespace slipstream {

namespace {

// A span of one row as its format has it: values as bytes, scales as the packed form keeps them.
struct Row {
    uint8_t values[SPAN_BLOCKS][BLOCK];
    uint16_t scale[SPAN_BLOCKS], offset[SPAN_BLOCKS];  // bits of 16-bit floats, or bytes
    uint16_t d, dmin;                                  // bits of 16-bit floats
};

uint16_t read_half(const uint8_t* p) {
    return static_cast<uint16_t>(p[0] | p[1] << 8);
}

// Sixteen bytes whose low halves are the first sixteen values, the high halves the others.
void read_nibbles(const uint8_t* from, uint8_t* values) {
    for (int i = 0; i < 16; ++i) {
        values[i] = from[i] & 15;
        values[i + 16] = from[i] >> 4;
    }
}
// Bit i of the four bytes belongs to value i.
void add_fifth_bits(const uint8_t* from, uint8_t* values) {
    constexpr uint64_t EACH = 0x0101010101010101, OWN = 0x8040201008040201;
    for (int byte = 0; byte < 4; ++byte) {
        uint64_t eight;
        std::memcpy(&eight, values + 8 * byte, sizeof(eight));
        const uint64_t bits = from[byte] * EACH & OWN;           // bit i of the source in byte i, or nothing
        eight |= ((bits + (0x7f * EACH)) >> 3 & (0x10 * EACH));  // its carry into bit 7, moved to bit 4
        std::memcpy(values + 8 * byte, &eight, sizeof(eight));
    }
}

// Blocks of 32 with a scale, perhaps a minimum, perhaps fifth bits, and nibbles.
template <bool MINIMUM, bool FIFTH>
void read_blocks(const uint8_t* from, int64_t blocks, Row& row) {
    for (int64_t b = 0; b < blocks; ++b) {
        row.scale[b] = read_half(from);
        from += 2;
        if (MINIMUM) {
            row.offset[b] = read_half(from);
            from += 2;
        }
        const uint8_t* fifth = from;
        if (FIFTH) from += 4;
        read_nibbles(from, row.values[b]);
        if (FIFTH) add_fifth_bits(fifth, row.values[b]);
        from += 16;
    }
}

void read_q8_0(const uint8_t* from, int64_t blocks, Row& row) {
    for (int64_t b = 0; b < blocks; ++b, from += 34) {
        row.scale[b] = read_half(from);
        for (int i = 0; i < BLOCK; ++i) row.values[b][i] = from[2 + i] ^ 0x80;
    }
}

// Q4_K and Q5_K: d, dmin, 12 bytes of scales, perhaps 32 of fifth bits, 32 bytes for every two blocks.
template <bool FIFTH>
void read_k(const uint8_t* from, int64_t blocks, Row& row) {
    row.d = read_half(from);
    row.dmin = read_half(from + 2);
    const uint8_t *fifth = from + 16, *nibbles = fifth + (FIFTH ? 32 : 0);
    for (int b = 0; b < blocks; ++b) {
        const KScale packed = k_scale(from + 4, b);
        row.scale[b] = packed.scale;
        row.offset[b] = packed.minimum;
        const uint8_t* q = nibbles + b / 2 * BLOCK;
        uint8_t* values = row.values[b];
        if (b % 2)
            for (int i = 0; i < BLOCK; ++i) values[i] = q[i] >> 4;
        else
            for (int i = 0; i < BLOCK; ++i) values[i] = q[i] & 15;
        if (FIFTH)
            for (int i = 0; i < BLOCK; ++i) values[i] |= (fifth[i] >> b & 1) << 4;
    }
}

// 128 bytes of nibbles, 64 of pairs of bits, 16 signed scales, d.
void read_q6_k(const uint8_t* from, int64_t blocks, Row& row) {
    row.d = read_half(from + 208);
    for (int b = 0; b < blocks; ++b) {
        row.scale[b] = from[192 + 2 * b];
        row.offset[b] = from[192 + 2 * b + 1];
        const uint8_t *low = from + b / 4 * 64 + b % 2 * BLOCK, *high = from + 128 + b / 4 * BLOCK;
        const int nibble = b % 4 / 2 * 4, pair = b % 4 * 2;
        for (int i = 0; i < BLOCK; ++i)
            row.values[b][i] = static_cast<uint8_t>((low[i] >> nibble & 15) | (high[i] >> pair & 3) << 4);
    }
}

void read_row(WeightType type, const std::byte* bytes, int64_t blocks, Row& row) {
    const auto* from = reinterpret_cast<const uint8_t*>(bytes);
    switch (type) {
        case WeightType::q4_0:
            return read_blocks<false, false>(from, blocks, row);
        case WeightType::q4_1:
            return read_blocks<true, false>(from, blocks, row);
        case WeightType::q5_0:
            return read_blocks<false, true>(from, blocks, row);
        case WeightType::q5_1:
            return read_blocks<true, true>(from, blocks, row);
        case WeightType::q4_k:
            return read_k<false>(from, blocks, row);
        case WeightType::q5_k:
            return read_k<true>(from, blocks, row);
        case WeightType::q6_k:
            return read_q6_k(from, blocks, row);
        default:
            return read_q8_0(from, blocks, row);
    }
}

// One row's block into its lane of a packed one.
void write_values(int bits, const uint8_t* values, int lane, std::byte* out) {
    const auto four = [&](int group) {
        uint32_t word;
        std::memcpy(&word, values + 4 * group, sizeof(word));
        return word;
    };
    const auto put = [&](int line, uint32_t word) { std::memcpy(out + 64 * line + 4 * lane, &word, sizeof(word)); };
    if (bits == 8) {
        for (int g = 0; g < 8; ++g) put(g, four(g));
        return;
    }
    for (int g = 0; g < 4; ++g) put(g, (four(g) & 0x0f0f0f0f) | (four(g + 4) & 0x0f0f0f0f) << 4);
    const auto high = [&](int group) { return four(group) >> 4 & 0x03030303; };
    if (bits == 5)
        put(4, high(0) | high(1) << 1 | high(2) << 2 | high(3) << 3 | high(4) << 4 | high(5) << 5 | high(6) << 6 |
                   high(7) << 7);
    if (bits == 6)
        for (int half = 0; half < 2; ++half) {
            const int g = 4 * half;
            put(4 + half, high(g) | high(g + 1) << 2 | high(g + 2) << 4 | high(g + 3) << 6);
        }
}

void put_half(std::byte* to, int64_t lane, uint16_t bits) {
    std::memcpy(to + 2 * lane, &bits, sizeof(bits));
}
float half_in(const std::byte* from, int64_t lane) {
    uint16_t bits;
    std::memcpy(&bits, from + 2 * lane, sizeof(bits));
    return float_of_half(bits);
}

int value_in(int bits, const std::byte* values, int64_t lane, int k) {
    const int g = k / 4;
    const auto at = [&](int line) { return static_cast<int>(values[line * 64 + 4 * lane + k % 4]); };
    if (bits == 8) return at(g);
    int value = g < 4 ? at(g) & 15 : at(g - 4) >> 4;
    if (bits == 5) value |= (at(4) >> g & 1) << 4;
    if (bits == 6) value |= (at(4 + g / 4) >> 2 * (g % 4) & 3) << 4;
    return value;
}

}  // namespace

void pack_span(WeightType type, const std::byte* const* rows, int64_t blocks, std::byte* out) {
    const Packing packing = packing_of(type);
    std::byte *scales = out + packing.span_bytes(), *values = scales + blocks * packing.scale_bytes();
    Row row;
    for (int lane = 0; lane < PANEL; ++lane) {
        if (rows[lane])
            read_row(type, rows[lane], blocks, row);
        else
            std::memset(&row, 0, sizeof(row));
        if (packing.span_bytes()) put_half(out, lane, row.d);
        if (packing.scales == Scales::of_span) put_half(out + 32, lane, row.dmin);
        for (int64_t b = 0; b < blocks; ++b) {
            std::byte* scale = scales + b * packing.scale_bytes();
            if (packing.span_bytes()) {
                scale[lane] = static_cast<std::byte>(row.scale[b]);
                scale[PANEL + lane] = static_cast<std::byte>(row.offset[b]);
            } else {
                put_half(scale, lane, row.scale[b]);
                if (packing.scales == Scales::half_pair) put_half(scale + 32, lane, row.offset[b]);
            }
            write_values(packing.bits, row.values[b], lane, values + b * packing.value_bytes());
        }
    }
}

void unpack_lane(WeightType type, const std::byte* panel, int64_t lane, int64_t in_features, float* out) {
    const Packing packing = packing_of(type);
    for (int64_t blocks = in_features / BLOCK; blocks > 0; blocks -= SPAN_BLOCKS) {
        const int64_t count = blocks < SPAN_BLOCKS ? blocks : SPAN_BLOCKS;
        const std::byte* scales = panel + packing.span_bytes();
        const std::byte* values = scales + count * packing.scale_bytes();
        for (int64_t b = 0; b < count; ++b, scales += packing.scale_bytes(), values += packing.value_bytes()) {
            float scale[2], minimum = 0;  // of the halves of the block
            switch (packing.scales) {
                case Scales::half:
                    scale[0] = scale[1] = half_in(scales, lane);
                    break;
                case Scales::half_pair:
                    scale[0] = scale[1] = half_in(scales, lane);
                    minimum = -half_in(scales + 32, lane);
                    break;
                case Scales::of_span:
                    scale[0] = scale[1] = half_in(panel, lane) * static_cast<float>(scales[lane]);
                    minimum = half_in(panel + 32, lane) * static_cast<float>(scales[PANEL + lane]);
                    break;
                case Scales::sixteenths:
                    for (int i = 0; i < 2; ++i)
                        scale[i] =
                            half_in(panel, lane) * static_cast<float>(static_cast<int8_t>(scales[PANEL * i + lane]));
                    break;
            }
            const bool has_minimum = packing.scales == Scales::half_pair || packing.scales == Scales::of_span;
            for (int k = 0; k < BLOCK; ++k) {
                const int value = value_in(packing.bits, values, lane, k) - packing.offset();
                const float product = scale[k / 16] * static_cast<float>(value);
                *out++ = has_minimum ? product - minimum : product;
            }
        }
        panel = values;
    }
}

void quantise_q8_0(const float* values, int64_t count, std::byte* out) {
    for (int64_t i = 0; i < count; i += BLOCK, values += BLOCK, out += 2 + BLOCK) {
        float largest = 0;
        for (int k = 0; k < BLOCK; ++k) {
            const float size = std::fabs(values[k]);
            if (size > largest || size != size) largest = size;
        }
        const float d = largest / 127.0f, inverse = d < 0x1p-126f ? 0.0f : 1.0f / d;
        const uint16_t half = half_of_float(d);
        std::memcpy(out, &half, sizeof(half));
        for (int k = 0; k < BLOCK; ++k) {
            const float scaled = std::round(values[k] * inverse);
            out[2 + k] = static_cast<std::byte>(scaled == scaled ? static_cast<int8_t>(scaled) : 0);
        }
    }
}

}  // namespace slipstream
