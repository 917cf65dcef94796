// One pool of threads for the whole process. A region runs one function on every thread, the caller being thread 0;
// inside it threads share work with take() and wait for each other with barrier(). Waiting threads spin for some
// microseconds, then sleep, so that a region is cheap on free cores and harmless on shared ones.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "range.h"

namespace slipstream {

class Pool;

// What the threads of one region share.
class Team {
  public:
    int size() const { return size_; }

    // Returns once every thread of the region has called it; what they wrote before is visible after.
    void barrier();

    // A piece of the work 0 … total-1 that no other thread has; empty when all is taken. Pieces shrink towards the end
    // (to `grain` items) so that threads finish together, even when one of them was held up. Each loop over take()
    // must be followed by a barrier before the next one begins.
    Range take(int64_t total, int64_t grain = 1);

  private:
    friend class Pool;
    int size_ = 1;
    alignas(64) std::atomic<int64_t> next_{0};
    alignas(64) std::atomic<int> arrived_{0};
    alignas(64) std::atomic<uint32_t> generation_{0};
    std::atomic<int> sleepers_{0};
    std::mutex mutex_;
    std::condition_variable wake_;

    template <class Done>
    void wait(Done done);
    void signal();
};

class Pool {
  public:
    // Of one thread at first. Never destroyed: at exit its threads sleep and the operating system ends them.
    static Pool& instance();

    int threads();
    void resize(int threads);

    // Calls job(team, thread) on every thread. Regions of different callers run one after the other. `job` must not
    // throw.
    template <class Job>
    void run(const Job& job) {
        run_erased([](const void* job, Team& team, int thread) { (*static_cast<const Job*>(job))(team, thread); },
                   &job);
    }

    // Held by whoever uses the pool or the buffers that go with it.
    std::recursive_mutex mutex;

  private:
    using Call = void (*)(const void* job, Team& team, int thread);

    Pool() = default;
    void run_erased(Call call, const void* job);
    void start();
    void stop();
    void work(int thread, uint32_t epoch);

    Team team_;
    Team door_;  // workers wait here between regions; its generation counts the regions
    std::vector<std::thread> workers_;
    Call call_ = nullptr;
    const void* job_ = nullptr;
    bool stopping_ = false;
};

}  // namespace slipstream
