#include "sampling.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>

namespace slipstream {

namespace {

// e^x for x <= 0, to about one unit in the last place; 0 below the smallest normal number. Written so that the compiler
// can do several at once.
inline float exponential(float x) {
    const float shift = 12582912.0f;  // 1.5 · 2²³: adding it rounds to a whole number
    const float clamped = x < -87.0f ? -87.0f : x;
    const float n = (clamped * 0x1.715476p+0f + shift) - shift;
    const float r = (clamped - n * 0x1.63p-1f) + n * 0x1.bd0106p-13f;
    float y = 0x1.9f08d6p-13f;
    y = y * r + 0x1.6d8d36p-10f;
    y = y * r + 0x1.11127p-7f;
    y = y * r + 0x1.55548ep-5f;
    y = y * r + 0x1.555554p-3f;
    y = y * r + 0.5f;
    y = y * (r * r) + r + 1.0f;
    const int32_t bits = (static_cast<int32_t>(n) + 127) << 23;
    float power;
    std::memcpy(&power, &bits, sizeof power);
    return x < -87.0f ? 0.0f : y * power;
}

// Natural logarithm of a positive normal number, to about one unit in the last place: m · 2^e with m within a factor of
// √2 of 1, and the series of 2 artanh((m - 1) / (m + 1)).
double logarithm(double x) {
    int exponent;
    double m = std::frexp(x, &exponent);  // exact
    if (m < 0.70710678118654752) {
        m *= 2;
        --exponent;
    }
    const double f = (m - 1) / (m + 1), s = f * f;
    double series = 0;
    for (int odd = 23; odd >= 3; odd -= 2) series = (series + 1.0 / odd) * s;
    return exponent * 0.69314718055994531 + (2 * f + 2 * f * series);
}

// Philox4x32-10 (Salmon et al., SC11) with key = seed and counter = (block, 0, position).
struct Philox {
    uint32_t words[4];
    Philox(uint64_t seed, uint64_t position, uint32_t block)
        : words{block, 0, static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32)} {
        uint32_t key0 = static_cast<uint32_t>(seed), key1 = static_cast<uint32_t>(seed >> 32);
        for (int round = 0; round < 10; ++round) {
            const uint64_t first = uint64_t{0xD2511F53} * words[0], second = uint64_t{0xCD9E8D57} * words[2];
            words[0] = static_cast<uint32_t>(second >> 32) ^ words[1] ^ key0;
            words[1] = static_cast<uint32_t>(second);
            words[2] = static_cast<uint32_t>(first >> 32) ^ words[3] ^ key1;
            words[3] = static_cast<uint32_t>(first);
            key0 += 0x9E3779B9;
            key1 += 0xBB67AE85;
        }
    }
};

double noise_of(uint32_t word) {
    return -logarithm(-logarithm((word + 0.5) * 0x1p-32));
}

// At least the noise of this word, without a logarithm: -log(-log u) <= -log(1 - u), and 1 - u > 2^-(zeros + 1) where
// `zeros` is the number of leading zeros of the complement.
double noise_bound(uint32_t word) {
    const uint32_t complement = ~word;
    const int zeros = complement ? __builtin_clz(complement) : 32;
    return (zeros + 1) * 0.6931471805599454;
}

float largest_of(const float* values, int64_t count) {
    constexpr int64_t LANES = 16;  // independent, so that the compiler can take several at once
    float lanes[LANES];
    std::fill_n(lanes, LANES, -std::numeric_limits<float>::infinity());
    for (int64_t i = 0; i + LANES <= count; i += LANES)
        for (int64_t lane = 0; lane < LANES; ++lane)
            lanes[lane] = values[i + lane] > lanes[lane] ? values[i + lane] : lanes[lane];
    float largest = *std::max_element(lanes, lanes + LANES);
    for (int64_t i = count / LANES * LANES; i < count; ++i) largest = std::max(largest, values[i]);
    return largest;
}

// Keeps the marked ones, in order.
template <class Marked>
void keep_if(Survivors& left, const Marked& marked) {
    size_t kept = 0;
    for (size_t i = 0; i < left.scores.size(); ++i) {
        const bool keep = marked(i);  // before its place may be overwritten
        left.token_ids[kept] = left.token_ids[i];
        left.scores[kept] = left.scores[i];
        kept += keep;
    }
    left.token_ids.resize(kept);
    left.scores.resize(kept);
}

void keep_top_k(Survivors& left, size_t k) {
    std::vector<float> best(left.scores.begin(),
                            left.scores.begin() + static_cast<ptrdiff_t>(k));  // a heap, least first
    std::make_heap(best.begin(), best.end(), std::greater<>());
    for (size_t i = k; i < left.scores.size(); ++i)
        if (left.scores[i] > best.front()) {
            std::pop_heap(best.begin(), best.end(), std::greater<>());
            best.back() = left.scores[i];
            std::push_heap(best.begin(), best.end(), std::greater<>());
        }
    const float threshold = best.front();
    auto ties = std::count(best.begin(), best.end(), threshold);
    keep_if(left, [&](size_t i) { return left.scores[i] > threshold || (left.scores[i] == threshold && ties-- > 0); });
}

// The smallest set of likeliest tokens whose probability reaches p. Only the tokens near its edge are sorted: masses
// are gathered in bins of equal score range first, and the bins summed from the likeliest down.
void keep_top_p(Survivors& left, double p) {
    constexpr int BINS = 1024, PER_UNIT = 10;
    const size_t count = left.scores.size();
    std::vector<float> masses(count);
    for (size_t i = 0; i < count; ++i) masses[i] = exponential(left.scores[i]);
    const auto bin_of = [&](size_t i) {
        const float depth = -left.scores[i] * PER_UNIT;
        return depth < BINS - 1 ? static_cast<int>(depth) : BINS - 1;
    };
    double bins[BINS] = {};
    for (size_t i = 0; i < count; ++i) bins[bin_of(i)] += masses[i];
    double total = 0;
    for (const double mass : bins) total += mass;
    int edge = 0;
    double above = 0;
    while (edge < BINS - 1 && above + bins[edge] < p * total) above += bins[edge++];

    std::vector<size_t> order;
    for (size_t i = 0; i < count; ++i)
        if (bin_of(i) == edge) order.push_back(i);
    std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
        return left.scores[a] != left.scores[b] ? left.scores[a] > left.scores[b] : a < b;
    });
    std::vector<bool> chosen(count);
    for (const size_t i : order) {
        chosen[i] = true;
        above += masses[i];
        if (above >= p * total) break;
    }
    keep_if(left, [&](size_t i) { return chosen[i] || bin_of(i) < edge; });
}

}  // namespace

