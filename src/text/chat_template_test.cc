#include "text/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/file.h"
#include "text/test_data.h"

namespace inflight::text {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::StartsWith;

OrderedJson goldens(const std::string& relative) { return OrderedJson::parse(read_file(data_path("tokenizers/" + relative)).value()); }

class RealChat : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Families, RealChat, ::testing::Values("qwen3", "smollm2"), [](const auto& family) { return std::string(family.param); });

TEST_P(RealChat, renders_the_reference_chats_byte_for_byte_and_to_the_same_ids) {
  const std::string folder = std::string("tokenizers/") + GetParam();
  const ChatTemplate chat = ChatTemplate::load(data_path(folder)).value();
  ASSERT_TRUE(chat.has_template());
  const OrderedJson chats = goldens(std::string(GetParam()) + "/chat-goldens.json")["chats"];
  EXPECT_GE(chats.size(), 14u);
  for (const OrderedJson& golden : chats) {
    const OrderedJson messages = normalize_messages(golden["messages"]).value();
    const auto text = chat.render({.messages = messages, .tools = golden["tools"], .add_generation_prompt = golden["add_generation_prompt"].get<bool>(), .variables = golden["variables"]});
    ASSERT_TRUE(text) << golden["name"] << ": " << text.error().message;
    EXPECT_EQ(*text, golden["text"].get<std::string>()) << golden["name"];
    EXPECT_EQ(real_tokenizer(GetParam()).encode(*text, false).value(), golden["ids"].get<std::vector<std::int32_t>>()) << golden["name"];
  }
}

TEST_P(RealChat, null_and_missing_content_and_parts_render_as_text) {
  const ChatTemplate chat = ChatTemplate::load(data_path(std::string("tokenizers/") + GetParam())).value();
  const auto render = [&](const char* messages) { return chat.render({.messages = normalize_messages(OrderedJson::parse(messages)).value()}).value(); };
  const std::string empty = render(R"([{"role":"user","content":""},{"role":"assistant","content":""},{"role":"user","content":"x"}])");
  EXPECT_EQ(render(R"([{"role":"user","content":null},{"role":"assistant"},{"role":"user","content":[{"type":"text","text":"x"}]}])"), empty);
  EXPECT_THAT(empty, ::testing::Not(HasSubstr("None")));
}

// Template snippets and what transformers' environment makes of each: its text, or that it fails.
TEST(Jinja, snippets_give_what_the_reference_gives) {
  const OrderedJson snippets = goldens("jinja-goldens.json")["snippets"];
  EXPECT_GE(snippets.size(), 125u);
  for (const OrderedJson& snippet : snippets) {
    const std::string source = snippet["template"];
    const auto compiled = ChatTemplate::compile(source, "snippet");
    if (snippet.contains("error") && snippet["error"] == "syntax") {
      EXPECT_FALSE(compiled) << source;
      if (!compiled) {
        EXPECT_THAT(compiled.error().message, HasSubstr("line " + std::to_string(snippet["line"].get<int>()))) << source;
      }
      continue;
    }
    if (!compiled) {
      ADD_FAILURE() << source << "\n" << compiled.error().message;
      continue;
    }
    OrderedJson variables = snippet["variables"];
    const OrderedJson messages = variables.contains("messages") ? variables["messages"] : OrderedJson::parse(R"([{"role":"user","content":"hi"}])");
    const auto text = compiled->render({.messages = messages, .variables = variables});
    if (snippet.contains("error")) {
      EXPECT_FALSE(text) << source << " gave " << *text << "\nthe reference fails: " << snippet["message"];
      if (!text && source.find("raise_exception") != std::string::npos) {
        EXPECT_THAT(text.error().message, HasSubstr(": " + snippet["message"].get<std::string>()));
      }
    } else if (!text) {
      ADD_FAILURE() << source << "\n" << text.error().message << "\nthe reference gives " << snippet["text"];
    } else {
      EXPECT_EQ(*text, snippet["text"].get<std::string>()) << source;
    }
  }
}

std::string rendered(const std::string& source, const OrderedJson& variables = OrderedJson::object(), const SpecialTokenNames& names = {}) {
  const auto text = ChatTemplate::compile(source, "test", names).value().render({.messages = {{{"role", "user"}, {"content", "hi"}}}, .variables = variables});
  return text ? *text : "error: " + text.error().message;
}

TEST(Jinja, named_tokens_are_variables_and_absent_ones_are_undefined) {
  EXPECT_EQ(rendered("{{ bos_token }}|{{ eos_token }}|{{ pad_token is defined }}", {}, {.bos = "<s>", .eos = "</s>"}), "<s>|</s>|False");
  EXPECT_EQ(rendered("{{ bos_token }}", {{"bos_token", "mine"}}, {.bos = "<s>"}), "mine");
  EXPECT_EQ(rendered("{{ tools }}{{ documents }}{{ add_generation_prompt }}"), "NoneNoneTrue");
}

