// The read bandwidth that the benchmarks compare with: all threads read through memory and do nothing else. The memory
// is allocated as weights are, huge pages included, so that the comparison is with what a kernel could reach.

#include <nanobind/nanobind.h>

#include <atomic>

#include "threads.h"
#include "weights.h"

namespace nb = nanobind;
using namespace nb::literals;
using namespace slipstream;

namespace {

constexpr int64_t LANES = 16, PIECE = 1 << 18, AHEAD = 128;  // in words

uint64_t sum_of(const uint64_t* words, int64_t count) {
    uint64_t sums[LANES] = {}, total = 0;
    for (int64_t i = 0; i + LANES <= count; i += LANES) {
        __builtin_prefetch(words + i + AHEAD);
        __builtin_prefetch(words + i + AHEAD + 8);
        for (int64_t lane = 0; lane < LANES; ++lane) sums[lane] += words[i + lane];
    }
    for (const uint64_t sum : sums) total += sum;
    return total;
}

class ReadProbe {
  public:
    explicit ReadProbe(size_t bytes) : memory_(bytes) {
        auto* words = reinterpret_cast<uint64_t*>(memory_.data());
        for (int64_t i = 0; i < count(); ++i) words[i] = static_cast<uint64_t>(i);
    }

    // The sum of all 64-bit words, modulo 2^64: whole groups of 128 bytes count.
    uint64_t read() const {
        const auto* words = reinterpret_cast<const uint64_t*>(memory_.data());
        std::atomic<uint64_t> total{0};
        const nb::gil_scoped_release release;
        Pool::instance().run([&](Team& team, int) {
            const int64_t pieces = (count() + PIECE - 1) / PIECE;
            for (Range range = team.take(pieces); !range.empty(); range = team.take(pieces)) {
                const int64_t begin = range.begin * PIECE, end = range.end * PIECE;
                total += sum_of(words + begin, (end < count() ? end : count()) - begin);
            }
        });
        return total;
    }

  private:
    int64_t count() const { return static_cast<int64_t>(memory_.size() / sizeof(uint64_t)); }
    Buffer memory_;
};

}  // namespace

void bind_probe(nb::module_& m) {
    nb::class_<ReadProbe>(m, "ReadProbe").def(nb::init<size_t>(), "bytes"_a).def("read", &ReadProbe::read);
}
