#include "checkpoint/safetensors_writer.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "base/json.h"
#include "checkpoint/json_events.h"

namespace inflight::checkpoint {
namespace {

namespace fs = std::filesystem;

// A JSON string literal. Throws Json::exception on invalid UTF-8.
std::string literal(const std::string& text) { return Json(text).dump(); }

Result<std::string> header_text(const std::vector<TensorSpec>& tensors, const std::vector<std::pair<std::string, std::int64_t>>& sizes,
                                const std::map<std::string, std::string>& metadata) {
  std::string text = "{";
  try {
    if (!metadata.empty()) text += "\"__metadata__\":" + Json(metadata).dump();
    std::int64_t offset = 0;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const std::int64_t end = offset + sizes[i].second;
      text += fmt::format("{}{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}", text.size() > 1 ? "," : "", literal(tensors[i].name),
                          dtype_name(tensors[i].dtype), fmt::join(tensors[i].shape, ","), offset, end);
      offset = end;
    }
  } catch (const Json::exception&) {
    return fail(Code::kInternal, "a tensor name or metadata text is not valid UTF-8");
  }
  text += '}';
  text.append((8 - text.size() % 8) % 8, ' ');
  if (text.size() > static_cast<std::size_t>(kMaxHeaderBytes))
    return fail(Code::kInternal, "a header of {} bytes is above the format's limit of {}", text.size(), kMaxHeaderBytes);
  return text;
}

std::string without_last_slashes(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

}  // namespace

Result<std::int64_t> TensorSpec::bytes() const {
  std::int64_t bits = dtype_bits(dtype);
  for (const std::int64_t dim : shape)
    if (dim < 0 || __builtin_mul_overflow(bits, dim, &bits))
      return fail(Code::kInternal, "tensor {}: shape [{}] is impossible", show(name), fmt::join(shape, ", "));
  if (bits % 8 != 0)
    return fail(Code::kInternal, "tensor {}: shape [{}] of {} does not end on a whole byte", show(name), fmt::join(shape, ", "), dtype_name(dtype));
  return bits / 8;
}

Result<SafetensorsWriter> SafetensorsWriter::create(const std::string& path, std::vector<TensorSpec> tensors,
                                                    const std::map<std::string, std::string>& metadata) {
  std::vector<std::pair<std::string, std::int64_t>> sizes;
  std::map<std::string_view, int> seen;
  std::int64_t total = 0;
  for (const TensorSpec& tensor : tensors) {
    sizes.emplace_back(tensor.name, TRY(tensor.bytes()));
    if (__builtin_add_overflow(total, sizes.back().second, &total)) return fail(Code::kInternal, "\"{}\" would be larger than 2^63 bytes", path);
    if (tensor.name == "__metadata__" || ++seen[tensor.name] > 1)
      return fail(Code::kInternal, "\"{}\": tensor {} declared twice, or its name is reserved", path, show(tensor.name));
  }
  const std::string header = TRY(header_text(tensors, sizes, metadata));
  unsigned char length[8];
  for (int i = 0; i < 8; ++i) length[i] = static_cast<unsigned char>(static_cast<std::uint64_t>(header.size()) >> (8 * i));

  SafetensorsWriter writer(TRY(OutputFile::create(path)), path);
  writer.tensors_ = std::move(sizes);
  TRY(writer.file_.write(length, sizeof length));
  TRY(writer.file_.write(header.data(), header.size()));
  writer.skip_complete();
  return writer;
}

void SafetensorsWriter::skip_complete() {
  while (next_ < tensors_.size() && written_ == tensors_[next_].second) {
    ++next_;
    written_ = 0;
  }
}

Result<void> SafetensorsWriter::write(std::string_view name, const void* data, std::size_t bytes) {
  if (failed_) return fail(Code::kInternal, "\"{}\": written to after an error", path_);
  if (bytes == 0) return {};  // the whole of an empty tensor, among others: those are complete as soon as their turn comes
  failed_ = true;
  if (next_ == tensors_.size()) return fail(Code::kInternal, "\"{}\": {} bytes for {}, but all declared tensors are complete", path_, bytes, show(name));
  const auto& [expected, size] = tensors_[next_];
  if (name != expected)
    return fail(Code::kInternal, "\"{}\": {} bytes for {}, but {} is the next declared tensor and has {} of {} bytes", path_, bytes, show(name), show(expected),
                written_, size);
  if (bytes > static_cast<std::uint64_t>(size - written_))
    return fail(Code::kInternal, "\"{}\": {} bytes for {}, which has {} of {} bytes already", path_, bytes, show(name), written_, size);
  TRY(file_.write(data, bytes));
  written_ += static_cast<std::int64_t>(bytes);
  skip_complete();
  failed_ = false;
  return {};
}

Result<void> SafetensorsWriter::commit() {
  if (failed_) return fail(Code::kInternal, "\"{}\": committed after an error", path_);
  failed_ = true;  // whatever follows, nothing more can be written
  if (next_ < tensors_.size())
    return fail(Code::kInternal, "\"{}\": tensor {} has {} of {} bytes", path_, show(tensors_[next_].first), written_, tensors_[next_].second);
  return file_.commit();
}

Result<OutputFolder> OutputFolder::create(const std::string& target) {
  const std::string plain = without_last_slashes(target);
  std::error_code error;
  const fs::file_status status = fs::symlink_status(plain, error);
  if (plain.empty() || plain == "/" || plain == "." || plain == "..")
    return fail(Code::kInvalidArgument, "\"{}\" cannot be an output folder; name a new one", target);
  if (fs::exists(status) && !(fs::is_directory(status) && fs::is_empty(plain, error)))
    return fail(Code::kInvalidArgument, "output folder \"{}\" exists already{}; name a new one, or remove it", plain,
                fs::is_directory(status) ? " and is not empty" : "");
  const std::string part = plain + ".part";
  if (::mkdir(part.c_str(), 0755) != 0) {
    if (errno == EEXIST) return fail(Code::kInvalidArgument, "\"{}\" exists: another run is writing it now, or one was killed while it did; if none is running, remove that folder and start again", part);
    return fail(errno == ENOENT || errno == ENOTDIR ? Code::kNotFound
                : errno == ENOSPC                   ? Code::kExhausted
                                                    : Code::kInvalidArgument,
                "cannot create folder \"{}\": {}", part, std::strerror(errno));
  }
  return OutputFolder(plain, part);
}

OutputFolder OutputFolder::join(const std::string& target) {
  const std::string plain = without_last_slashes(target);
  return OutputFolder(plain, plain + ".part");
}

OutputFolder::OutputFolder(OutputFolder&& other) noexcept : target_(std::move(other.target_)), part_(std::exchange(other.part_, {})) {}

OutputFolder::~OutputFolder() {
  std::error_code ignored;
  if (!part_.empty()) fs::remove_all(part_, ignored);
}

Result<void> OutputFolder::commit() {
  if (part_.empty()) return fail(Code::kInternal, "\"{}\": committed twice", target_);
  if (const int descriptor = ::open(part_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); descriptor >= 0) {  // the names, not only the files, onto the disk
    ::fsync(descriptor);
    ::close(descriptor);
  }
  if (std::rename(part_.c_str(), target_.c_str()) != 0)  // replaces an empty folder
    return fail(Code::kInvalidArgument, "cannot rename \"{}\" to \"{}\": {}", part_, target_, std::strerror(errno));
  part_.clear();
  return {};
}

}  // namespace inflight::checkpoint
