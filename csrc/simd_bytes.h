// Sixteen 32-bit integer lanes, and sixteen lanes of four bytes each, for the quantised kernels. Included by simd.h's
// users after it, inside the level's own namespace. Integer sums are exact, so every level may add in its own order.

namespace slipstream::SLIPSTREAM_LEVEL {

// Dot<BITS> adds up, lane by lane, the products of four unsigned weights of so many bits with four activations
// (-127 … 127): start(), then add(i, weights, activations) with i = 0, 1, 2 … (at most 8 of them), then sum(). Where
// SIGNED_BYTES says so, weights of 8 bits count as what they are above 128. (The empty asm keeps the compiler from
// adding up all products at the end: there aren't registers for so many.)

#if defined(SLIPSTREAM_AVX512)

struct I32x16 {
    __m512i v;
};
struct Bytes {
    __m512i v;
};

inline I32x16 broadcast_integer(int32_t x) {
    return {_mm512_set1_epi32(x)};
}
inline I32x16 sub(I32x16 a, I32x16 b) {
    return {_mm512_sub_epi32(a.v, b.v)};
}
inline I32x16 shift_left(I32x16 x, int count) {
    return {_mm512_slli_epi32(x.v, static_cast<unsigned>(count))};
}
inline F32x16 to_float(I32x16 x) {
    return {_mm512_cvtepi32_ps(x.v)};
}
inline I32x16 to_nearest(F32x16 x) {
    return {_mm512_cvtps_epi32(x.v)};
}
inline int32_t sum_lanes(I32x16 x) {
    return _mm512_reduce_add_epi32(x.v);
}
inline void store_low_bytes(int8_t* p, I32x16 x) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(x.v));
}
// The largest bit pattern of the absolute values.
inline int32_t largest_size(F32x16 a, F32x16 b) {
    const __m512i sizes = _mm512_max_epi32(_mm512_castps_si512(_mm512_abs_ps(a.v)),  //
                                           _mm512_castps_si512(_mm512_abs_ps(b.v)));
    return _mm512_reduce_max_epi32(sizes);
}
inline F32x16 load_halves(const std::byte* p) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
inline F32x16 load_unsigned_bytes(const std::byte* p) {
    return {_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}
inline F32x16 load_signed_bytes(const std::byte* p) {
    return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}

inline Bytes load_bytes(const std::byte* p) {
    return {_mm512_loadu_si512(p)};
}
inline Bytes repeat_four(const int8_t* p) {
    int32_t four;
    std::memcpy(&four, p, sizeof(four));
    return {_mm512_set1_epi32(four)};
}
// Bits of each byte moved up (or down, where `up` is negative), those of `mask` kept.
inline Bytes moved(Bytes x, int up, int mask) {
    const __m512i v = up > 0   ? _mm512_slli_epi16(x.v, static_cast<unsigned>(up))
                      : up < 0 ? _mm512_srli_epi16(x.v, static_cast<unsigned>(-up))
                               : x.v;
    return {_mm512_and_si512(v, _mm512_set1_epi8(static_cast<char>(mask)))};
}
inline Bytes either(Bytes a, Bytes b) {
    return {_mm512_or_si512(a.v, b.v)};
}

#    if defined(__AVX512VNNI__)
constexpr bool SIGNED_BYTES = false;

template <int BITS>
struct Dot {
    __m512i total;
    void start(I32x16 x) { total = x.v; }
    void add(int, Bytes weights, Bytes x) { total = _mm512_dpbusd_epi32(total, weights.v, x.v); }
    I32x16 sum() const { return {total}; }
};
#    else
constexpr bool SIGNED_BYTES = true;

template <int BITS>
struct Dot {
    // So many sums of two products fit into 16 bits.
    static constexpr int DEPTH = BITS == 4 ? 8 : BITS == 5 ? 4 : 2;
    __m512i total, part;
    void start(I32x16 x) { total = x.v; }
    void add(int i, Bytes weights, Bytes x) {
        const __m512i ones = _mm512_set1_epi16(1);
        if constexpr (BITS == 8) {
            const __m512i w = _mm512_xor_si512(weights.v, _mm512_set1_epi8(static_cast<char>(0x80)));
            const __m512i signed_x = _mm512_mask_sub_epi8(x.v, _mm512_movepi8_mask(w), _mm512_setzero_si512(), x.v);
            part = _mm512_maddubs_epi16(_mm512_abs_epi8(w), signed_x);
            total = _mm512_add_epi32(total, _mm512_madd_epi16(part, ones));
            asm("" : "+v"(total));
        } else {
            const __m512i pairs = _mm512_maddubs_epi16(weights.v, x.v);
            part = i % DEPTH == 0 ? pairs : _mm512_add_epi16(part, pairs);
            asm("" : "+v"(part));
            if (i % DEPTH == DEPTH - 1) total = _mm512_add_epi32(total, _mm512_madd_epi16(part, ones));
        }
    }
    I32x16 sum() const { return {total}; }
};
#    endif

#elif defined(SLIPSTREAM_AVX2)

struct I32x16 {
    __m256i v0, v1;
};
struct Bytes {
    __m256i v0, v1;
};

inline I32x16 broadcast_integer(int32_t x) {
    const __m256i v = _mm256_set1_epi32(x);
    return {v, v};
}
inline I32x16 sub(I32x16 a, I32x16 b) {
    return {_mm256_sub_epi32(a.v0, b.v0), _mm256_sub_epi32(a.v1, b.v1)};
}
inline I32x16 shift_left(I32x16 x, int count) {
    return {_mm256_slli_epi32(x.v0, count), _mm256_slli_epi32(x.v1, count)};
}
inline F32x16 to_float(I32x16 x) {
    return {_mm256_cvtepi32_ps(x.v0), _mm256_cvtepi32_ps(x.v1)};
}
inline I32x16 to_nearest(F32x16 x) {
    return {_mm256_cvtps_epi32(x.v0), _mm256_cvtps_epi32(x.v1)};
}
inline int32_t sum_lanes(I32x16 x) {
    const __m256i eight = _mm256_add_epi32(x.v0, x.v1);
    const __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
    const __m128i two = _mm_add_epi32(four, _mm_unpackhi_epi64(four, four));
    return _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, 1)));
}
inline void store_low_bytes(int8_t* p, I32x16 x) {
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(x.v0, x.v1), 0xd8);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                     _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
}
inline int32_t largest_size(F32x16 a, F32x16 b) {
    const __m256i mask = _mm256_set1_epi32(0x7fffffff);
    const auto size = [&](__m256 x) { return _mm256_and_si256(_mm256_castps_si256(x), mask); };
    const __m256i eight = _mm256_max_epi32(_mm256_max_epi32(size(a.v0), size(a.v1)),  //
                                           _mm256_max_epi32(size(b.v0), size(b.v1)));
    const __m128i four = _mm_max_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
    const __m128i two = _mm_max_epi32(four, _mm_unpackhi_epi64(four, four));
    return _mm_cvtsi128_si32(_mm_max_epi32(two, _mm_shuffle_epi32(two, 1)));
}
inline __m128i load_sixteen(const std::byte* p) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}
inline F32x16 load_halves(const std::byte* p) {
    return {_mm256_cvtph_ps(load_sixteen(p)), _mm256_cvtph_ps(load_sixteen(p + 16))};
}
inline F32x16 load_unsigned_bytes(const std::byte* p) {
    const __m128i x = load_sixteen(p);
    return to_float(I32x16{_mm256_cvtepu8_epi32(x), _mm256_cvtepu8_epi32(_mm_unpackhi_epi64(x, x))});
}
inline F32x16 load_signed_bytes(const std::byte* p) {
    const __m128i x = load_sixteen(p);
    return to_float(I32x16{_mm256_cvtepi8_epi32(x), _mm256_cvtepi8_epi32(_mm_unpackhi_epi64(x, x))});
}

