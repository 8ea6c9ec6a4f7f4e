// Times all-reduces between the ranks of mpirun, or between threads: mpirun -n 2 ranks_bench, or ranks_bench THREADS.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "comm/mpi.h"
#include "comm/threads.h"

namespace {

using namespace inflight;

// The median of the times of `rounds` all-reduces.
double median_us(comm::Comm& comm, std::int64_t floats, int rounds) {
  using Clock = std::chrono::steady_clock;
  std::vector<float> values(static_cast<std::size_t>(floats), 0.0f);
  std::vector<double> times;
  for (int round = 0; round < rounds + rounds / 10; ++round) {
    const auto begin = Clock::now();
    comm.all_reduce_sum(values.data(), floats);
    if (round >= rounds / 10) times.push_back(std::chrono::duration<double, std::micro>(Clock::now() - begin).count());
  }
  std::nth_element(times.begin(), times.begin() + rounds / 2, times.end());
  return times[static_cast<std::size_t>(rounds / 2)];
}

void bench(comm::Comm& comm) {
  for (const std::int64_t kib : {4, 8, 16, 32, 64, 256, 2048, 32768}) {
    const double us = median_us(comm, kib * 256, kib < 1024 ? 20000 : kib < 10000 ? 1000 : 50);
    if (comm.rank() == 0) std::printf("%d ranks, all_reduce_sum of %6lld KiB: %9.2f us, %6.2f GB/s of vector\n", comm.size(), static_cast<long long>(kib), us, static_cast<double>(kib) * 1.024 / us);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1) {
    auto ranks = comm::thread_ranks(std::atoi(argv[1]));
    std::vector<std::thread> threads;
    for (auto& comm : ranks) threads.emplace_back([&comm] { bench(*comm); });
    for (std::thread& thread : threads) thread.join();
    return 0;
  }
  auto comm = comm::mpi_ranks({});
  if (!comm) {
    std::fprintf(stderr, "%s\n", comm.error().message.c_str());
    return 1;
  }
  bench(**comm);
  return 0;
}