TEST(Jinja, strftime_now_formats_the_present) {
  EXPECT_THAT(rendered("{{ strftime_now('%Y-%m-%d') }}"), MatchesRegex("20[0-9][0-9]-[0-1][0-9]-[0-3][0-9]"));
  EXPECT_EQ(rendered("{{ strftime_now('%%') }}"), "%");
}

TEST(Jinja, what_is_not_supported_fails_when_loaded_with_its_line) {
  const std::pair<std::string, std::string> cases[] = {
      {"a\n\n{{ messages | no_such }}", "line 3: there is no filter \"no_such\""},
      {"a\n{% if messages is no_such %}{% endif %}", "line 2: there is no test \"is no_such\""},
      {"\n{% macro f() %}\n{{ 'x'.encode('utf-8') }}{% endmacro %}", "line 3: the method .encode() is not supported"},
      {"\n{% for x in messages %}", "line 2: "},
      {"{{ messages[0].content | truncate(5) }}", "line 1: there is no filter \"truncate\""},
      {"{% block b %}\n{{ 1 | no_such }}{% endblock %}", "line 2: there is no filter \"no_such\""},
  };
  for (const auto& [source, words] : cases) {
    const auto result = ChatTemplate::compile(source, "\"x/chat_template.jinja\"");
    ASSERT_FALSE(result) << source;
    EXPECT_THAT(result.error().message, AllOf(HasSubstr(words), HasSubstr("x/chat_template.jinja"), HasSubstr("--raw"))) << source;
  }
}

TEST(Jinja, errors_while_rendering_name_the_line) {
  EXPECT_THAT(rendered("a\n{{ messages[0].content.nothing.more }}"), AllOf(StartsWith("error: "), HasSubstr("line 2: ")));
  EXPECT_EQ(rendered("{{ raise_exception('Only user and assistant') }}"), "error: the chat template refuses these messages: Only user and assistant");
}

TEST(Jinja, hostile_templates_fail_without_harm) {
  EXPECT_THAT(rendered("{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}"), StartsWith("error: "));
  EXPECT_THAT(rendered("{% include '/etc/passwd' %}"), StartsWith("error: "));
  const std::string nested = std::string(2000, '(') + "1" + std::string(2000, ')');
  EXPECT_FALSE(ChatTemplate::compile("{{ " + nested + " }}", "test"));
  std::string blocks;
  for (int i = 0; i < 5000; ++i) blocks += "{% if true %}";
  EXPECT_FALSE(ChatTemplate::compile(blocks, "test"));
  EXPECT_FALSE(ChatTemplate::compile("{{ \xff\xfe }}", "test"));

  const auto chain = [](const std::string& start, const std::string& link, const std::string& end) {
    std::string source = start;
    for (int i = 0; i < 100'000; ++i) source += link;
    return ChatTemplate::compile(source + end, "test");
  };
  for (const char* const link : {"+1", ".a", "[0]", "|string", "~1", " and 1", " or 1", " if 1 else 1", "**1", "()", " is defined", "<1"}) {
    const auto result = chain("{{ x", link, " }}");
    ASSERT_FALSE(result) << link;
    EXPECT_THAT(result.error().message, HasSubstr("line 1: a tag of more than 2000 tokens"));
  }
  EXPECT_FALSE(chain("{{ ", "not ", "1 }}"));
  EXPECT_FALSE(chain("{{ ", "- ", "1 }}"));
  EXPECT_THAT(chain("{% if 1 %}", "\n{% elif 1 %}", "{% endif %}").error().message, HasSubstr("line 502: more than 500 elif"));
  std::string allowed = "{{ 1";
  for (int i = 0; i < 900; ++i) allowed += "~1";
  EXPECT_EQ(rendered(allowed + " }}"), std::string(901, '1'));

  const std::string grow = "{% set ns = namespace(x=[]) %}{% for i in range(50000) %}{% set ns.x = [ns.x] %}{% endfor %}";
  EXPECT_THAT(rendered(grow + "{{ ns.x|tojson }}"), AllOf(StartsWith("error: "), HasSubstr("200 levels")));
  EXPECT_THAT(rendered(grow + "{{ ns.x }}"), HasSubstr("[...]"));
}

TEST(ChatTemplateFiles, jinja_file_wins_over_the_config) {
  const TemporaryFolder folder;
  folder.write("tokenizer_config.json", R"({"chat_template": "from config", "bos_token": "<s>"})");
  const auto render = [&](const OrderedJson& tools = nullptr) {
    return ChatTemplate::load(folder.path()).value().render({.messages = {{{"role", "user"}, {"content", "hi"}}}, .tools = tools}).value();
  };
  EXPECT_EQ(render(), "from config");
  folder.write("chat_template.jinja", "from file {{ bos_token }}");
  EXPECT_EQ(render(), "from file <s>");
}

TEST(ChatTemplateFiles, named_list_takes_default_and_tool_use) {
  const TemporaryFolder folder;
  folder.write("tokenizer_config.json", R"({"chat_template": [{"name": "rag", "template": "R"}, {"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]})");
  const ChatTemplate chat = ChatTemplate::load(folder.path()).value();
  const OrderedJson messages = {{{"role", "user"}, {"content", "hi"}}};
  EXPECT_EQ(chat.render({.messages = messages}).value(), "D");
  EXPECT_EQ(chat.render({.messages = messages, .tools = OrderedJson::parse(R"([{"type":"function"}])")}).value(), "T");

  folder.write("tokenizer_config.json", R"({"chat_template": [{"name": "rag", "template": "R"}]})");
  EXPECT_THAT(ChatTemplate::load(folder.path()).error().message, AllOf(HasSubstr("no template named \"default\""), HasSubstr("rag")));
  folder.write("tokenizer_config.json", R"({"chat_template": 5})");
  EXPECT_EQ(ChatTemplate::load(folder.path()).error().code, Code::kCorrupt);
}

