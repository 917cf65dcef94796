#include "weights.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "threads.h"

#if defined(__linux__)
#    include <sys/mman.h>
#endif

namespace slipstream {

namespace {

constexpr size_t HUGE_PAGE = size_t{2} << 20;
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
    const size_t alignment = bytes >= HUGE_PAGE ? HUGE_PAGE : 64;
    const size_t rounded = (std::max<size_t>(bytes, 1) + alignment - 1) / alignment * alignment;
    data_ = static_cast<std::byte*>(std::aligned_alloc(alignment, rounded));
    if (!data_) throw std::bad_alloc();
#if defined(__linux__)
    if (alignment == HUGE_PAGE) madvise(data_, rounded, MADV_HUGEPAGE);
#endif
}

Buffer::Buffer(Buffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
}

Buffer::~Buffer() {
    std::free(data_);
}

Weight::Weight(const std::byte* rows, const Format& format, int64_t out_features, int64_t in_features, WeightType type,
               const int32_t* row_order)
    : type_(type), out_features_(out_features), in_features_(in_features) {
    buffer_ = Buffer(static_cast<size_t>(view().panels() * view().panel_bytes()));
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
                        buffer_.data() + panel * view().panel_bytes() + k * view().panel_bytes() / in_features;
                    write_panel(block, count, type, out);
                }
    });
}

void Weight::unpack_row(int64_t row, float* out) const {
    const std::byte* panel = buffer_.data() + row / PANEL * view().panel_bytes();
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
