#include "engine/expert_move.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "base/e4m3.h"
#include "checkpoint/checkpoint.h"
#include "engine/memory_limit.h"
#include "loader/load.h"
#include "params/partition.h"
#include "quant/fp8_formats.h"

namespace inflight::engine {
namespace {

// Whether what is loaded for one slot can take the place of the other.
bool same_place(const quant::Slot& a, const quant::Slot& b) {
  const bool same_order = a.order == b.order || (a.order && b.order && *a.order == *b.order);
  return a.format == b.format && a.bytes.codes == b.bytes.codes && a.bytes.scales == b.bytes.scales && a.bytes.offsets == b.bytes.offsets && same_order;
}

}  // namespace

ExpertMove::ExpertMove(OpenedModel& opened, std::shared_ptr<const params::ExpertPlacement> placement) : opened_(opened), topology_(opened.topology) {
  topology_.placement = std::move(placement);
  for (std::size_t i = 0; i < opened.table.rows.size(); ++i) {
    const params::ParamSpec& row = opened.table.rows[i];
    if (row.expert < 0) continue;
    const bool before = params::is_local(row, opened.topology).value_or(true), after = params::is_local(row, topology_).value_or(true);
    if (after && !before) arriving_.push_back(i);
    if (before && !after) leaving_.push_back(i);
  }
  for (const std::size_t i : arriving_) opened.store.prepare(i);
  loader_ = std::thread([this] {
    try {
      if (auto loaded = load(); !loaded) error_ = std::move(loaded).error();
    } catch (const std::exception& error) {
      error_ = Error{Code::kExhausted, fmt::format("experts could not be loaded: {}", error.what())};
    }
    done_.store(true, std::memory_order_release);
  });
}

ExpertMove::~ExpertMove() {
  wait();
  if (applied_) return;
  for (const std::size_t i : arriving_) opened_.store.release(i);
}

void ExpertMove::wait() {
  if (loader_.joinable()) loader_.join();
}

void ExpertMove::apply() {
  wait();
  for (const std::size_t i : leaving_) opened_.store.release(i);
  opened_.topology = topology_;
  opened_.runtime->placement = topology_.placement;
  opened_.report.weight_bytes = opened_.store.weight_bytes();
  applied_ = true;
}

// As open_model() loads them, but these rows alone, with one thread beside those that compute.
Result<void> ExpertMove::load() {
  if (arriving_.empty()) return {};
  ThreadPool pool(1);
  const checkpoint::Checkpoint checkpoint = TRY(checkpoint::Checkpoint::open(opened_.folder));
  loader::LoadPlan plan = TRY(loader::plan_load(checkpoint, opened_.table, topology_, opened_.policy, pool.threads()));
  std::vector<bool> wanted(opened_.table.rows.size());
  std::int64_t bytes = plan.staging_bytes;
  for (const std::size_t i : arriving_) {
    const quant::Slot& slot = plan.params.slots[i];
    if (!same_place(slot, opened_.plan.slots[i]))
      return fail(Code::kCorrupt, "{}: {} is stored in another way than when the model was opened; did the folder change?", opened_.folder, opened_.table.rows[i].full_name());
    bytes += slot.bytes.codes + slot.bytes.scales + slot.bytes.offsets;
    wanted[i] = true;
  }
  if (const MemoryLimit limit = TRY(available_memory()); bytes > limit.bytes)
    return fail(Code::kExhausted, "experts that come to this rank need {}, {} are available ({})", format_bytes(bytes), format_bytes(limit.bytes), limit.source);
  std::erase_if(plan.routes, [&](const loader::Route& route) { return !wanted[route.param]; });
  plan.batches.clear();  // experts are whole: no other rank has a say in their scales, or reads for them
  plan.shared_reads.clear();
  TRY(loader::load_streaming({checkpoint, plan, opened_.table, *opened_.runtime->kernels, pool, opened_.store}, {}));
  for (const std::size_t i : arriving_)
    if (quant::Matrix& matrix = opened_.store.matrix(i); opened_.options.fp8_target == "gaudi" && matrix.format->codes == quant::Codes::kE4M3) quant::limit_fp8_codes(matrix, kGaudiE4m3Max);
  return {};
}

}  // namespace inflight::engine