inline Bytes load_bytes(const std::byte* p) {
    const auto* halves = reinterpret_cast<const __m256i*>(p);
    return {_mm256_loadu_si256(halves), _mm256_loadu_si256(halves + 1)};
}
inline Bytes repeat_four(const int8_t* p) {
    int32_t four;
    std::memcpy(&four, p, sizeof(four));
    const __m256i v = _mm256_set1_epi32(four);
    return {v, v};
}
inline Bytes moved(Bytes x, int up, int mask) {
    const auto move = [&](__m256i v) {
        const __m256i there = up > 0 ? _mm256_slli_epi16(v, up) : up < 0 ? _mm256_srli_epi16(v, -up) : v;
        return _mm256_and_si256(there, _mm256_set1_epi8(static_cast<char>(mask)));
    };
    return {move(x.v0), move(x.v1)};
}
inline Bytes either(Bytes a, Bytes b) {
    return {_mm256_or_si256(a.v0, b.v0), _mm256_or_si256(a.v1, b.v1)};
}

#    if defined(__AVXVNNI__)
constexpr bool SIGNED_BYTES = false;

template <int BITS>
struct Dot {
    I32x16 total;
    void start(I32x16 x) { total = x; }
    void add(int, Bytes weights, Bytes x) {
        total = {_mm256_dpbusd_avx_epi32(total.v0, weights.v0, x.v0),
                 _mm256_dpbusd_avx_epi32(total.v1, weights.v1, x.v1)};
    }
    I32x16 sum() const { return total; }
};
#    else
constexpr bool SIGNED_BYTES = true;

