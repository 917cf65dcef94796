#include "formats.h"

#include <cstring>

namespace slipstream {

namespace {

template <class T>
T read(const std::byte* p) {
    T value;
    std::memcpy(&value, p, sizeof(value));
    return value;
}

uint32_t bits_of_float(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof(bits));
    return bits;
}

float float_of_bits(uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, sizeof(x));
    return x;
}

float half_at(const std::byte* p) {
    return float_of_half(read<uint16_t>(p));
}

// Calls convert(block, out) for each block.
template <int BLOCK, int BYTES, class Convert>
void each_block(const std::byte* blocks, int64_t count, float* out, Convert convert) {
    for (int64_t i = 0; i < count; i += BLOCK, blocks += BYTES, out += BLOCK)
        convert(reinterpret_cast<const uint8_t*>(blocks), out);
}

void from_f32(const std::byte* data, int64_t count, float* out) {
    std::memcpy(out, data, static_cast<size_t>(count) * sizeof(float));
}
void from_f16(const std::byte* data, int64_t count, float* out) {
    for (int64_t i = 0; i < count; ++i) out[i] = half_at(data + 2 * i);
}
void from_bf16(const std::byte* data, int64_t count, float* out) {
    for (int64_t i = 0; i < count; ++i)
        out[i] = float_of_bits(static_cast<uint32_t>(read<uint16_t>(data + 2 * i)) << 16);
}

float half_in(const uint8_t* p) {
    return half_at(reinterpret_cast<const std::byte*>(p));
}

void from_q8_0(const std::byte* data, int64_t count, float* out) {  // d, 32 int8
    each_block<32, 34>(data, count, out, [](const uint8_t* b, float* y) {
        const float d = half_in(b);
        for (int i = 0; i < 32; ++i) y[i] = static_cast<float>(static_cast<int8_t>(b[2 + i])) * d;
    });
}
void from_q4_0(const std::byte* data, int64_t count, float* out) {  // d, 16 bytes: value i low, i + 16 high
    each_block<32, 18>(data, count, out, [](const uint8_t* b, float* y) {
        const float d = half_in(b);
        for (int i = 0; i < 16; ++i) {
            y[i] = d * static_cast<float>((b[2 + i] & 15) - 8);
            y[i + 16] = d * static_cast<float>((b[2 + i] >> 4) - 8);
        }
    });
}
void from_q4_1(const std::byte* data, int64_t count, float* out) {  // d, m, 16 bytes
    each_block<32, 20>(data, count, out, [](const uint8_t* b, float* y) {
        const float d = half_in(b), m = half_in(b + 2);
        for (int i = 0; i < 16; ++i) {
            y[i] = d * static_cast<float>(b[4 + i] & 15) + m;
            y[i + 16] = d * static_cast<float>(b[4 + i] >> 4) + m;
        }
    });
}
void from_q5_0(const std::byte* data, int64_t count, float* out) {  // d, 32 fifth bits, 16 bytes
    each_block<32, 22>(data, count, out, [](const uint8_t* b, float* y) {
        const float d = half_in(b);
        const uint32_t high = read<uint32_t>(reinterpret_cast<const std::byte*>(b + 2));
        for (int i = 0; i < 16; ++i) {
            y[i] = d * static_cast<float>(static_cast<int>((b[6 + i] & 15) | ((high >> i & 1) << 4)) - 16);
            y[i + 16] = d * static_cast<float>(static_cast<int>((b[6 + i] >> 4) | ((high >> (i + 16) & 1) << 4)) - 16);
        }
    });
}
void from_q5_1(const std::byte* data, int64_t count, float* out) {  // d, m, 32 fifth bits, 16 bytes
    each_block<32, 24>(data, count, out, [](const uint8_t* b, float* y) {
        const float d = half_in(b), m = half_in(b + 2);
        const uint32_t high = read<uint32_t>(reinterpret_cast<const std::byte*>(b + 4));
        for (int i = 0; i < 16; ++i) {
            y[i] = d * static_cast<float>((b[8 + i] & 15) | ((high >> i & 1) << 4)) + m;
            y[i + 16] = d * static_cast<float>((b[8 + i] >> 4) | ((high >> (i + 16) & 1) << 4)) + m;
        }
    });
}