void filter_logits(const float* logits, int64_t count, double temperature, int64_t top_k, double top_p, double min_p,
                   Survivors& left) {
    const float largest = largest_of(logits, count);
    left.token_ids.resize(static_cast<size_t>(count));
    left.scores.resize(static_cast<size_t>(count));
    std::iota(left.token_ids.begin(), left.token_ids.end(), 0);
    const float divisor = std::max(static_cast<float>(temperature), 1e-30f);  // 0 / 0 is no score
    for (int64_t i = 0; i < count; ++i) left.scores[static_cast<size_t>(i)] = (logits[i] - largest) / divisor;
    if (top_k > 0 && top_k < count) keep_top_k(left, static_cast<size_t>(top_k));
    if (top_p < 1) keep_top_p(left, top_p);
    const float least = min_p > 0 ? static_cast<float>(logarithm(min_p)) : std::numeric_limits<float>::lowest();
    keep_if(left, [&](size_t i) { return left.scores[i] >= least; });
}

double gumbel_noise(uint64_t seed, uint64_t position, int32_t token_id) {
    return noise_of(Philox(seed, position, static_cast<uint32_t>(token_id) >> 2).words[token_id & 3]);
}

int32_t gumbel_argmax(const Survivors& left, uint64_t seed, uint64_t position) {
    constexpr double MOST_NOISE = 23.0;  // that of the word 2³² - 1 is 22.87
    // The likeliest token goes first: most others then can't win whatever their noise, and cost nothing.
    const auto likeliest =
        static_cast<size_t>(std::max_element(left.scores.begin(), left.scores.end()) - left.scores.begin());
    int32_t winner = left.token_ids[likeliest];
    double best = left.scores[likeliest] + gumbel_noise(seed, position, winner);
    int32_t cached = 0;
    Philox noise(seed, position, 0);
    for (size_t i = 0; i < left.scores.size(); ++i) {
        const double score = left.scores[i];
        if (score + MOST_NOISE < best) continue;
        const int32_t token = left.token_ids[i], block = token >> 2;
        if (block != cached) {
            noise = Philox(seed, position, static_cast<uint32_t>(block));
            cached = block;
        }
        const uint32_t word = noise.words[token & 3];
        if (score + noise_bound(word) < best) continue;
        const double value = score + noise_of(word);
        if (value > best || (value == best && token < winner)) {
            best = value;
            winner = token;
        }
    }
    return winner;
}

}  // namespace slipstream
