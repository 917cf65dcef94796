// Operations shared out over the pool: each function here is one region, run_layers all its layers in one.
#pragma once

#include <vector>

#include "kernels.h"
#include "weights.h"

namespace slipstream {

struct LayerView {
    int64_t index, heads, kv_heads, head_dim;
    float epsilon, scale;
    bool use_rope;
    const float *attention_norm, *mlp_norm, *q_norm, *k_norm;  // the last two may be null
    WeightView q, k, v, o, gate, up, down;
    const float *q_bias, *k_bias, *v_bias, *o_bias, *gate_bias, *up_bias, *down_bias;  // each may be null

    int64_t hidden() const { return q.in_features; }
    int64_t intermediate() const { return gate.out_features; }
};

void run_linear(Linear task, int64_t rows);  // fills in task.quantised
void run_rms_norm(const float* x, const float* weight, float epsilon, int64_t rows, int64_t count, float* out);
void run_rope(const float* x, const float* cos, const float* sin, int64_t rows, int64_t heads, int64_t head_dim,
              float* out);
void run_swiglu(const float* gate, const float* up, int64_t count, float* out);
void run_attention(const Attention& task);
void run_embed(const Weight& weight, const int32_t* tokens, int64_t count, float* out);
void run_layers(float* x, const std::vector<const LayerView*>& layers, const RowsView& rows);

}  // namespace slipstream
