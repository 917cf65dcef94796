// Sixteen float lanes, the only vector type that the kernels know: two ymm registers with AVX2, one zmm with AVX-512,
// four q registers with NEON, an array in the portable level. Each operation rounds as IEEE 754 says and lane i never
// touches lane j except in the fixed trees at the end, so every level gives the same bits.
//
// Included by one kernels_LEVEL.cpp per level, inside that level's own namespace: nothing here may be shared between
// translation units that are compiled for different processors.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>

#if defined(SLIPSTREAM_AVX2) || defined(SLIPSTREAM_AVX512)
#    include <immintrin.h>
#elif defined(SLIPSTREAM_NEON)
#    include <arm_neon.h>
#endif

namespace slipstream::SLIPSTREAM_LEVEL {

constexpr int LANES = 16;

#if defined(SLIPSTREAM_AVX512)

struct F32x16 {
    __m512 v;
};

constexpr int REGISTERS = 32, REGISTERS_PER_VECTOR = 1;

inline F32x16 broadcast(float x) {
    return {_mm512_set1_ps(x)};
}
inline F32x16 load(const float* p) {
    return {_mm512_loadu_ps(p)};
}
inline F32x16 load_part(const float* p, int count) {
    return {_mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << count) - 1), p)};
}
inline void store(float* p, F32x16 x) {
    _mm512_storeu_ps(p, x.v);
}
inline void store_part(float* p, F32x16 x, int count) {
    _mm512_mask_storeu_ps(p, static_cast<__mmask16>((1u << count) - 1), x.v);
}
inline F32x16 load_bf16_pairs(const void* p) {
    // The eight pairs in both halves; then each half shuffles its own 16 bits to the top of every lane.
    const __m512i pairs = _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i*)p));
    const __m128i lower = _mm_setr_epi8(-1, -1, 0, 1, -1, -1, 4, 5, -1, -1, 8, 9, -1, -1, 12, 13);
    const __m128i upper = _mm_setr_epi8(-1, -1, 2, 3, -1, -1, 6, 7, -1, -1, 10, 11, -1, -1, 14, 15);
    const __m512i order = _mm512_inserti64x4(_mm512_broadcast_i32x4(lower), _mm256_broadcastsi128_si256(upper), 1);
    return {_mm512_castsi512_ps(_mm512_shuffle_epi8(pairs, order))};
}
inline F32x16 add(F32x16 a, F32x16 b) {
    return {_mm512_add_ps(a.v, b.v)};
}
inline F32x16 sub(F32x16 a, F32x16 b) {
    return {_mm512_sub_ps(a.v, b.v)};
}
inline F32x16 mul(F32x16 a, F32x16 b) {
    return {_mm512_mul_ps(a.v, b.v)};
}
inline F32x16 div(F32x16 a, F32x16 b) {
    return {_mm512_div_ps(a.v, b.v)};
}
inline F32x16 fma(F32x16 a, F32x16 b, F32x16 c) {
    return {_mm512_fmadd_ps(a.v, b.v, c.v)};
}
inline F32x16 larger(F32x16 a, F32x16 b) {
    return {_mm512_max_ps(a.v, b.v)};
}
inline F32x16 smaller(F32x16 a, F32x16 b) {
    return {_mm512_min_ps(a.v, b.v)};
}
inline F32x16 zero_below(F32x16 x, F32x16 limit, F32x16 y) {
    return {_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x.v, limit.v, _CMP_NLT_UQ), y.v)};
}
inline F32x16 exponent_bits(F32x16 shifted) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(shifted.v), 23))};
}

#elif defined(SLIPSTREAM_AVX2)

struct F32x16 {
    __m256 v0, v1;
};

constexpr int REGISTERS = 16, REGISTERS_PER_VECTOR = 2;

inline F32x16 broadcast(float x) {
    const __m256 v = _mm256_set1_ps(x);
    return {v, v};
}
inline F32x16 load(const float* p) {
    return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}