template <int BITS>
struct Dot {
    static constexpr int DEPTH = BITS == 4 ? 8 : BITS == 5 ? 4 : 2;
    I32x16 total, part;
    void start(I32x16 x) { total = x; }
    void add(int i, Bytes weights, Bytes x) {
        add(i, weights.v0, x.v0, total.v0, part.v0);
        add(i, weights.v1, x.v1, total.v1, part.v1);
    }
    I32x16 sum() const { return total; }

  private:
    static void add(int i, __m256i weights, __m256i x, __m256i& total, __m256i& part) {
        const __m256i ones = _mm256_set1_epi16(1);
        if constexpr (BITS == 8) {
            const __m256i w = _mm256_xor_si256(weights, _mm256_set1_epi8(static_cast<char>(0x80)));
            part = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w));
            total = _mm256_add_epi32(total, _mm256_madd_epi16(part, ones));
            asm("" : "+x"(total));
        } else {
            const __m256i pairs = _mm256_maddubs_epi16(weights, x);
            part = i % DEPTH == 0 ? pairs : _mm256_add_epi16(part, pairs);
            asm("" : "+x"(part));
            if (i % DEPTH == DEPTH - 1) total = _mm256_add_epi32(total, _mm256_madd_epi16(part, ones));
        }
    }
};
#    endif

#elif defined(SLIPSTREAM_NEON)

struct I32x16 {
    int32x4_t v[4];
};
struct Bytes {
    uint8x16_t v[4];
};

