// Loss and divergence of one predicted token, in FP64 from FP32 logits.
#pragma once
#include <cstdint>
#include <vector>

namespace inflight::cli {

struct RowScore {
  double nats = 0;       // -log p(target), p = softmax(logits)
  double kl = 0;         // sum p_ref (log p_ref - log p), nats; 0 without a reference
  bool same_top = false; // both have the same largest logit (the first of equals)
};

// logits, reference: [vocabulary]; reference may be nullptr. NaN or infinite logits give a result that is not finite.
RowScore score_row(const float* logits, const float* reference, std::int64_t vocabulary, std::int32_t target);

// The value below or at which the share `q` of all values lies, linearly between neighbours (numpy's default). values: not empty.
double percentile(std::vector<double> values, double q);

}  // namespace inflight::cli