inline __m256i part_mask(int count) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
inline F32x16 load_part(const float* p, int count) {
    return {_mm256_maskload_ps(p, part_mask(count)), _mm256_maskload_ps(p + 8, part_mask(count - 8))};
}
inline void store(float* p, F32x16 x) {
    _mm256_storeu_ps(p, x.v0);
    _mm256_storeu_ps(p + 8, x.v1);
}
inline void store_part(float* p, F32x16 x, int count) {
    _mm256_maskstore_ps(p, part_mask(count), x.v0);
    _mm256_maskstore_ps(p + 8, part_mask(count - 8), x.v1);
}
inline F32x16 load_bf16_pairs(const void* p) {
    // A shuffle where a shift would do: shifts share their execution ports with the multiply-adds.
    const __m256i pairs = _mm256_loadu_si256((const __m256i*)p);
    const __m256i lower = _mm256_setr_epi8(-1, -1, 0, 1, -1, -1, 4, 5, -1, -1, 8, 9, -1, -1, 12, 13,  //
                                           -1, -1, 0, 1, -1, -1, 4, 5, -1, -1, 8, 9, -1, -1, 12, 13);
    return {_mm256_castsi256_ps(_mm256_shuffle_epi8(pairs, lower)),
            _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(static_cast<int>(0xffff0000u))))};
}
inline F32x16 add(F32x16 a, F32x16 b) {
    return {_mm256_add_ps(a.v0, b.v0), _mm256_add_ps(a.v1, b.v1)};
}
inline F32x16 sub(F32x16 a, F32x16 b) {
    return {_mm256_sub_ps(a.v0, b.v0), _mm256_sub_ps(a.v1, b.v1)};
}
inline F32x16 mul(F32x16 a, F32x16 b) {
    return {_mm256_mul_ps(a.v0, b.v0), _mm256_mul_ps(a.v1, b.v1)};
}
inline F32x16 div(F32x16 a, F32x16 b) {
    return {_mm256_div_ps(a.v0, b.v0), _mm256_div_ps(a.v1, b.v1)};
}
inline F32x16 fma(F32x16 a, F32x16 b, F32x16 c) {
    return {_mm256_fmadd_ps(a.v0, b.v0, c.v0), _mm256_fmadd_ps(a.v1, b.v1, c.v1)};
}
inline F32x16 larger(F32x16 a, F32x16 b) {
    return {_mm256_max_ps(a.v0, b.v0), _mm256_max_ps(a.v1, b.v1)};
}
inline F32x16 smaller(F32x16 a, F32x16 b) {
    return {_mm256_min_ps(a.v0, b.v0), _mm256_min_ps(a.v1, b.v1)};
}
inline F32x16 zero_below(F32x16 x, F32x16 limit, F32x16 y) {
    return {_mm256_and_ps(_mm256_cmp_ps(x.v0, limit.v0, _CMP_NLT_UQ), y.v0),
            _mm256_and_ps(_mm256_cmp_ps(x.v1, limit.v1, _CMP_NLT_UQ), y.v1)};
}
inline F32x16 exponent_bits(F32x16 shifted) {
    return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(shifted.v0), 23)),
            _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(shifted.v1), 23))};
}

#elif defined(SLIPSTREAM_NEON)

struct F32x16 {
    float32x4_t v[4];
};

constexpr int REGISTERS = 32, REGISTERS_PER_VECTOR = 4;

// Applies an expression of q (0 to 3) to the four registers.
#    define SLIPSTREAM_QUARTERS(expression)                         \
        {                                                           \
            F32x16 result;                                          \
            for (int q = 0; q < 4; ++q) result.v[q] = (expression); \
            return result;                                          \
        }

inline F32x16 broadcast(float x) SLIPSTREAM_QUARTERS(vdupq_n_f32(x)) inline F32x16 load(const float* p)
    SLIPSTREAM_QUARTERS(vld1q_f32(p + 4 * q)) inline F32x16 load_part(const float* p, int count) {
    float lanes[LANES] = {};
    std::memcpy(lanes, p, static_cast<size_t>(count) * sizeof(float));
    return load(lanes);
}
inline void store(float* p, F32x16 x) {
    for (int q = 0; q < 4; ++q) vst1q_f32(p + 4 * q, x.v[q]);
}
inline void store_part(float* p, F32x16 x, int count) {
    float lanes[LANES];
    store(lanes, x);
    std::memcpy(p, lanes, static_cast<size_t>(count) * sizeof(float));
}
inline F32x16 load_bf16_pairs(const void* p) {
    const uint32x4_t a = vld1q_u32(static_cast<const uint32_t*>(p));
    const uint32x4_t b = vld1q_u32(static_cast<const uint32_t*>(p) + 4);
    const uint32x4_t top = vdupq_n_u32(0xffff0000u);
    return {{vreinterpretq_f32_u32(vshlq_n_u32(a, 16)), vreinterpretq_f32_u32(vshlq_n_u32(b, 16)),
             vreinterpretq_f32_u32(vandq_u32(a, top)), vreinterpretq_f32_u32(vandq_u32(b, top))}};
}
inline F32x16 add(F32x16 a, F32x16 b) SLIPSTREAM_QUARTERS(vaddq_f32(a.v[q], b.v[q])) inline F32x16
    sub(F32x16 a, F32x16 b) SLIPSTREAM_QUARTERS(vsubq_f32(a.v[q], b.v[q])) inline F32x16 mul(F32x16 a, F32x16 b)
        SLIPSTREAM_QUARTERS(vmulq_f32(a.v[q], b.v[q])) inline F32x16 div(F32x16 a, F32x16 b)
            SLIPSTREAM_QUARTERS(vdivq_f32(a.v[q], b.v[q])) inline F32x16 fma(F32x16 a, F32x16 b, F32x16 c)
                SLIPSTREAM_QUARTERS(vfmaq_f32(c.v[q], a.v[q], b.v[q]))
    // As maxps and minps: the second operand where either is NaN.
    inline F32x16 larger(F32x16 a, F32x16 b)
        SLIPSTREAM_QUARTERS(vbslq_f32(vcgtq_f32(a.v[q], b.v[q]), a.v[q], b.v[q])) inline F32x16
    smaller(F32x16 a, F32x16 b) SLIPSTREAM_QUARTERS(vbslq_f32(vcltq_f32(a.v[q], b.v[q]), a.v[q], b.v[q])) inline F32x16
    zero_below(F32x16 x, F32x16 limit, F32x16 y)
        SLIPSTREAM_QUARTERS(vbslq_f32(vcltq_f32(x.v[q], limit.v[q]), vdupq_n_f32(0), y.v[q])) inline F32x16
    exponent_bits(F32x16 shifted)
        SLIPSTREAM_QUARTERS(vreinterpretq_f32_u32(vshlq_n_u32(vreinterpretq_u32_f32(shifted.v[q]), 23)))
