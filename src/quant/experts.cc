#include "quant/experts.h"

#include <algorithm>
#include <atomic>
#include <thread>

namespace inflight::quant {
namespace {

constexpr std::int64_t kLane = kernels::kPanelRows;
constexpr std::int64_t kRowGrain = 32;  // rows converted at a time; a multiple of 16 (int8 activation tiles)
constexpr int kSpins = 2000;            // then the worker that is waited for may need this CPU

std::int64_t pieces(std::int64_t n, std::int64_t grain) { return (n + grain - 1) / grain; }
std::int64_t padded(std::int64_t n) { return pieces(n, kLane) * kLane; }

// Whether activations converted for `a` serve `b`.
bool convert_alike(const Matrix& a, const Matrix& b) { return a.format == b.format && a.group == b.group && a.inputs == b.inputs && a.order == b.order && a.fp8_input == b.fp8_input; }

template <class Ready>
void wait_until(Ready&& ready) {
  for (int spins = 0; !ready();) {
    if (++spins < kSpins) __builtin_ia32_pause();
    else std::this_thread::yield();
  }
}

// What happens to a group, in order.
enum Stage : std::int32_t {
  kGather,   // its rows of x, converted or copied from converted tokens
  kUpGate,   // (panels of gate and up) products and their activation
  kConvert,  // of what came out, once that is gathered from all ranks where down takes it so
  kDown,     // (panels) products, added to y
  kStages
};

struct Task {
  std::int32_t group;
  Stage stage;
  std::int32_t begin, end;  // rows, or panels
};

// A product's left side.
struct Input {
  const float* x;
  std::int64_t ldx;
  std::byte* converted;
};

class Region {
 public:
  // gathers: the region ends before down, and begin_down() makes another of the rest.
  Region(std::span<const ExpertRows> groups, const ExpertArithmetic& arithmetic, const Routed& routed, const std::byte* converted, int threads,
         const std::function<std::byte*(std::size_t)>& take, bool gathers)
      : groups_(groups), arithmetic_(arithmetic), kernels_(*arithmetic.kernels), routed_(routed), converted_(converted), token_bytes_(arithmetic.converted_bytes(1)), hidden_(groups[0].up_gate->inputs),
        zeros_(std::ranges::max(groups, {}, [](const ExpertRows& group) { return group.down->lead; }).down->lead),
        intermediate_(groups[0].down->inputs - groups[0].down->lead), whole_panels_(intermediate_ % kLane == 0), activated_stride_(padded(zeros_) + (whole_panels_ ? intermediate_ : padded(2 * intermediate_))),
        up_panels_(whole_panels_ ? intermediate_ / kLane : groups[0].up_gate->panels()), down_panels_(groups[0].down->panels()), threads_(threads), activates_(!whole_panels_), converts_(!gathers) {
    const auto n = static_cast<std::int64_t>(groups.size());
    std::int64_t most = 0, rows = 0;
    for (const ExpertRows& group : groups) {
      most = std::max(most, group.count);
      rows = std::max(rows, group.first + group.count);
    }
    rows_ = rows;
    // Panels that a worker takes at a time: long streams, but enough tasks to share. Even, since products work on pairs.
    up_grain_ = std::clamp<std::int64_t>(up_panels_ * n / (threads * 8), 2, whole_panels_ ? 8 : 16) / 2 * 2;
    down_grain_ = std::clamp<std::int64_t>(down_panels_ * n / (threads * 8), 2, 16) / 2 * 2;

    const auto floats = [&](std::int64_t count) { return reinterpret_cast<float*>(take(static_cast<std::size_t>(count) * sizeof(float))); };
    const auto integers = [&](std::int64_t count) { return reinterpret_cast<std::int32_t*>(take(static_cast<std::size_t>(count) * sizeof(std::int32_t))); };
    inputs_ = reinterpret_cast<Input*>(take(static_cast<std::size_t>(n) * 2 * sizeof(Input)));
    activated_ = floats(rows * activated_stride_) + padded(zeros_);
    // A worker's panels of a product: [most, columns_], after as many floats as a product's first column may be away from column 0.
    lead_ = padded(std::max(2 * intermediate_, hidden_));
    columns_ = std::max(2 * up_grain_, down_grain_) * kLane + kLane;
    worker_floats_ = lead_ + most * columns_;
    panels_ = floats(worker_floats_ * threads);
    left_ = integers(n * kStages);
    passed_ = integers(pieces(down_panels_, down_grain_));
    std::fill_n(passed_, pieces(down_panels_, down_grain_), 0);

    std::size_t bytes = 0;
    bool collects = false;
    for (std::int64_t g = 0; g < n; ++g) {
      const ExpertRows& group = groups[static_cast<std::size_t>(g)];
      bytes += needs(*group.up_gate, group.count) + needs(*group.down, group.count);
      collects = collects || !(direct(group) || copies(group));
    }
    std::byte* scratch = take(bytes);
    gathered_ = collects ? floats(rows * hidden_) : nullptr;
    for (std::int64_t g = 0; g < n; ++g) {
      const ExpertRows& group = groups[static_cast<std::size_t>(g)];
      const std::size_t in_bytes = needs(*group.up_gate, group.count), out_bytes = needs(*group.down, group.count);
      if (direct(group)) {
        const std::int64_t token = routed.token_of[group.first];
        std::byte* own = in_bytes == 0 ? nullptr : const_cast<std::byte*>(converted) + static_cast<std::size_t>(token) * token_bytes_;
        inputs_[g * 2] = {routed.x + token * routed.ldx, routed.ldx, own};
      } else {
        inputs_[g * 2] = {gathered_ ? gathered_ + group.first * hidden_ : nullptr, hidden_, in_bytes == 0 ? nullptr : scratch};
      }
      scratch += in_bytes;
      inputs_[g * 2 + 1] = {activated_ + group.first * activated_stride_ - group.down->lead, activated_stride_, out_bytes == 0 ? nullptr : scratch};
      scratch += out_bytes;
      std::int32_t* left = left_ + g * kStages;
      left[kGather] = direct(group) ? 0 : static_cast<std::int32_t>(pieces(group.count, kRowGrain));
      left[kUpGate] = static_cast<std::int32_t>(pieces(up_panels_, up_grain_));
      left[kConvert] = !activates_ && (!converts_ || out_bytes == 0) ? 0 : static_cast<std::int32_t>(pieces(group.count, kRowGrain));
      left[kDown] = static_cast<std::int32_t>(pieces(down_panels_, down_grain_));
    }
    schedule(kGather, converts_ ? kDown : kConvert, take);
  }

