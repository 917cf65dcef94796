#include "layers.h"

#include <algorithm>
#include <limits>
#include <mutex>

#include "threads.h"

namespace slipstream {

namespace {

int64_t pieces(int64_t count, int64_t size) {
    return (count + size - 1) / size;
}

// Floats that the quantised form of `values` takes.
int64_t quantised_floats(int64_t values) {
    return values / BLOCK * static_cast<int64_t>(sizeof(QuantisedBlock) / sizeof(float));
}

// Scratch memory that stays between calls. Guarded by the pool's mutex.
class Workspace {
  public:
    // Room for `shared` floats that all threads see and `each` floats for every thread.
    Workspace(int64_t shared, int64_t each, int threads) : each_(pieces(each, PANEL) * PANEL) {
        shared = pieces(shared, PANEL) * PANEL;
        const size_t bytes = static_cast<size_t>(shared + each_ * threads) * sizeof(float);
        static Buffer& memory = *new Buffer;
        if (memory.size() < bytes) memory = Buffer(bytes);
        shared_ = reinterpret_cast<float*>(memory.data());
        own_ = shared_ + shared;
    }
    float* take(int64_t floats) {
        float* start = shared_;
        shared_ += pieces(floats, PANEL) * PANEL;
        return start;
    }
    QuantisedBlock* take_blocks(int64_t values) {
        return reinterpret_cast<QuantisedBlock*>(take(quantised_floats(values)));
    }
    float* own(int thread) const { return own_ + thread * each_; }

  private:
    int64_t each_;
    float *shared_, *own_;
};

// Calls body(i) for 0 … count-1, shared out over the team.
template <class Body>
void each(Team& team, int64_t count, const Body& body) {
    for (Range range = team.take(count); !range.empty(); range = team.take(count))
        for (int64_t i = range.begin; i < range.end; ++i) body(i);
}

// Quantises so many floats, a multiple of BLOCK.
void share_quantise(Team& team, const float* x, int64_t values, QuantisedBlock* out) {
    constexpr int64_t PIECE = 16 * BLOCK;
    each(team, pieces(values, PIECE), [&](int64_t i) {
        kernels().quantise(x + i * PIECE, std::min(PIECE, values - i * PIECE), out + i * (PIECE / BLOCK));
    });
}

// Several linear operations on the same rows as one pool of work: chunks of rows × panels of each task in turn.
template <size_t COUNT>
void share_linear(Team& team, const Linear (&tasks)[COUNT], int64_t rows, float* scratch) {
    int64_t panels = 0;
    for (const Linear& task : tasks) panels += task.weight.panels();
    const int64_t chunks = pieces(rows, ROW_CHUNK), total = panels * chunks, grain = tasks[0].quantised_out ? 2 : 1;
    for (Range range = team.take(total, grain); !range.empty(); range = team.take(total, grain))
        for (int64_t at = range.begin; at < range.end;) {
            const int64_t chunk = at / panels;
            const Range these = {rows * chunk / chunks, rows * (chunk + 1) / chunks};
            int64_t first = chunk * panels;
            for (const Linear& task : tasks) {
                const int64_t next = first + task.weight.panels();
                if (at < next) {
                    const int64_t end = std::min(range.end, next);
                    kernels().linear(task, these, {at - first, end - first}, scratch);
                    at = end;
                    if (at == range.end) break;
                }
                first = next;
            }
        }
}

// A stretch of rows of one sequence, whose queries are numbered together.
struct Run {
    int64_t first_row, queries, first_unit;
};

// Attention's units: a few queries of one key/value head each, all units about equally dear. More queries together
// read the cache less often, fewer share out better: the size by which the busiest thread has least to do.
class AttentionUnits {
  public:
    AttentionUnits(const RowsView& rows, int64_t group, int threads) : kv_heads_(rows.kv_heads) {
        for (int64_t row = 0; row < rows.rows;) {
            int64_t end = row + 1;
            while (end < rows.rows && rows.sequence[end] == rows.sequence[row]) ++end;
            runs_.push_back({row, (end - row) * group, 0});
            row = end;
        }
        int64_t least = std::numeric_limits<int64_t>::max();
        for (int64_t size = 1; size <= kernels().attention_queries; ++size) {
            const int64_t most = pieces(units(size), threads) * (READ_COST + size);
            if (most < least) least = most, size_ = size;
        }
        for (Run& run : runs_) {
            run.first_unit = count_;
            count_ += pieces(run.queries, size_) * kv_heads_;
        }
    }
    int64_t count() const { return count_; }
    void run(const Attention& task, int64_t unit, float* scratch) const {
        const auto after = std::upper_bound(runs_.begin(), runs_.end(), unit,
                                            [](int64_t u, const Run& run) { return u < run.first_unit; });
        const Run& run = *(after - 1);
        const int64_t within = unit - run.first_unit, units = pieces(run.queries, size_);
        const int64_t begin = within % units * size_;
        kernels().attention(task, run.first_row, within / units, {begin, std::min(begin + size_, run.queries)},
                            scratch);
    }

