#include "checkpoint/gguf.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstring>

#include "checkpoint/json_events.h"

namespace inflight::checkpoint {
namespace {

constexpr std::uint32_t kStringKind = static_cast<std::uint32_t>(GgufKind::kString), kArrayKind = static_cast<std::uint32_t>(GgufKind::kArray);
constexpr std::array<std::string_view, 13> kKindNames = {"u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "string", "array", "u64", "i64", "f64"};
constexpr std::array<int, 13> kKindBytes = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};  // 0: no fixed size
constexpr std::uint64_t kDefaultAlignment = 32;
constexpr std::uint64_t kLargestAlignment = 1 << 20;
constexpr std::size_t kLeastTensorBytes = 8 + 4 + 4 + 8;  // of an info with an empty name and no dimension
constexpr std::size_t kLeastPairBytes = 8 + 4 + 1;

struct TypeRow {
  std::uint32_t number;
  std::optional<DType> dtype;  // nullopt: known by name alone
  std::string_view name;
};
constexpr std::array kTypes = {
    TypeRow{0, DType::kF32, "F32"},     TypeRow{1, DType::kF16, "F16"},     TypeRow{2, DType::kQ4_0, "Q4_0"},   TypeRow{3, DType::kQ4_1, "Q4_1"},
    TypeRow{6, DType::kQ5_0, "Q5_0"},   TypeRow{7, DType::kQ5_1, "Q5_1"},   TypeRow{8, DType::kQ8_0, "Q8_0"},   TypeRow{9, std::nullopt, "Q8_1"},
    TypeRow{10, DType::kQ2_K, "Q2_K"},  TypeRow{11, DType::kQ3_K, "Q3_K"},  TypeRow{12, DType::kQ4_K, "Q4_K"},  TypeRow{13, DType::kQ5_K, "Q5_K"},
    TypeRow{14, DType::kQ6_K, "Q6_K"},  TypeRow{15, std::nullopt, "Q8_K"},  TypeRow{16, std::nullopt, "IQ2_XXS"}, TypeRow{17, std::nullopt, "IQ2_XS"},
    TypeRow{18, std::nullopt, "IQ3_XXS"}, TypeRow{19, std::nullopt, "IQ1_S"}, TypeRow{20, std::nullopt, "IQ4_NL"}, TypeRow{21, std::nullopt, "IQ3_S"},
    TypeRow{22, std::nullopt, "IQ2_S"}, TypeRow{23, std::nullopt, "IQ4_XS"}, TypeRow{24, DType::kI8, "I8"},     TypeRow{25, DType::kI16, "I16"},
    TypeRow{26, DType::kI32, "I32"},    TypeRow{27, DType::kI64, "I64"},    TypeRow{28, DType::kF64, "F64"},    TypeRow{29, std::nullopt, "IQ1_M"},
    TypeRow{30, DType::kBF16, "BF16"},  TypeRow{34, std::nullopt, "TQ1_0"}, TypeRow{35, std::nullopt, "TQ2_0"}, TypeRow{39, std::nullopt, "MXFP4"},
    TypeRow{40, std::nullopt, "NVFP4"}, TypeRow{41, std::nullopt, "Q1_0"},  TypeRow{42, std::nullopt, "Q2_0"},
};

template <class T>
T load(const char* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

// The shortest decimal that is the same FP32: 1e-05 rather than 9.999999747378752e-06.
double shortest(float value) {
  if (!std::isfinite(value)) return value;
  std::array<char, 32> text;
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value).ptr;
  double result = value;
  std::from_chars(text.data(), end, result);
  return result;
}

// A cursor over the start of the file. Everything it hands out lies in the bytes that are there.
class Reader {
 public:
  Reader(std::string_view bytes, std::int64_t file_size, std::string_view where) : bytes_(bytes), file_size_(static_cast<std::uint64_t>(file_size)), where_(where) {}

  std::size_t at() const { return at_; }
  std::size_t left() const { return bytes_.size() - at_; }
  // What the file itself still holds.
  std::uint64_t file_left() const { return file_size_ - at_; }
  bool ran_out() const { return ran_out_; }
  std::string_view where() const { return where_; }

