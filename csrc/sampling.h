// From logits to a token: the filters, and the arg-max with Gumbel noise. Plain IEEE arithmetic in one order, so the
// same bits on every machine. src/slipstream/sampling.py says what is computed and why.
#pragma once

#include <cstdint>
#include <vector>

namespace slipstream {

struct Survivors {
    std::vector<int32_t> token_ids;  // ascending
    std::vector<float> scores;       // (logit - largest) / temperature
};

// Fills `left`, whose memory is used again. Temperature, then top-k (0: off), top-p (1: off), min-p (0: off), each on
// what the one before left, renormalised. Exact ties at the edge of a filter go to the lowest ids. Tokens whose score
// is -inf never survive.
void filter_logits(const float* logits, int64_t count, double temperature, int64_t top_k, double top_p, double min_p,
                   Survivors& left);

// The survivor with the largest score + noise, the lowest id on exact ties.
int32_t gumbel_argmax(const Survivors& left, uint64_t seed, uint64_t position);

// Standard Gumbel noise, a function of (seed, position, token id) alone.
double gumbel_noise(uint64_t seed, uint64_t position, int32_t token_id);

}  // namespace slipstream
