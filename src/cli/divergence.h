// How far one model is from another: loss and divergence of a predicted token from FP32 logits, noise of hidden states. Sums are FP64.
#pragma once
#include <cstdint>
#include <vector>

namespace inflight::cli {

struct RowScore {
  double nats = 0;            // -log p(target), p = softmax(logits)
  double reference_nats = 0;  // the same of the reference
  double kl = 0;              // sum p_ref (log p_ref - log p), nats; 0 without a reference
  std::int32_t top = 0, reference_top = 0;          // ids of the largest logits (the first of equals)
  double top_p = 0, reference_top_p = 0;            // and their probabilities
  bool same_top = false;
};

// logits, reference: [vocabulary]; reference may be nullptr: then all that is the reference's stays 0. NaN or infinite logits give a result that is not finite.
RowScore score_row(const float* logits, const float* reference, std::int64_t vocabulary, std::int32_t target);

// The value below or at which the share `q` of all values lies, linearly between neighbours (numpy's default). values: not empty.
double percentile(std::vector<double> values, double q);

// A token that was predicted differently.
struct WorstToken {
  std::int64_t window = 0, position = 0;  // of the token that was predicted, counted from 0
  std::int32_t target = 0;                // its id
  RowScore score;
};

// The `limit` tokens with the largest KL, largest first, earlier ones first among equals. Tokens without divergence are not among them.
class WorstTokens {
 public:
  explicit WorstTokens(std::size_t limit) : limit_(limit) {}
  void add(const WorstToken& token);
  std::vector<WorstToken> sorted() const;

 private:
  std::size_t limit_;
  std::vector<WorstToken> heap_;  // the least of them in front
};

// Signal to quantization noise of a hidden state over any number of tokens: 10 log10(sum ref^2 / sum (ref - x)^2).
struct Noise {
  double signal = 0, noise = 0;
  void add(const float* x, const float* reference, std::int64_t count);
  double decibels() const;  // +infinity: no difference at all
};

}  // namespace inflight::cli