  Result<std::string_view> take(std::uint64_t count, std::string_view what) {
    if (count > file_left())
      return fail(Code::kCorrupt, "{}: {} at byte {} takes {} bytes, but the file ends after {}; incomplete download?", where_, what, at_, count, file_left());
    if (count > left()) {
      ran_out_ = true;
      return fail(Code::kCorrupt, "{}: the header is longer than {} bytes, which no model needs", where_, bytes_.size());
    }
    at_ += static_cast<std::size_t>(count);
    return bytes_.substr(at_ - static_cast<std::size_t>(count), static_cast<std::size_t>(count));
  }
  template <class T>
  Result<T> number(std::string_view what) {
    return load<T>(TRY(take(sizeof(T), what)).data());
  }
  Result<std::string_view> string(std::string_view what) { return take(TRY(number<std::uint64_t>(what)), what); }

 private:
  std::string_view bytes_;
  std::uint64_t file_size_;
  std::string_view where_;
  std::size_t at_ = 0;
  bool ran_out_ = false;
};

Result<void> check_booleans(const Reader& reader, std::string_view bytes, std::string_view key) {
  const auto bad = std::ranges::find_if(bytes, [](char c) { return c != 0 && c != 1; });
  if (bad == bytes.end()) return {};
  return fail(Code::kCorrupt, "{}: metadata {}: a bool is {}, but only 0 and 1 are", reader.where(), show(key), static_cast<int>(static_cast<unsigned char>(*bad)));
}

Result<GgufValue> read_value(Reader& reader, std::string_view key) {
  const std::string what = fmt::format("metadata {}", show(key));
  const auto kind = TRY(reader.number<std::uint32_t>(what));
  if (kind >= kKindNames.size()) return fail(Code::kCorrupt, "{}: {} is of value type {}; 0 to {} exist", reader.where(), what, kind, kKindNames.size() - 1);
  GgufValue value{.kind = static_cast<GgufKind>(kind)};
  if (kind == kStringKind) {
    value.bytes = TRY(reader.string(what));
    return value;
  }
  if (kind != kArrayKind) {
    value.bytes = TRY(reader.take(static_cast<std::uint64_t>(kKindBytes[kind]), what));
    if (value.kind == GgufKind::kBool) TRY(check_booleans(reader, value.bytes, key));
    return value;
  }
  const auto element = TRY(reader.number<std::uint32_t>(what));
  value.count = TRY(reader.number<std::uint64_t>(what));
  if (element >= kKindNames.size()) return fail(Code::kCorrupt, "{}: {} is an array of value type {}; 0 to {} exist", reader.where(), what, element, kKindNames.size() - 1);
  if (element == kArrayKind) return fail(Code::kUnsupported, "{}: {} is an array of arrays, which no model needs", reader.where(), what);
  value.element = static_cast<GgufKind>(element);
  const std::uint64_t least = element == kStringKind ? 8 : static_cast<std::uint64_t>(kKindBytes[element]);
  if (value.count > reader.file_left() / least)
    return fail(Code::kCorrupt, "{}: {} has {} elements of at least {} bytes, but the file ends after {} bytes; incomplete download?", reader.where(), what, value.count, least, reader.file_left());
  if (element != kStringKind) {
    value.bytes = TRY(reader.take(value.count * least, what));
    if (value.element == GgufKind::kBool) TRY(check_booleans(reader, value.bytes, key));
    return value;
  }
  const std::size_t begin = reader.at();
  std::string_view first;
  for (std::uint64_t i = 0; i < value.count; ++i) {
    const std::string_view text = TRY(reader.string(what));
    if (i == 0) first = text;
  }
  if (value.count > 0) value.bytes = std::string_view(first.data() - 8, reader.at() - begin);
  return value;
}

std::string shape_text(const std::vector<std::int64_t>& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

// One tensor info; begin is still relative to the data.
Result<TensorInfo> read_info(Reader& reader, std::uint64_t alignment) {
  const std::string_view where = reader.where();
  TensorInfo info;
  info.name = TRY(reader.string("a tensor's name"));
  if (info.name.empty()) return fail(Code::kCorrupt, "{}: a tensor before byte {} has no name", where, reader.at());
  const std::string what = fmt::format("tensor {}", show(info.name));
  const auto dimensions = TRY(reader.number<std::uint32_t>(what));
  if (dimensions > kMaxGgufDimensions) return fail(Code::kCorrupt, "{}: {} has {} dimensions; at most {} are possible", where, what, dimensions, kMaxGgufDimensions);
  for (std::uint32_t i = 0; i < dimensions; ++i) {
    const auto size = TRY(reader.number<std::uint64_t>(what));
    if (size == 0 || size > INT64_MAX) return fail(Code::kCorrupt, "{}: {} has a dimension of {}; a number from 1 to 2^63-1 is needed", where, what, size);
    info.shape.insert(info.shape.begin(), static_cast<std::int64_t>(size));
  }
  const auto number = TRY(reader.number<std::uint32_t>(what));
  const auto row = std::ranges::find(kTypes, number, &TypeRow::number);
  if (row == kTypes.end() || !row->dtype)
    return fail(Code::kUnsupported, "{}: {} is of type {}, which is not read; read are {}. Most models are also published in one of these, or as safetensors", where, what,
                row == kTypes.end() ? fmt::format("{} (unknown)", number) : std::string(row->name), gguf_types());
  info.dtype = *row->dtype;
  const auto offset = TRY(reader.number<std::uint64_t>(what));
  if (offset % alignment != 0) return fail(Code::kCorrupt, "{}: {} begins at data offset {}, which is not a multiple of the alignment {}", where, what, offset, alignment);

  std::int64_t elements = 1;
  for (const std::int64_t size : info.shape)
    if (__builtin_mul_overflow(elements, size, &elements)) return fail(Code::kCorrupt, "{}: {} {}: the number of elements overflows 64 bits", where, what, shape_text(info.shape));
  const std::int64_t row_elements = info.shape.empty() ? 1 : info.shape.back();
  if (row_elements % block_elements(info.dtype) != 0)
    return fail(Code::kCorrupt, "{}: {} {}: rows of {} elements are not whole blocks of {}, each of {}", where, what, shape_text(info.shape), row_elements, dtype_name(info.dtype),
                block_elements(info.dtype));
  std::int64_t bytes;
  if (__builtin_mul_overflow(elements / block_elements(info.dtype), block_bytes(info.dtype), &bytes) || offset > static_cast<std::uint64_t>(INT64_MAX) ||
      __builtin_add_overflow(static_cast<std::int64_t>(offset), bytes, &info.end))
    return fail(Code::kCorrupt, "{}: {} {} at data offset {}: its end is beyond 2^63", where, what, shape_text(info.shape), offset);
  info.begin = static_cast<std::int64_t>(offset);
  return info;
}

// `tensors` sorted by offset, still relative to the data: inside the file, and apart from each other.
Result<void> place_tensors(std::vector<TensorInfo>& tensors, std::int64_t data_begin, std::int64_t file_size, std::string_view where) {
  std::int64_t covered = 0;
  for (TensorInfo& info : tensors) {
    if (info.begin < covered)
      return fail(Code::kCorrupt, "{}: tensor {} begins at data offset {}, but the one before it ends at {}: tensors overlap", where, show(info.name), info.begin, covered);
    covered = info.end;
    if (data_begin > file_size || info.end > file_size - data_begin)
      return fail(Code::kCorrupt, "{}: tensor {}, {} {}, ends at data offset {}, but the file holds only {} bytes of data; incomplete download?", where, show(info.name),
                  dtype_name(info.dtype), shape_text(info.shape), info.end, std::max<std::int64_t>(file_size - data_begin, 0));
    info.begin += data_begin;
    info.end += data_begin;
  }
  return {};
}

Result<void> check_names(const std::vector<TensorInfo>& tensors, std::string_view where) {
  std::vector<std::string_view> names;
  names.reserve(tensors.size());
  for (const TensorInfo& info : tensors) names.push_back(info.name);
  std::ranges::sort(names);
  const auto twice = std::ranges::adjacent_find(names);
  if (twice != names.end()) return fail(Code::kCorrupt, "{}: tensor {} appears twice in the header; which one is meant cannot be known", where, show(*twice));
  return {};
}

std::string_view foreign_hint(std::string_view bytes) {
  if (bytes.starts_with("version https://git-lfs")) return "; it is a Git LFS pointer, not the data: run `git lfs pull` in the repository";
  const auto text = bytes.find_first_not_of(" \t\r\n\xef\xbb\xbf");
  if (text != std::string_view::npos && (bytes[text] == '<' || bytes[text] == '{')) return "; it is a text, likely an error page saved under this name: download the file again";
  if (bytes.starts_with("ggjt") || bytes.starts_with("tjgg") || bytes.starts_with("lmgg")) return "; it is of the form before GGUF: convert it with llama.cpp's tools";
  return "";
}

Result<std::uint64_t> read_alignment(const GgufHeader& header) {
  const auto given = TRY(header.integer("general.alignment"));
  if (!given) return kDefaultAlignment;
  if (*given <= 0 || static_cast<std::uint64_t>(*given) > kLargestAlignment || (*given & (*given - 1)) != 0)
    return fail(Code::kCorrupt, "{}: general.alignment is {}; a power of two up to {} is needed", header.where, *given, kLargestAlignment);
  return static_cast<std::uint64_t>(*given);
}

std::unexpected<Error> wrong_kind(const GgufHeader& header, std::string_view key, const GgufValue& value, std::string_view wanted) {
  const std::string got = value.kind == GgufKind::kArray ? fmt::format("an array of {}", gguf_kind_name(value.element)) : std::string(gguf_kind_name(value.kind));
  return fail(Code::kCorrupt, "{}: metadata {} is {}, but {} is needed", header.where, show(key), got, wanted);
}

// Element i of a value of integers; nullopt for other kinds, and beyond 2^63.
std::optional<std::int64_t> integer_at(GgufKind kind, const char* bytes, std::uint64_t i) {
  const auto at = [&]<class T>(T) { return static_cast<std::int64_t>(load<T>(bytes + i * sizeof(T))); };
  switch (kind) {
    case GgufKind::kU8: return at(std::uint8_t{});
    case GgufKind::kI8: return at(std::int8_t{});
    case GgufKind::kU16: return at(std::uint16_t{});
    case GgufKind::kI16: return at(std::int16_t{});
    case GgufKind::kU32: return at(std::uint32_t{});
    case GgufKind::kI32: return at(std::int32_t{});
    case GgufKind::kI64: return at(std::int64_t{});
    case GgufKind::kU64: {
      const auto value = load<std::uint64_t>(bytes + i * 8);
      return value > INT64_MAX ? std::nullopt : std::optional(static_cast<std::int64_t>(value));
    }
    default: return std::nullopt;
  }
}

const GgufValue* find(const GgufHeader& header, std::string_view key) {
  const auto at = header.metadata.find(key);
  return at == header.metadata.end() ? nullptr : &at->second;
}

}  // namespace

std::string_view gguf_kind_name(GgufKind kind) {
  const auto number = static_cast<std::size_t>(kind);
  return number < kKindNames.size() ? kKindNames[number] : "?";
}

std::string_view gguf_types() { return "F32 F16 BF16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q2_K Q3_K Q4_K Q5_K Q6_K"; }

Result<std::optional<std::int64_t>> GgufHeader::integer(std::string_view key) const {
  const GgufValue* value = find(*this, key);
  if (!value) return std::nullopt;
  const auto integer = integer_at(value->kind, value->bytes.data(), 0);
  if (!integer) return wrong_kind(*this, key, *value, "an integer below 2^63");
  return integer;
}

Result<std::optional<double>> GgufHeader::number(std::string_view key) const {
  const GgufValue* value = find(*this, key);
  if (!value) return std::nullopt;
  if (value->kind == GgufKind::kF32) return shortest(load<float>(value->bytes.data()));
  if (value->kind == GgufKind::kF64) return load<double>(value->bytes.data());
  const auto integer = integer_at(value->kind, value->bytes.data(), 0);
  if (!integer) return wrong_kind(*this, key, *value, "a number");
  return static_cast<double>(*integer);
}

Result<std::optional<bool>> GgufHeader::boolean(std::string_view key) const {
  const GgufValue* value = find(*this, key);
  if (!value) return std::nullopt;
  if (value->kind != GgufKind::kBool) return wrong_kind(*this, key, *value, "a bool");
  return value->bytes[0] != 0;
}

Result<std::optional<std::string>> GgufHeader::string(std::string_view key) const {
  const GgufValue* value = find(*this, key);
  if (!value) return std::nullopt;
  if (value->kind != GgufKind::kString) return wrong_kind(*this, key, *value, "a string");
  return std::string(value->bytes);
}

Result<std::optional<std::vector<std::string_view>>> GgufHeader::strings(std::string_view key) const {
  const GgufValue* value = find(*this, key);
  if (!value) return std::nullopt;
  if (value->kind != GgufKind::kArray || value->element != GgufKind::kString) return wrong_kind(*this, key, *value, "an array of strings");
  std::vector<std::string_view> list;
  list.reserve(value->count);
  for (std::size_t at = 0; list.size() < value->count;) {  // the lengths were checked when the header was parsed
    const auto length = load<std::uint64_t>(value->bytes.data() + at);
    list.push_back(value->bytes.substr(at + 8, length));
    at += 8 + length;
  }
  return list;
}

Result<std::optional<std::vector<std::int64_t>>> GgufHeader::integers(std::string_view key) const {
  const GgufValue* value = find(*this, key);
  if (!value) return std::nullopt;
  if (value->kind != GgufKind::kArray) return wrong_kind(*this, key, *value, "an array of integers");
  std::vector<std::int64_t> list;
  list.reserve(value->count);
  for (std::uint64_t i = 0; i < value->count; ++i) {
    const auto integer = integer_at(value->element, value->bytes.data(), i);
    if (!integer) return wrong_kind(*this, key, *value, "an array of integers below 2^63");
    list.push_back(*integer);
  }
  return list;
}

Result<std::optional<std::vector<float>>> GgufHeader::floats(std::string_view key) const {
  const GgufValue* value = find(*this, key);
  if (!value) return std::nullopt;
  if (value->kind != GgufKind::kArray || value->element != GgufKind::kF32) return wrong_kind(*this, key, *value, "an array of f32");
  std::vector<float> list(value->count);
  if (value->count > 0) std::memcpy(list.data(), value->bytes.data(), value->bytes.size());
  return list;
}

Result<GgufHeader> parse_gguf_header(std::shared_ptr<const std::string> bytes, std::int64_t file_size, std::string_view where, bool* needs_more) {
  if (needs_more) *needs_more = false;
  if (file_size < 0 || bytes->size() > static_cast<std::uint64_t>(file_size))
    return fail(Code::kInternal, "{}: {} bytes given of a file of {}", where, bytes->size(), file_size);
  Reader reader(*bytes, file_size, where);
  const auto parse = [&]() -> Result<GgufHeader> {
    GgufHeader header{.where = std::string(where), .text = bytes};
    if (!bytes->starts_with("GGUF")) return fail(Code::kCorrupt, "{}: not a GGUF file: it does not start with \"GGUF\"{}", where, foreign_hint(*bytes));
    TRY(reader.take(4, "the magic"));
    header.version = TRY(reader.number<std::uint32_t>("the version"));
    if (header.version != 2 && header.version != 3) {
      const bool swapped = header.version != 0 && (header.version & 0xffff) == 0;
      return fail(Code::kUnsupported, "{}: {}; GGUF versions 2 and 3, little endian, are read", where,
                  swapped ? std::string("its numbers are big endian") : fmt::format("GGUF version {}", header.version));
    }
    const auto tensors = TRY(reader.number<std::uint64_t>("the tensor count")), pairs = TRY(reader.number<std::uint64_t>("the metadata count"));
    if (tensors > reader.file_left() / kLeastTensorBytes || pairs > reader.file_left() / kLeastPairBytes)
      return fail(Code::kCorrupt, "{}: the header says {} tensors and {} metadata entries, more than a file of {} bytes can list", where, tensors, pairs, file_size);
    for (std::uint64_t i = 0; i < pairs; ++i) {
      const std::string_view key = TRY(reader.string("a metadata key"));
      GgufValue value = TRY(read_value(reader, key));
      if (!header.metadata.emplace(key, value).second) return fail(Code::kCorrupt, "{}: metadata {} appears twice", where, show(key));
    }
    const std::uint64_t alignment = TRY(read_alignment(header));
    for (std::uint64_t i = 0; i < tensors; ++i) header.tensors.push_back(TRY(read_info(reader, alignment)));
    TRY(check_names(header.tensors, where));
    std::ranges::sort(header.tensors, {}, [](const TensorInfo& info) { return std::tuple(info.begin, info.end, std::string_view(info.name)); });
    const std::uint64_t data_begin = (reader.at() + alignment - 1) / alignment * alignment;
    TRY(place_tensors(header.tensors, static_cast<std::int64_t>(data_begin), file_size, where));
    return header;
  };
  auto header = parse();
  if (!header && needs_more) *needs_more = reader.ran_out();
  return header;
}

Result<GgufHeader> read_gguf_header(const InputFile& file) {
  for (std::int64_t size = std::int64_t{1} << 20;; size *= 4) {
    const std::int64_t given = std::min({size, file.size(), kMaxGgufHeaderBytes});
    auto bytes = std::make_shared<std::string>(static_cast<std::size_t>(given), '\0');
    TRY(file.read_at(bytes->data(), bytes->size(), 0));
    bool needs_more = false;
    auto header = parse_gguf_header(std::move(bytes), file.size(), file.path(), &needs_more);
    if (header || !needs_more || given == kMaxGgufHeaderBytes) return header;
  }
}

}  // namespace inflight::checkpoint