inline I32x16 broadcast_integer(int32_t x) {
    const int32x4_t v = vdupq_n_s32(x);
    return {{v, v, v, v}};
}
inline I32x16 sub(I32x16 a, I32x16 b) {
    for (int q = 0; q < 4; ++q) a.v[q] = vsubq_s32(a.v[q], b.v[q]);
    return a;
}
inline I32x16 shift_left(I32x16 x, int count) {
    for (int q = 0; q < 4; ++q) x.v[q] = vshlq_s32(x.v[q], vdupq_n_s32(count));
    return x;
}
inline F32x16 to_float(I32x16 x) {
    F32x16 result;
    for (int q = 0; q < 4; ++q) result.v[q] = vcvtq_f32_s32(x.v[q]);
    return result;
}
inline I32x16 to_nearest(F32x16 x) {
    I32x16 result;
    for (int q = 0; q < 4; ++q) result.v[q] = vcvtnq_s32_f32(x.v[q]);
    return result;
}
inline int32_t sum_lanes(I32x16 x) {
    return vaddvq_s32(vaddq_s32(vaddq_s32(x.v[0], x.v[1]), vaddq_s32(x.v[2], x.v[3])));
}
inline void store_low_bytes(int8_t* p, I32x16 x) {
    const int16x8_t low = vcombine_s16(vmovn_s32(x.v[0]), vmovn_s32(x.v[1]));
    const int16x8_t high = vcombine_s16(vmovn_s32(x.v[2]), vmovn_s32(x.v[3]));
    vst1q_s8(p, vcombine_s8(vmovn_s16(low), vmovn_s16(high)));
}
inline int32_t largest_size(F32x16 a, F32x16 b) {
    const auto size = [](float32x4_t x) { return vreinterpretq_s32_f32(vabsq_f32(x)); };
    int32x4_t most = vdupq_n_s32(0);
    for (int q = 0; q < 4; ++q) most = vmaxq_s32(most, vmaxq_s32(size(a.v[q]), size(b.v[q])));
    return vmaxvq_s32(most);
}
inline F32x16 load_halves(const std::byte* p) {
    F32x16 result;
    for (int q = 0; q < 4; ++q)
        result.v[q] = vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(reinterpret_cast<const uint8_t*>(p) + 8 * q)));
    return result;
}
inline F32x16 load_unsigned_bytes(const std::byte* p) {
    const uint8x16_t x = vld1q_u8(reinterpret_cast<const uint8_t*>(p));
    const uint16x8_t low = vmovl_u8(vget_low_u8(x)), high = vmovl_high_u8(x);
    return {{vcvtq_f32_u32(vmovl_u16(vget_low_u16(low))), vcvtq_f32_u32(vmovl_high_u16(low)),
             vcvtq_f32_u32(vmovl_u16(vget_low_u16(high))), vcvtq_f32_u32(vmovl_high_u16(high))}};
}
inline F32x16 load_signed_bytes(const std::byte* p) {
    const int8x16_t x = vld1q_s8(reinterpret_cast<const int8_t*>(p));
    const int16x8_t low = vmovl_s8(vget_low_s8(x)), high = vmovl_high_s8(x);
    return {{vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))), vcvtq_f32_s32(vmovl_high_s16(low)),
             vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))), vcvtq_f32_s32(vmovl_high_s16(high))}};
}

inline Bytes load_bytes(const std::byte* p) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(p);
    return {{vld1q_u8(bytes), vld1q_u8(bytes + 16), vld1q_u8(bytes + 32), vld1q_u8(bytes + 48)}};
}
inline Bytes repeat_four(const int8_t* p) {
    int32_t four;
    std::memcpy(&four, p, sizeof(four));
    const uint8x16_t v = vreinterpretq_u8_s32(vdupq_n_s32(four));
    return {{v, v, v, v}};
}
inline Bytes moved(Bytes x, int up, int mask) {
    for (int q = 0; q < 4; ++q)
        x.v[q] =
            vandq_u8(vshlq_u8(x.v[q], vdupq_n_s8(static_cast<int8_t>(up))), vdupq_n_u8(static_cast<uint8_t>(mask)));
    return x;
}
inline Bytes either(Bytes a, Bytes b) {
    for (int q = 0; q < 4; ++q) a.v[q] = vorrq_u8(a.v[q], b.v[q]);
    return a;
}

constexpr bool SIGNED_BYTES = true;

template <int BITS>
struct Dot {
    I32x16 total;
#    if defined(__ARM_FEATURE_DOTPROD)
    void start(I32x16 x) { total = x; }
    void add(int, Bytes weights, Bytes x) {
        for (int q = 0; q < 4; ++q)
            total.v[q] = vdotq_s32(total.v[q], signed_of(weights.v[q]), vreinterpretq_s8_u8(x.v[q]));
    }
    I32x16 sum() const { return total; }
#    else
    int32x4_t low[4], high[4];  // two sums each of lanes 0 and 1, 2 and 3 of a quarter
    void start(I32x16 x) {
        total = x;
        for (int q = 0; q < 4; ++q) low[q] = high[q] = vdupq_n_s32(0);
    }
    void add(int, Bytes weights, Bytes x) {
        for (int q = 0; q < 4; ++q) {
            const int8x16_t w = signed_of(weights.v[q]), y = vreinterpretq_s8_u8(x.v[q]);
            low[q] = vpadalq_s16(low[q], vmull_s8(vget_low_s8(w), vget_low_s8(y)));
            high[q] = vpadalq_s16(high[q], vmull_high_s8(w, y));
        }
    }
    I32x16 sum() const {
        I32x16 result;
        for (int q = 0; q < 4; ++q) result.v[q] = vaddq_s32(total.v[q], vpaddq_s32(low[q], high[q]));
        return result;
    }
#    endif

