// Python's view of sampling.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <utility>

#include "sampling.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace slipstream;

namespace {

template <class T>
using Vector = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <class T>
nb::ndarray<nb::numpy, T, nb::ndim<1>> array_of(std::vector<T>&& values) {
    auto* kept = new std::vector<T>(std::move(values));
    const nb::capsule owner(kept, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
    return nb::ndarray<nb::numpy, T, nb::ndim<1>>(kept->data(), {kept->size()}, owner);
}

// Filters the logits into `left` after checking the arguments.
void filter_checked(const Vector<float>& logits, double temperature, int64_t top_k, double top_p, double min_p,
                    Survivors& left) {
    if (logits.size() == 0) throw nb::value_error("logits must not be empty");
    if (!(temperature > 0)) throw nb::value_error("temperature must be above 0");
    if (top_k < 0) throw nb::value_error("top_k must be 0 or more");
    if (!(top_p > 0 && top_p <= 1)) throw nb::value_error("top_p must be above 0 and up to 1");
    if (!(min_p >= 0 && min_p <= 1)) throw nb::value_error("min_p must be from 0 to 1");
    const auto count = static_cast<int64_t>(logits.size());
    bool numbers = true;
    for (int64_t i = 0; i < count; ++i) numbers &= logits.data()[i] == logits.data()[i];
    if (!numbers) throw nb::value_error("logits must be numbers");
    filter_logits(logits.data(), count, temperature, top_k, top_p, min_p, left);
}

nb::tuple filter(const Vector<float>& logits, double temperature, int64_t top_k, double top_p, double min_p) {
    Survivors left;
    filter_checked(logits, temperature, top_k, top_p, min_p, left);
    return nb::make_tuple(array_of(std::move(left.token_ids)), array_of(std::move(left.scores)));
}

int32_t sample(const Vector<float>& logits, double temperature, int64_t top_k, double top_p, double min_p,
               uint64_t seed, uint64_t position) {
    thread_local Survivors left;  // fresh memory for a whole vocabulary would cost more than the arithmetic
    filter_checked(logits, temperature, top_k, top_p, min_p, left);
    return gumbel_argmax(left, seed, position);
}

nb::ndarray<nb::numpy, double, nb::ndim<1>> noise(const Vector<int32_t>& token_ids, uint64_t seed, uint64_t position) {
    std::vector<double> values(token_ids.size());
    for (size_t i = 0; i < values.size(); ++i) values[i] = gumbel_noise(seed, position, token_ids.data()[i]);
    return array_of(std::move(values));
}

}  // namespace

void bind_sampling(nb::module_& m) {
    m.def("filter_logits", &filter, "logits"_a, "temperature"_a, "top_k"_a, "top_p"_a, "min_p"_a);
    m.def("gumbel_noise", &noise, "token_ids"_a, "seed"_a, "position"_a);
    m.def("sample", &sample, "logits"_a, "temperature"_a, "top_k"_a, "top_p"_a, "min_p"_a, "seed"_a, "position"_a);
}
