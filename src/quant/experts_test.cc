// A layer's experts against the same products one expert and one token at a time: equal bits, whatever the formats, sizes, other tokens and threads.
#include "quant/experts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <memory>
#include <random>
#include <vector>

#include "base/bf16.h"
#include "kernels/dispatch.h"
#include "quant/store.h"

namespace inflight::quant {
namespace {

const kernels::Kernels& kernels_in_use() { return **kernels::choose(); }

std::vector<float> random_numbers(std::int64_t count, unsigned seed, float scale) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> numbers(static_cast<std::size_t>(count));
  for (float& x : numbers) x = normal(random);
  return numbers;
}

// The first `lead` inputs have zero weights.
std::unique_ptr<ParamStore> random_matrix(const Format& format, std::int64_t outputs, std::int64_t inputs, unsigned seed, std::int64_t lead = 0) {
  params::ParamTable table;
  table.rows.push_back({.name = "w", .pieces = {{"w", outputs}}, .inputs = inputs});
  auto store = std::make_unique<ParamStore>();
  store->allocate(plan_params(table, {}, {.linear = &format}, {false}, {nullptr}).value()).value();
  Matrix& matrix = store->matrix(0);
  matrix.lead = lead;
  begin(matrix).value();
  if (format.shared) {  // scales that fit the numbers below
    const std::int64_t block = format.shared->rows > 0 ? format.shared->rows : outputs;
    const std::vector<float> magnitudes(static_cast<std::size_t>(format.shared->groups(inputs)), 0.5f);
    for (std::int64_t first = 0; first < outputs; first += block) format.shared->set(matrix, first, std::min(first + block, outputs), magnitudes);
  }
  std::vector<std::uint16_t> row;
  for (const float w : random_numbers(outputs * inputs, seed, 0.1f)) {
    row.push_back(std::ssize(row) < lead ? 0 : float_to_bf16(w));
    if (static_cast<std::int64_t>(row.size()) < inputs) continue;
    EXPECT_EQ(format.store(kernels_in_use(), {.data = row.data(), .dtype = DType::kBF16, .stride = inputs, .rows = 1, .inputs = inputs}, --outputs, matrix), -1);
    row.clear();
  }
  finish(matrix);
  return store;
}

constexpr std::int64_t kExperts = 6, kHidden = 72, kStride = 80;

struct Layer {
  std::vector<std::unique_ptr<ParamStore>> up_gate, down;
  std::int64_t intermediate;

  // `other`: the format of expert 2, or nullptr.
  // lead: of down (Matrix::lead), but that of expert 2 where it has a format of its own.
  Layer(const Format& format, const Format* other, std::int64_t inner, std::int64_t lead = 0) : intermediate(inner) {
    for (unsigned e = 0; e < kExperts; ++e) {
      const Format& own = e == 2 && other ? *other : format;
      up_gate.push_back(random_matrix(own, 2 * inner, kHidden, 2 * e + 1));
      const std::int64_t own_lead = &own == &format ? lead : 0;
      down.push_back(random_matrix(own, kHidden, own_lead + inner, 2 * e + 2, own_lead));
    }
  }