  // After a region of what comes before down.
  void begin_down(const GatherActivated& gather, const std::function<std::byte*(std::size_t)>& take) {
    const WholeRows whole = gather(activated_, activated_stride_, rows_, intermediate_);
    activates_ = false;
    converts_ = true;
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      Input& input = inputs_[g * 2 + 1];
      if (groups_[g].down->gathers_inputs) input = {whole.x + groups_[g].first * whole.ld, whole.ld, input.converted};
      left_[g * kStages + kConvert] = input.converted ? static_cast<std::int32_t>(pieces(groups_[g].count, kRowGrain)) : 0;
    }
    schedule(kConvert, kDown, take);
  }

  void show(const SeeActivated& see) const {
    for (std::size_t g = 0; g < groups_.size(); ++g) see(g, activated_ + groups_[g].first * activated_stride_, activated_stride_);
  }

  // Tasks are taken in order, and each needs none but earlier ones: one that is waited for is in work.
  void work(int worker) {
    float* panels = panels_ + worker * worker_floats_;
    for (std::int64_t i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < count_;) {
      const Task& task = tasks_[i];
      for (int stage = 0; stage < task.stage; ++stage)
        wait_until([&] { return std::atomic_ref(left_[task.group * kStages + stage]).load(std::memory_order_acquire) == 0; });
      switch (task.stage) {
        case kGather: gather(task); break;
        case kUpGate: up_gate(task, panels); break;
        case kConvert: convert(task); break;
        default: down(task, panels); break;
      }
      std::atomic_ref(left_[task.group * kStages + task.stage]).fetch_sub(1, std::memory_order_release);
    }
  }

