// The kernels, written once against F32x16 and compiled once per instruction set. See docs/kernels.md for the layouts
// and for why an output's bits depend on its own row alone: every output is one accumulator that runs over k in
// ascending order by fused multiply-adds, whatever runs beside it.

#include "kernels.h"
#include "simd.h"
#include "simd_bytes.h"

namespace slipstream::SLIPSTREAM_LEVEL {

// ---- Tiles: rows × panels of 16 outputs, held in registers ----------------------------------------------------------

// As many panels as leave all accumulators, one row of weights and one broadcast in registers. (A single row's weights
// are each used at once.)
constexpr int panels_beside(int rows) {
    int panels = 4;
    while (rows > 1 && (rows * panels > 24 || (rows + 1) * panels * REGISTERS_PER_VECTOR + 1 > REGISTERS)) --panels;
    return panels;
}
constexpr int TILE_ROWS = REGISTERS_PER_VECTOR == 1 ? 12 : 6;
static_assert(panels_beside(TILE_ROWS) >= 1);

// Where a tile's 16 weights for one k come from, and how many bytes further those for the next k are.
struct F32Panel {
    static constexpr int STEPS_PER_LINE = 1;
    static constexpr ptrdiff_t step() { return PANEL * sizeof(float); }
    F32x16 load(const std::byte* p) const { return SLIPSTREAM_LEVEL::load(reinterpret_cast<const float*>(p)); }
};
struct Bf16Panel {
    static constexpr int STEPS_PER_LINE = 2;
    static constexpr ptrdiff_t step() { return PANEL * sizeof(uint16_t); }
    F32x16 load(const std::byte* p) const { return load_bf16_pairs(p); }
};
struct Columns {  // of a row-major matrix
    static constexpr int STEPS_PER_LINE = 1;
    ptrdiff_t row_bytes;
    ptrdiff_t step() const { return row_bytes; }
    F32x16 load(const std::byte* p) const { return SLIPSTREAM_LEVEL::load(reinterpret_cast<const float*>(p)); }
};
struct LastColumns {  // fewer than 16 of them
    static constexpr int STEPS_PER_LINE = 1;
    ptrdiff_t row_bytes;
    int columns;
    ptrdiff_t step() const { return row_bytes; }
    F32x16 load(const std::byte* p) const { return load_part(reinterpret_cast<const float*>(p), columns); }
};

// What to fetch into the cache meanwhile: for every line of weights read, the line at `from` of each panel, then at
// from + step …
struct Ahead {
    const std::byte* from;
    ptrdiff_t step;
};

// sums[p * sums_stride + r * 16 + lane] (+)= Σ_k x[r * x_stride + k] * weights of panel p, for k = 0 … count-1.
template <class Source, int ROWS, int PANELS>
void tile(const Source& source, const float* x, ptrdiff_t x_stride, ptrdiff_t count, const std::byte* weights,
          ptrdiff_t panel_stride, float* sums, ptrdiff_t sums_stride, bool resume, Ahead ahead) {
    F32x16 acc[PANELS][ROWS];
#pragma GCC unroll 16
    for (int p = 0; p < PANELS; ++p)
#pragma GCC unroll 16
        for (int r = 0; r < ROWS; ++r) acc[p][r] = resume ? load(sums + p * sums_stride + r * LANES) : broadcast(0);
    // One pointer for three rows, the others at one and two strides from it: a pointer a row would be more than there
    // are registers for. The empty asm keeps the compiler from making them all the same.
    constexpr int BASES = (ROWS + 2) / 3;
    const float* bases[BASES];
#pragma GCC unroll 16
    for (int i = 0; i < BASES; ++i) bases[i] = x + 3 * i * x_stride;
    const auto multiply_add = [&](int step) __attribute__((always_inline)) {
        F32x16 w[PANELS];
#pragma GCC unroll 16
        for (int p = 0; p < PANELS; ++p) w[p] = source.load(weights + p * panel_stride + step * source.step());
#pragma GCC unroll 16
        for (int r = 0; r < ROWS; ++r) {
            const F32x16 value = broadcast(bases[r / 3][r % 3 * x_stride + step]);
#pragma GCC unroll 16
            for (int p = 0; p < PANELS; ++p) acc[p][r] = fma(value, w[p], acc[p][r]);
        }
    };
    const auto advance = [&](int steps) __attribute__((always_inline)) {
        weights += steps * source.step();
#pragma GCC unroll 16
        for (int i = 0; i < BASES; ++i) {
            bases[i] += steps;
            asm("" : "+r"(bases[i]));
        }
    };
    for (; count >= Source::STEPS_PER_LINE; count -= Source::STEPS_PER_LINE) {
#pragma GCC unroll 16
        for (int p = 0; p < PANELS; ++p) __builtin_prefetch(ahead.from + p * panel_stride);
        ahead.from += ahead.step;
#pragma GCC unroll 16
        for (int i = 0; i < Source::STEPS_PER_LINE; ++i) multiply_add(i);
        advance(Source::STEPS_PER_LINE);
    }
    for (; count > 0; --count) {
        multiply_add(0);
        advance(1);
    }
#pragma GCC unroll 16
    for (int p = 0; p < PANELS; ++p)
#pragma GCC unroll 16
        for (int r = 0; r < ROWS; ++r) store(sums + p * sums_stride + r * LANES, acc[p][r]);
}

template <class Source>
using Tile = void (*)(const Source&, const float*, ptrdiff_t, ptrdiff_t, const std::byte*, ptrdiff_t, float*, ptrdiff_t,
                      bool, Ahead);

template <class Source, int ROWS, int PANELS>
constexpr Tile<Source> tile_or_null() {
    if constexpr (PANELS <= panels_beside(ROWS))
        return &tile<Source, ROWS, PANELS>;
    else
        return nullptr;
}

template <class Source>
struct Tiles {
    Tile<Source> of[TILE_ROWS + 1][5] = {};
    template <int ROWS = TILE_ROWS>
    constexpr void fill() {
        of[ROWS][1] = tile_or_null<Source, ROWS, 1>();
        of[ROWS][2] = tile_or_null<Source, ROWS, 2>();
        of[ROWS][3] = tile_or_null<Source, ROWS, 3>();
        of[ROWS][4] = tile_or_null<Source, ROWS, 4>();
        if constexpr (ROWS > 1) fill<ROWS - 1>();
    }
    constexpr Tiles() { fill(); }
};
template <class Source>
constexpr Tiles<Source> TILES;

constexpr int PANELS_BESIDE[] = {4,
                                 panels_beside(1),
                                 panels_beside(2),
                                 panels_beside(3),
                                 panels_beside(4),
                                 panels_beside(5),
                                 panels_beside(6),
                                 panels_beside(7),
                                 panels_beside(8),
                                 panels_beside(9),
                                 panels_beside(10),
                                 panels_beside(11),
                                 panels_beside(12)};

inline int64_t min_of(int64_t a, int64_t b) {
    return a < b ? a : b;
}
inline int64_t max_of(int64_t a, int64_t b) {
    return a > b ? a : b;
}
inline int64_t round_up(int64_t n, int64_t multiple) {
    return (n + multiple - 1) / multiple * multiple;
}

constexpr int64_t LINE = 64, BLOCK_BYTES = 8192, AHEAD_BYTES = 2048;

}  // namespace slipstream::SLIPSTREAM_LEVEL