  private:
    static constexpr int64_t READ_COST = 2;  // of reading a head's keys and values, in queries' arithmetic

    int64_t units(int64_t size) const {
        int64_t count = 0;
        for (const Run& run : runs_) count += pieces(run.queries, size) * kv_heads_;
        return count;
    }

    int64_t kv_heads_, size_ = 1, count_ = 0;
    std::vector<Run> runs_;
};

// Normalises and turns the queries and keys of a pass, and puts keys and values into the cache. One thread takes a head
// of many rows: their keys share cache lines.
void place(Team& team, const LayerView& layer, const RowsView& rows, float* q, float* k, const float* v) {
    const int64_t head_dim = layer.head_dim, half = head_dim / 2, heads = layer.heads + layer.kv_heads;
    each(team, pieces(rows.rows, KEY_BLOCK) * heads, [&](int64_t unit) {
        const int64_t first = unit / heads * KEY_BLOCK, end = std::min(first + KEY_BLOCK, rows.rows);
        const int64_t head = unit % heads, kv_head = head - layer.heads;
        const bool is_key = kv_head >= 0;
        const float* norm = is_key ? layer.k_norm : layer.q_norm;
        for (int64_t row = first; row < end; ++row) {
            float* vector =
                is_key ? k + (row * layer.kv_heads + kv_head) * head_dim : q + (row * layer.heads + head) * head_dim;
            if (norm) kernels().rms_norm(vector, norm, layer.epsilon, head_dim, vector);
            if (layer.use_rope) kernels().rope(vector, rows.cos + row * half, rows.sin + row * half, half, vector);
            if (!is_key) continue;
            const int64_t slot = rows.slot[row];
            float* key =
                rows.keys(row, layer.index, kv_head) + slot / KEY_BLOCK * head_dim * KEY_BLOCK + slot % KEY_BLOCK;
            for (int64_t d = 0; d < head_dim; ++d) key[d * KEY_BLOCK] = vector[d];
            std::copy_n(v + (row * layer.kv_heads + kv_head) * head_dim, head_dim,
                        rows.values(row, layer.index, kv_head) + slot * head_dim);
        }
    });
}

}  // namespace

void run_linear(Linear task, int64_t rows) {
    Pool& pool = Pool::instance();
    const std::lock_guard lock(pool.mutex);
    const bool quantised = is_quantised(task.weight.type);
    const int64_t values = rows * task.weight.in_features;
    Workspace space(quantised ? quantised_floats(values) : 0, linear_scratch(), pool.threads());
    QuantisedBlock* blocks = quantised ? space.take_blocks(values) : nullptr;
    task.quantised = blocks;
    pool.run([&](Team& team, int thread) {
        if (quantised) {
            share_quantise(team, task.x, values, blocks);
            team.barrier();
        }
        share_linear(team, {task}, rows, space.own(thread));
    });
}

void run_rms_norm(const float* x, const float* weight, float epsilon, int64_t rows, int64_t count, float* out) {
    Pool::instance().run([&](Team& team, int) {
        each(team, rows,
             [&](int64_t row) { kernels().rms_norm(x + row * count, weight, epsilon, count, out + row * count); });
    });
}

void run_rope(const float* x, const float* cos, const float* sin, int64_t rows, int64_t heads, int64_t head_dim,
              float* out) {
    const int64_t half = head_dim / 2;
    Pool::instance().run([&](Team& team, int) {
        each(team, rows * heads, [&](int64_t i) {
            const int64_t row = i / heads;
            kernels().rope(x + i * head_dim, cos + row * half, sin + row * half, half, out + i * head_dim);
        });
    });
}

void run_swiglu(const float* gate, const float* up, int64_t count, float* out) {
    constexpr int64_t PIECE = 4096;
    Pool::instance().run([&](Team& team, int) {
        each(team, pieces(count, PIECE), [&](int64_t i) {
            const int64_t at = i * PIECE;
            kernels().swiglu(gate + at, up + at, std::min(PIECE, count - at), out + at);
        });
    });
}

void run_attention(const Attention& task) {
    Pool& pool = Pool::instance();
    const std::lock_guard lock(pool.mutex);
    const AttentionUnits units(*task.rows, task.heads / task.rows->kv_heads, pool.threads());
    const Workspace space(0, attention_scratch(kernels(), task.rows->head_dim, task.rows->most_keys), pool.threads());
    pool.run([&](Team& team, int thread) {
        each(team, units.count(), [&](int64_t unit) { units.run(task, unit, space.own(thread)); });
    });
}

void run_embed(const Weight& weight, const int32_t* tokens, int64_t count, float* out) {
    Pool::instance().run([&](Team& team, int) {
        each(team, count, [&](int64_t i) { weight.unpack_row(tokens[i], out + i * weight.view().in_features); });
    });
}

void run_layers(float* x, const std::vector<const LayerView*>& layers, const RowsView& rows) {
    Pool& pool = Pool::instance();
    const std::lock_guard lock(pool.mutex);
    int64_t widest = 0, q_width = 0, kv_width = 0, hidden = 0, each_thread = linear_scratch();
    for (const LayerView* layer : layers) {
        widest = std::max(widest, layer->intermediate());
        hidden = layer->hidden();
        q_width = std::max(q_width, layer->heads * layer->head_dim);
        kv_width = std::max(kv_width, layer->kv_heads * layer->head_dim);
    }
    each_thread = std::max(each_thread, attention_scratch(kernels(), rows.head_dim, rows.most_keys));
    const int64_t count = rows.rows;
    const int64_t widest_input = std::max(hidden, q_width), floats = hidden + 2 * q_width + 2 * kv_width + widest;
    Workspace space(count * floats + quantised_floats(count * (widest_input + widest)) + 8 * PANEL, each_thread,
                    pool.threads());
    float* normed = space.take(count * hidden);
    float* q = space.take(count * q_width);
    float* attended = space.take(count * q_width);
    float* k = space.take(count * kv_width);
    float* v = space.take(count * kv_width);
    float* gated = space.take(count * widest);
    QuantisedBlock* blocks = space.take_blocks(count * widest_input);  // of what was normed or attended last
    QuantisedBlock* gated_blocks = space.take_blocks(count * widest);

    std::vector<AttentionUnits> units;
    for (const LayerView* layer : layers) units.emplace_back(rows, layer->heads / layer->kv_heads, pool.threads());

    pool.run([&](Team& team, int thread) {
        float* scratch = space.own(thread);
        const auto norm = [&](const float* weight, float epsilon, bool quantised) {
            each(team, count, [&](int64_t row) {
                float* out = normed + row * hidden;
                kernels().rms_norm(x + row * hidden, weight, epsilon, hidden, out);
                if (quantised) kernels().quantise(out, hidden, blocks + row * (hidden / BLOCK));
            });
            team.barrier();
        };
        for (size_t i = 0; i < layers.size(); ++i) {
            const LayerView& layer = *layers[i];
            norm(layer.attention_norm, layer.epsilon,
                 is_quantised(layer.q.type) || is_quantised(layer.k.type) || is_quantised(layer.v.type));
            share_linear(
                team,
                {Linear{normed, blocks, layer.q, layer.q_bias, q}, Linear{normed, blocks, layer.k, layer.k_bias, k},
                 Linear{normed, blocks, layer.v, layer.v_bias, v}},
                count, scratch);
            team.barrier();
            place(team, layer, rows, q, k, v);
            team.barrier();
            const bool quantised_o = is_quantised(layer.o.type), own_blocks = layer.head_dim % BLOCK == 0;
            QuantisedBlock* attended_blocks = quantised_o && own_blocks ? blocks : nullptr;
            const Attention attention = {q, attended, &rows, layer.index, layer.heads, layer.scale, attended_blocks};
            each(team, units[i].count(), [&](int64_t unit) { units[i].run(attention, unit, scratch); });
            team.barrier();
            if (quantised_o && !own_blocks) {
                share_quantise(team, attended, count * layer.o.in_features, blocks);
                team.barrier();
            }
            share_linear(team, {Linear{attended, blocks, layer.o, layer.o_bias, x, Finish::add}}, count, scratch);
            team.barrier();
            norm(layer.mlp_norm, layer.epsilon, is_quantised(layer.gate.type) || is_quantised(layer.up.type));
            share_linear(team,
                         {Linear{normed, blocks, layer.gate, layer.gate_bias, gated, Finish::swiglu, layer.up,
                                 layer.up_bias, is_quantised(layer.down.type) ? gated_blocks : nullptr}},
                         count, scratch);
            team.barrier();
            share_linear(team, {Linear{gated, gated_blocks, layer.down, layer.down_bias, x, Finish::add}}, count,
                         scratch);
            team.barrier();
        }
    });
}

}  // namespace slipstream