 private:
  // The tasks of stages [first, last].
  void schedule(int first, int last, const std::function<std::byte*(std::size_t)>& take) {
    const auto n = static_cast<std::int64_t>(groups_.size());
    std::int64_t tasks = 0;
    for (std::int64_t g = 0; g < n; ++g)
      for (int stage = first; stage <= last; ++stage) tasks += left_[g * kStages + stage];
    count_ = 0;
    next_ = 0;
    // A group's next stage comes so much later that hardly a worker waits for one, and so soon that what it needs is still in a cache.
    const std::int64_t lag = 1 + 2 * threads_ / std::min(pieces(up_panels_, up_grain_), pieces(down_panels_, down_grain_));
    tasks_ = reinterpret_cast<Task*>(take(static_cast<std::size_t>(tasks) * sizeof(Task)));
    for (std::int64_t time = 0; count_ < tasks; ++time)
      for (int stage = first; stage <= last; ++stage) {
        const std::int64_t g = time - (stage - first) * lag;
        if (g < 0 || g >= n) continue;
        const std::int64_t rows_of = groups_[static_cast<std::size_t>(g)].count;
        const std::int64_t all = stage == kUpGate ? up_panels_ : stage == kDown ? down_panels_ : rows_of;
        const std::int64_t grain = stage == kUpGate ? up_grain_ : stage == kDown ? down_grain_ : kRowGrain;
        for (std::int32_t i = 0; i < left_[g * kStages + stage]; ++i)
          tasks_[count_++] = {static_cast<std::int32_t>(g), static_cast<Stage>(stage), static_cast<std::int32_t>(i * grain), static_cast<std::int32_t>(std::min((i + 1) * grain, all))};
      }
  }

  const ExpertRows& group(const Task& task) const { return groups_[static_cast<std::size_t>(task.group)]; }
  std::size_t needs(const Matrix& w, std::int64_t rows) const { return apply_scratch(w, arithmetic_.of(w), kernels_, rows); }
  bool shares(const Matrix& w) const { return token_bytes_ != 0 && convert_alike(*arithmetic_.like, w); }
  // The one row is used where it lies, converted or not.
  bool direct(const ExpertRows& group) const {
    const Matrix& w = *group.up_gate;
    return group.count == 1 && (needs(w, 1) == 0 || (shares(w) && token_is_scratch(w, arithmetic_.of(w))));
  }
  // Rows are copies of converted tokens.
  bool copies(const ExpertRows& group) const { return shares(*group.up_gate) && gathers(*group.up_gate, arithmetic_.of(*group.up_gate)); }

  void gather(const Task& task) const {
    const ExpertRows& rows = group(task);
    const Input& input = inputs_[task.group * 2];
    const std::int32_t* tokens = routed_.token_of + rows.first;
    if (copies(rows)) {
      const Matrix& w = *rows.up_gate;
      return gather_activations(w, arithmetic_.of(w), kernels_, converted_, tokens, rows.count, task.begin, task.end, input.converted);
    }
    float* to = gathered_ + rows.first * hidden_;
    for (std::int64_t r = task.begin; r < task.end; ++r) std::copy_n(routed_.x + tokens[r] * routed_.ldx, hidden_, to + r * hidden_);
    if (input.converted) convert_activations(*rows.up_gate, arithmetic_.of(*rows.up_gate), kernels_, input.x, input.ldx, rows.count, task.begin, task.end, input.converted);
  }

  void up_gate(const Task& task, float* panels) const {
    const ExpertRows& rows = group(task);
    const Matrix& w = *rows.up_gate;
    const Input& input = inputs_[task.group * 2];
    const Arithmetic arithmetic = arithmetic_.of(w);
    float* out = activated_ + rows.first * activated_stride_;
    for (std::int64_t r = 0; zeros_ != 0 && task.begin == 0 && r < rows.count; ++r) std::fill_n(out + r * activated_stride_ - zeros_, zeros_, 0.0f);
    const auto product = [&](std::int64_t begin, std::int64_t end, float* y, std::int64_t ldy) {
      multiply_panels(w, arithmetic, kernels_, input.x, input.ldx, rows.count, begin, end, y, ldy, input.converted);
    };
    if (!whole_panels_) return product(task.begin, task.end, out, activated_stride_);
    const std::int64_t first = task.begin * kLane, columns = (task.end - task.begin) * kLane;
    float* gate = panels + lead_;
    product(task.begin, task.end, gate - first, columns_);
    product(intermediate_ / kLane + task.begin, intermediate_ / kLane + task.end, gate + columns - intermediate_ - first, columns_);
    for (std::int64_t r = 0; r < rows.count; ++r)
      kernels_.vector->silu_mul(gate + r * columns_, gate + r * columns_ + columns, columns, out + r * activated_stride_ + first);
  }