#include "quantised.h"

namespace slipstream::SLIPSTREAM_LEVEL {

// ---- Linear ---------------------------------------------------------------------------------------------------------

// sums[panel][row][lane] for `rows` × `panels`. Rows are split evenly into tiles. With several of them k is cut into
// blocks, so that a block is still in the first-level cache for the next tile; the sums wait in memory meanwhile, which
// doesn't change their bits. While the tiles work on one block they fetch the next; a tile alone fetches what lies a
// little ahead, and over its last stretch the beginning of the next panels.
template <class Source>
void products(const Source& source, const float* x, int64_t rows, int64_t in_features, const std::byte* panels,
              int64_t panel_count, float* sums) {
    const int64_t tiles = (rows + TILE_ROWS - 1) / TILE_ROWS, most = (rows + tiles - 1) / tiles;
    const int64_t panel_bytes = in_features * source.step(), stretch = AHEAD_BYTES / source.step();
    const int64_t block = tiles > 1               ? BLOCK_BYTES / source.step()
                          : in_features > stretch ? in_features - stretch
                                                  : in_features;
    for (int64_t p = 0; p < panel_count;) {
        const int64_t beside = min_of(PANELS_BESIDE[most], panel_count - p);
        const std::byte* weights = panels + p * panel_bytes;
        p += beside;
        const std::byte* next_panels = p < panel_count ? panels + p * panel_bytes : weights;
        for (int64_t k = 0; k < in_features; k += block) {
            const int64_t count = min_of(block, in_features - k), bytes = count * source.step();
            const std::byte* next =
                k + count == in_features ? next_panels : weights + (tiles > 1 ? bytes : AHEAD_BYTES);
            for (int64_t t = 0; t < tiles; ++t) {
                const int64_t begin = rows * t / tiles, end = rows * (t + 1) / tiles;
                TILES<Source>.of[end - begin][beside](source, x + begin * in_features + k, in_features, count, weights,
                                                      panel_bytes, sums + begin * LANES, rows * LANES, k > 0,
                                                      {next + bytes * t / tiles, LINE / tiles});
            }
            weights += bytes;
        }
        sums += beside * rows * LANES;
    }
}

void products(const WeightView& weight, const float* x, const QuantisedBlock* quantised, int64_t rows, Range panels,
              float* sums) {
    const std::byte* data = weight.data + panels.begin * weight.panel_bytes();
    if (is_quantised(weight.type))
        quantised_products(weight, quantised, rows, panels, sums);
    else if (weight.type == WeightType::f32)
        products(F32Panel{}, x, rows, weight.in_features, data, panels.size(), sums);
    else
        products(Bf16Panel{}, x, rows, weight.in_features, data, panels.size(), sums);
}

// e^x to about one unit in the last place: x = n ln 2 + r, a polynomial in r, n into the exponent. 0 below the smallest
// normal number; the largest results saturate near 2.4e38; NaN stays NaN.
inline F32x16 exponential(F32x16 x) {
    const F32x16 shift = broadcast(12582912.0f + 127.0f);  // 1.5 · 2²³: the sum's low bits hold n + 127
    x = smaller(broadcast(88.3762626647949f), x);
    const F32x16 shifted = fma(x, broadcast(0x1.715476p+0f), shift);
    const F32x16 n = sub(shifted, shift);
    const F32x16 r = fma(n, broadcast(0x1.bd0106p-13f), fma(n, broadcast(-0x1.63p-1f), x));
    F32x16 y = broadcast(0x1.9f08d6p-13f);
    y = fma(y, r, broadcast(0x1.6d8d36p-10f));
    y = fma(y, r, broadcast(0x1.11127p-7f));
    y = fma(y, r, broadcast(0x1.55548ep-5f));
    y = fma(y, r, broadcast(0x1.555554p-3f));
    y = fma(y, r, broadcast(0.5f));
    y = add(fma(y, mul(r, r), r), broadcast(1.0f));
    return zero_below(x, broadcast(-87.3365478515625f), mul(y, exponent_bits(shifted)));
}

// gate / (1 + e^-gate) * up
inline F32x16 gated(F32x16 gate, F32x16 up) {
    const F32x16 one = broadcast(1.0f);
    return mul(div(gate, add(one, exponential(sub(broadcast(0.0f), gate)))), up);
}

inline F32x16 load_upto(const float* p, int64_t count) {
    return count >= LANES ? load(p) : load_part(p, static_cast<int>(count));
}
inline void store_upto(float* p, F32x16 x, int64_t count) {
    if (count >= LANES)
        store(p, x);
    else
        store_part(p, x, static_cast<int>(count));
}

void linear(const Linear& task, Range rows, Range panels, float* scratch) {
    const int64_t out_features = task.weight.out_features, row_count = rows.size();
    const float* x = task.x + rows.begin * task.weight.in_features;
    const QuantisedBlock* quantised = task.quantised + rows.begin * (task.weight.in_features / BLOCK);
    float* up_sums = scratch + linear_scratch() / 2;
    for (int64_t first = panels.begin; first < panels.end; first += PANEL_GROUP) {
        const Range group = {first, min_of(first + PANEL_GROUP, panels.end)};
        products(task.weight, x, quantised, row_count, group, scratch);
        if (task.finish == Finish::swiglu) products(task.up, x, quantised, row_count, group, up_sums);
        for (int64_t row = 0; row < row_count; ++row) {
            float* outs = task.out + (rows.begin + row) * out_features;
            for (int64_t panel = group.begin; panel < group.end; ++panel) {
                const int64_t output = panel * PANEL, count = out_features - output;
                const int64_t at = ((panel - group.begin) * row_count + row) * LANES;
                F32x16 y = load(scratch + at);
                if (task.bias) y = add(y, load_upto(task.bias + output, count));
                if (task.finish == Finish::add) y = add(load_upto(outs + output, count), y);
                if (task.finish == Finish::swiglu) {
                    F32x16 up = load(up_sums + at);
                    if (task.up_bias) up = add(up, load_upto(task.up_bias + output, count));
                    y = gated(y, up);
                }
                store_upto(outs + output, y, count);
            }
            if (task.quantised_out)
                quantise(outs + group.begin * PANEL, group.size() * PANEL,
                         task.quantised_out + ((rows.begin + row) * out_features + group.begin * PANEL) / BLOCK);
        }
    }
}

// ---- Attention ------------------------------------------------------------------------------------------------------

// Turns a query's scores into e^(score - largest), in place, and returns their sum. The scores are padded with -inf to
// a multiple of 16, which adds nothing.
float soften(float* scores, int64_t count) {
    F32x16 top = load(scores);
    for (int64_t i = LANES; i < count; i += LANES) top = larger(top, load(scores + i));
    const F32x16 largest = broadcast(largest_lane(top));
    F32x16 sum = broadcast(0);
    for (int64_t i = 0; i < count; i += LANES) {
        const F32x16 e = exponential(sub(load(scores + i), largest));
        store(scores + i, e);
        sum = add(sum, e);
    }
    return sum_lanes(sum);
}

// One tile of queries over the keys that they see. Those of the prefix that all queries share are taken together; a
// query's own (the rest of its prefix, its ancestors) one query at a time, in the same ascending order.
void attend(const Attention& task, int64_t first_row, int64_t kv_head, Range queries, float* scratch) {
    const RowsView& rows = *task.rows;
    const int64_t head_dim = rows.head_dim, group = task.heads / rows.kv_heads, count = queries.size();
    const int64_t stride = score_stride(rows.most_keys);
    float *q = scratch, *scores = scratch + TILE_ROWS * head_dim;
    const auto* keys = reinterpret_cast<const std::byte*>(rows.keys(first_row, task.layer, kv_head));
    const auto* values = reinterpret_cast<const std::byte*>(rows.values(first_row, task.layer, kv_head));
    const int64_t block_bytes = head_dim * KEY_BLOCK * static_cast<int64_t>(sizeof(float));
    const int64_t value_bytes = head_dim * static_cast<int64_t>(sizeof(float));
    alignas(64) float sums[TILE_ROWS * 4 * LANES];

    int64_t row[TILE_ROWS], head[TILE_ROWS], prefix[TILE_ROWS], shared = INT64_MAX, longest = 0;
    for (int64_t i = 0; i < count; ++i) {
        row[i] = first_row + (queries.begin + i) / group;
        head[i] = kv_head * group + (queries.begin + i) % group;
        prefix[i] = rows.prefix[row[i]];
        shared = min_of(shared, prefix[i]);
        longest = max_of(longest, prefix[i]);
        const float* source = task.q + (row[i] * task.heads + head[i]) * head_dim;
        for (int64_t d = 0; d < head_dim; ++d) q[i * head_dim + d] = source[d];
    }

    const F32x16 scale = broadcast(task.scale);
    const int64_t blocks = (longest + KEY_BLOCK - 1) / KEY_BLOCK;
    for (int64_t block = 0; block < blocks;) {
        const int64_t beside = min_of(PANELS_BESIDE[count], blocks - block);
        TILES<F32Panel>.of[count][beside](F32Panel{}, q, head_dim, head_dim, keys + block * block_bytes, block_bytes,
                                          sums, count * LANES, false, {keys + (block + beside) * block_bytes, LINE});
        for (int64_t b = 0; b < beside; ++b)
            for (int64_t i = 0; i < count; ++i)
                store(scores + i * stride + (block + b) * KEY_BLOCK, mul(load(sums + (b * count + i) * LANES), scale));
        block += beside;
    }

    float total[TILE_ROWS];
    for (int64_t i = 0; i < count; ++i) {
        float* mine = scores + i * stride;
        int64_t keys_seen = prefix[i], block = -1;
        for (int64_t a = rows.ancestors_start[row[i]]; a < rows.ancestors_start[row[i] + 1]; ++a) {
            const int64_t slot = rows.ancestors[a];
            if (slot / KEY_BLOCK != block) {
                block = slot / KEY_BLOCK;
                const std::byte* keys_there = keys + block * block_bytes;
                tile<F32Panel, 1, 1>(F32Panel{}, q + i * head_dim, head_dim, head_dim, keys_there, 0, sums, LANES,
                                     false, {keys_there, LINE});
                store(sums, mul(load(sums), scale));
            }
            mine[keys_seen++] = sums[slot % KEY_BLOCK];
        }
        const int64_t padded = round_up(keys_seen, LANES);
        for (int64_t k = keys_seen; k < padded; ++k) mine[k] = -__builtin_inff();
        total[i] = soften(mine, padded);
    }

    const auto weighted = [&](auto source, int64_t dim, int64_t beside) {
        using Source = decltype(source);
        const std::byte* columns = values + dim * static_cast<int64_t>(sizeof(float));
        const int64_t column_bytes = LANES * sizeof(float);
        TILES<Source>.of[count][beside](source, scores, stride, shared, columns, column_bytes, sums, count * LANES,
                                        false, {columns + AHEAD_BYTES, value_bytes});
        for (int64_t i = 0; i < count; ++i) {
            const auto more = [&](int64_t ordinal, int64_t slot, int64_t run) {
                const std::byte* from = columns + slot * value_bytes;
                TILES<Source>.of[1][beside](source, scores + i * stride + ordinal, stride, run, from, column_bytes,
                                            sums + i * LANES, count * LANES, true, {from, value_bytes});
            };
            if (prefix[i] > shared) more(shared, shared, prefix[i] - shared);
            int64_t ordinal = prefix[i];
            const int64_t end = rows.ancestors_start[row[i] + 1];
            for (int64_t a = rows.ancestors_start[row[i]]; a < end;) {
                int64_t run = 1;
                while (a + run < end && rows.ancestors[a + run] == rows.ancestors[a] + run) ++run;
                more(ordinal, rows.ancestors[a], run);
                ordinal += run;
                a += run;
            }
            const F32x16 divisor = broadcast(total[i]);
            float* out = task.out + (row[i] * task.heads + head[i]) * head_dim + dim;
            for (int64_t p = 0; p < beside; ++p)
                store_upto(out + p * LANES, div(load(sums + (p * count + i) * LANES), divisor),
                           head_dim - dim - p * LANES);
        }
    };
    int64_t dim = 0;
    while (head_dim - dim >= LANES) {
        const int64_t beside = min_of(PANELS_BESIDE[count], (head_dim - dim) / LANES);
        weighted(Columns{value_bytes}, dim, beside);
        dim += beside * LANES;
    }
    if (dim < head_dim) weighted(LastColumns{value_bytes, static_cast<int>(head_dim - dim)}, dim, 1);
    if (task.quantised_out)
        for (int64_t i = 0; i < count; ++i) {
            const int64_t at = (row[i] * task.heads + head[i]) * head_dim;
            quantise(task.out + at, head_dim, task.quantised_out + at / BLOCK);
        }
}

void attention(const Attention& task, int64_t first_row, int64_t kv_head, Range queries, float* scratch) {
    for (int64_t begin = queries.begin; begin < queries.end; begin += TILE_ROWS)
        attend(task, first_row, kv_head, {begin, min_of(begin + TILE_ROWS, queries.end)}, scratch);
}

// ---- Element by element ---------------------------------------------------------------------------------------------

void rms_norm(const float* x, const float* weight, float epsilon, int64_t count, float* out) {
    F32x16 squares = broadcast(0);
    for (int64_t i = 0; i < count; i += LANES) {
        const F32x16 v = load_upto(x + i, count - i);
        squares = fma(v, v, squares);
    }
    const float mean = sum_lanes(squares) / static_cast<float>(count);
    const F32x16 inverse = broadcast(1.0f / __builtin_sqrtf(mean + epsilon));
    for (int64_t i = 0; i < count; i += LANES) {
        const F32x16 v = load_upto(x + i, count - i), w = load_upto(weight + i, count - i);
        store_upto(out + i, mul(mul(v, inverse), w), count - i);
    }
}

void rope(const float* x, const float* cos, const float* sin, int64_t half, float* out) {
    for (int64_t i = 0; i < half; i += LANES) {
        const int64_t count = half - i;
        const F32x16 a = load_upto(x + i, count), b = load_upto(x + half + i, count);
        const F32x16 c = load_upto(cos + i, count), s = load_upto(sin + i, count);
        store_upto(out + i, sub(mul(a, c), mul(b, s)), count);
        store_upto(out + half + i, add(mul(b, c), mul(a, s)), count);
    }
}

void swiglu(const float* gate, const float* up, int64_t count, float* out) {
    for (int64_t i = 0; i < count; i += LANES)
        store_upto(out + i, gated(load_upto(gate + i, count - i), load_upto(up + i, count - i)), count - i);
}

constexpr Kernels table(const char* name) {
    return {name, TILE_ROWS, linear, quantise, attention, rms_norm, rope, swiglu};
}

}  // namespace slipstream::SLIPSTREAM_LEVEL
