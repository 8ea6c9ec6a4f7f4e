// The plain road: every tensor in memory first, then quantized parameter by parameter.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <iterator>
#include <map>
#include <vector>

#include "loader/exchange.h"
#include "loader/load.h"
#include "loader/sink.h"
#include "tensor/buffer.h"

namespace inflight::loader {

namespace {

// Tensors that are in memory as a whole.
class MemoryBytes final : public TensorBytes {
 public:
  explicit MemoryBytes(const std::map<int, Buffer>& tensors) : tensors_(tensors) {}
  void expect(int, FileRange) const override {}
  Result<void> read(int tensor, std::int64_t offset, std::int64_t bytes, std::byte* into) const override {
    std::memcpy(into, tensors_.at(tensor).data() + offset, static_cast<std::size_t>(bytes));
    return {};
  }

 private:
  const std::map<int, Buffer>& tensors_;
};

Result<LoadReport> load_parameters(const LoadContext& context, const Progress& progress) {
  const auto start = std::chrono::steady_clock::now();
  const checkpoint::Checkpoint& checkpoint = context.checkpoint;

  std::map<int, Buffer> tensors;  // whole, by index into Checkpoint::tensors()
  std::int64_t read = 0;
  std::vector<int> needed;
  for (const Route& route : context.plan.routes) {
    needed.push_back(route.tensor);
    if (route.form >= 0) std::ranges::copy_if(context.plan.forms[static_cast<std::size_t>(route.form)].places, std::back_inserter(needed), [](int place) { return place >= 0; });
  }
  for (const int place : needed) {
    if (tensors.contains(place)) continue;
    const checkpoint::Tensor& tensor = checkpoint.tensors()[static_cast<std::size_t>(place)];
    Buffer& buffer = tensors[place] = TRY(Buffer::map(static_cast<std::size_t>(tensor.info.bytes())));
    TRY(checkpoint.shards()[static_cast<std::size_t>(tensor.shard)].read_at(buffer.data(), buffer.bytes(), tensor.info.begin));
    read += tensor.info.bytes();
    if (progress && !progress(std::min(read, context.plan.source_bytes), context.plan.source_bytes)) return fail(Code::kCancelled, "loading was stopped");
  }

  const auto view = [&](const FormSource& source, std::size_t t, const FormArea& area) {
    const checkpoint::TensorInfo& info = checkpoint.tensors()[static_cast<std::size_t>(source.places[t])].info;
    return form_view(info, form_lines(source, t, info, area), tensors[source.places[t]].data());
  };
  Sink sink(checkpoint.tensors(), context.plan, context.table, context.kernels, context.store);
  for (std::size_t r = 0; r < context.plan.routes.size(); ++r) {
    const Route& route = context.plan.routes[r];
    if (route.exchange) continue;
    if (route.form >= 0) {
      const FormSource& source = context.plan.forms[static_cast<std::size_t>(route.form)];
      const Chunk chunk{r, route.slice.row_begin, route.slice.row_end - route.slice.row_begin};
      std::vector<quant::FormBytes> bytes;
      for (std::size_t t = 0; t < source.tensors.size(); ++t)
        bytes.push_back(source.places[t] < 0 ? quant::FormBytes{}
                                             : view(source, t, form_area(context.plan, chunk)));
      TRY(sink.accept_form(chunk, bytes));
    } else {
      TRY(sink.accept_whole(r, tensors[route.tensor].data(), nullptr));
    }
  }
  TRY(load_exchanged(context, sink, MemoryBytes(tensors), [](std::int64_t, int) { return true; }));
  for (std::size_t shard = 0; shard < checkpoint.shards().size(); ++shard) TRY(checkpoint.verify_unchanged(static_cast<int>(shard)));
  TRY(sink.check_complete());

  LoadReport report;
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  report.source_bytes = context.plan.source_bytes;
  report.weight_bytes = context.store.weight_bytes();
  report.tensors_loaded = context.plan.tensors_loaded;
  report.tensors_elsewhere = context.plan.tensors_elsewhere;
  report.ignored = context.plan.ignored;
  return report;
}

}  // namespace

Result<LoadReport> load_whole(const LoadContext& context, const Progress& progress) { return load_together(context, progress, load_parameters); }

}  // namespace inflight::loader
