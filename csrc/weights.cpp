#include "weights.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>

#include "threads.h"

#if defined(__linux__)
#    include <sys/mman.h>
#endif

namespace slipstream {

namespace {

constexpr size_t LINE = 64, HUGE_PAGE = size_t{2} << 20, ARENA = size_t{32} << 20;

size_t round_up(size_t bytes, size_t multiple) {
    return (bytes + multiple - 1) / multiple * multiple;
}

// Memory for a matrix. Small ones are put side by side into huge pages (with ordinary pages, looking up addresses costs
// a sixth of the time of reading a matrix), which are freed with the last of them.
std::shared_ptr<std::byte> allocate(size_t bytes) {
    static std::mutex& mutex = *new std::mutex;
    static std::weak_ptr<Buffer>& arena = *new std::weak_ptr<Buffer>;
    static size_t used = 0;
    if (bytes > ARENA / 4) {
        auto own = std::make_shared<Buffer>(bytes);
        return {own, own->data()};
    }
    const std::lock_guard lock(mutex);
    std::shared_ptr<Buffer> shared = arena.lock();
    if (!shared || used + bytes > ARENA) {
        arena = shared = std::make_shared<Buffer>(ARENA);
        used = 0;
    }
    std::byte* piece = shared->data() + used;
    used += round_up(bytes, LINE);
    return {shared, piece};
}

constexpr int64_t PACK_BLOCK = 256;  // values of a row that are dequantised at once: a multiple of every format's block

void write_panel(const float (*rows)[PACK_BLOCK], int64_t count, WeightType type, std::byte* out) {
    if (type == WeightType::f32) {
        auto* lanes = reinterpret_cast<float*>(out);
        for (int64_t k = 0; k < count; ++k)
            for (int i = 0; i < PANEL; ++i) lanes[k * PANEL + i] = rows[i][k];
    } else {
        auto* lanes = reinterpret_cast<uint32_t*>(out);
        for (int64_t k = 0; k < count; ++k)
            for (int i = 0; i < PANEL / 2; ++i)
                lanes[k * (PANEL / 2) + i] =
                    bf16_of_float(rows[i][k]) | static_cast<uint32_t>(bf16_of_float(rows[i + PANEL / 2][k])) << 16;
    }
}

}  // namespace

Buffer::Buffer(size_t bytes) : size_(bytes) {
    const size_t alignment = bytes >= HUGE_PAGE ? HUGE_PAGE : LINE, rounded = round_up(bytes + 1, alignment);
    memory_.reset(static_cast<std::byte*>(std::aligned_alloc(alignment, rounded)));
    if (!memory_) throw std::bad_alloc();
#if defined(__linux__)
    if (alignment == HUGE_PAGE) madvise(memory_.get(), rounded, MADV_HUGEPAGE);
#endif
}

void Buffer::Free::operator()(std::byte* memory) const {
    std::free(memory);
}

Weight::Weight(const std::byte* rows, const Format& format, int64_t out_features, int64_t in_features, WeightType type,
               const int32_t* row_order)
    : type_(type), out_features_(out_features), in_features_(in_features) {
    memory_ = allocate(bytes());
    const int64_t row_bytes = in_features / format.block * format.bytes;
    Pool::instance().run([&](Team& team, int) {
        float block[PANEL][PACK_BLOCK];
        for (Range panels = team.take(view().panels()); !panels.empty(); panels = team.take(view().panels()))
            for (int64_t panel = panels.begin; panel < panels.end; ++panel)
                for (int64_t k = 0; k < in_features; k += PACK_BLOCK) {
                    const int64_t count = std::min(PACK_BLOCK, in_features - k);
                    for (int i = 0; i < PANEL; ++i) {
                        const int64_t output = panel * PANEL + i;
                        if (output >= out_features) {
                            std::fill_n(block[i], count, 0.0f);
                            continue;
                        }
                        const int64_t row = row_order ? row_order[output] : output;
                        format.dequantise(rows + row * row_bytes + k / format.block * format.bytes, count, block[i]);
                    }
                    std::byte* out =
                        memory_.get() + panel * view().panel_bytes() + k * view().panel_bytes() / in_features;
                    write_panel(block, count, type, out);
                }
    });
}

void Weight::unpack_row(int64_t row, float* out) const {
    const std::byte* panel = memory_.get() + row / PANEL * view().panel_bytes();
    const int64_t lane = row % PANEL;
    if (type_ == WeightType::f32) {
        const auto* values = reinterpret_cast<const float*>(panel);
        for (int64_t k = 0; k < in_features_; ++k) out[k] = values[k * PANEL + lane];
    } else {
        const auto* pairs = reinterpret_cast<const uint32_t*>(panel);
        for (int64_t k = 0; k < in_features_; ++k) {
            const uint32_t pair = pairs[k * (PANEL / 2) + lane % (PANEL / 2)];
            const uint32_t bits = lane < PANEL / 2 ? pair << 16 : pair & 0xffff0000u;
            std::memcpy(out + k, &bits, sizeof(bits));
        }
    }
}

}  // namespace slipstream
