// The forms of calibration files (docs/formats/calibration.md).
#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>

#include "base/file.h"
#include "base/json.h"
#include "checkpoint/json_events.h"
#include "checkpoint/read_tensor.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/safetensors_writer.h"
#include "engine/calibration.h"
#include "params/points.h"

namespace inflight::engine {
namespace {

using checkpoint::show;

constexpr std::string_view kFormat = "inflight-calibration", kVersion = "1";
constexpr std::string_view kAmax = ".activation_amax", kHistogram = ".activation_histogram", kChannels = ".activation_channels";
constexpr std::string_view kScale = ".activation_scale";   // of the text form, where it holds the maximum
constexpr std::string_view kWeightsPoint = ".s_matmul";    // attention weights: at most 1 by what they are
constexpr std::string_view kForced = "forced_points", kOthers = "filled_points";  // metadata: points by origin, one a line
constexpr std::string_view kTokens = "tokens", kWindows = "windows";  // tensors: ids of all windows in turn, and how many each has
constexpr std::int64_t kMostCount = std::int64_t{1} << 60;

Result<void> check_maximum(float value, std::string_view point, std::string_view where) {
  if (std::isfinite(value) && value >= 0) return {};
  return fail(Code::kCorrupt, "{}: the maximum of {} is {}, which no |x| can be; calibrate again", where, show(point), value);
}

Result<void> add_point(Calibration& calibration, std::string_view point, float value, std::string_view where) {
  if (point.empty() || point.size() > 1000) return fail(Code::kCorrupt, "{}: a point is called {}", where, show(point));
  TRY(check_maximum(value, point, where));
  if (point.ends_with(kWeightsPoint)) return {};
  if (!calibration.points.try_emplace(std::string(point), PointStats{.amax = value}).second) return fail(Code::kCorrupt, "{}: point {} is there twice", where, show(point));
  return {};
}

Result<Calibration> finish(Calibration calibration, std::string_view where) {
  if (calibration.points.empty())
    return fail(Code::kCorrupt, "{}: holds no calibrated point; expected what `inflight calibrate` writes, lines of `name{}<TAB>maximum`, or JSON {{\"name\": maximum}}", where, kScale);
  calibration.fill_unseen_experts();
  return calibration;
}

// Sees what a parsed object no longer shows: keys that repeat.
class MaximaReader : public checkpoint::JsonReader {
 public:
  bool on_key(std::string& key, int) override {
    key_ = key;
    if (!keys_.insert(key).second) return reject("point {} is there twice", show(key));
    return true;
  }
  bool on_value(const checkpoint::JsonValue& value, int depth) override {
    if (depth == 0) return value.kind == checkpoint::JsonKind::kObject || reject("expected an object {{\"point\": maximum}}, got {}", json_kind_name(value.kind));
    if (value.kind == checkpoint::JsonKind::kUnsigned || value.kind == checkpoint::JsonKind::kOtherNumber) return true;
    return reject("the maximum of {} must be a number, but is {}", show(key_), json_kind_name(value.kind));
  }
  bool on_end(int) override { return true; }