void from_q4_k(const std::byte* data, int64_t count, float* out) {  // d, dmin, scales, 4 × 32 bytes for 2 × 32 values
    each_block<256, 144>(data, count, out, [](const uint8_t* b, float* y) {
        const float d = half_in(b), dmin = half_in(b + 2);
        for (int group = 0; group < 8; ++group) {
            const KScale packed = k_scale(b + 4, group);
            const float scale = d * static_cast<float>(packed.scale),
                        minimum = dmin * static_cast<float>(packed.minimum);
            const uint8_t* q = b + 16 + group / 2 * 32;
            for (int i = 0; i < 32; ++i) {
                const int value = group % 2 ? q[i] >> 4 : q[i] & 15;
                y[group * 32 + i] = scale * static_cast<float>(value) - minimum;
            }
        }
    });
}
void from_q5_k(const std::byte* data, int64_t count, float* out) {  // as Q4_K, with 32 bytes of fifth bits before
    each_block<256, 176>(data, count, out, [](const uint8_t* b, float* y) {
        const float d = half_in(b), dmin = half_in(b + 2);
        for (int group = 0; group < 8; ++group) {
            const KScale packed = k_scale(b + 4, group);
            const float scale = d * static_cast<float>(packed.scale),
                        minimum = dmin * static_cast<float>(packed.minimum);
            const uint8_t *high = b + 16, *q = b + 48 + group / 2 * 32;
            for (int i = 0; i < 32; ++i) {
                const int value = (group % 2 ? q[i] >> 4 : q[i] & 15) | ((high[i] >> group & 1) << 4);
                y[group * 32 + i] = scale * static_cast<float>(value) - minimum;
            }
        }
    });
}
void from_q6_k(const std::byte* data, int64_t count, float* out) {  // 128 low nibbles, 64 high pairs, 16 int8 scales, d
    each_block<256, 210>(data, count, out, [](const uint8_t* b, float* y) {
        const float d = half_in(b + 208);
        for (int half = 0; half < 2; ++half)
            for (int quarter = 0; quarter < 4; ++quarter)
                for (int i = 0; i < 32; ++i) {
                    const int at = half * 128 + quarter * 32 + i;
                    const float scale = d * static_cast<float>(static_cast<int8_t>(b[192 + at / 16]));
                    const uint8_t low = b[half * 64 + quarter % 2 * 32 + i], high = b[128 + half * 32 + i];
                    const int value = (quarter < 2 ? low & 15 : low >> 4) | ((high >> 2 * quarter & 3) << 4);
                    y[at] = scale * static_cast<float>(value - 32);
                }
    });
}

constexpr Format FORMATS[] = {
    {"F32", 1, 4, from_f32, WeightType::bf16},       {"F16", 1, 2, from_f16, WeightType::bf16},
    {"BF16", 1, 2, from_bf16, WeightType::bf16},     {"Q8_0", 32, 34, from_q8_0, WeightType::q8_0},
    {"Q4_0", 32, 18, from_q4_0, WeightType::q4_0},   {"Q4_1", 32, 20, from_q4_1, WeightType::q4_1},
    {"Q5_0", 32, 22, from_q5_0, WeightType::q5_0},   {"Q5_1", 32, 24, from_q5_1, WeightType::q5_1},
    {"Q4_K", 256, 144, from_q4_k, WeightType::q4_k}, {"Q5_K", 256, 176, from_q5_k, WeightType::q5_k},
    {"Q6_K", 256, 210, from_q6_k, WeightType::q6_k},
};

}  // namespace

const Format* find_format(const char* name) {
    for (const Format& format : FORMATS)
        if (std::strcmp(format.name, name) == 0) return &format;
    return nullptr;
}

KScale k_scale(const uint8_t* packed, int group) {
    const uint8_t a = packed[group], b = packed[group + 4];
    if (group < 4) return {static_cast<uint8_t>(a & 63), static_cast<uint8_t>(b & 63)};
    return {static_cast<uint8_t>((b & 15) | packed[group - 4] >> 6 << 4), static_cast<uint8_t>(b >> 4 | a >> 6 << 4)};
}

float float_of_half(uint16_t half) {
    const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16, rest = half & 0x7fff;
    if (rest >= 0x7c00) return float_of_bits(sign | 0x7f800000 | (rest << 13));              // infinity, NaN
    if (rest >= 0x0400) return float_of_bits(sign | ((rest << 13) + ((127u - 15u) << 23)));  // normal
    return float_of_bits(sign | bits_of_float(static_cast<float>(rest) * 0x1p-24f));         // subnormal, zero
}

uint16_t half_of_float(float x) {
    const uint32_t bits = bits_of_float(x), size = bits & 0x7fffffff;
    const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
    if (size > 0x7f800000) return sign | 0x7e00;
    if (size >= 0x477ff000) return sign | 0x7c00;  // 65520 and more round to infinity
    if (size < 0x38800000) {                       // subnormal: the sum's last bits count in units of 2^-24
        const float shifted = float_of_bits(size) + 0.5f;
        return static_cast<uint16_t>(sign | (bits_of_float(shifted) - bits_of_float(0.5f)));
    }
    return static_cast<uint16_t>(sign | (size + 0xfff + (size >> 13 & 1) - ((127u - 15u) << 23)) >> 13);
}

uint16_t bf16_of_float(float x) {
    const uint32_t bits = bits_of_float(x);
    if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>(bits >> 16 | 0x40);
    return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

}  // namespace slipstream
