// Linear layers over quantised weights. Within a block of 32 k everything is summed exactly, in integers; across blocks
// every output is one accumulator, k ascending:
//     acc = fma(sum of the block, weight scale · activation scale, acc), and where the weights have a minimum
//     acc = fma(-minimum, activation scale · sum of the activations, acc).

namespace slipstream::SLIPSTREAM_LEVEL {

constexpr int QUANTISED_ROWS = REGISTERS_PER_VECTOR == 1 ? 8 : 4;  // of a tile
constexpr int64_t QUANTISED_AHEAD = 2048;                          // bytes

inline float float_of_size(int32_t bits) {
    float x;
    std::memcpy(&x, &bits, sizeof(x));
    return x;
}

// A block that holds an infinity or a NaN makes all its row's outputs NaN; one of numbers below 2^-119 counts as zeros.
void quantise(const float* x, int64_t count, QuantisedBlock* out) {
    for (; count > 0; count -= BLOCK, x += BLOCK, ++out) {
        const F32x16 first = load(x), second = load(x + LANES);
        const float largest = float_of_size(largest_size(first, second));
        if (!(largest <= 0x1.fffffep127f)) {
            *out = {__builtin_nanf(""), __builtin_nanf(""), 0, 0, {}};
            continue;
        }
        const bool tiny = largest < 0x1p-119f;
        const float scale = tiny ? 0.0f : largest / 127.0f, inverse = tiny ? 0.0f : 127.0f / largest;
        const I32x16 a = to_nearest(mul(first, broadcast(inverse))), b = to_nearest(mul(second, broadcast(inverse)));
        const int32_t second_sum = sum_lanes(b), sum = sum_lanes(a) + second_sum;
        out->scale = scale;
        out->sum = scale * static_cast<float>(sum);
        out->minus_all = -sum;
        out->minus_second = -second_sum;
        store_low_bytes(out->values, a);
        store_low_bytes(out->values + LANES, b);
    }
}

// The weights of one group of four k.
template <int BITS>
inline Bytes load_group(const std::byte* values, int group) {
    if constexpr (BITS == 8) return load_bytes(values + group * 64);
    const Bytes low = moved(load_bytes(values + group % 4 * 64), group < 4 ? 0 : -4, 0x0f);
    if constexpr (BITS == 5) return either(low, moved(load_bytes(values + 256), 4 - group, 0x10));
    if constexpr (BITS == 6)
        return either(low, moved(load_bytes(values + 256 + group / 4 * 64), 4 - 2 * (group % 4), 0x30));
    return low;
}

// sums[r * 16 + lane] (+)= one panel's outputs over `blocks` blocks, for ROWS rows `stride` blocks apart. Fetches what
// lies `ahead` bytes further meanwhile.
template <WeightType TYPE, int ROWS>
void quantised_tile(const QuantisedBlock* x, int64_t stride, int64_t blocks, const std::byte* weights, float* sums,
                    ptrdiff_t ahead) {
    constexpr Packing PACKING = packing_of(TYPE);
    constexpr bool SPAN_SCALES = PACKING.span_bytes() > 0;
    constexpr bool MINIMUM = PACKING.scales == Scales::half_pair || PACKING.scales == Scales::of_span;
    constexpr int SHIFT = PACKING.bits == 8 && SIGNED_BYTES ? 0 : PACKING.offset_shift;
    F32x16 acc[ROWS];
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; ++r) acc[r] = broadcast(0.0f);
    const auto without_offset = [](I32x16 minus_sum) __attribute__((always_inline)) {
        return SHIFT ? shift_left(minus_sum, SHIFT) : broadcast_integer(0);
    };
    const auto fetch = [ahead](const std::byte* from, int64_t bytes) __attribute__((always_inline)) {
#pragma GCC unroll 16
        for (int64_t at = 0; at < bytes; at += LINE) __builtin_prefetch(from + ahead + at);
    };
    while (blocks > 0) {
        const int64_t count = min_of(blocks, SPAN_BLOCKS);
        const std::byte* scales = weights + PACKING.span_bytes();
        const std::byte* values = scales + count * PACKING.scale_bytes();
        F32x16 d, minus_dmin;
        if constexpr (SPAN_SCALES) d = load_halves(weights);
        if constexpr (PACKING.scales == Scales::of_span)
            minus_dmin = sub(broadcast(-0.0f), load_halves(weights + 2 * PANEL));
        fetch(weights, PACKING.span_bytes() + SPAN_BLOCKS * PACKING.scale_bytes());
        for (int64_t b = 0; b < count; ++b) {
            fetch(values, PACKING.value_bytes());
            Dot<PACKING.bits> dots[ROWS];
            const auto add_groups = [&](int first, int groups) __attribute__((always_inline)) {
#pragma GCC unroll 16
                for (int g = 0; g < groups; ++g) {
                    const Bytes w = load_group<PACKING.bits>(values, first + g);
#pragma GCC unroll 16
                    for (int r = 0; r < ROWS; ++r)
                        dots[r].add(g, w, repeat_four(x[r * stride].values + 4 * (first + g)));
                }
            };
            if constexpr (PACKING.scales == Scales::sixteenths) {
                F32x16 halves[ROWS];
#pragma GCC unroll 16
                for (int r = 0; r < ROWS; ++r)
                    dots[r].start(
                        without_offset(broadcast_integer(x[r * stride].minus_all - x[r * stride].minus_second)));
                add_groups(0, 4);
                const F32x16 first_scale = load_signed_bytes(scales), second_scale = load_signed_bytes(scales + PANEL);
#pragma GCC unroll 16
                for (int r = 0; r < ROWS; ++r) {
                    halves[r] = mul(to_float(dots[r].sum()), first_scale);
                    dots[r].start(without_offset(broadcast_integer(x[r * stride].minus_second)));
                }
                add_groups(4, 4);
#pragma GCC unroll 16
                for (int r = 0; r < ROWS; ++r) {
                    const F32x16 sum = fma(to_float(dots[r].sum()), second_scale, halves[r]);  // below 2^24: exact
                    acc[r] = fma(sum, mul(d, broadcast(x[r * stride].scale)), acc[r]);
                }
            } else {
#pragma GCC unroll 16
                for (int r = 0; r < ROWS; ++r)
                    dots[r].start(without_offset(broadcast_integer(x[r * stride].minus_all)));
                add_groups(0, 8);
                F32x16 scale, minus_minimum;
                if constexpr (SPAN_SCALES) {
                    scale = mul(d, load_unsigned_bytes(scales));
                    minus_minimum = mul(minus_dmin, load_unsigned_bytes(scales + PANEL));
                } else {
                    scale = load_halves(scales);
                    if constexpr (MINIMUM) minus_minimum = load_halves(scales + 2 * PANEL);
                }
#pragma GCC unroll 16
                for (int r = 0; r < ROWS; ++r) {
                    acc[r] = fma(to_float(dots[r].sum()), mul(scale, broadcast(x[r * stride].scale)), acc[r]);
                    if constexpr (MINIMUM) acc[r] = fma(minus_minimum, broadcast(x[r * stride].sum), acc[r]);
                }
            }
            ++x;
            scales += PACKING.scale_bytes();
            values += PACKING.value_bytes();
        }
        weights = values;
        blocks -= count;
    }
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; ++r) store(sums + r * LANES, acc[r]);
}