 private:
  std::string key_;
  std::set<std::string> keys_;
};

Result<std::vector<std::int32_t>> read_ids(const InputFile& file, const checkpoint::SafetensorsHeader& header, std::string_view name, std::int32_t least, const std::string& path) {
  const auto tensor = std::ranges::find(header.tensors, name, &checkpoint::TensorInfo::name);
  if (tensor == header.tensors.end()) return std::vector<std::int32_t>();
  if (tensor->dtype != DType::kI32) return fail(Code::kCorrupt, "{}: tensor {} is {}, expected I32", path, show(tensor->name), dtype_name(tensor->dtype));
  std::vector<std::int32_t> numbers(static_cast<std::size_t>(tensor->elements()));
  TRY(file.read_at(numbers.data(), numbers.size() * sizeof(std::int32_t), tensor->begin));
  for (const std::int32_t number : numbers)
    if (number < least) return fail(Code::kCorrupt, "{}: tensor {} holds {}, expected {} or more", path, show(tensor->name), number, least);
  return numbers;
}

Result<std::vector<std::vector<std::int32_t>>> read_windows(const InputFile& file, const checkpoint::SafetensorsHeader& header, const std::string& path) {
  const std::vector<std::int32_t> tokens = TRY(read_ids(file, header, kTokens, 0, path)), lengths = TRY(read_ids(file, header, kWindows, 1, path));
  std::vector<std::vector<std::int32_t>> windows;
  std::size_t at = 0;
  for (const std::int32_t length : lengths) {
    const auto count = static_cast<std::size_t>(length);
    if (count > tokens.size() - at) break;
    windows.emplace_back(tokens.begin() + static_cast<std::ptrdiff_t>(at), tokens.begin() + static_cast<std::ptrdiff_t>(at + count));
    at += count;
  }
  if (windows.size() != lengths.size() || at != tokens.size()) return fail(Code::kCorrupt, "{}: its {} windows are not of the {} tokens that it holds", path, lengths.size(), tokens.size());
  return windows;
}

Result<Calibration> read_own(const std::string& path) {
  const InputFile file = TRY(InputFile::open(path));
  checkpoint::SafetensorsHeader header = TRY(checkpoint::read_header(file));
  if (header.metadata["format"] != kFormat)
    return fail(Code::kUnsupported, "{}: a safetensors file, but no calibration: its \"format\" is {}, not \"{}\"; give what `inflight calibrate` wrote", path, show(header.metadata["format"]), kFormat);
  if (header.metadata["version"] != kVersion)
    return fail(Code::kUnsupported, "{}: calibration of version {}, but this program reads version {}; calibrate again", path, show(header.metadata["version"]), kVersion);
  Calibration calibration;
  const auto split = [](std::string_view name, std::string_view suffix) { return std::string(name.substr(0, name.size() - suffix.size())); };
  const auto bad_shape = [&](const checkpoint::TensorInfo& tensor, std::string_view wanted) {
    return fail(Code::kCorrupt, "{}: tensor {} is {} with {} elements, expected {}", path, show(tensor.name), dtype_name(tensor.dtype), tensor.elements(), wanted);
  };
  for (const checkpoint::TensorInfo& tensor : header.tensors) {
    if (!tensor.name.ends_with(kAmax)) continue;
    if (tensor.dtype != DType::kF32 || tensor.elements() != 1) return bad_shape(tensor, "one F32");
    float amax = 0;
    TRY(file.read_at(&amax, sizeof(amax), tensor.begin));
    TRY(add_point(calibration, split(tensor.name, kAmax), amax, path));
  }
  for (const checkpoint::TensorInfo& tensor : header.tensors) {
    if (tensor.name.ends_with(kAmax) || tensor.name == kTokens || tensor.name == kWindows) continue;
    const bool histogram = tensor.name.ends_with(kHistogram);
    if (!histogram && !tensor.name.ends_with(kChannels)) return fail(Code::kCorrupt, "{}: tensor {} has no place in a calibration of version {}", path, show(tensor.name), kVersion);
    const std::string point = split(tensor.name, histogram ? kHistogram : kChannels);
    const auto at = calibration.points.find(point);
    if (at == calibration.points.end()) return fail(Code::kCorrupt, "{}: {} is there, but {} is not", path, show(tensor.name), show(point + std::string(kAmax)));
    PointStats& stats = at->second;
    if (histogram) {
      if (tensor.dtype != DType::kI64 || tensor.elements() != Bins::kCount) return bad_shape(tensor, fmt::format("I64 of {} bins", Bins::kCount));
      stats.histogram = TRY(checkpoint::read_i64(file, tensor));
      for (const std::int64_t count : stats.histogram)
        if (count < 0 || count > kMostCount) return fail(Code::kCorrupt, "{}: {} counts {} values in a bin", path, show(tensor.name), count);
      int highest = Bins::kCount - 1;
      while (highest > 0 && stats.histogram[static_cast<std::size_t>(highest)] == 0) --highest;
      if (highest != Bins::of(stats.amax)) return fail(Code::kCorrupt, "{}: the maximum of {} is {}, but its histogram ends at {}", path, show(point), stats.amax, Bins::begin(highest));
    } else {
      if (tensor.dtype != DType::kF32 || tensor.elements() == 0) return bad_shape(tensor, "F32 of each channel");
      stats.channels = TRY(checkpoint::read_as_f32(file, tensor));
      for (const float channel : stats.channels)
        if (!(channel >= 0 && channel <= stats.amax)) return fail(Code::kCorrupt, "{}: a channel of {} has maximum {}, all together {}", path, show(point), channel, stats.amax);
    }
  }
  for (const auto& [key, origin] : {std::pair{kForced, Origin::kForced}, {kOthers, Origin::kOthers}}) {
    const std::string list = header.metadata[std::string(key)];
    for (std::string_view rest = list; !rest.empty();) {
      const std::size_t end = std::min(rest.find('\n'), rest.size());
      const auto at = calibration.points.find(std::string(rest.substr(0, end)));
      if (at == calibration.points.end()) return fail(Code::kCorrupt, "{}: \"{}\" names {}, which is not there", path, key, show(rest.substr(0, end)));
      at->second.origin = origin;
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
  }
  for (const std::string_view key : {std::string_view("format"), std::string_view("version"), kForced, kOthers}) header.metadata.erase(std::string(key));
  calibration.metadata = std::move(header.metadata);
  calibration.windows = TRY(read_windows(file, header, path));
  return finish(std::move(calibration), path);
}

}  // namespace

Result<Calibration> parse_calibration_text(std::string_view text, std::string_view where) {
  Calibration calibration;
  for (std::int64_t number = 1; !text.empty(); ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.find_first_not_of(" \t") == std::string_view::npos) continue;
    const std::size_t tab = line.find('\t');
    const std::string_view key = line.substr(0, std::min(tab, line.size()));
    if (tab == std::string_view::npos || !key.ends_with(kScale))
      return fail(Code::kCorrupt, "{} line {}: expected `name{}<TAB>maximum`, got {}", where, number, kScale, show(line, 80));
    std::string_view digits = line.substr(tab + 1);
    while (digits.ends_with(' ') || digits.ends_with('\t')) digits.remove_suffix(1);
    float value = 0;
    const auto [stop, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error != std::errc() || stop != digits.data() + digits.size()) return fail(Code::kCorrupt, "{} line {}: {} is no maximum (a number)", where, number, show(digits, 80));
    TRY(add_point(calibration, key.substr(0, key.size() - kScale.size()), value, fmt::format("{} line {}", where, number)));
  }
  return finish(std::move(calibration), where);
}

Result<Calibration> parse_calibration_json(std::string_view text, std::string_view where) {
  Calibration calibration;
  MaximaReader reader;
  if (auto read = checkpoint::read_json_events(text, reader, 2); !read) return fail_at(where, std::move(read).error());
  const Json json = TRY(parse_json(text, where));
  for (const auto& [point, value] : json.items()) {
    std::string_view name = point;
    if (name.ends_with(kScale)) name.remove_suffix(kScale.size());
    TRY(add_point(calibration, name, static_cast<float>(value.get<double>()), where));
  }
  return finish(std::move(calibration), where);
}

Result<Calibration> read_calibration(const std::string& path) {
  // The first eight bytes of a safetensors file are a number that is small beside any eight characters.
  {
    const InputFile file = TRY(InputFile::open(path));
    std::uint64_t length = 0;
    if (file.size() >= 9) {
      TRY(file.read_at(&length, sizeof(length), 0));
      if (length <= static_cast<std::uint64_t>(checkpoint::kMaxHeaderBytes)) return read_own(path);
    }
  }
  const std::string text = TRY(read_file(path));
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  return first != std::string::npos && text[first] == '{' ? parse_calibration_json(text, path) : parse_calibration_text(text, path);
}

Result<void> write_calibration(const Calibration& calibration, const std::string& path) {
  std::vector<checkpoint::TensorSpec> tensors;
  std::map<std::string, std::string> metadata = calibration.metadata;
  metadata["format"] = kFormat;
  metadata["version"] = kVersion;
  for (const auto& [point, stats] : calibration.points) {
    if (!stats.histogram.empty()) tensors.push_back({point + std::string(kHistogram), DType::kI64, {Bins::kCount}});
    if (stats.origin != Origin::kSeen) metadata[std::string(stats.origin == Origin::kForced ? kForced : kOthers)] += point + "\n";
  }
  for (const auto& [point, stats] : calibration.points) {
    tensors.push_back({point + std::string(kAmax), DType::kF32, {1}});
    if (!stats.channels.empty()) tensors.push_back({point + std::string(kChannels), DType::kF32, {static_cast<std::int64_t>(stats.channels.size())}});
  }
  std::vector<std::int32_t> tokens, lengths;
  for (const std::vector<std::int32_t>& window : calibration.windows) {
    tokens.insert(tokens.end(), window.begin(), window.end());
    lengths.push_back(static_cast<std::int32_t>(window.size()));
  }
  for (const auto& [name, numbers] : {std::pair{kTokens, &tokens}, {kWindows, &lengths}})
    if (!lengths.empty()) tensors.push_back({std::string(name), DType::kI32, {static_cast<std::int64_t>(numbers->size())}});
  checkpoint::SafetensorsWriter writer = TRY(checkpoint::SafetensorsWriter::create(path, std::move(tensors), metadata));
  for (const auto& [point, stats] : calibration.points)
    if (!stats.histogram.empty()) TRY(writer.write(point + std::string(kHistogram), stats.histogram.data(), stats.histogram.size() * sizeof(std::int64_t)));
  for (const auto& [point, stats] : calibration.points) {
    TRY(writer.write(point + std::string(kAmax), &stats.amax, sizeof(float)));
    if (!stats.channels.empty()) TRY(writer.write(point + std::string(kChannels), stats.channels.data(), stats.channels.size() * sizeof(float)));
  }
  for (const auto& [name, numbers] : {std::pair{kTokens, &tokens}, {kWindows, &lengths}})
    if (!lengths.empty()) TRY(writer.write(std::string(name), numbers->data(), numbers->size() * sizeof(std::int32_t)));
  return writer.commit();
}

Result<void> write_calibration_text(const Calibration& calibration, const std::string& path) {
  std::string text;
  const std::string value_point = "." + std::string(params::kValuePoint);
  for (const auto& [point, stats] : calibration.points) {
    text += fmt::format("{}{}\t{:.9g}\n", point, kScale, stats.amax);
    if (point.ends_with(value_point)) text += fmt::format("{}{}{}\t1\n", std::string_view(point).substr(0, point.size() - value_point.size()), kWeightsPoint, kScale);
  }
  OutputFile file = TRY(OutputFile::create(path));
  TRY(file.write(text.data(), text.size()));
  return file.commit();
}

}  // namespace inflight::engine
