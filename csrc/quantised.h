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

// sums[p * sums_stride + r * 16 + lane] = outputs of PANELS panels over `blocks` blocks, for ROWS rows `stride` blocks
// apart. Fetches what lies `ahead` bytes further meanwhile.
template <WeightType TYPE, int ROWS, int PANELS>
void quantised_tile(const QuantisedBlock* x, int64_t stride, int64_t blocks, const std::byte* weights,
                    ptrdiff_t panel_stride, float* sums, int64_t sums_stride, ptrdiff_t ahead) {
    constexpr Packing PACKING = packing_of(TYPE);
    constexpr bool SPAN_SCALES = PACKING.span_bytes() > 0;
    constexpr bool MINIMUM = PACKING.scales == Scales::half_pair || PACKING.scales == Scales::of_span;
    constexpr int SHIFT = PACKING.bits == 8 && SIGNED_BYTES ? 0 : PACKING.offset_shift;
    F32x16 acc[PANELS][ROWS];
#pragma GCC unroll 16
    for (int p = 0; p < PANELS; ++p)
#pragma GCC unroll 16
        for (int r = 0; r < ROWS; ++r) acc[p][r] = broadcast(0.0f);
    const auto without_offset = [](I32x16 minus_sum) __attribute__((always_inline)) {
        return SHIFT ? shift_left(minus_sum, SHIFT) : broadcast_integer(0);
    };
    // What follows the end of a panel belongs to the panel beside it: the next one of these is PANELS further.
    const std::byte* turn = weights + panel_stride - ahead;
    const auto fetch = [=](const std::byte* first, int panel, int64_t bytes) __attribute__((always_inline)) {
        const std::byte* from = first + ahead + (PANELS > 1 && first >= turn ? (PANELS - 1) * panel_stride : 0);
#pragma GCC unroll 16
        for (int64_t at = 0; at < bytes; at += LINE) __builtin_prefetch(from + panel * panel_stride + at);
    };
    while (blocks > 0) {
        const int64_t count = min_of(blocks, SPAN_BLOCKS);
        const std::byte* scales = weights + PACKING.span_bytes();
        const std::byte* values = scales + count * PACKING.scale_bytes();
        F32x16 d[PANELS], minus_dmin[PANELS];
#pragma GCC unroll 16
        for (int p = 0; p < PANELS; ++p) {
            const std::byte* span = weights + p * panel_stride;
            if constexpr (SPAN_SCALES) d[p] = load_halves(span);
            if constexpr (PACKING.scales == Scales::of_span)
                minus_dmin[p] = sub(broadcast(-0.0f), load_halves(span + 2 * PANEL));
            fetch(weights, p, PACKING.span_bytes() + SPAN_BLOCKS * PACKING.scale_bytes());
        }
        for (int64_t b = 0; b < count; ++b) {
#pragma GCC unroll 16
            for (int p = 0; p < PANELS; ++p) {
                const std::byte *own_values = values + p * panel_stride, *own_scales = scales + p * panel_stride;
                fetch(values, p, PACKING.value_bytes());
                Dot<PACKING.bits> dots[ROWS];
                const auto add_groups = [&](int first, int groups) __attribute__((always_inline)) {
#pragma GCC unroll 16
                    for (int g = 0; g < groups; ++g) {
                        const Bytes w = load_group<PACKING.bits>(own_values, first + g);
#pragma GCC unroll 16
                        for (int r = 0; r < ROWS; ++r)
                            dots[r].add(g, w, repeat_four(x[r * stride].values + 4 * (first + g)));
                    }
                };
                if constexpr (PACKING.scales == Scales::sixteenths) {
                    F32x16 halves[ROWS];
#pragma GCC unroll 16
                    for (int r = 0; r < ROWS; ++r) {
                        const int32_t minus_first = x[r * stride].minus_all - x[r * stride].minus_second;
                        dots[r].start(without_offset(broadcast_integer(minus_first)));
                    }
                    add_groups(0, 4);
                    const F32x16 first_scale = load_signed_bytes(own_scales);
                    const F32x16 second_scale = load_signed_bytes(own_scales + PANEL);
#pragma GCC unroll 16
                    for (int r = 0; r < ROWS; ++r) {
                        halves[r] = mul(to_float(dots[r].sum()), first_scale);
                        dots[r].start(without_offset(broadcast_integer(x[r * stride].minus_second)));
                    }
                    add_groups(4, 4);
#pragma GCC unroll 16
                    for (int r = 0; r < ROWS; ++r) {
                        const F32x16 sum = fma(to_float(dots[r].sum()), second_scale, halves[r]);  // < 2^24: exact
                        acc[p][r] = fma(sum, mul(d[p], broadcast(x[r * stride].scale)), acc[p][r]);
                    }
                } else {
#pragma GCC unroll 16
                    for (int r = 0; r < ROWS; ++r)
                        dots[r].start(without_offset(broadcast_integer(x[r * stride].minus_all)));
                    add_groups(0, 8);
                    F32x16 scale, minus_minimum;
                    if constexpr (SPAN_SCALES) {
                        scale = mul(d[p], load_unsigned_bytes(own_scales));
                        minus_minimum = mul(minus_dmin[p], load_unsigned_bytes(own_scales + PANEL));
                    } else {
                        scale = load_halves(own_scales);
                        if constexpr (MINIMUM) minus_minimum = load_halves(own_scales + 2 * PANEL);
                    }
#pragma GCC unroll 16
                    for (int r = 0; r < ROWS; ++r) {
                        const F32x16 both = mul(scale, broadcast(x[r * stride].scale));
                        acc[p][r] = fma(to_float(dots[r].sum()), both, acc[p][r]);
                        if constexpr (MINIMUM) acc[p][r] = fma(minus_minimum, broadcast(x[r * stride].sum), acc[p][r]);
                    }
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
    for (int p = 0; p < PANELS; ++p)
#pragma GCC unroll 16
        for (int r = 0; r < ROWS; ++r) store(sums + p * sums_stride + r * LANES, acc[p][r]);
}

using QuantisedTile = void (*)(const QuantisedBlock*, int64_t, int64_t, const std::byte*, ptrdiff_t, float*, int64_t,
                               ptrdiff_t);

// Few rows take several panels at once, which are several streams of memory; many are busy enough with one.
constexpr int quantised_panels_beside(int rows) {
    const int panels = 8 / (rows * REGISTERS_PER_VECTOR);
    return panels > 4 ? 4 : panels < 1 ? 1 : panels;
}

template <WeightType TYPE>
struct QuantisedTiles {
    QuantisedTile of[QUANTISED_ROWS + 1][2] = {};  // of one panel, of as many as go beside
    template <int ROWS = QUANTISED_ROWS>
    constexpr void fill() {
        of[ROWS][0] = &quantised_tile<TYPE, ROWS, 1>;
        of[ROWS][1] = &quantised_tile<TYPE, ROWS, quantised_panels_beside(ROWS)>;
        if constexpr (ROWS > 1) fill<ROWS - 1>();
    }
    constexpr QuantisedTiles() { fill(); }
};
template <WeightType TYPE>
constexpr QuantisedTiles<TYPE> QUANTISED_TILES;

inline const QuantisedTile (*quantised_tiles(WeightType type))[2] {
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
    const auto* tile = quantised_tiles(weight.type);
    const int64_t blocks = weight.in_features / BLOCK, tiles = (rows + QUANTISED_ROWS - 1) / QUANTISED_ROWS;
    const int64_t panel_bytes = weight.panel_bytes();
    const int64_t most = tiles == 1 ? quantised_panels_beside(static_cast<int>(rows)) : 1;
    for (int64_t p = panels.begin; p < panels.end;) {
        const int64_t beside = panels.end - p >= most ? most : 1;
        const std::byte* data = weight.data + p * panel_bytes;
        for (int64_t t = 0; t < tiles; ++t) {
            const int64_t begin = rows * t / tiles, end = rows * (t + 1) / tiles;
            const int64_t ahead = tiles == 1 ? QUANTISED_AHEAD : t + 1 == tiles ? panel_bytes : 0;
            tile[end - begin][beside > 1](x + begin * blocks, blocks, blocks, data, panel_bytes, sums + begin * LANES,
                                          rows * LANES, ahead);
        }
        p += beside;
        sums += beside * rows * LANES;
    }
}

}  // namespace slipstream::SLIPSTREAM_LEVEL