TEST(ChatTemplateFiles, a_folder_without_a_template_loads_and_rendering_names_raw) {
  const TemporaryFolder folder;
  const auto chat = ChatTemplate::load(folder.path());
  ASSERT_TRUE(chat);
  EXPECT_FALSE(chat->has_template());
  const auto text = chat->render({.messages = {{{"role", "user"}, {"content", "hi"}}}});
  ASSERT_FALSE(text);
  EXPECT_EQ(text.error().code, Code::kInvalidArgument);
  EXPECT_THAT(text.error().message, AllOf(HasSubstr("--raw"), HasSubstr(folder.path())));
}

TEST(ChatTemplateFiles, no_messages_is_an_error) {
  const ChatTemplate chat = ChatTemplate::compile("x", "test").value();
  EXPECT_EQ(chat.render({.messages = OrderedJson::array()}).error().code, Code::kInvalidArgument);
  EXPECT_EQ(chat.render({.messages = nullptr}).error().code, Code::kInvalidArgument);
}

OrderedJson normal(const char* messages) {
  const auto result = normalize_messages(OrderedJson::parse(messages));
  return result ? *result : OrderedJson("error: " + result.error().message);
}

TEST(NormalizeMessages, joins_text_parts_of_every_role) {
  EXPECT_EQ(normal(R"([{"role":"system","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]},{"role":"tool","content":[{"type":"text","text":"é"}]},{"role":"user","content":[]}])"),
            OrderedJson::parse(R"([{"role":"system","content":"ab"},{"role":"tool","content":"é"},{"role":"user","content":""}])"));
}

TEST(NormalizeMessages, null_and_missing_content_are_empty_and_other_nulls_are_dropped) {
  EXPECT_EQ(normal(R"([{"role":"assistant","content":null,"tool_calls":null,"name":"n"},{"role":"user"}])"),
            OrderedJson::parse(R"([{"role":"assistant","content":"","name":"n"},{"role":"user","content":""}])"));
}

TEST(NormalizeMessages, argument_text_becomes_an_object_in_its_order) {
  EXPECT_EQ(normal(R"([{"role":"assistant","content":"","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{\"z\": 1, \"a\": [2]}"}},{"function":{"name":"g","arguments":"not json"}}]}])").dump(),
            R"([{"role":"assistant","content":"","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":{"z":1,"a":[2]}}},{"function":{"name":"g","arguments":"not json"}}]}])");
}

TEST(NormalizeMessages, reasoning_is_found_under_its_older_names) {
  EXPECT_EQ(normal(R"([{"role":"assistant","content":"a","reasoning":"r"}])")[0]["reasoning_content"], "r");
  EXPECT_EQ(normal(R"([{"role":"assistant","content":"a","reasoning_content":"c","thinking":"t"}])")[0]["reasoning_content"], "c");
}

TEST(NormalizeMessages, errors_name_the_message_and_the_part) {
  const std::pair<const char*, const char*> cases[] = {
      {R"([])", "at least one message"}, {R"({})", "list"}, {R"(["hi"])", "messages[0]"}, {R"([{"content":"a"}])", "messages[0].role"}, {R"([{"role":"user","content":5}])", "messages[0].content"},
      {R"([{"role":"user","content":"a"},{"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url","image_url":{"url":"x"}}]}])", "messages[1].content[1]: parts of type \"image_url\""},
      {R"([{"role":"user","content":[{"type":"text"}]}])", "messages[0].content[0].text"}, {R"([{"role":"user","content":[7]}])", "messages[0].content[0]"},
  };
  for (const auto& [messages, words] : cases) EXPECT_THAT(normal(messages).get<std::string>(), AllOf(StartsWith("error: "), HasSubstr(words))) << messages;
}

}  // namespace
}  // namespace inflight::text
