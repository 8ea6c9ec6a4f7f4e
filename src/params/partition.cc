#include "params/partition.h"

#include <algorithm>

#include "params/expert_placement.h"

namespace inflight::params {
namespace {

constexpr std::int64_t kPanel = 16;  // outputs that lie together in memory (kernels.h)
constexpr std::size_t kRefusals = 8; // told at once

struct Range {
  std::int64_t begin, end;
};

// Tensor-parallel ranks that share the row, and this one's place among them.
Topology shared_by(const ParamSpec& row, const Topology& topology) {
  return row.expert >= 0 && topology.ep_size > 1 ? Topology{.ep_rank = topology.ep_rank, .ep_size = topology.ep_size} : topology;
}

// Whether units of a piece (heads) are fewer than ranks, and so shared by neighbours.
bool shares_units(const Piece& piece, std::int64_t units, int ranks) { return piece.kv && units < ranks; }

// Why the row cannot be cut over so many tensor-parallel ranks; "": it can.
std::string refusal(const ParamSpec& row, int ranks) {
  if (ranks == 1) return {};
  if (row.split == Split::kInputs && row.inputs / row.unit % ranks != 0) return fmt::format("{} inputs in units of {} do not divide over {} ranks", row.inputs, row.unit, ranks);
  if (row.split != Split::kOutputs) return {};
  for (const Piece& piece : row.pieces) {
    const std::int64_t units = piece.rows / row.unit;
    if (shares_units(piece, units, ranks)) {
      if (ranks % units != 0) return fmt::format("{} heads cannot be shared by {} ranks", units, ranks);
    } else if (units % ranks != 0) {
      return fmt::format("{} outputs in units of {} do not divide over {} ranks", piece.rows, row.unit, ranks);
    }
  }
  return {};
}

std::string experts_refusal(const ParamSpec& row, int ranks) {
  return row.expert < 0 || row.experts % ranks == 0 ? std::string() : fmt::format("{} experts do not divide over {} expert-parallel ranks", row.experts, ranks);
}

struct Noun {
  std::string_view one = "rank count", many = "rank counts";
};

// "the nearest rank counts that work are 4 and 8": those below and above `asked`.
template <class Works>
std::string nearest(int asked, const Works& works, const Noun& noun = {}) {
  int below = asked - 1, above = asked + 1;
  while (below > 0 && !works(below)) --below;
  while (above <= kMostRanks && !works(above)) ++above;
  if (below > 0 && above <= kMostRanks) return fmt::format("the nearest {} that work are {} and {}", noun.many, below, above);
  if (below > 0 || above <= kMostRanks) return fmt::format("the nearest {} that works is {}", noun.one, below > 0 ? below : above);
  return fmt::format("no {} works", noun.one);
}

Result<void> check(const ParamSpec& row, const Topology& topology) {
  if (std::string why = refusal(row, topology.tp_size); !why.empty())
    return fail(Code::kUnsupported, "{}: {}; {}", row.full_name(), why, nearest(topology.tp_size, [&](int ranks) { return refusal(row, ranks).empty(); }));
  return {};
}

// The rows of one piece that belong to this rank.
Result<Range> piece_rows(const ParamSpec& row, const Piece& piece, const Topology& whole) {
  if (!TRY(is_local(row, whole))) return Range{0, 0};
  const Topology topology = shared_by(row, whole);
  if (topology.tp_size == 1) return Range{0, piece.rows};
  if (row.split == Split::kVocabulary) {
    const std::int64_t run = (piece.rows + topology.tp_size * kPanel - 1) / (topology.tp_size * kPanel) * kPanel, begin = std::min(topology.tp_rank * run, piece.rows);
    return Range{begin, std::min(begin + run, piece.rows)};
  }
  if (row.split != Split::kOutputs) return Range{0, piece.rows};
  TRY(check(row, topology));
  const std::int64_t units = piece.rows / row.unit;
  if (shares_units(piece, units, topology.tp_size)) {
    const std::int64_t head = topology.tp_rank / (topology.tp_size / units);
    return Range{head * row.unit, (head + 1) * row.unit};
  }
  const std::int64_t rows = units / topology.tp_size * row.unit;
  return Range{topology.tp_rank * rows, (topology.tp_rank + 1) * rows};
}

Result<Range> columns(const ParamSpec& row, const Topology& whole) {
  const Topology topology = shared_by(row, whole);
  if (row.split != Split::kInputs || topology.tp_size == 1) return Range{0, row.inputs};
  TRY(check(row, topology));
  const std::int64_t width = row.inputs / row.unit / topology.tp_size * row.unit;
  return Range{topology.tp_rank * width, (topology.tp_rank + 1) * width};
}

}  // namespace

bool is_cut(const ParamSpec& row, const Topology& topology) { return row.split != Split::kReplicate && shared_by(row, topology).tp_size > 1; }

Result<bool> is_local(const ParamSpec& row, const Topology& topology) {
  if (row.expert < 0 || topology.ep_size == 1) return true;
  if (topology.placement) return topology.placement->on_rank(row.layer, row.expert, topology.ep_rank);
  if (std::string why = experts_refusal(row, topology.ep_size); !why.empty())
    return fail(Code::kUnsupported, "{}: {}; {}", row.full_name(), why, nearest(topology.ep_size, [&](int ranks) { return experts_refusal(row, ranks).empty(); }));
  return row.expert / (row.experts / topology.ep_size) == topology.ep_rank;
}

Result<Slice> slice_of(const ParamSpec& row, std::size_t piece, const Topology& topology) {
  Slice slice;
  for (std::size_t before = 0; before < piece; ++before) {
    const Range range = TRY(piece_rows(row, row.pieces[before], topology));
    slice.local_row += range.end - range.begin;
  }
  const Range rows = TRY(piece_rows(row, row.pieces[piece], topology));
  const Range cols = TRY(columns(row, topology));
  slice.row_begin = rows.begin;
  slice.row_end = rows.end;
  slice.col_begin = cols.begin;
  slice.col_end = cols.end;
  return slice;
}

bool works_on(const ParamTable& table, int tensor_ranks, int expert_ranks) {
  return std::ranges::all_of(table.rows, [&](const ParamSpec& row) {
    return experts_refusal(row, expert_ranks).empty() && (shared_by(row, {.tp_size = tensor_ranks, .ep_size = expert_ranks}).tp_size == 1 || refusal(row, tensor_ranks).empty());
  });
}

std::vector<int> rank_counts(const ParamTable& table, bool expert_parallel, int most) {
  std::vector<int> counts;
  for (int ranks = 1; ranks <= most; ++ranks)
    if (works_on(table, ranks, expert_parallel ? ranks : 1)) counts.push_back(ranks);
  return counts;
}

Result<void> check_ranks(const ParamTable& table, const Topology& topology) {
  const int dealt = topology.placement ? 1 : topology.ep_size;  // a placement divides by itself
  const auto cut = [&](const ParamSpec& row) { return refusal(row, shared_by(row, topology).tp_size); };
  if (std::ranges::all_of(table.rows, [&](const ParamSpec& row) { return experts_refusal(row, dealt).empty() && cut(row).empty(); })) return {};
  std::vector<std::pair<std::string, std::string>> refusals;  // why, and the first row that says so
  std::size_t more = 0;
  for (const ParamSpec& row : table.rows) {
    std::string why = experts_refusal(row, dealt);
    if (why.empty()) why = cut(row);
    if (why.empty()) continue;
    const bool known = std::ranges::any_of(refusals, [&](const auto& seen) { return seen.first == why; });
    if (known || refusals.size() == kRefusals) ++more;
    else refusals.emplace_back(std::move(why), row.full_name());
  }
  std::string text;
  for (const auto& [why, name] : refusals) text += fmt::format("\n  {}: {}", name, why);
  if (more > 0) text += fmt::format("\n  and {} more parameters", more);
  const int groups = topology.ep_size == 1 ? 1 : std::max(topology.ep_size / topology.tp_size, 1);
  const auto works = [&](int tensor_ranks, int expert_ranks) {
    if (!topology.placement) return works_on(table, tensor_ranks, expert_ranks);
    const auto fits = [&](const ParamSpec& row) { return row.expert >= 0 || refusal(row, tensor_ranks).empty(); };
    return topology.placement->physical() % expert_ranks == 0 && std::ranges::all_of(table.rows, fits);
  };
  if (groups == 1)
    return fail(Code::kUnsupported, "the model cannot be cut over {} ranks:{}\n  hint: {}", topology.tp_size, text,
                nearest(topology.tp_size, [&](int ranks) { return works(ranks, topology.ep_size == 1 ? 1 : ranks); }));
  // Experts are dealt to the ranks of all groups: one of the two counts stays as asked for, that of a group where it suits.
  const bool suits = std::ranges::all_of(table.rows, [&](const ParamSpec& row) { return cut(row).empty(); });
  const std::string hint = suits ? nearest(groups, [&](int n) { return works(topology.tp_size, n == 1 ? 1 : topology.tp_size * n); }, {"group count (--data-parallel-size)", "group counts (--data-parallel-size)"})
                                 : nearest(topology.tp_size, [&](int n) { return works(n, n * groups); },
                                           {"rank count of a group (--tensor-parallel-size)", "rank counts of a group (--tensor-parallel-size)"});
  return fail(Code::kUnsupported, "the model cannot be cut over {} groups of {} rank{}:{}\n  hint: {}", groups, topology.tp_size, topology.tp_size == 1 ? "" : "s", text, hint);
}

Result<std::int64_t> local_outputs(const ParamSpec& row, const Topology& topology) {
  std::int64_t sum = 0;
  for (const Piece& piece : row.pieces) {
    const Range range = TRY(piece_rows(row, piece, topology));
    sum += range.end - range.begin;
  }
  return sum;
}

Result<std::int64_t> local_inputs(const ParamSpec& row, const Topology& topology) {
  const Range range = TRY(columns(row, topology));
  return range.end - range.begin;
}

Result<std::int64_t> first_input(const ParamSpec& row, const Topology& topology) { return TRY(columns(row, topology)).begin; }

}  // namespace inflight::params
