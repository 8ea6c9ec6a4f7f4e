#include "engine/precision_choice.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "quant/format.h"

namespace inflight::engine {
namespace {

using params::ParamSpec;

// What the unquantized model says of the tokens of one window.
struct Reference {
  std::vector<float> probabilities;  // [tokens][vocabulary]
  double entropy = 0;                // summed over tokens
};

double sum_over(std::int64_t tokens, ThreadPool& pool, const auto& of_token) {
  std::vector<double> sums(static_cast<std::size_t>(tokens));
  pool.parallel_for(tokens, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) sums[static_cast<std::size_t>(t)] = of_token(t);
  });
  double sum = 0;
  for (const double one : sums) sum += one;
  return sum;
}

// The layer whose experts a row is one of: "model.layers.3.mlp.experts"; "": none.
std::string experts_of(const ParamSpec& row) {
  const std::size_t at = row.scope.rfind(".experts.");
  return row.role == params::Role::kExpert && at != std::string::npos ? row.scope.substr(0, at + 8) : std::string();
}

}  // namespace

Windows measured_windows(const Windows& windows) {
  Windows parts;
  const std::size_t count = std::min(windows.size(), kMeasuredWindows);
  for (std::size_t i = 0; i < count; ++i) {
    parts.push_back(windows[i * windows.size() / count]);
    parts.back().resize(std::min(parts.back().size(), kMeasuredTokens));
  }
  return parts;
}

Result<PrecisionMeasure> measure_precision(OpenedModel& plain, OpenedModel& quantized, const EngineOptions& options, const Windows& windows, const std::function<bool()>& go_on) {
  WindowRunner runner = TRY(WindowRunner::create(plain, options, windows));
  ThreadPool& pool = *plain.pool;
  const kernels::VectorKernels& vector = *plain.runtime->kernels->vector;
  const std::int64_t vocabulary = plain.model->info().vocabulary, stride = plain.model->logits_stride();
  std::size_t longest = 0, all_tokens = 0;
  for (const auto& window : windows) {
    longest = std::max(longest, window.size());
    all_tokens += window.size();
  }
  std::vector<float> logits(longest * static_cast<std::size_t>(stride));
  std::vector<Reference> references;
  for (const auto& window : windows) {
    runner.run(window, logits.data());
    Reference& reference = references.emplace_back();
    reference.probabilities.resize(window.size() * static_cast<std::size_t>(vocabulary));
    reference.entropy = sum_over(static_cast<std::int64_t>(window.size()), pool, [&](std::int64_t t) {
      const float* x = logits.data() + t * stride;
      float* p = reference.probabilities.data() + t * vocabulary;
      const double total = vector.log_sum_exp(x, vocabulary);
      double entropy = 0;
      for (std::int64_t i = 0; i < vocabulary; ++i) {
        const double log_p = static_cast<double>(x[i]) - total;
        p[i] = static_cast<float>(std::exp(log_p));
        entropy -= static_cast<double>(p[i]) * log_p;
      }
      return entropy;
    });
  }

  // Mean KL from the references of what the model now is.
  const auto divergence = [&](WindowRunner& by) {
    double sum = 0;
    for (std::size_t w = 0; w < windows.size(); ++w) {
      by.run(windows[w], logits.data());
      sum += sum_over(static_cast<std::int64_t>(windows[w].size()), pool, [&](std::int64_t t) {
        const float* x = logits.data() + t * stride;
        const float* p = references[w].probabilities.data() + t * vocabulary;
        double expected = 0, mass = 0;
        for (std::int64_t i = 0; i < vocabulary; ++i) {
          expected += static_cast<double>(p[i]) * static_cast<double>(x[i]);
          mass += static_cast<double>(p[i]);
        }
        return mass * vector.log_sum_exp(x, vocabulary) - expected;
      });
      sum -= references[w].entropy;
    }
    return sum / static_cast<double>(std::max<std::size_t>(all_tokens, 1));
  };

  PrecisionMeasure measure;
  std::vector<PrecisionCandidate>& candidates = measure.matrices;
  std::vector<std::vector<std::size_t>> rows;
  std::map<std::string, std::size_t> experts;
  for (std::size_t i = 0; i < plain.table.rows.size(); ++i) {
    const ParamSpec& row = plain.table.rows[i];
    if (quantized.store.vector(i) || !quantized.store.matrix(i).format || quantized.store.matrix(i).format->codes != quant::Codes::kE4M3) continue;
    std::size_t at = candidates.size();
    if (const std::string layer = experts_of(row); !layer.empty()) at = experts.try_emplace(layer, at).first->second;
    if (at == candidates.size()) {
      candidates.emplace_back();
      rows.emplace_back();
    }
    candidates[at].names.push_back(row.scope.empty() ? row.name : row.scope + "." + row.name);
    candidates[at].weights += row.outputs() * row.inputs;
    rows[at].push_back(i);
  }
  const auto exchange = [&](std::size_t at) {
    for (const std::size_t i : rows[at]) std::swap(plain.store.matrix(i), quantized.store.matrix(i));
  };
  for (std::size_t at = 0; at < candidates.size(); ++at) {
    if (go_on && !go_on()) return fail(Code::kCancelled, "stopped while it was measured which matrices stay as they are");
    exchange(at);
    candidates[at].divergence = divergence(runner);
    exchange(at);
  }
  nn::Runtime& runtime = *plain.runtime;
  if (quantized.runtime->attention_scales.empty()) return measure;
  EngineOptions cached = options;
  cached.kv_cache_dtype = "float8_e4m3";
  WindowRunner on_cache = TRY(WindowRunner::create(plain, cached, windows));
  runtime.attention_scales = quantized.runtime->attention_scales;
  const float bound = std::exchange(runtime.fp8_bound, quantized.runtime->fp8_bound);
  measure.cache = divergence(on_cache);
  runtime.fp8_attention = true;
  measure.attention = divergence(on_cache);
  runtime.fp8_attention = false;
  runtime.fp8_bound = bound;
  runtime.attention_scales.clear();
  return measure;
}

bool PrecisionMeasure::plain_queries() const {
  double all = attention;
  for (const PrecisionCandidate& candidate : matrices) all += candidate.divergence;
  return attention - cache > kQueriesPart * all;
}

std::vector<std::string> choose_plain(std::vector<PrecisionCandidate> candidates, double share) {
  std::int64_t all = 0;
  for (const PrecisionCandidate& candidate : candidates) all += candidate.weights;
  const auto gain = [](const PrecisionCandidate& c) { return c.divergence / static_cast<double>(std::max<std::int64_t>(c.weights, 1)); };
  std::ranges::sort(candidates, [&](const PrecisionCandidate& a, const PrecisionCandidate& b) { return std::pair(gain(a), b.names) > std::pair(gain(b), a.names); });
  auto left = static_cast<std::int64_t>(share * static_cast<double>(all));
  std::vector<std::string> names;
  for (const PrecisionCandidate& candidate : candidates) {
    if (candidate.weights > left || !(candidate.divergence > 0)) continue;
    left -= candidate.weights;
    names.insert(names.end(), candidate.names.begin(), candidate.names.end());
  }
  return names;
}

}  // namespace inflight::engine
