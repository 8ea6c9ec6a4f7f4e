#include "engine/rank_groups.h"

#include <algorithm>

namespace inflight::engine {

std::vector<std::int32_t> GroupAssignment::assign(const nn::Step& step) {
  std::vector<std::int32_t> group_of(step.spans.size(), -1);
  std::vector<std::int64_t> tokens(static_cast<std::size_t>(groups_));
  const auto key = [&](const nn::Span& span) { return std::pair(static_cast<const nn::KvCache*>(step.cache), span.block_table[0]); };
  const auto begins = [&](const nn::Span& span) { return step.positions[static_cast<std::size_t>(span.first)] == 0; };
  for (const nn::Span& span : step.spans)  // generated tokens that are recomputed come before the prompt they follow
    if (begins(span)) group_of_.erase(key(span));
  const auto take = [&](std::size_t i, std::int32_t group) {
    group_of[i] = group;
    tokens[static_cast<std::size_t>(group)] += step.spans[i].count;
  };
  for (std::size_t i = 0; i < step.spans.size(); ++i)
    if (const auto known = group_of_.find(key(step.spans[i])); known != group_of_.end()) take(i, known->second);
  for (std::size_t i = 0; i < step.spans.size(); ++i) {
    if (group_of[i] >= 0) continue;
    const auto fewest = static_cast<std::int32_t>(std::ranges::min_element(tokens) - tokens.begin());
    take(i, group_of_.emplace(key(step.spans[i]), fewest).first->second);
  }
  return group_of;
}

void GroupAssignment::forget(const nn::KvCache* cache) {
  std::erase_if(group_of_, [&](const auto& entry) { return entry.first.first == cache; });
}

const nn::Step& GroupStep::build(const nn::Step& whole, std::span<const std::int32_t> group_of, int rank, const models::Model& model, bool hidden) {
  const int group = rank / tensor_ranks_;
  ids_.clear();
  positions_.clear();
  rows_.clear();
  spans_.clear();
  row_group_.clear();
  token_group_.assign(whole.ids.size(), 0);
  std::ranges::fill(tokens_, nn::Runtime::GroupTokens{});
  std::vector<std::int32_t> place(whole.ids.size(), -1);  // of a token of this group among its tokens
  for (std::size_t s = 0; s < whole.spans.size(); ++s) {
    const nn::Span& span = whole.spans[s];
    const auto first = static_cast<std::size_t>(span.first), count = static_cast<std::size_t>(span.count);
    std::fill_n(token_group_.begin() + span.first, count, group_of[s]);
    nn::Runtime::GroupTokens& tokens = tokens_[static_cast<std::size_t>(group_of[s])];
    (span.first < whole.decode_tokens ? tokens.decode : tokens.prefill) += span.count;
    if (group_of[s] != group) continue;
    spans_.push_back(span);
    spans_.back().first = static_cast<std::int64_t>(ids_.size());
    for (std::size_t t = first; t < first + count; ++t) {
      place[t] = static_cast<std::int32_t>(ids_.size());
      ids_.push_back(whole.ids[t]);
      positions_.push_back(whole.positions[t]);
    }
  }
  for (const std::int32_t row : whole.logit_rows) {
    row_group_.push_back(token_group_[static_cast<std::size_t>(row)]);
    if (row_group_.back() == group) rows_.push_back(place[static_cast<std::size_t>(row)]);
  }
  wants_hidden_ = hidden;
  logits_.resize(rows_.size() * static_cast<std::size_t>(model.logits_stride()));
  if (hidden) hidden_.resize(ids_.size() * static_cast<std::size_t>((model.info().layers + 1) * model.info().hidden));
  const bool first = rank % tensor_ranks_ == 0;  // of the group: the one that sends
  step_ = {.ids = ids_, .positions = positions_, .spans = spans_, .decode_tokens = tokens_[static_cast<std::size_t>(group)].decode, .logit_rows = rows_, .cache = whole.cache,
           .logits = first ? logits_.data() : nullptr, .hidden = hidden && first ? hidden_.data() : nullptr};
  return step_;
}

void GroupStep::collect(const nn::Step& whole, comm::Comm& ranks, const models::Model& model) const {
  const std::int64_t stride = model.logits_stride(), hidden = model.info().hidden, layers = model.info().layers + 1;
  const auto send_floats = [&](const float* mine, std::int64_t n, const std::vector<std::int64_t>& of_group, std::vector<float>& all) {
    const auto size = static_cast<std::size_t>(ranks.size());
    std::vector<std::int64_t> sent(size), received(size);
    if (ranks.rank() % tensor_ranks_ == 0) sent[0] = n * static_cast<std::int64_t>(sizeof(float));
    std::int64_t sum = 0;
    for (std::size_t g = 0; ranks.rank() == 0 && g < of_group.size(); ++g) {
      received[g * static_cast<std::size_t>(tensor_ranks_)] = of_group[g] * static_cast<std::int64_t>(sizeof(float));
      sum += of_group[g];
    }
    all.resize(static_cast<std::size_t>(sum));
    ranks.all_to_all(mine, sent, all.data(), received);
  };
  std::vector<float> all;
  std::vector<std::int64_t> of_group(static_cast<std::size_t>(groups_));
  if (!whole.logit_rows.empty()) {
    for (const std::int32_t g : row_group_) of_group[static_cast<std::size_t>(g)] += stride;
    send_floats(logits_.data(), static_cast<std::int64_t>(rows_.size()) * stride, of_group, all);
    if (ranks.rank() == 0 && whole.logits) {
      std::vector<std::int64_t> at(of_group.size());
      for (std::size_t g = 1; g < at.size(); ++g) at[g] = at[g - 1] + of_group[g - 1];
      for (std::size_t r = 0; r < row_group_.size(); ++r) {
        std::int64_t& from = at[static_cast<std::size_t>(row_group_[r])];
        std::copy_n(all.data() + from, stride, whole.logits + static_cast<std::int64_t>(r) * stride);
        from += stride;
      }
    }
  }
  if (!wants_hidden_) return;
  std::ranges::fill(of_group, 0);
  for (const std::int32_t g : token_group_) of_group[static_cast<std::size_t>(g)] += layers * hidden;
  send_floats(hidden_.data(), static_cast<std::int64_t>(ids_.size()) * layers * hidden, of_group, all);
  if (ranks.rank() != 0 || !whole.hidden) return;
  const auto tokens = static_cast<std::int64_t>(token_group_.size());
  std::int64_t begin = 0;
  for (std::size_t g = 0; g < of_group.size(); begin += of_group[g++]) {  // [layers, tokens of the group, hidden] each
    const float* from = all.data() + begin;
    for (std::int64_t layer = 0; layer < layers; ++layer)
      for (std::int64_t t = 0; t < tokens; ++t) {
        if (token_group_[static_cast<std::size_t>(t)] != static_cast<std::int32_t>(g)) continue;
        std::copy_n(from, hidden, whole.hidden + (layer * tokens + t) * hidden);
        from += hidden;
      }
  }
}

}  // namespace inflight::engine
