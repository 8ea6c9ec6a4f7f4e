#include "quant/store.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "params/partition.h"

namespace inflight::quant {
namespace {

std::int64_t round_up(std::int64_t n, std::int64_t to) { return (n + to - 1) / to * to; }

std::int64_t place_bytes(const Slot& slot) { return round_up(slot.bytes.codes, 64) + round_up(slot.bytes.scales, 64) + round_up(slot.bytes.offsets, 64); }

// Rows past the last one hold the code of zero.
void fill_last_panel(const Slot& slot, Matrix& matrix) {
  if (slot.outputs % kernels::kPanelRows == 0 || slot.format->zero_byte() == 0) return;
  const std::int64_t panel = slot.bytes.codes / matrix.panels();
  std::memset(matrix.codes + (matrix.panels() - 1) * panel, slot.format->zero_byte(), static_cast<std::size_t>(panel));
}

}  // namespace

Result<ParamPlan> plan_params(const params::ParamTable& table, const params::Topology& topology, const FormatPolicy& policy,
                              const std::vector<bool>& stored_wide, const std::vector<const Format*>& stored_format) {
  ParamPlan plan;
  std::int64_t offset = 0;
  for (std::size_t i = 0; i < table.rows.size(); ++i) {
    const params::ParamSpec& row = table.rows[i];
    Slot slot;
    slot.reserved = topology.placement && !TRY(params::is_local(row, topology));
    slot.outputs = slot.reserved ? row.outputs() : TRY(params::local_outputs(row, topology));
    slot.inputs = TRY(params::local_inputs(row, topology));
    slot.offset = offset;
    const std::int64_t first_input = TRY(params::first_input(row, topology));
    const bool wide = row.derivation ? policy.wide_derived || plan.slots[row.derivation->source].format == &f32_format() : stored_wide[i] || row.role == params::Role::kRouter;
    const Format& as_stored = wide ? f32_format() : bf16_format();
    if (row.role == params::Role::kVector) {
      slot.bytes.codes = round_up(slot.outputs, kernels::kPanelRows) * 4;
    } else {
      const Format* wanted = policy.of(row);
      slot.format = stored_format[i] ? stored_format[i] : wanted ? wanted : &as_stored;
      slot.lead = first_input % slot.format->lead_step();
      slot.inputs += slot.lead;
      slot.bytes = slot.format->bytes(slot.outputs, slot.inputs, slot.format->group);
    }
    offset += place_bytes(slot);
    (slot.reserved ? plan.reserved_bytes : plan.weight_bytes) += place_bytes(slot);
    plan.slots.push_back(slot);
  }
  return plan;
}

void keep_params(ParamPlan& plan, const std::vector<bool>& kept) {
  for (std::size_t i = 0; i < plan.slots.size(); ++i) {
    Slot& slot = plan.slots[i];
    if (kept[i] || slot.reserved) continue;
    slot.reserved = true;
    plan.weight_bytes -= place_bytes(slot);
    plan.reserved_bytes += place_bytes(slot);
  }
}

Result<void> ParamStore::allocate(const ParamPlan& plan) {
  slots_ = plan.slots;
  arena_ = TRY(Buffer::map(static_cast<std::size_t>(plan.weight_bytes + plan.reserved_bytes)));
  used_bytes_ = plan.weight_bytes;
  matrices_.clear();
  matrices_.resize(plan.slots.size());
  vectors_.assign(plan.slots.size(), nullptr);
  for (std::size_t i = 0; i < plan.slots.size(); ++i) {
    const Slot& slot = plan.slots[i];
    std::byte* base = arena_.data() + slot.offset;
    if (!slot.format) {
      vectors_[i] = reinterpret_cast<float*>(base);
      continue;
    }
    Matrix& matrix = matrices_[i];
    matrix.format = slot.format;
    matrix.outputs = slot.outputs;
    matrix.inputs = slot.inputs;
    matrix.lead = slot.lead;
    matrix.group = slot.format->group;
    matrix.order = slot.order;
    matrix.gathers_inputs = slot.gathers_inputs;
    matrix.codes = base;
    matrix.scales = base + round_up(slot.bytes.codes, 64);
    if (slot.bytes.offsets != 0) matrix.offsets = reinterpret_cast<float*>(matrix.scales + round_up(slot.bytes.scales, 64));
    matrix.scales_fp16 = slot.reserved && matrix.group != 0;  // nothing here says that they must be FP32
    if (!slot.reserved) fill_last_panel(slot, matrix);
  }
  return {};
}

void ParamStore::take(std::size_t param, ParamStore& other) {
  const Slot& slot = slots_[param];
  std::memcpy(arena_.data() + slot.offset, other.arena_.data() + slot.offset, static_cast<std::size_t>(place_bytes(slot)));
  if (!slot.format) return;
  matrices_[param].wide_scales = std::move(other.matrices_[param].wide_scales);
  matrices_[param].scales_fp16 = other.matrices_[param].scales_fp16;
}

void ParamStore::prepare(std::size_t param) {
  fill_last_panel(slots_[param], matrices_[param]);
  used_bytes_ += place_bytes(slots_[param]);
}

void ParamStore::release(std::size_t param) {
  constexpr std::int64_t kPage = 4096;
  const Slot& slot = slots_[param];
  std::byte* base = arena_.data();
  const std::int64_t begin = slot.offset, end = begin + place_bytes(slot);
  // Whole pages go back; what shares a page with a neighbour becomes zero, as all of it was.
  const std::int64_t first = std::min(round_up(begin, kPage), end), last = std::max(end / kPage * kPage, first);
  std::memset(base + begin, 0, static_cast<std::size_t>(first - begin));
  std::memset(base + last, 0, static_cast<std::size_t>(end - last));
  if (first < last && ::madvise(base + first, static_cast<std::size_t>(last - first), MADV_DONTNEED) != 0) std::memset(base + first, 0, static_cast<std::size_t>(last - first));
  Matrix& matrix = matrices_[param];
  matrix.wide_scales = Buffer();
  matrix.scales_fp16 = matrix.group != 0;
  used_bytes_ -= place_bytes(slot);
}

std::int64_t ParamStore::weight_bytes() const {
  std::int64_t bytes = used_bytes_;
  for (const Matrix& matrix : matrices_) bytes += static_cast<std::int64_t>(matrix.wide_scales.bytes());
  return bytes;
}

}  // namespace inflight::quant
