// Rates of the kernels beside what this CPU can do at most, measured in the same process.
//   kernels_bench [threads] [filter]        INFLIGHT_ISA chooses the table; best of several runs
// Shares: of read bandwidth for products of few tokens (bytes of weights and scales read), of the dot-product peak for many.
#include <fmt/format.h>
#include <time.h>

#include <cstring>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/bf16.h"
#include "base/thread_pool.h"
#include "kernels/dispatch.h"
#include "kernels/fp8.h"
#include "kernels/lut4.h"
#include "tensor/buffer.h"

namespace inflight::kernels {
namespace {

// Seconds on the wall; with one thread, seconds that it ran, which a busy machine disturbs less.
bool one_thread = false;
double now() {
  timespec time{};
  clock_gettime(one_thread ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

double best_of(int rounds, const std::function<void()>& body) {
  double best = 1e9;
  for (int i = 0; i < rounds; ++i) {
    const double start = now();
    body();
    best = std::min(best, now() - start);
  }
  return best;
}

std::byte* memory(std::vector<Buffer>& owner, std::size_t bytes, int fill) {
  auto buffer = Buffer::map(bytes + 64);
  if (!buffer) {
    fmt::print(stderr, "{}\n", buffer.error().message);
    std::exit(1);
  }
  owner.push_back(std::move(*buffer));
  std::memset(owner.back().data(), fill, bytes);
  return owner.back().data();
}

struct Case {
  std::string name;
  int bits;            // of a weight
  std::int64_t group;  // 0: no groups
  enum { kFloat, kInt8, kGrouped } x;  // activations: BF16 where bits is 16, else FP32; two int8 planes; grouped int8
};

struct Bench {
  const Kernels* table;
  ThreadPool pool;
  std::string filter;
  double bandwidth = 0, int8_peak = 0, bf16_peak = 0, fp32_peak = 0;

  bool wants(std::string_view name) const { return filter.empty() || name.find(filter) != std::string_view::npos; }

  void roofline(const std::byte* data, std::size_t bytes) {
    const std::size_t share = bytes / pool.threads() / 1024 * 1024;
    std::vector<std::uint64_t> seen(pool.threads() * 8);
    bandwidth = share * pool.threads() / best_of(7, [&] { pool.run([&](int w) { seen[w * 8] = table->roofline->read(data + share * w, share); }); });
    const auto peak = [&](double (*body)(std::int64_t)) {
      std::vector<double> done(pool.threads() * 8);
      const double seconds = best_of(3, [&] { pool.run([&](int w) { done[w * 8] = body(4'000'000); }); });
      double all = 0;
      for (double d : done) all += d;
      return all / seconds;
    };
    int8_peak = peak(table->roofline->int8);
    bf16_peak = peak(table->roofline->bf16);
    fp32_peak = peak(table->roofline->fp32);
    fmt::print("{} on {} threads: read {:.1f} GB/s, int8 {:.0f} GOP/s, bf16 {:.0f} GFLOP/s, fp32 {:.0f} GFLOP/s\n", table->isa, pool.threads(), bandwidth / 1e9, int8_peak / 1e9, bf16_peak / 1e9, fp32_peak / 1e9);
  }

  // outputs chosen so that weights take `weight_bytes`.
  void product(const Case& c, std::int64_t tokens, std::int64_t inputs, std::size_t weight_bytes, std::byte* codes) {
    const std::string name = fmt::format("{} T={} K={}", c.name, tokens, inputs);
    if (!wants(name)) return;
    std::vector<Buffer> owner;
    const std::int64_t panels = static_cast<std::int64_t>(weight_bytes / (inputs * c.bits * 2));
    Weight w{.codes = codes, .scales = nullptr, .scales_fp16 = c.group != 0, .outputs = panels * 16, .inputs = inputs, .group = c.group};
    const std::size_t scale_bytes = c.bits > 8 ? 0 : panels * w.groups() * 16 * (c.group ? 2 : 4);
    if (scale_bytes) w.scales = memory(owner, scale_bytes, 0x20);
    auto* x = reinterpret_cast<float*>(memory(owner, tokens * inputs * 4, 0));
    for (std::int64_t i = 0; i < tokens * inputs; ++i) x[i] = static_cast<float>(i % 251 - 125);
    auto* x16 = reinterpret_cast<std::uint16_t*>(memory(owner, tokens * inputs * 2, 0));
    for (std::int64_t i = 0; i < tokens * inputs; ++i) x16[i] = float_to_bf16(x[i]);
    auto* y = reinterpret_cast<float*>(memory(owner, tokens * panels * 64, 0));
    const LinearKernels& linear = *table->linear;
    const bool grouped = c.x == Case::kGrouped;
    const auto quantize = grouped ? linear.quantize_grouped : linear.quantize_int8;
    const auto integer = c.bits == 8 ? (grouped ? linear.gemm_u8_grouped : linear.gemm_u8_int8) : grouped ? linear.gemm_u4_grouped : linear.gemm_u4_int8;
    std::byte* activations = c.x == Case::kFloat ? nullptr : memory(owner, (grouped ? linear.grouped_bytes : linear.int8_bytes)(tokens, inputs, c.group), 0);
    if (activations) {
      const double seconds = best_of(3, [&] { quantize(x, inputs, tokens, inputs, c.group, 0, tokens, activations); });
      if (tokens > 100) fmt::print("  {:<34} {:8.2f} GB/s of FP32 on one thread\n", "quantize for " + name, tokens * inputs * 4 / seconds / 1e9);
    }
    const double seconds = best_of(tokens > 100 ? 4 : 6, [&] {
      pool.parallel_for(panels, 4, [&](std::int64_t begin, std::int64_t end) {
        if (activations) integer(w, activations, tokens, begin, end, y, panels * 16);
        else if (c.bits == 16) linear.gemm_bf16_bf16(w, x16, inputs, tokens, begin, end, y, panels * 16);
        else (c.bits == 32 ? linear.gemm_f32 : c.bits == 8 ? linear.gemm_u8 : linear.gemm_u4)(w, x, inputs, tokens, begin, end, y, panels * 16);
      });
    });
    const double bytes = static_cast<double>(weight_bytes + scale_bytes);
    const double operations = 2.0 * tokens * panels * 16 * inputs * (c.x == Case::kInt8 ? 2 : 1);
    const double peak = activations ? int8_peak : c.bits == 16 ? bf16_peak : fp32_peak;
    fmt::print("  {:<34} {:8.1f} GB/s {:5.1f} % of read   {:8.0f} GOP/s {:5.1f} % of peak\n", name, bytes / seconds / 1e9, 100 * bytes / seconds / bandwidth, operations / seconds / 1e9, 100 * operations / seconds / peak);
  }

  // The look-up format: codes and step bytes in one stretch of memory each.
  void lut4(std::int64_t tokens, std::int64_t inputs, std::size_t code_bytes, std::byte* codes) {
    const std::string name = fmt::format("lut4_int8 T={} K={}", tokens, inputs);
    if (!wants(name)) return;
    std::vector<Buffer> owner;
    const std::int64_t panels = static_cast<std::int64_t>(code_bytes) / (inputs * 8);
    const std::size_t step_bytes = static_cast<std::size_t>(panels * inputs);
    const Lut4Weight w{.codes = reinterpret_cast<const std::uint8_t*>(codes), .steps = reinterpret_cast<const std::uint8_t*>(memory(owner, step_bytes, 0x35)),
                       .row_exponents = reinterpret_cast<const std::uint8_t*>(memory(owner, static_cast<std::size_t>(panels) * 16, 0x6f)), .outputs = panels * 16, .inputs = inputs};
    auto* x = reinterpret_cast<float*>(memory(owner, static_cast<std::size_t>(tokens * inputs) * 4, 0));
    for (std::int64_t i = 0; i < tokens * inputs; ++i) x[i] = static_cast<float>(i % 251 - 125);
    auto* y = reinterpret_cast<float*>(memory(owner, static_cast<std::size_t>(tokens * panels) * 64, 0));
    std::byte* activations = memory(owner, table->lut4->int8_bytes(tokens, inputs), 0);
    table->lut4->quantize_int8(x, inputs, tokens, inputs, 0, tokens, activations);
    const double seconds = best_of(tokens > 100 ? 4 : 6, [&] {
      pool.parallel_for(panels, 4, [&](std::int64_t begin, std::int64_t end) { table->lut4->gemm_int8(w, activations, tokens, begin, end, y, panels * 16); });
    });
    const double bytes = static_cast<double>(code_bytes + step_bytes), operations = 4.0 * static_cast<double>(tokens * panels * 16 * inputs);
    fmt::print("  {:<34} {:8.1f} GB/s {:5.1f} % of read   {:8.0f} GOP/s {:5.1f} % of peak\n", name, bytes / seconds / 1e9, 100 * bytes / seconds / bandwidth, operations / seconds / 1e9, 100 * operations / seconds / int8_peak);
  }

  void fp8(bool bf16, std::int64_t tokens, std::int64_t inputs, std::int64_t group, std::size_t code_bytes, std::byte* codes) {
    const std::string name = fmt::format("{}{} T={} K={}", bf16 ? "e4m3_bf16" : "e4m3", group ? " g128" : "", tokens, inputs);
    if (!wants(name)) return;
    std::vector<Buffer> owner;
    const std::int64_t panels = static_cast<std::int64_t>(code_bytes) / (inputs * 16);
    Weight w{.codes = codes, .outputs = panels * 16, .inputs = inputs, .group = group};
    const std::size_t scale_bytes = static_cast<std::size_t>(panels * w.groups()) * 64;
    w.scales = memory(owner, scale_bytes, 0x20);
    auto* x = reinterpret_cast<float*>(memory(owner, static_cast<std::size_t>(tokens * inputs) * 4, 0));
    auto* x16 = reinterpret_cast<std::uint16_t*>(memory(owner, static_cast<std::size_t>(tokens * inputs) * 2, 0));
    for (std::int64_t i = 0; i < tokens * inputs; ++i) x16[i] = float_to_bf16(x[i] = static_cast<float>(i % 251 - 125));
    auto* y = reinterpret_cast<float*>(memory(owner, static_cast<std::size_t>(tokens * panels) * 64, 0));
    const double seconds = best_of(tokens > 100 ? 4 : 6, [&] {
      pool.parallel_for(panels, 4, [&](std::int64_t begin, std::int64_t end) {
        if (bf16) table->fp8->gemm_e4m3_bf16(w, x16, inputs, tokens, begin, end, y, panels * 16);
        else table->fp8->gemm_e4m3(w, x, inputs, tokens, begin, end, y, panels * 16);
      });
    });
    const double bytes = static_cast<double>(code_bytes + scale_bytes), operations = 2.0 * static_cast<double>(tokens * panels * 16 * inputs), peak = bf16 ? bf16_peak : fp32_peak;
    fmt::print("  {:<34} {:8.1f} GB/s {:5.1f} % of read   {:8.0f} GOP/s {:5.1f} % of peak\n", name, bytes / seconds / 1e9, 100 * bytes / seconds / bandwidth, operations / seconds / 1e9, 100 * operations / seconds / peak);
  }

  void load_fp8(std::int64_t inputs, std::int64_t group) {
    const std::string name = fmt::format("quantize_e4m3{} K={}", group ? " g128" : "", inputs);
    if (!wants(name)) return;
    std::vector<Buffer> owner;
    auto* source = reinterpret_cast<std::uint16_t*>(memory(owner, static_cast<std::size_t>(inputs) * 32, 0));
    for (std::int64_t i = 0; i < inputs * 16; ++i) source[i] = float_to_bf16(static_cast<float>(i * 7919 % 1009 - 504) * 1e-4f);
    auto* panel = reinterpret_cast<std::uint8_t*>(memory(owner, static_cast<std::size_t>(inputs) * 16, 0));
    const std::vector<float> scales(static_cast<std::size_t>(inputs) * 16, 1e-4f);
    std::vector<float> most(scales.size());
    const SourceRows rows{.data = source, .dtype = DType::kBF16, .stride = inputs, .rows = 16, .inputs = inputs};
    const auto rate = [&](const std::function<void()>& body) {
      return static_cast<double>(inputs) * 32.0 * 50 / best_of(7, [&] {
               for (int i = 0; i < 50; ++i) body();
             }) / 1e9;
    };
    const double quantized = rate([&] { table->fp8->quantize(rows, 0, group, scales.data(), panel); }), seen = rate([&] { table->fp8->absmax(rows, group, most.data()); });
    fmt::print("  {:<34} {:8.1f} GB/s of BF16 on one thread; absmax {:.1f}\n", name, quantized, seen);
  }

  // One thread, 16 rows that stay in L2.
  void load(const char* name, std::int64_t inputs, std::int64_t (*body)(const LoadKernels&, const SourceRows&, std::byte*, float*), const LoadKernels& kernels) {
    if (!wants(name)) return;
    std::vector<Buffer> owner;
    auto* source = reinterpret_cast<std::uint16_t*>(memory(owner, inputs * 32, 0));
    std::uint32_t state = 1;
    for (std::int64_t i = 0; i < inputs * 16; ++i) {
      state = state * 1664525u + 1013904223u;
      source[i] = float_to_bf16((static_cast<float>(state >> 8) - 8388608.0f) * 1e-9f);
    }
    std::byte* panel = memory(owner, inputs * 64, 0);
    std::vector<float> scales(inputs * 16);
    const SourceRows rows{.data = source, .dtype = DType::kBF16, .stride = inputs, .rows = 16, .inputs = inputs};
    const double seconds = best_of(7, [&] {
      for (int i = 0; i < 50; ++i) body(kernels, rows, panel, scales.data());
    });
    fmt::print("  {:<34} {:8.1f} GB/s of BF16 on one thread\n", fmt::format("{} K={}", name, inputs), inputs * 32.0 * 50 / seconds / 1e9);
  }

  void load_lut4(std::int64_t inputs) {
    const std::string name = fmt::format("quantize_lut4 K={}", inputs);
    if (!wants(name)) return;
    std::vector<Buffer> owner;
    auto* source = reinterpret_cast<std::uint16_t*>(memory(owner, static_cast<std::size_t>(inputs) * 32, 0));
    std::uint32_t state = 1;
    for (std::int64_t i = 0; i < inputs * 16; ++i) {
      state = state * 1664525u + 1013904223u;
      source[i] = float_to_bf16((static_cast<float>(state >> 8) - 8388608.0f) * 1e-9f);
    }
    auto* codes = reinterpret_cast<std::uint8_t*>(memory(owner, static_cast<std::size_t>(inputs) * 8, 0));
    auto* steps = reinterpret_cast<std::uint8_t*>(memory(owner, static_cast<std::size_t>(inputs), 0));
    std::uint8_t exponents[16];
    const SourceRows rows{.data = source, .dtype = DType::kBF16, .stride = inputs, .rows = 16, .inputs = inputs};
    const double seconds = best_of(7, [&] {
      for (int i = 0; i < 20; ++i) table->lut4->quantize(rows, 0, codes, steps, exponents);
    });
    fmt::print("  {:<34} {:8.1f} GB/s of BF16 on one thread\n", name, static_cast<double>(inputs) * 32.0 * 20 / seconds / 1e9);
  }
};

int run(int threads, std::string filter) {
  auto table = choose();
  if (!table) {
    fmt::print(stderr, "{}\n", table.error().message);
    return 2;
  }
  one_thread = threads == 1;
  Bench bench{.table = *table, .pool = ThreadPool(threads), .filter = std::move(filter)};
  constexpr std::size_t kBytes = std::size_t{1} << 30;
  std::vector<Buffer> owner;
  std::byte* codes = memory(owner, kBytes, 0x3a);  // small normal numbers as BF16 and FP32
  bench.roofline(codes, kBytes);
  for (std::int64_t inputs : {2048, 4096}) {
    bench.load("quantize_u8", inputs, [](const LoadKernels& k, const SourceRows& s, std::byte* p, float* f) { return k.quantize_u8(s, 0, nullptr, reinterpret_cast<std::uint8_t*>(p), f); }, *bench.table->load);
    bench.load("quantize_u4 g128", inputs, [](const LoadKernels& k, const SourceRows& s, std::byte* p, float* f) { return k.quantize_u4(s, 0, 128, nullptr, reinterpret_cast<std::uint8_t*>(p), f); }, *bench.table->load);
    bench.load("quantize_u4 g32", inputs, [](const LoadKernels& k, const SourceRows& s, std::byte* p, float* f) { return k.quantize_u4(s, 0, 32, nullptr, reinterpret_cast<std::uint8_t*>(p), f); }, *bench.table->load);
    bench.load("quantize_u4 channel", inputs, [](const LoadKernels& k, const SourceRows& s, std::byte* p, float* f) { return k.quantize_u4(s, 0, 0, nullptr, reinterpret_cast<std::uint8_t*>(p), f); }, *bench.table->load);
    bench.load_lut4(inputs);
    bench.load("pack_bf16", inputs, [](const LoadKernels& k, const SourceRows& s, std::byte* p, float*) { return k.pack_bf16(s, 0, reinterpret_cast<std::uint16_t*>(p)); }, *bench.table->load);
    bench.load("pack_f32", inputs, [](const LoadKernels& k, const SourceRows& s, std::byte* p, float*) { return k.pack_f32(s, 0, reinterpret_cast<float*>(p)); }, *bench.table->load);
  }
  const Case cases[] = {{"u4_grouped", 4, 0, Case::kGrouped}, {"u4_grouped g128", 4, 128, Case::kGrouped}, {"u4_grouped g32", 4, 32, Case::kGrouped}, {"u8_grouped", 8, 0, Case::kGrouped},
                        {"u4_int8 g128", 4, 128, Case::kInt8}, {"u4_int8 g32", 4, 32, Case::kInt8}, {"u8_int8", 8, 0, Case::kInt8}, {"u8_int8 g128", 8, 128, Case::kInt8},
                        {"bf16_bf16", 16, 0, Case::kFloat}, {"f32", 32, 0, Case::kFloat}, {"u8", 8, 0, Case::kFloat}, {"u4 g128", 4, 128, Case::kFloat}};
  for (const Case& c : cases) {
    for (std::int64_t tokens : {1, 2, 3, 4, 8, 16}) bench.product(c, tokens, 2048, kBytes, codes);
    bench.product(c, 16, 12288, kBytes, codes);
    for (std::int64_t inputs : {2048, 4096, 12288}) bench.product(c, 512, inputs, std::size_t{4096} * inputs * c.bits / 8, codes);
  }
  for (const bool bf16 : {false, true}) {
    for (const std::int64_t group : {0, 128})
      for (std::int64_t tokens : {1, 2, 4, 8, 16, 32, 48}) bench.fp8(bf16, tokens, 2048, group, kBytes, codes);
    for (std::int64_t inputs : {2048, 4096, 12288}) bench.fp8(bf16, 512, inputs, 0, static_cast<std::size_t>(4096 * inputs), codes);
    bench.fp8(bf16, 512, 4096, 128, std::size_t{4096 * 4096}, codes);
  }
  for (const std::int64_t group : {0, 128}) bench.load_fp8(4096, group);
  for (std::int64_t tokens : {1, 2, 4, 8, 16}) bench.lut4(tokens, 2048, kBytes, codes);
  for (std::int64_t inputs : {2048, 4096}) bench.lut4(512, inputs, static_cast<std::size_t>(4096 * inputs / 2), codes);
  return 0;
}

}  // namespace
}  // namespace inflight::kernels

int main(int count, char** values) { return inflight::kernels::run(count > 1 ? std::atoi(values[1]) : inflight::usable_threads(), count > 2 ? values[2] : ""); }