  private:
    static int8x16_t signed_of(uint8x16_t weights) {
        return vreinterpretq_s8_u8(BITS == 8 ? veorq_u8(weights, vdupq_n_u8(0x80)) : weights);
    }
};

#else

struct I32x16 {
    int32_t v[LANES];
};
struct Bytes {
    uint8_t v[4 * LANES];
};

inline I32x16 broadcast_integer(int32_t x) {
    I32x16 result;
    for (int i = 0; i < LANES; ++i) result.v[i] = x;
    return result;
}
inline I32x16 sub(I32x16 a, I32x16 b) {
    for (int i = 0; i < LANES; ++i) a.v[i] -= b.v[i];
    return a;
}
inline I32x16 shift_left(I32x16 x, int count) {
    for (int i = 0; i < LANES; ++i) x.v[i] *= 1 << count;
    return x;
}
inline F32x16 to_float(I32x16 x) {
    F32x16 result;
    for (int i = 0; i < LANES; ++i) result.v[i] = static_cast<float>(x.v[i]);
    return result;
}
inline I32x16 to_nearest(F32x16 x) {
    I32x16 result;
    const float shift = 12582912.0f;  // 1.5 · 2²³: the sum is rounded to an integer
    for (int i = 0; i < LANES; ++i) result.v[i] = static_cast<int32_t>(x.v[i] + shift - shift);
    return result;
}
inline int32_t sum_lanes(I32x16 x) {
    int32_t sum = 0;
    for (int i = 0; i < LANES; ++i) sum += x.v[i];
    return sum;
}
inline void store_low_bytes(int8_t* p, I32x16 x) {
    for (int i = 0; i < LANES; ++i) p[i] = static_cast<int8_t>(x.v[i]);
}
inline int32_t largest_size(F32x16 a, F32x16 b) {
    int32_t most = 0;
    for (int i = 0; i < LANES; ++i)
        for (const float* x : {a.v + i, b.v + i}) {
            const auto size = static_cast<int32_t>(bits_of_float(*x) & 0x7fffffff);
            if (size > most) most = size;
        }
    return most;
}
inline F32x16 load_halves(const std::byte* p) {
    F32x16 result;
    for (int i = 0; i < LANES; ++i) {
        uint16_t half;
        std::memcpy(&half, p + 2 * i, sizeof(half));
        result.v[i] = float_of_half(half);
    }
    return result;
}
inline F32x16 load_unsigned_bytes(const std::byte* p) {
    F32x16 result;
    for (int i = 0; i < LANES; ++i) result.v[i] = static_cast<float>(p[i]);
    return result;
}
inline F32x16 load_signed_bytes(const std::byte* p) {
    F32x16 result;
    for (int i = 0; i < LANES; ++i) result.v[i] = static_cast<float>(static_cast<int8_t>(p[i]));
    return result;
}

inline Bytes load_bytes(const std::byte* p) {
    Bytes result;
    std::memcpy(result.v, p, sizeof(result.v));
    return result;
}
inline Bytes repeat_four(const int8_t* p) {
    Bytes result;
    for (int i = 0; i < LANES; ++i) std::memcpy(result.v + 4 * i, p, 4);
    return result;
}
inline Bytes moved(Bytes x, int up, int mask) {
    for (uint8_t& byte : x.v) byte = static_cast<uint8_t>((up > 0 ? byte << up : byte >> -up) & mask);
    return x;
}
inline Bytes either(Bytes a, Bytes b) {
    for (int i = 0; i < 4 * LANES; ++i) a.v[i] |= b.v[i];
    return a;
}

constexpr bool SIGNED_BYTES = false;

template <int BITS>
struct Dot {
    I32x16 total;
    void start(I32x16 x) { total = x; }
    void add(int, Bytes weights, Bytes x) {
        for (int i = 0; i < 4 * LANES; ++i) total.v[i / 4] += weights.v[i] * static_cast<int8_t>(x.v[i]);
    }
    I32x16 sum() const { return total; }
};

#endif

}  // namespace slipstream::SLIPSTREAM_LEVEL
