#include "api/request_json.h"

#include "base/nearest.h"
#include "text/chat_template.h"

namespace inflight::api {
namespace {

Result<std::vector<std::int32_t>> read_ids(const OrderedJson& list) {
  if (!list.is_array() || list.empty()) return fail(Code::kInvalidArgument, "\"ids\" must be a list of at least one token id");
  std::vector<std::int32_t> ids;
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (!list[i].is_number_integer() || (list[i].is_number_unsigned() && list[i].get<std::uint64_t>() > INT32_MAX) || list[i].get<std::int64_t>() < 0 || list[i].get<std::int64_t>() > INT32_MAX)
      return fail(Code::kInvalidArgument, "\"ids\"[{}] must be a token id, a whole number from 0", i);
    ids.push_back(list[i].get<std::int32_t>());
  }
  return ids;
}

Result<JsonRequest> read_object(const OrderedJson& object) {
  if (!object.is_object()) return fail(Code::kInvalidArgument, "must be a JSON object");
  JsonRequest request;
  int prompts = 0;
  for (const auto& [key, value] : object.items()) {
    if (key == "prompt" || key == "messages" || key == "ids") {
      if (value.is_null()) continue;
      if (++prompts > 1) break;
      if (key == "prompt") {
        if (!value.is_string()) return fail(Code::kInvalidArgument, "\"prompt\" must be a string");
        request.prompt = value.get<std::string>();
      } else if (key == "messages") {
        request.prompt = Messages{TRY(text::normalize_messages(value))};
      } else {
        request.prompt = TRY(read_ids(value));
      }
    } else if (!TRY(read_sampling_field(key, Json(value), request.sampling))) {
      std::vector<std::string_view> known = {"prompt", "messages", "ids"};
      known.insert(known.end(), sampling_field_names().begin(), sampling_field_names().end());
      return fail(Code::kInvalidArgument, "unknown field \"{}\"; {}", key, known_names_hint(key, known));
    }
  }
  if (prompts != 1) return fail(Code::kInvalidArgument, "needs exactly one of \"prompt\", \"messages\" and \"ids\", but has {}", prompts == 0 ? "none" : "several");
  return request;
}

}  // namespace

Result<JsonRequest> parse_request(std::string_view text, std::string_view where) {
  TRY(parse_json(text, where));  // depth and syntax, with the byte that is wrong
  const OrderedJson object = OrderedJson::parse(text, nullptr, false);
  Result<JsonRequest> request = read_object(object);
  if (!request) return fail_at(where, std::move(request.error()));
  return request;
}

}  // namespace inflight::api