#    undef SLIPSTREAM_QUARTERS

#else

struct F32x16 {
    float v[LANES];
};

constexpr int REGISTERS = 16, REGISTERS_PER_VECTOR = 2;  // keeps the tiles as small as those of AVX2

// Applies an expression of i (0 to 15) to the lanes.
#    define SLIPSTREAM_LANES(expression)                                \
        {                                                               \
            F32x16 result;                                              \
            for (int i = 0; i < LANES; ++i) result.v[i] = (expression); \
            return result;                                              \
        }

inline float float_of_bits(uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, sizeof(x));
    return x;
}
inline uint32_t bits_of_float(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof(x));
    return bits;
}
inline float float_of_half(uint16_t half) {
    const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16, rest = half & 0x7fff;
    if (rest >= 0x7c00) return float_of_bits(sign | 0x7f800000 | (rest << 13));
    if (rest >= 0x0400) return float_of_bits(sign | ((rest << 13) + ((127u - 15u) << 23)));
    return float_of_bits(sign | bits_of_float(static_cast<float>(rest) * 0x1p-24f));
}
inline F32x16 broadcast(float x) SLIPSTREAM_LANES(x) inline F32x16 load(const float* p)
    SLIPSTREAM_LANES(p[i]) inline F32x16 load_part(const float* p, int count)
        SLIPSTREAM_LANES(i < count ? p[i] : 0.0f) inline void store(float* p, F32x16 x) {
    std::memcpy(p, x.v, sizeof(x.v));
}
inline void store_part(float* p, F32x16 x, int count) {
    std::memcpy(p, x.v, static_cast<size_t>(count) * sizeof(float));
}
inline F32x16 load_bf16_pairs(const void* p) {
    uint32_t pairs[8];
    std::memcpy(pairs, p, sizeof(pairs));
    SLIPSTREAM_LANES(float_of_bits(i < 8 ? pairs[i] << 16 : pairs[i - 8] & 0xffff0000u))
}
inline F32x16 add(F32x16 a, F32x16 b) SLIPSTREAM_LANES(a.v[i] + b.v[i]) inline F32x16 sub(F32x16 a, F32x16 b)
    SLIPSTREAM_LANES(a.v[i] - b.v[i]) inline F32x16 mul(F32x16 a, F32x16 b)
        SLIPSTREAM_LANES(a.v[i] * b.v[i]) inline F32x16 div(F32x16 a, F32x16 b)
            SLIPSTREAM_LANES(a.v[i] / b.v[i]) inline F32x16 fma(F32x16 a, F32x16 b, F32x16 c)
                SLIPSTREAM_LANES(__builtin_fmaf(a.v[i], b.v[i], c.v[i])) inline F32x16 larger(F32x16 a, F32x16 b)
                    SLIPSTREAM_LANES(a.v[i] > b.v[i] ? a.v[i] : b.v[i]) inline F32x16 smaller(F32x16 a, F32x16 b)
                        SLIPSTREAM_LANES(a.v[i] < b.v[i] ? a.v[i] : b.v[i]) inline F32x16
    zero_below(F32x16 x, F32x16 limit, F32x16 y) SLIPSTREAM_LANES(x.v[i] < limit.v[i] ? 0.0f : y.v[i]) inline F32x16
    exponent_bits(F32x16 shifted) SLIPSTREAM_LANES(float_of_bits(bits_of_float(shifted.v[i]) << 23))
#    undef SLIPSTREAM_LANES

#endif

// Lane i with lane i + 8, then + 4, + 2, + 1: the same tree in every level.
template <class Combine>
inline float fold(F32x16 x, Combine combine) {
    float lanes[LANES];
    store(lanes, x);
    for (int step = LANES / 2; step > 0; step /= 2)
        for (int i = 0; i < step; ++i) lanes[i] = combine(lanes[i], lanes[i + step]);
    return lanes[0];
}
inline float sum_lanes(F32x16 x) {
    return fold(x, [](float a, float b) { return a + b; });
}
inline float largest_lane(F32x16 x) {
    return fold(x, [](float a, float b) { return a > b ? a : b; });
}

}  // namespace slipstream::SLIPSTREAM_LEVEL