using QuantisedTile = void (*)(const QuantisedBlock*, int64_t, int64_t, const std::byte*, float*, ptrdiff_t);

template <WeightType TYPE>
struct QuantisedTiles {
    QuantisedTile of[QUANTISED_ROWS + 1] = {};
    template <int ROWS = QUANTISED_ROWS>
    constexpr void fill() {
        of[ROWS] = &quantised_tile<TYPE, ROWS>;
        if constexpr (ROWS > 1) fill<ROWS - 1>();
    }
    constexpr QuantisedTiles() { fill(); }
};
template <WeightType TYPE>
constexpr QuantisedTiles<TYPE> QUANTISED_TILES;

inline const QuantisedTile* quantised_tiles(WeightType type) {
    switch (type) {
        case WeightType::q4_0:
            return QUANTISED_TILES<WeightType::q4_0>.of;
        case WeightType::q4_1:
            return QUANTISED_TILES<WeightType::q4_1>.of;
        case WeightType::q4_k:
            return QUANTISED_TILES<WeightType::q4_k>.of;
        case WeightType::q5_0:
            return QUANTISED_TILES<WeightType::q5_0>.of;
        case WeightType::q5_1:
            return QUANTISED_TILES<WeightType::q5_1>.of;
        case WeightType::q5_k:
            return QUANTISED_TILES<WeightType::q5_k>.of;
        case WeightType::q6_k:
            return QUANTISED_TILES<WeightType::q6_k>.of;
        default:
            return QUANTISED_TILES<WeightType::q8_0>.of;
    }
}

// As products() of floats. A panel is small enough to stay in the L2 cache for all tiles of rows; the last of them
// fetches the next panel.
void quantised_products(const WeightView& weight, const QuantisedBlock* x, int64_t rows, Range panels, float* sums) {
    const QuantisedTile* tile = quantised_tiles(weight.type);
    const int64_t blocks = weight.in_features / BLOCK, tiles = (rows + QUANTISED_ROWS - 1) / QUANTISED_ROWS;
    const int64_t panel_bytes = weight.panel_bytes();
    for (int64_t p = panels.begin; p < panels.end; ++p)
        for (int64_t t = 0; t < tiles; ++t) {
            const int64_t begin = rows * t / tiles, end = rows * (t + 1) / tiles;
            tile[end - begin](x + begin * blocks, blocks, blocks, weight.data + p * panel_bytes, sums,
                              tiles == 1       ? QUANTISED_AHEAD
                              : t + 1 == tiles ? panel_bytes
                                               : 0);
            sums += (end - begin) * LANES;
        }
}

}  // namespace slipstream::SLIPSTREAM_LEVEL
