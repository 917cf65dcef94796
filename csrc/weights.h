// Packed matrices.
#pragma once

#include "formats.h"
#include "kernels.h"

namespace slipstream {

// Memory aligned to cache lines, in huge pages where the system gives them.
class Buffer {
  public:
    Buffer() = default;
    explicit Buffer(size_t bytes);
    Buffer(Buffer&& other) noexcept;
    Buffer& operator=(Buffer&& other) noexcept;
    ~Buffer();
    std::byte* data() const { return data_; }
    size_t size() const { return size_; }

  private:
    std::byte* data_ = nullptr;
    size_t size_ = 0;
};

class Weight {
  public:
    // `rows` source rows of in_features values each; row_order[i] is the source row that becomes output i (null: i).
    Weight(const std::byte* rows, const Format& format, int64_t out_features, int64_t in_features, WeightType type,
           const int32_t* row_order);

    WeightView view() const { return {buffer_.data(), type_, out_features_, in_features_}; }
    size_t bytes() const { return buffer_.size(); }

    // Output `row` of the matrix, as floats.
    void unpack_row(int64_t row, float* out) const;

  private:
    WeightType type_;
    int64_t out_features_, in_features_;
    Buffer buffer_;
};

}  // namespace slipstream