  void convert(const Task& task) const {
    const ExpertRows& rows = group(task);
    const Input& input = inputs_[task.group * 2 + 1];
    float* out = activated_ + rows.first * activated_stride_;
    if (activates_)
      for (std::int64_t r = task.begin; r < task.end; ++r) kernels_.vector->silu_mul(out + r * activated_stride_, out + r * activated_stride_ + intermediate_, intermediate_, out + r * activated_stride_);
    if (converts_ && input.converted) convert_activations(*rows.down, arithmetic_.of(*rows.down), kernels_, input.x, input.ldx, rows.count, task.begin, task.end, input.converted);
  }

  void down(const Task& task, float* panels) const {
    const ExpertRows& rows = group(task);
    const Matrix& w = *rows.down;
    const Input& input = inputs_[task.group * 2 + 1];
    const std::int64_t first = task.begin * kLane, columns = std::min(task.end * kLane, hidden_) - first;
    float* product = panels + lead_;
    multiply_panels(w, arithmetic_.of(w), kernels_, input.x, input.ldx, rows.count, task.begin, task.end, product - first, columns_, input.converted);
    // Groups are added to these columns of y one after the other.
    std::atomic_ref passed(passed_[task.begin / down_grain_]);
    wait_until([&] { return passed.load(std::memory_order_acquire) == task.group; });
    for (std::int64_t r = 0; r < rows.count; ++r)
      kernels_.vector->add_scaled(routed_.y + routed_.token_of[rows.first + r] * routed_.ldy + first, product + r * columns_, routed_.weight_of[rows.first + r], columns);
    passed.store(task.group + 1, std::memory_order_release);
  }

  std::span<const ExpertRows> groups_;
  const ExpertArithmetic& arithmetic_;
  const kernels::Kernels& kernels_;
  const Routed& routed_;
  const std::byte* const converted_;  // [tokens][token_bytes_], where that is not 0
  const std::size_t token_bytes_;
  const std::int64_t hidden_, zeros_, intermediate_;  // zeros_: the most that a down has in front of its inputs (Matrix::lead)
  const bool whole_panels_;  // gate ends with a panel, so that a task has both sides of what it activates
  const std::int64_t activated_stride_, up_panels_, down_panels_;
  const int threads_;
  bool activates_, converts_;  // what kConvert does
  std::int64_t rows_ = 0;
  std::int64_t up_grain_ = 0, down_grain_ = 0, lead_ = 0, columns_ = 0, worker_floats_ = 0;
  Input* inputs_ = nullptr;        // [groups][2]: of up_gate, of down
  float* gathered_ = nullptr;      // [rows, hidden], where anything needs it
  float* activated_ = nullptr;     // [rows, activated_stride_], `zeros_` zeros before each row
  float* panels_ = nullptr;        // [threads][worker_floats_]
  std::int32_t* left_ = nullptr;   // [groups][stages]: tasks that are not done
  std::int32_t* passed_ = nullptr; // [pieces of down]: groups that were added to y
  Task* tasks_ = nullptr;
  std::int64_t count_ = 0;
  std::atomic<std::int64_t> next_{0};
};

}  // namespace

std::size_t ExpertArithmetic::converted_bytes(std::int64_t tokens) const {
  return static_cast<std::size_t>(tokens) * token_scratch(*like, of(*like), *kernels);
}

void ExpertArithmetic::convert(const float* x, std::int64_t ldx, std::int64_t begin, std::int64_t end, std::byte* converted) const {
  const std::size_t bytes = converted_bytes(1);
  if (bytes == 0) return;
  for (std::int64_t t = begin; t < end; ++t) convert_token(*like, of(*like), *kernels, x + t * ldx, converted + static_cast<std::size_t>(t) * bytes);
}

void apply_experts(std::span<const ExpertRows> groups, const ExpertArithmetic& arithmetic, const Routed& routed, const std::byte* converted, ThreadPool& pool,
                   const std::function<std::byte*(std::size_t)>& take, const SeeActivated& see, const GatherActivated& gather) {
  if (groups.empty()) return;
  const bool gathers = gather && std::ranges::any_of(groups, [](const ExpertRows& group) { return group.down->gathers_inputs; });
  Region region(groups, arithmetic, routed, converted, pool.threads(), take, gathers);
  pool.run([&](int worker) { region.work(worker); });
  if (gathers) {
    region.begin_down(gather, take);
    pool.run([&](int worker) { region.work(worker); });
  }
  if (see) region.show(see);
}

}  // namespace inflight::quant
