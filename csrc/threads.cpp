#include "threads.h"

#include <algorithm>
#include <chrono>

#if defined(__linux__)
#    include <pthread.h>
#endif
#if defined(__x86_64__)
#    include <immintrin.h>
#endif

namespace slipstream {

namespace {

// A waiting thread spins: SPIN alone, then to PATIENCE in all while it lets other threads have the core, its partner
// perhaps, that has lost its own to another process. PATIENCE is longer than it takes to wake a sleeping thread on a
// virtual machine (50 to 100 us) and than a caller needs between two operations, so that a run of operations pays for
// waking once.
constexpr auto SPIN = std::chrono::microseconds(20), PATIENCE = std::chrono::microseconds(200);

void pause_processor() {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb");
#endif
}

// Round to nearest, subnormals kept: another library may have changed a thread's mode, which would change bits.
class DefaultRounding {
  public:
#if defined(__x86_64__)
    DefaultRounding() : saved_(_mm_getcsr()) { _mm_setcsr(0x1f80); }
    ~DefaultRounding() { _mm_setcsr(saved_); }

  private:
    unsigned saved_;
#elif defined(__aarch64__)
    DefaultRounding() {
        __asm__ volatile("mrs %0, fpcr" : "=r"(saved_));
        __asm__ volatile("msr fpcr, %0" : : "r"(uint64_t{0}));
    }
    ~DefaultRounding() { __asm__ volatile("msr fpcr, %0" : : "r"(saved_)); }

  private:
    uint64_t saved_;
#endif
};

}  // namespace

template <class Done>
void Team::wait(Done done) {
    const auto start = std::chrono::steady_clock::now();
    for (auto waited = std::chrono::nanoseconds(0); waited < PATIENCE;
         waited = std::chrono::steady_clock::now() - start) {
        if (waited > SPIN) std::this_thread::yield();
        for (int i = 0; i < 16; ++i) {
            if (done()) return;
            pause_processor();
        }
    }
    std::unique_lock lock(mutex_);
    sleepers_.fetch_add(1);
    wake_.wait(lock, done);
    sleepers_.fetch_sub(1);
}

void Team::signal() {
    generation_.fetch_add(1);
    if (sleepers_.load() > 0) {
        const std::lock_guard lock(mutex_);
        wake_.notify_all();
    }
}

void Team::barrier() {
    if (size_ == 1) {
        next_.store(0, std::memory_order_relaxed);
        return;
    }
    const uint32_t generation = generation_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) == size_ - 1) {
        arrived_.store(0, std::memory_order_relaxed);
        next_.store(0, std::memory_order_relaxed);
        signal();
    } else {
        wait([&] { return generation_.load() != generation; });
    }
}

Range Team::take(int64_t total, int64_t grain) {
    int64_t begin = next_.load(std::memory_order_relaxed);
    for (;;) {
        if (begin >= total) return {total, total};
        int64_t share = size_ == 1 ? total - begin : (total - begin) * 2 / (3 * size_);
        share = std::max(grain, share / grain * grain);
        const int64_t end = std::min(total, begin + share);
        if (next_.compare_exchange_weak(begin, end, std::memory_order_relaxed)) return {begin, end};
    }
}

namespace {
Pool* pool = nullptr;
}

Pool& Pool::instance() {
    static const bool created = [] {
        pool = new Pool;
#if defined(__linux__) || defined(__APPLE__)
        // A fork copies the calling thread alone: the child starts over with a pool whose threads are yet to start.
        pthread_atfork(nullptr, nullptr, [] {
            const int threads = pool->team_.size_;
            pool = new Pool;
            pool->team_.size_ = threads;
        });
#endif
        return true;
    }();
    (void)created;
    return *pool;
}

int Pool::threads() {
    const std::lock_guard lock(mutex);
    return team_.size_;
}

void Pool::resize(int threads) {
    const std::lock_guard lock(mutex);
    if (threads == team_.size_) return;
    stop();
    team_.size_ = threads;
}

void Pool::start() {
    for (int thread = 1; thread < team_.size_; ++thread)
        workers_.emplace_back(&Pool::work, this, thread, door_.generation_.load());
}

void Pool::stop() {
    if (workers_.empty()) return;
    stopping_ = true;
    door_.signal();
    for (auto& worker : workers_) worker.join();
    workers_.clear();
    stopping_ = false;
}

void Pool::work(int thread, uint32_t epoch) {
    const DefaultRounding rounding;
    for (;; ++epoch) {
        door_.wait([&] { return door_.generation_.load() != epoch; });
        if (stopping_) return;
        call_(job_, team_, thread);
        team_.barrier();
    }
}

void Pool::run_erased(Call call, const void* job) {
    const std::lock_guard lock(mutex);
    const DefaultRounding rounding;
    if (team_.size_ > 1) {
        if (workers_.empty()) start();
        call_ = call;
        job_ = job;
        door_.signal();
    }
    call(job, team_, 0);
    team_.barrier();
}

}  // namespace slipstream
