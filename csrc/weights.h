// Packed matrices.
#pragma once

#include <memory>

#include "formats.h"
#include "kernels.h"

namespace slipstream {

// Memory aligned to cache lines, in huge pages where it is large and the system gives them.
class Buffer {
  public:
    Buffer() = default;
    explicit Buffer(size_t bytes);
    std::byte* data() const { return memory_.get(); }
    size_t size() const { return size_; }

  private:
    struct Free {
        size_t alignment;
        void operator()(std::byte* memory) const;
    };
    std::unique_ptr<std::byte, Free> memory_{nullptr, Free{1}};
    size_t size_ = 0;
};

class Weight {
  public:
    // `rows` source rows of in_features values each; row_order[i] is the source row that becomes output i (null: i).
    Weight(const std::byte* rows, const Format& format, int64_t out_features, int64_t in_features, WeightType type,
           const int32_t* row_order);

    WeightView view() const { return {memory_.get(), type_, out_features_, in_features_}; }
    size_t bytes() const { return static_cast<size_t>(view().panels() * view().panel_bytes()); }

    // Output `row` of the matrix, as floats.
    void unpack_row(int64_t row, float* out) const;

  private:
    WeightType type_;
    int64_t out_features_, in_features_;
    std::shared_ptr<std::byte> memory_;
};

}  // namespace slipstream