  // Now each down of the layer's format takes inputs of two ranks, of which this is the first.
  void sort_inputs() {
    for (std::size_t e = 0; e < kExperts; ++e) {
      Matrix& w = down[e]->matrix(0);
      if (w.format != down[0]->matrix(0).format) continue;
      std::vector<std::int32_t> order;
      for (std::int64_t k = 0; k < w.inputs; ++k) order.push_back(static_cast<std::int32_t>((k * 7 + static_cast<std::int64_t>(e)) % (2 * intermediate)));
      w.order = std::make_shared<const std::vector<std::int32_t>>(std::move(order));
      w.gathers_inputs = true;
    }
  }
};

// What the first of two ranks gathers: its own numbers, then what stands for the other's.
void put_whole(const float* own, std::int64_t n, float* whole) {
  for (std::int64_t k = 0; k < n; ++k) {
    whole[k] = own[k];
    whole[n + k] = 0.5f * own[n - 1 - k];
  }
}

struct Routes {
  std::vector<std::vector<std::int64_t>> tokens;  // of each expert
  std::vector<std::vector<float>> weights;
};

// Expert 0 gets all tokens, expert 1 the last one alone, 2 to 5 share the others; 4 gets none of up to 3 tokens.
Routes routes_of(std::int64_t tokens) {
  Routes routes;
  routes.tokens.resize(kExperts);
  routes.weights.resize(kExperts);
  for (std::int64_t t = 0; t < tokens; ++t)
    for (const std::int64_t e : {std::int64_t{0}, t + 1 == tokens ? 1 : 2 + t % 4}) {
      routes.tokens[static_cast<std::size_t>(e)].push_back(t);
      routes.weights[static_cast<std::size_t>(e)].push_back(0.3f + 0.01f * static_cast<float>(t % 7 + e));
    }
  return routes;
}

std::vector<float> together(const Layer& layer, const ExpertArithmetic& arithmetic, const std::vector<float>& x, std::int64_t tokens, int threads) {
  std::vector<ExpertRows> groups;
  std::vector<std::int32_t> token_of;
  std::vector<float> weight_of;
  const Routes routes = routes_of(tokens);
  for (std::size_t e = 0; e < kExperts; ++e) {
    const auto count = static_cast<std::int64_t>(routes.tokens[e].size());
    for (std::int64_t row = 0; row < count; row += kMostGroupRows)
      groups.push_back({&layer.up_gate[e]->matrix(0), &layer.down[e]->matrix(0), static_cast<std::int64_t>(token_of.size()) + row, std::min(count - row, kMostGroupRows)});
    token_of.insert(token_of.end(), routes.tokens[e].begin(), routes.tokens[e].end());
    weight_of.insert(weight_of.end(), routes.weights[e].begin(), routes.weights[e].end());
  }
  std::vector<float> y(static_cast<std::size_t>(tokens * kStride), 0.25f);
  ThreadPool pool(threads);
  std::deque<Buffer> scratch;
  const auto take = [&](std::size_t bytes) {
    scratch.push_back(Buffer::map(std::max<std::size_t>(bytes, 64)).value());
    std::memset(scratch.back().data(), 0x5a, scratch.back().bytes());
    return scratch.back().data();
  };
  std::byte* converted = take(arithmetic.converted_bytes(tokens));
  pool.parallel_for(tokens, 16, [&](std::int64_t begin, std::int64_t end) { arithmetic.convert(x.data(), kHidden, begin, end, converted); });
  const Routed routed{.x = x.data(), .ldx = kHidden, .tokens = tokens, .token_of = token_of.data(), .weight_of = weight_of.data(), .y = y.data(), .ldy = kStride};
  int calls = 0;
  std::vector<float> whole;
  const auto gather = [&](const float* activated, std::int64_t ld, std::int64_t rows, std::int64_t columns) -> WholeRows {
    ++calls;
    EXPECT_EQ(rows, std::ssize(token_of));
    EXPECT_EQ(columns, layer.intermediate);
    whole.resize(static_cast<std::size_t>(rows * 2 * columns));
    for (std::int64_t r = 0; r < rows; ++r) put_whole(activated + r * ld, columns, whole.data() + r * 2 * columns);
    return {whole.data(), 2 * columns};
  };
  std::vector<float> seen(token_of.size() * static_cast<std::size_t>(layer.intermediate));
  apply_experts(groups, arithmetic, routed, converted, pool, take, [&](std::size_t group, const float* activated, std::int64_t ld) {
    for (std::int64_t r = 0; r < groups[group].count; ++r) std::copy_n(activated + r * ld, layer.intermediate, seen.data() + (groups[group].first + r) * layer.intermediate);
  }, gather);
  EXPECT_EQ(calls, layer.down[0]->matrix(0).gathers_inputs ? 1 : 0);
  for (std::size_t i = 0; i < whole.size(); i += static_cast<std::size_t>(2 * layer.intermediate))  // the observer sees this rank's
    EXPECT_EQ(std::memcmp(whole.data() + i, seen.data() + i / 2, static_cast<std::size_t>(layer.intermediate) * sizeof(float)), 0);
  return y;
}

std::vector<float> one_by_one(const Layer& layer, const ExpertArithmetic& arithmetic, const std::vector<float>& x, std::int64_t tokens) {
  std::vector<float> y(static_cast<std::size_t>(tokens * kStride), 0.25f);
  ThreadPool pool(1);
  const Routes routes = routes_of(tokens);
  const auto product = [&](const Matrix& w, const float* in, float* out) {
    Buffer scratch = Buffer::map(apply_scratch(w, arithmetic.of(w), kernels_in_use(), 1) + 64).value();
    apply(w, arithmetic.of(w), kernels_in_use(), pool, in, w.inputs, 1, out, w.panels() * 16, scratch.data());
  };
  std::vector<float> up_gate(static_cast<std::size_t>(2 * layer.intermediate + 16)), down(kStride);
  for (std::size_t e = 0; e < kExperts; ++e)
    for (std::size_t i = 0; i < routes.tokens[e].size(); ++i) {
      const std::int64_t t = routes.tokens[e][i];
      product(layer.up_gate[e]->matrix(0), x.data() + t * kHidden, up_gate.data());
      kernels_in_use().vector->silu_mul(up_gate.data(), up_gate.data() + layer.intermediate, layer.intermediate, up_gate.data());
      const std::int64_t lead = layer.down[e]->matrix(0).lead;
      std::vector<float> activated(static_cast<std::size_t>(lead), 0.0f);
      if (layer.down[e]->matrix(0).gathers_inputs) {
        activated.assign(static_cast<std::size_t>(2 * layer.intermediate), 0.0f);
        put_whole(up_gate.data(), layer.intermediate, activated.data());
      } else {
        activated.insert(activated.end(), up_gate.begin(), up_gate.begin() + layer.intermediate);
      }
      product(layer.down[e]->matrix(0), activated.data(), down.data());
      kernels_in_use().vector->add_scaled(y.data() + t * kStride, down.data(), routes.weights[e][i], kHidden);
    }
  return y;
}

class Experts : public testing::TestWithParam<const Format*> {};

TEST_P(Experts, have_the_bits_of_tokens_and_experts_taken_alone) {
  for (const std::int64_t intermediate : {64, 40})  // gate ends with a panel, or within one
    for (const Format* other : {static_cast<const Format*>(nullptr), &bf16_format(), find_format("wint8").value()}) {
      const Layer layer(*GetParam(), other, intermediate);
      for (const std::string_view compute : {"fp32", "bf16", "int8"})
        for (const bool decode : {false, true}) {
          const ExpertArithmetic arithmetic{.kernels = &kernels_in_use(), .compute = make_compute_policy(compute, kernels_in_use().isa).value(), .decode = decode,
                                            .like = &layer.up_gate[0]->matrix(0)};
          for (const std::int64_t tokens : {1, 2, 19, 300}) {
            if (tokens == 300 && (other || compute == "bf16")) continue;
            const auto x = random_numbers(tokens * kHidden, 77, 1);
            const auto want = one_by_one(layer, arithmetic, x, tokens);
            for (const int threads : {1, 2, 5})
              ASSERT_EQ(std::memcmp(together(layer, arithmetic, x, tokens, threads).data(), want.data(), want.size() * sizeof(float)), 0)
                  << GetParam()->name << " beside " << (other ? other->name : "none") << ", " << compute << (decode ? ", decode, " : ", prefill, ") << intermediate << ", " << tokens
                  << " tokens, " << threads << " threads";
          }
        }
    }
}

void expect_bits_of_one_by_one(const Layer& layer, const std::string& what) {
  for (const std::string_view compute : {"fp32", "int8"})
    for (const bool decode : {false, true}) {
      const ExpertArithmetic arithmetic{.kernels = &kernels_in_use(), .compute = make_compute_policy(compute, kernels_in_use().isa).value(), .decode = decode, .like = &layer.up_gate[0]->matrix(0)};
      for (const std::int64_t tokens : {1, 19}) {
        const auto x = random_numbers(tokens * kHidden, 77, 1);
        const auto want = one_by_one(layer, arithmetic, x, tokens);
        for (const int threads : {1, 3})
          ASSERT_EQ(std::memcmp(together(layer, arithmetic, x, tokens, threads).data(), want.data(), want.size() * sizeof(float)), 0) << what << ", " << compute << (decode ? ", decode" : ", prefill");
      }
    }
}

TEST_P(Experts, whose_down_begins_with_a_lead_are_given_as_many_zeros) {
  for (const std::int64_t intermediate : {64, 40})
    for (const std::int64_t lead : {8, 29})
      for (const Format* other : {static_cast<const Format*>(nullptr), &bf16_format()})
        expect_bits_of_one_by_one(Layer(*GetParam(), other, intermediate, lead), std::to_string(intermediate) + ", lead " + std::to_string(lead) + (other ? ", beside bf16" : ""));
}

// With an expert whose inputs are this rank's alone beside them, or without.
TEST_P(Experts, whose_down_takes_inputs_of_all_ranks_gather_them_once) {
  for (const std::int64_t intermediate : {64, 40})
    for (const std::int64_t lead : {0, 8})
      for (const Format* other : {static_cast<const Format*>(nullptr), &bf16_format()}) {
        Layer layer(*GetParam(), other, intermediate, lead);
        layer.sort_inputs();
        expect_bits_of_one_by_one(layer, std::to_string(intermediate) + ", lead " + std::to_string(lead) + (other ? ", beside bf16" : ""));
      }
}

// What a product takes, from rows and from tokens converted apart: the same memory, offsets' sums and E4M3 activations included.
TEST_P(Experts, gathered_tokens_are_what_converted_rows_are) {
  constexpr std::int64_t kTokens = 23;
  const auto store = random_matrix(*GetParam(), 32, kHidden, 5);
  Matrix& w = store->matrix(0);
  std::vector<float> offsets(static_cast<std::size_t>(w.panels() * w.groups() * 16), 0.5f);
  auto x = random_numbers(kTokens * kHidden, 78, 1);
  for (std::int64_t t = 0; t < kTokens; t += 3) x[static_cast<std::size_t>(t * kHidden + t)] = 70;
  const std::vector<std::int32_t> rows = {22, 3, 3, 0, 1, 9, 21, 4, 4, 5, 6, 7, 8, 9, 10, 0, 18, 17, 15, 2, 1};
  const auto count = static_cast<std::int64_t>(rows.size());
  std::vector<float> taken;
  for (const std::int32_t row : rows) taken.insert(taken.end(), x.begin() + row * kHidden, x.begin() + (row + 1) * kHidden);
  for (const Arithmetic arithmetic : {Arithmetic::kFp32, Arithmetic::kBf16, Arithmetic::kInt8, Arithmetic::kInt8Grouped, Arithmetic::kFp8})
    for (const bool more : {false, true}) {
      const bool fp8 = GetParam()->codes == Codes::kE4M3;
      if (arithmetic == Arithmetic::kFp8 && !fp8) continue;
      w.fp8_input = {arithmetic != Arithmetic::kFp8 ? Fp8Input::Scale::kNone : more ? Fp8Input::Scale::kStatic : Fp8Input::Scale::kToken, 0.02f, 448};
      w.offsets = more && w.group > 0 && !fp8 ? offsets.data() : nullptr;
      const std::size_t token_bytes = token_scratch(w, arithmetic, kernels_in_use()), bytes = apply_scratch(w, arithmetic, kernels_in_use(), count);
      if (token_bytes == 0 || !gathers(w, arithmetic)) continue;
      Buffer tokens = Buffer::map(token_bytes * kTokens).value();
      std::memset(tokens.data(), 0x5a, tokens.bytes());
      for (std::int64_t t = 0; t < kTokens; ++t) convert_token(w, arithmetic, kernels_in_use(), x.data() + t * kHidden, tokens.data() + static_cast<std::size_t>(t) * token_bytes);
      Buffer want = Buffer::map(bytes).value(), got = Buffer::map(bytes).value();
      for (Buffer* buffer : {&want, &got}) std::memset(buffer->data(), 0x5a, bytes);
      for (const auto& [begin, end] : {std::pair{std::int64_t{16}, count}, std::pair{std::int64_t{0}, std::int64_t{16}}}) {
        convert_activations(w, arithmetic, kernels_in_use(), taken.data(), kHidden, count, begin, end, want.data());
        gather_activations(w, arithmetic, kernels_in_use(), tokens.data(), rows.data(), count, begin, end, got.data());
      }
      EXPECT_EQ(std::memcmp(want.data(), got.data(), bytes), 0) << arithmetic_name(arithmetic) << (more ? ", more" : "");
      w.order = std::make_shared<const std::vector<std::int32_t>>(kHidden);
      EXPECT_EQ(token_scratch(w, arithmetic, kernels_in_use()), 0u) << "an order of inputs serves its own matrix alone";
      w.order = nullptr;
    }
  w.offsets = nullptr;
}

INSTANTIATE_TEST_SUITE_P(Formats, Experts, testing::ValuesIn(formats().begin(), formats().end()), [](const auto& test) {
  std::string name(test.param->name);
  std::ranges::replace(name, '-', '_');
  return name;
});

}  // namespace
}  // namespace inflight::quant
