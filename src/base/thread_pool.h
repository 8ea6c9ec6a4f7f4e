// A fixed pool of pinned threads for short parallel regions (tens of microseconds), with a spin-then-sleep barrier.
//
//     ThreadPool pool(2);
//     pool.parallel_for(panels, [&](std::int64_t begin, std::int64_t end) { kernel(begin, end); });
//
// The calling thread is worker 0 (and is pinned too when there is a thread for every CPU). Regions do not nest. What a body computes must not depend on how the range is cut.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

namespace inflight {

// Threads worth starting: min(CPUs in the affinity mask, floor of the cgroup CPU quota), at least 1.
int usable_threads();

// This process is the `share`-th of `shares` alike on this host: from now on its CPUs are its part of those that all of them may use (at least one), and so is
// its part of the quota. With `threads` above 0: so many CPUs each; where there are not enough, nothing is dealt out. Before the first pool.
void take_cpu_share(int share, int shares, int threads = 0);

class ThreadPool {
 public:
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return threads_; }

  // body(worker) once on every worker; returns when all are done.
  template <class Body>
  void run(Body&& body) {
    using Plain = std::remove_reference_t<Body>;
    run_erased([](void* context, int worker) { (*static_cast<Plain*>(context))(worker); }, const_cast<void*>(static_cast<const void*>(&body)));
  }

  // body(begin, end), or body(worker, begin, end), on disjoint ranges that cover [0, n), each but the last of whole multiples of `grain`.
  // Worker i takes its own i-th part in ascending pieces, so that memory passes as one stream a worker; who is done takes the ends of others' parts.
  template <class Body>
  void parallel_for(std::int64_t n, std::int64_t grain, Body&& body) {
    const auto call = [&](int worker, std::int64_t begin, std::int64_t end) {
      if constexpr (std::is_invocable_v<Body&, int, std::int64_t, std::int64_t>) body(worker, begin, end);
      else body(begin, end);
    };
    if (n <= 0) return;
    if (threads_ == 1 || n <= grain) return call(0, 0, n);
    const std::int64_t unit = deal(n, grain);
    run([&](int worker) {
      for (Piece piece; take(worker, piece);) call(worker, piece.begin * unit, piece.end * unit < n ? piece.end * unit : n);
    });
  }
  template <class Body>
  void parallel_for(std::int64_t n, Body&& body) {
    parallel_for(n, 1, std::forward<Body>(body));
  }

  // parallel_for whose ranges need what `first` does, within one region: worker 0 runs first(), the others meanwhile idle(begin, end, done) with their own
  // part of [0, n). idle may return at any time, best when done() says that first() has ended.
  template <class First, class Idle, class Body>
  void parallel_for_after(First&& first, std::int64_t n, std::int64_t grain, Idle&& idle, Body&& body) {
    if (threads_ == 1 || n <= grain) {
      first();
      return parallel_for(n, grain, std::forward<Body>(body));
    }
    const std::int64_t unit = deal(n, grain), units = (n + unit - 1) / unit;
    std::atomic<bool> done{false};
    run([&](int worker) {
      if (worker == 0) {
        first();
        done.store(true, std::memory_order_release);
      } else {
        const auto is_done = [&] { return done.load(std::memory_order_acquire); };
        const std::int64_t end = units * (worker + 1) / threads_ * unit;
        if (!is_done()) idle(units * worker / threads_ * unit, end < n ? end : n, is_done);
        wait_until(is_done);
      }
      for (Piece piece; take(worker, piece);) body(piece.begin * unit, piece.end * unit < n ? piece.end * unit : n);
    });
  }

 private:
  // How long a thread spins before it yields or sleeps: about 50 us, the gap between two regions of one decode step.
  static constexpr int kSpins = 2000;
  using Function = void (*)(void* context, int worker);
  struct Piece {
    std::int64_t begin, end;  // units
  };
  // What nobody has taken yet of a worker's part: end unit in the high, begin unit in the low 32 bits. The owner takes from the front, others from the back.
  struct alignas(64) Part {
    std::atomic<std::uint64_t> left{0};
  };
  // Gives every worker its part of [0, n); returns the size of a unit, a multiple of grain.
  std::int64_t deal(std::int64_t n, std::int64_t grain);
  bool take(int worker, Piece& piece);
  static bool cut(Part& part, bool front, Piece& piece);
  void run_erased(Function function, void* context);
  template <class Done>
  static void wait_until(Done&& done) {
    for (int spins = 0; !done();) {
      if (++spins < kSpins) __builtin_ia32_pause();
      else std::this_thread::yield();  // oversubscribed: let the one that is awaited run
    }
  }
  void worker_loop(int worker);

  const int threads_;
  std::vector<std::thread> workers_;
  std::unique_ptr<Part[]> parts_;
  Function function_ = nullptr;
  void* context_ = nullptr;
  bool stopping_ = false;
  alignas(64) std::atomic<std::uint32_t> generation_{0};  // bumped to start a region
  alignas(64) std::atomic<std::uint32_t> unfinished_{0};  // workers still inside the region
  alignas(64) std::atomic<std::int32_t> sleepers_{0};
};

}  // namespace inflight
