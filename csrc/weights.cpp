#include "weights.h"

#include <algorithm>
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

static_assert(SPAN % 256 == 0);  // a multiple of every format's block

// Dequantises the sources' values k … k+count-1, (PANEL, SPAN); zeros for a null source.
void dequantise(const std::byte* const* sources, const Format& format, int64_t k, int64_t count, float (*out)[SPAN]) {
    for (int i = 0; i < PANEL; ++i)
        if (sources[i])
            format.dequantise(sources[i] + format.row_bytes(k), count, out[i]);
        else
            std::fill_n(out[i], count, 0.0f);
}

void pack_floats(const std::byte* const* sources, const Format& format, int64_t in_features, WeightType type,
                 std::byte* out) {
    float rows[PANEL][SPAN];
    for (int64_t first = 0; first < in_features; first += SPAN) {
        const int64_t count = std::min(SPAN, in_features - first);
        dequantise(sources, format, first, count, rows);
        if (type == WeightType::f32) {
            auto* lanes = reinterpret_cast<float*>(out) + first * PANEL;
            for (int64_t k = 0; k < count; ++k)
                for (int i = 0; i < PANEL; ++i) lanes[k * PANEL + i] = rows[i][k];
        } else {
            auto* lanes = reinterpret_cast<uint32_t*>(out) + first * (PANEL / 2);
            for (int64_t k = 0; k < count; ++k)
                for (int i = 0; i < PANEL / 2; ++i)
                    lanes[k * (PANEL / 2) + i] =
                        bf16_of_float(rows[i][k]) | static_cast<uint32_t>(bf16_of_float(rows[i + PANEL / 2][k])) << 16;
        }
    }
}

void pack_quantised(const std::byte* const* sources, const Format& format, int64_t in_features, WeightType type,
                    std::byte* out) {
    const Packing packing = packing_of(type);
    float rows[PANEL][SPAN];
    std::byte requantised[PANEL][SPAN_BLOCKS * (2 + BLOCK)];
    for (int64_t first = 0; first < in_features; first += SPAN) {
        const int64_t count = std::min(SPAN, in_features - first);
        const std::byte* from[PANEL];
        if (type == format.native) {
            for (int i = 0; i < PANEL; ++i) from[i] = sources[i] ? sources[i] + format.row_bytes(first) : nullptr;
        } else {
            dequantise(sources, format, first, count, rows);
            for (int i = 0; i < PANEL; ++i) {
                quantise_q8_0(rows[i], count, requantised[i]);
                from[i] = requantised[i];
            }
        }
        pack_span(type, from, count / BLOCK, out);
        out += packing.panel_bytes(count);
    }
}

}  // namespace

Buffer::Buffer(size_t bytes) : size_(bytes) {
    const size_t alignment = bytes >= HUGE_PAGE ? HUGE_PAGE : LINE, rounded = round_up(bytes + 1, alignment);
    memory_ = {static_cast<std::byte*>(::operator new(rounded, std::align_val_t(alignment))), Free{alignment}};
#if defined(__linux__)
    if (alignment == HUGE_PAGE) madvise(memory_.get(), rounded, MADV_HUGEPAGE);
#endif
}

void Buffer::Free::operator()(std::byte* memory) const {
    ::operator delete(memory, std::align_val_t(alignment));
}

Weight::Weight(const std::byte* rows, const Format& format, int64_t out_features, int64_t in_features, WeightType type,
               const int32_t* row_order)
    : type_(type), out_features_(out_features), in_features_(in_features) {
    memory_ = allocate(bytes());
    Pool::instance().run([&](Team& team, int) {
        for (Range panels = team.take(view().panels()); !panels.empty(); panels = team.take(view().panels()))
            for (int64_t panel = panels.begin; panel < panels.end; ++panel) {
                const std::byte* sources[PANEL] = {};
                for (int64_t i = 0, output = panel * PANEL; i < PANEL && output < out_features; ++i, ++output)
                    sources[i] = rows + (row_order ? row_order[output] : output) * format.row_bytes(in_features);
                std::byte* out = memory_.get() + panel * view().panel_bytes();
                if (is_quantised(type))
                    pack_quantised(sources, format, in_features, type, out);
                else
                    pack_floats(sources, format, in_features, type, out);
            }
    });
}

void Weight::unpack_row(int64_t row, float* out) const {
    const std::byte* panel = memory_.get() + row / PANEL * view().panel_bytes();
    const int64_t lane = row % PANEL;
    if (is_quantised(type_)) {
        unpack_lane(type_, panel, lane, in_features_, out);
    } else if (type_ == WeightType::f32) {
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
