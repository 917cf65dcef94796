// What the kernels of one instruction set offer, and the views of data that they work on. Kernels do a piece of an
// operation on one thread; layers.cpp shares the pieces out.
#pragma once

#include "quants.h"
#include "weight_type.h"

namespace slipstream {

constexpr int KEY_BLOCK = 16;   // keys that the cache keeps together, transposed
constexpr int ROW_CHUNK = 96;   // most rows in one call of linear(): their inputs stay in the L2 cache
constexpr int PANEL_GROUP = 8;  // most panels that share one pass over the inputs

// A packed matrix. f32: a panel holds for each k its 16 outputs. bf16: eight 32-bit lanes for each k, output i in the
// low half of lane i and output i + 8 in the high half. The quantised ones: see quants.h. Outputs past the last are
// zero.
struct WeightView {
    const std::byte* data;
    WeightType type;
    int64_t out_features, in_features;

    SLIPSTREAM_INLINE int64_t panels() const { return (out_features + PANEL - 1) / PANEL; }
    SLIPSTREAM_INLINE int64_t panel_bytes() const {
        if (is_quantised(type)) return packing_of(type).panel_bytes(in_features);
        return in_features * PANEL * (type == WeightType::f32 ? 4 : 2);
    }
};

enum class Finish { store, add, swiglu };

// out = x·weightᵀ + bias, or out += that, or out = silu(that) * (x·upᵀ + up_bias). Biases may be null.
struct Linear {
    const float* x;                   // (rows, in_features), for float weights
    const QuantisedBlock* quantised;  // (rows, in_features / BLOCK), for quantised ones
    WeightView weight;
    const float* bias;
    float* out;  // (rows, out_features)
    Finish finish = Finish::store;
    WeightView up = {};
    const float* up_bias = nullptr;
    QuantisedBlock* quantised_out = nullptr;  // where `out` is wanted quantised too; then panels are given in pairs
};

struct Sequence {
    float* keys;    // (layers, kv_heads, capacity / KEY_BLOCK, head_dim, KEY_BLOCK)
    float* values;  // (layers, kv_heads, capacity, head_dim)
    int64_t capacity;
};

// Where each row of a pass stands: see kernels/__init__.py.
struct RowsView {
    int64_t rows, layers, kv_heads, head_dim;
    const float *cos, *sin;
    const int32_t *sequence, *slot, *prefix, *ancestors_start, *ancestors;
    const Sequence* sequences;
    int64_t most_keys;  // that any row sees, rounded up to KEY_BLOCK

    SLIPSTREAM_INLINE float* keys(int64_t row, int64_t layer, int64_t kv_head) const {
        const Sequence& s = sequences[sequence[row]];
        return s.keys + (layer * kv_heads + kv_head) * s.capacity * head_dim;
    }
    SLIPSTREAM_INLINE float* values(int64_t row, int64_t layer, int64_t kv_head) const {
        const Sequence& s = sequences[sequence[row]];
        return s.values + (layer * kv_heads + kv_head) * s.capacity * head_dim;
    }
};

struct Attention {
    const float* q;  // (rows, heads * head_dim)
    float* out;      // likewise
    const RowsView* rows;
    int64_t layer, heads;
    float scale;
    QuantisedBlock* quantised_out = nullptr;  // likewise; then head_dim is a multiple of BLOCK
};

struct Kernels {
    const char* name;
    int attention_queries;  // that one tile takes

    // Outputs of `panels` for `rows` (at most ROW_CHUNK). scratch: linear_scratch() floats.
    void (*linear)(const Linear& task, Range rows, Range panels, float* scratch);
    void (*quantise)(const float* x, int64_t count, QuantisedBlock* out);  // count: a multiple of BLOCK
    // Queries are numbered row by row from first_row on, the heads of kv_head in each; all of one sequence.
    // scratch: attention_scratch() floats.
    void (*attention)(const Attention& task, int64_t first_row, int64_t kv_head, Range queries, float* scratch);
    void (*rms_norm)(const float* x, const float* weight, float epsilon, int64_t count, float* out);
    void (*rope)(const float* x, const float* cos, const float* sin, int64_t half, float* out);
    void (*swiglu)(const float* gate, const float* up, int64_t count, float* out);
};

constexpr int64_t linear_scratch() {
    return int64_t{2} * ROW_CHUNK * PANEL_GROUP * PANEL;
}
// Floats between the scores of two queries: an odd number of cache lines, so that they don't compete for a cache set.
SLIPSTREAM_INLINE int64_t score_stride(int64_t most_keys) {
    return (most_keys + 31) / 32 * 32 + 16;
}
SLIPSTREAM_INLINE int64_t attention_scratch(const Kernels& kernels, int64_t head_dim, int64_t most_keys) {
    return kernels.attention_queries * (head_dim + score_stride(most_keys));
}

constexpr int MOST_LEVELS = 5;

// The table in force; the levels that this machine can run, best first; and the choice of one by name (false if the
// machine has it not).
const Kernels& kernels();
int available_levels(const Kernels** levels);
bool use_level(const char* name);

extern const Kernels kernels_portable, kernels_avx2, kernels_avxvnni, kernels_avx512, kernels_avx512vnni, kernels_neon;

}  // namespace slipstream
