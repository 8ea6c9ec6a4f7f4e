#include "text/gguf_pre_tokenizers.h"

#include <algorithm>
#include <array>
#include <vector>

#include "base/nearest.h"

namespace inflight::text {
namespace {

constexpr std::string_view kDigits = R"json({"type":"Digits","individual_digits":true})json";
constexpr std::string_view kLlama3 =
    R"json({"type":"Split","pattern":{"Regex":"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n])json"
    R"json(+|\\s+(?!\\S)|\\s+"},"behavior":"Isolated","invert":false})json";
constexpr std::string_view kQwen2 =
    R"json({"type":"Split","pattern":{"Regex":"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s)json"
    R"json(+(?!\\S)|\\s+"},"behavior":"Isolated","invert":false})json";
constexpr std::string_view kTekken =
    R"json({"type":"Split","pattern":{"Regex":"[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+|[^\\r\\n\\p{L}\\p{N}]?[)json"
    R"json(\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},"behavior":)json"
    R"json("Isolated","invert":false})json";
constexpr std::string_view kDeepseekV3 =
    R"json({"type":"Split","pattern":{"Regex":"\\p{N}{1,3}"},"behavior":"Isolated","invert":false},{"type":"Split","pattern":{"Regex":"[\u4e00-\u9fa5\u3040-)json"
    R"json(\u309f\u30a0-\u30ff]+"},"behavior":"Isolated","invert":false},{"type":"Split","pattern":{"Regex":"[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z])json"
    R"json(+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"},"behavior":"Isolated","invert":false})json";
constexpr std::string_view kDeepseekLlm =
    R"json({"type":"Split","pattern":{"Regex":"[\r\n]"},"behavior":"Isolated","invert":false},{"type":"Split","pattern":{"Regex":"\\s?[A-Za-z\u00b5\u00c0-\u00d6)json"
    R"json(\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1)json"
    R"json(\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-)json"
    R"json(\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4)json"
    R"json(\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-)json"
    R"json(\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b)json"
    R"json(\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\ud801\udc00-\ud801\udc4f\ud801\udcb0-\ud801)json"
    R"json(\udcd3\ud801\udcd8-\ud801\udcfb\ud803\udc80-\ud803\udcb2\ud803\udcc0-\ud803\udcf2\ud806\udca0-\ud806\udcdf\ud83a\udd00-\ud83a\udd43]+"},"behavior":"Is)json"
    R"json(olated","invert":false},{"type":"Split","pattern":{"Regex":"\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+"},"behavior":"Isolated",)json"
    R"json("invert":false},{"type":"Split","pattern":{"Regex":"\\s+$"},"behavior":"Isolated","invert":false},{"type":"Split","pattern":{"Regex":"[\u4e00-\u9fa5)json"
    R"json(\u0800-\u4e00\uac00-\ud7ff]+"},"behavior":"Isolated","invert":false},{"type":"Split","pattern":{"Regex":"\\p{N}+"},"behavior":"Isolated","invert":fals)json"
    R"json(e})json";
constexpr std::string_view kDeepseekCoder =
    R"json({"type":"Split","pattern":{"Regex":"[\r\n]"},"behavior":"Isolated","invert":false},{"type":"Split","pattern":{"Regex":"\\s?\\p{L}+"},"behavior":"Isola)json"
    R"json(ted","invert":false},{"type":"Split","pattern":{"Regex":"\\s?\\p{P}+"},"behavior":"Isolated","invert":false},{"type":"Split","pattern":{"Regex":"[)json"
    R"json(\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"},"behavior":"Isolated","invert":false},{"type":"Split","pattern":{"Regex":"\\p{N}"},"behavior":"Isolated",")json"
    R"json(invert":false})json";

constexpr std::array kPreTokenizers = {
    GgufPreTokenizer{.name = "gpt-2", .steps = "", .gpt2_words = true},
    GgufPreTokenizer{.name = "smollm", .steps = kDigits, .gpt2_words = true},
    GgufPreTokenizer{.name = "starcoder", .steps = kDigits, .gpt2_words = true},
    GgufPreTokenizer{.name = "refact", .steps = kDigits, .gpt2_words = true},
    GgufPreTokenizer{.name = "llama-bpe", .steps = kLlama3, .ignore_merges = true, .add_bos = true},
    GgufPreTokenizer{.name = "llama3", .steps = kLlama3, .ignore_merges = true, .add_bos = true},
    GgufPreTokenizer{.name = "llama-v3", .steps = kLlama3, .ignore_merges = true, .add_bos = true},
    GgufPreTokenizer{.name = "falcon3", .steps = kLlama3, .ignore_merges = true, .add_bos = true},
    GgufPreTokenizer{.name = "smaug-bpe", .steps = kLlama3},
    GgufPreTokenizer{.name = "tekken", .steps = kTekken, .ignore_merges = true, .add_bos = true},
    GgufPreTokenizer{.name = "qwen2", .steps = kQwen2, .nfc = true},
    GgufPreTokenizer{.name = "megrez", .steps = kQwen2},
    GgufPreTokenizer{.name = "deepseek-r1-qwen", .steps = kQwen2},
    GgufPreTokenizer{.name = "glm4", .steps = kLlama3, .ignore_merges = true},
    GgufPreTokenizer{.name = "chatglm-bpe", .steps = kLlama3},
    GgufPreTokenizer{.name = "deepseek-llm", .steps = kDeepseekLlm},
    GgufPreTokenizer{.name = "deepseek-coder", .steps = kDeepseekCoder},
    GgufPreTokenizer{.name = "deepseek-v3", .steps = kDeepseekV3},
};

}  // namespace

Result<const GgufPreTokenizer*> find_gguf_pre_tokenizer(std::string_view name, std::string_view where) {
  const auto at = std::ranges::find(kPreTokenizers, name, &GgufPreTokenizer::name);
  if (at != kPreTokenizers.end()) return &*at;
  std::vector<std::string_view> names;
  for (const GgufPreTokenizer& pre : kPreTokenizers) names.push_back(pre.name);
  return fail(Code::kUnsupported, "{}: tokenizer.ggml.pre \"{}\" is not supported; {}", where, name, known_names_hint(name, names));
}

}  // namespace inflight::text
