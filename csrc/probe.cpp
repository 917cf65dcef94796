// The read bandwidth that the benchmarks compare with: all threads read through memory and do nothing else.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <atomic>

#include "threads.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace slipstream;

namespace {

uint64_t read_through(const nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>& data) {
    constexpr int64_t LANES = 16, PIECE = 1 << 20, AHEAD = 128;  // in words
    if (reinterpret_cast<uintptr_t>(data.data()) % alignof(uint64_t) != 0)
        throw nb::value_error("data must be aligned to 8 bytes");
    const auto* words = reinterpret_cast<const uint64_t*>(data.data());
    const auto count = static_cast<int64_t>(data.size() / sizeof(uint64_t)), pieces = (count + PIECE - 1) / PIECE;
    std::atomic<uint64_t> total{0};
    const nb::gil_scoped_release release;
    Pool::instance().run([&](Team& team, int) {
        uint64_t sums[LANES] = {};
        for (Range range = team.take(pieces); !range.empty(); range = team.take(pieces)) {
            const int64_t end = range.end * PIECE < count ? range.end * PIECE : count;
            for (int64_t i = range.begin * PIECE; i + LANES <= end; i += LANES) {
                __builtin_prefetch(words + i + AHEAD);
                __builtin_prefetch(words + i + AHEAD + 8);
                for (int64_t lane = 0; lane < LANES; ++lane) sums[lane] += words[i + lane];
            }
        }
        for (const uint64_t sum : sums) total += sum;
    });
    return total;
}

}  // namespace

void bind_probe(nb::module_& m) {
    m.def("read_through", &read_through, "data"_a);
}
