#include "checkpoint/safetensors.h"

#include <algorithm>
#include <array>
#include <optional>
#include <tuple>

#include "checkpoint/json_events.h"

namespace inflight::checkpoint {
namespace {

constexpr std::int64_t kLengthBytes = 8;
constexpr int kMaxDepth = 127;  // of the JSON; what the reference's parser allows in fields that it ignores

std::optional<std::uint64_t> multiply(std::uint64_t a, std::uint64_t b) {
  std::uint64_t product;
  if (__builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
}

std::uint64_t header_length(std::string_view bytes) {
  std::uint64_t length = 0;
  for (int i = 0; i < kLengthBytes; ++i) length |= static_cast<std::uint64_t>(static_cast<unsigned char>(bytes[i])) << (8 * i);
  return length;
}

// What a file that is no safetensors file probably is; "" when nothing comes to mind. Asked only after its length field proved impossible,
// since a small honest length may spell "<" too.
std::string_view foreign_hint(std::string_view bytes) {
  if (bytes.starts_with("version https://git-lfs")) return "; it is a Git LFS pointer, not the data: run `git lfs pull` in the repository, or `hf download`";
  const auto text = bytes.find_first_not_of(" \t\r\n\xef\xbb\xbf");
  if (text != std::string_view::npos && bytes[text] == '<')
    return "; it is a web page (HTML or XML) saved under this name, likely an error or login page: download the file again";
  if (text != std::string_view::npos && bytes[text] == '{')
    return "; it is a JSON text, likely an error message saved under this name: download the file again";
  if (bytes.starts_with("GGUF")) return "; it is a GGUF file: give it a name that ends in .gguf, and give that as the model";
  if (bytes.starts_with("PK") || bytes.starts_with("\x80\x02") || bytes.starts_with("\x80\x04"))
    return "; it is a PyTorch pickle or zip archive: use the .safetensors files of the same model";
  return "";
}

// Raw entries of the header, offsets still relative to the data.
struct Entry {
  TensorInfo info;
  std::uint64_t begin = 0, end = 0;
};

class HeaderReader final : public JsonReader {
 public:
  std::vector<Entry> entries;
  std::map<std::string, std::string> metadata;

  bool on_key(std::string& key, int depth) override {
    if (depth == 1) {
      in_metadata_ = key == "__metadata__";
      if (!in_metadata_) {
        entry_ = Entry{};
        entry_.info.name = std::move(key);
        seen_ = {};
        return true;
      }
      if (metadata_seen_) return reject("\"__metadata__\" appears twice");
      return metadata_seen_ = true;
    }
    if (depth == 2 && in_metadata_) {
      metadata_key_ = std::move(key);
    } else if (depth == 2) {
      field_ = key == "dtype" ? kDType : key == "shape" ? kShape : key == "data_offsets" ? kOffsets : kOther;
      if (field_ == kOther) return true;
      if (seen_[field_]) return reject("tensor {}: field \"{}\" appears twice", show(entry_.info.name), key);
      seen_[field_] = true;
    }
    return true;
  }

  bool on_value(const JsonValue& value, int depth) override {
    if (depth == 0) {
      if (value.kind != JsonKind::kObject) return reject("the header must be a JSON object, but is {}", json_kind_name(value.kind));
      return true;
    }
    if (in_metadata_) return on_metadata(value, depth);
    if (depth == 1) {
      if (value.kind != JsonKind::kObject)
        return reject("tensor {}: its entry must be an object, but is {}", show(entry_.info.name), json_kind_name(value.kind));
      return true;
    }
    switch (field_) {
      case kDType:
        return on_dtype(value);
      case kShape:
        return on_shape(value, depth);
      case kOffsets:
        return on_offset(value, depth);
      default:
        return true;  // fields of later writers are none of our business
    }
  }

  bool on_end(int depth) override {
    if (depth == 2 && field_ == kOffsets && !in_metadata_ && offsets_ != 2)
      return reject("tensor {}: \"data_offsets\" must hold 2 numbers, but holds {}", show(entry_.info.name), offsets_);
    if (depth != 1 || in_metadata_) return true;
    for (const int field : {kDType, kShape, kOffsets})
      if (!seen_[field]) return reject("tensor {}: field \"{}\" is missing", show(entry_.info.name), kFieldNames[field]);
    entries.push_back(std::move(entry_));
    return true;
  }

 private:
  enum Field { kDType, kShape, kOffsets, kOther };
  static constexpr std::array kFieldNames = {"dtype", "shape", "data_offsets"};

  bool on_metadata(const JsonValue& value, int depth) {
    if (depth == 1) {
      if (value.kind == JsonKind::kObject || value.kind == JsonKind::kNull) return true;
      return reject("\"__metadata__\" must be an object of strings, but is {}", json_kind_name(value.kind));
    }
    if (value.kind != JsonKind::kString)
      return reject("\"__metadata__\": the value of {} must be a string, but is {}", show(metadata_key_), json_kind_name(value.kind));
    metadata.insert_or_assign(std::move(metadata_key_), std::move(*value.text));
    return true;
  }

  bool on_dtype(const JsonValue& value) {
    if (value.kind != JsonKind::kString) return reject("tensor {}: \"dtype\" must be a string, but is {}", show(entry_.info.name), json_kind_name(value.kind));
    const std::optional<DType> dtype = dtype_from_name(*value.text);
    if (!dtype) {
      return reject_as(
          Code::kUnsupported,
          fmt::format("tensor {}: element type {} is not known; known: F64 F32 F16 BF16 F8_E4M3 F8_E5M2 F8_E8M0 F4 I64 I32 I16 I8 U64 U32 U16 U8 BOOL",
                      show(entry_.info.name), show(*value.text, 32)));
    }
    entry_.info.dtype = *dtype;
    return true;
  }

  bool on_shape(const JsonValue& value, int depth) {
    if (depth == 2 && value.kind == JsonKind::kArray) return true;
    if (depth == 3 && value.kind == JsonKind::kUnsigned && value.number <= INT64_MAX) {
      entry_.info.shape.push_back(static_cast<std::int64_t>(value.number));
      return true;
    }
    return reject("tensor {}: \"shape\" must be an array of integers from 0 to 2^63-1, but {} is {}", show(entry_.info.name), depth == 2 ? "it" : "an element",
                  value.kind == JsonKind::kUnsigned && depth == 3 ? "above that" : json_kind_name(value.kind));
  }

  bool on_offset(const JsonValue& value, int depth) {
    if (depth == 2 && value.kind == JsonKind::kArray) {
      offsets_ = 0;
      return true;
    }
    if (depth != 3 || value.kind != JsonKind::kUnsigned)
      return reject("tensor {}: \"data_offsets\" must be an array of 2 unsigned integers, but {} is {}", show(entry_.info.name),
                    depth == 2 ? "it" : "an element", json_kind_name(value.kind));
    if (offsets_ == 0) entry_.begin = value.number;
    if (offsets_ == 1) entry_.end = value.number;
    ++offsets_;
    return true;
  }

  Entry entry_;
  std::array<bool, 3> seen_{};
  Field field_ = kOther;
  std::size_t offsets_ = 0;
  bool in_metadata_ = false;
  bool metadata_seen_ = false;
  std::string metadata_key_;
};

std::unexpected<Error> bad_entry(std::string_view where, const Entry& entry, std::string_view problem) {
  return fail(Code::kCorrupt, "{}: tensor {}, {} [{}], data_offsets [{}, {}]: {}", where, show(entry.info.name), dtype_name(entry.info.dtype),
              fmt::join(entry.info.shape, ", "), entry.begin, entry.end, problem);
}

// One entry against the data's size: range inside it, and as long as shape x dtype says.
Result<void> check_entry(const Entry& entry, std::uint64_t data_bytes, std::string_view where) {
  if (entry.begin > entry.end) return bad_entry(where, entry, "the offsets are reversed");
  if (entry.end > data_bytes) return bad_entry(where, entry, fmt::format("the file holds only {} bytes of data; incomplete download?", data_bytes));
  std::optional<std::uint64_t> bits = 1;
  for (const std::int64_t dim : entry.info.shape)
    if (bits) bits = multiply(*bits, static_cast<std::uint64_t>(dim));
  if (bits) bits = multiply(*bits, static_cast<std::uint64_t>(dtype_bits(entry.info.dtype)));
  if (!bits) return bad_entry(where, entry, "the size of the shape overflows 64 bits");
  if (*bits % 8 != 0) return bad_entry(where, entry, "the shape does not end on a whole byte");
  if (*bits / 8 != entry.end - entry.begin)
    return bad_entry(where, entry, fmt::format("the shape takes {} bytes, but the offsets span {}", *bits / 8, entry.end - entry.begin));
  return {};
}

Result<void> check_names(const std::vector<Entry>& entries, std::string_view where) {
  std::vector<std::string_view> names;
  names.reserve(entries.size());
  for (const Entry& entry : entries) names.push_back(entry.info.name);
  std::ranges::sort(names);
  const auto twice = std::ranges::adjacent_find(names);
  if (twice != names.end()) return fail(Code::kCorrupt, "{}: tensor {} appears twice in the header; which one is meant cannot be known", where, show(*twice));
  return {};
}

// `entries` in offset order: each begins where the one before ended, and the last ends with the file.
Result<void> check_coverage(const std::vector<Entry>& entries, std::uint64_t data_bytes, std::string_view where) {
  std::uint64_t covered = 0;
  for (const Entry& entry : entries) {
    if (entry.begin != covered) {
      return fail(Code::kCorrupt, "{}: tensor {} begins at data offset {}, but the one before it ends at {}: {}", where, show(entry.info.name), entry.begin,
                  covered, entry.begin < covered ? "tensors overlap" : "bytes between them belong to no tensor");
    }
    covered = entry.end;
  }
  if (covered != data_bytes) {
    return fail(Code::kCorrupt, "{}: {} bytes follow the last tensor (the header accounts for {} bytes of data, the file holds {})", where,
                data_bytes - covered, covered, data_bytes);
  }
  return {};
}

}  // namespace

std::int64_t TensorInfo::elements() const {
  std::uint64_t product = 1;  // unsigned: a zero dimension may follow ones whose product alone is beyond int64
  for (const std::int64_t dim : shape) product *= static_cast<std::uint64_t>(dim);
  return static_cast<std::int64_t>(product);
}

Result<SafetensorsHeader> parse_header(std::string_view bytes, std::int64_t file_size, std::string_view where) {
  if (file_size < 0 || bytes.size() > static_cast<std::uint64_t>(file_size))
    return fail(Code::kInternal, "{}: {} bytes given of a file of {}", where, bytes.size(), file_size);
  if (file_size < kLengthBytes)
    return fail(Code::kCorrupt, "{}: not a safetensors file: {} bytes long, but the header length alone takes {}; incomplete download?{}", where, file_size,
                kLengthBytes, foreign_hint(bytes));
  if (bytes.size() < kLengthBytes) return fail(Code::kInternal, "{}: {} bytes given of a file of {}", where, bytes.size(), file_size);

  const std::uint64_t length = header_length(bytes);
  const std::int64_t remaining = file_size - kLengthBytes;
  if (length == 0) return fail(Code::kCorrupt, "{}: not a safetensors file: header length is 0; was the space reserved and never filled?", where);
  if (length > static_cast<std::uint64_t>(kMaxHeaderBytes))
    return fail(Code::kCorrupt, "{}: not a safetensors file: header length {} is above the limit of {}{}", where, length, kMaxHeaderBytes, foreign_hint(bytes));
  if (length > static_cast<std::uint64_t>(remaining))
    return fail(Code::kCorrupt, "{}: header length is {}, but only {} bytes follow it; incomplete download?{}", where, length, remaining, foreign_hint(bytes));
  if (length > bytes.size() - kLengthBytes)
    return fail(Code::kInternal, "{}: header of {} bytes, but {} bytes given", where, length, bytes.size() - kLengthBytes);

  HeaderReader reader;
  if (auto read = read_json_events(bytes.substr(kLengthBytes, length), reader, kMaxDepth); !read)
    return fail_at(fmt::format("{}: safetensors header", where), read.error());

  const std::uint64_t data_bytes = static_cast<std::uint64_t>(remaining) - length;
  std::vector<Entry>& entries = reader.entries;
  for (const Entry& entry : entries) TRY(check_entry(entry, data_bytes, where));
  TRY(check_names(entries, where));
  std::ranges::sort(entries, {}, [](const Entry& entry) { return std::tuple(entry.begin, entry.end, std::string_view(entry.info.name)); });
  TRY(check_coverage(entries, data_bytes, where));

  SafetensorsHeader header;
  header.data_begin = kLengthBytes + static_cast<std::int64_t>(length);
  header.metadata = std::move(reader.metadata);
  header.tensors.reserve(entries.size());
  for (Entry& entry : entries) {
    entry.info.begin = header.data_begin + static_cast<std::int64_t>(entry.begin);
    entry.info.end = header.data_begin + static_cast<std::int64_t>(entry.end);
    header.tensors.push_back(std::move(entry.info));
  }
  return header;
}

Result<SafetensorsHeader> read_header(const InputFile& file) {
  // 64 bytes tell the length, or what else this file is.
  std::string bytes(static_cast<std::size_t>(std::min<std::int64_t>(file.size(), 64)), '\0');
  TRY(file.read_at(bytes.data(), bytes.size(), 0));
  if (file.size() >= kLengthBytes) {
    const std::uint64_t length = header_length(bytes);
    if (length <= static_cast<std::uint64_t>(std::min(kMaxHeaderBytes, file.size() - kLengthBytes))) {
      bytes.resize(static_cast<std::size_t>(kLengthBytes) + length);
      TRY(file.read_at(bytes.data(), bytes.size(), 0));
    }
  }
  return parse_header(bytes, file.size(), file.path());
}

}  // namespace inflight::checkpoint
