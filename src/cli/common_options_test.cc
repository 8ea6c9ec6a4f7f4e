#include "cli/common_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/command.h"

namespace inflight::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

struct Parsed {
  ModelArguments model;
  SamplingArguments sampling;
};

Parsed parse(const std::string& line) {
  Parsed parsed;
  CLI::App app;
  add_model_arguments(app, parsed.model);
  add_sampling_arguments(app, parsed.sampling);
  app.parse(line);
  return parsed;
}

TEST(CommonOptions, every_flag_reaches_its_field) {
  const Parsed p = parse(
      "some/model --quantization wint4-g64 --lm-head bf16 --load-choices default --compute int8 --kv-cache-dtype fp32 --threads 3 --max-model-len 99 --max-num-seqs 4 "
      "--max-num-batched-tokens 128 --block-size 32 --verbose");
  EXPECT_EQ(p.model.model, "some/model");
  const engine::EngineOptions& e = p.model.engine;
  EXPECT_EQ(e.quantization, "wint4-g64");
  EXPECT_EQ(e.lm_head, "bf16");
  EXPECT_EQ(e.load_choices, "default");
  EXPECT_EQ(e.compute, "int8");
  EXPECT_EQ(e.kv_cache_dtype, "fp32");
  EXPECT_EQ(e.threads, 3);
  EXPECT_EQ(e.max_model_len, 99);
  EXPECT_EQ(e.max_num_seqs, 4);
  EXPECT_EQ(e.max_num_batched_tokens, 128);
  EXPECT_EQ(e.block_size, 32);
  EXPECT_TRUE(p.model.verbose);
  EXPECT_TRUE(check(p.model));
}

TEST(CommonOptions, sampling_flags_are_empty_unless_given) {
  const Parsed none = parse("m");
  EXPECT_FALSE(none.sampling.fields.temperature || none.sampling.fields.top_k || none.sampling.fields.stop || none.sampling.fields.ignore_eos || none.sampling.fields.seed);
  const Parsed p = parse("m --temperature 0.5 --top-p=0.9 --top-k -1 --min-p 0.1 --repetition-penalty 1.1 --presence-penalty -0.5 --frequency-penalty 1 --max-tokens 7 --min-tokens 2 --seed 18446744073709551615 --ignore-eos");
  const api::SamplingFields& f = p.sampling.fields;
  EXPECT_EQ(f.temperature, 0.5);
  EXPECT_EQ(f.top_p, 0.9);
  EXPECT_EQ(f.top_k, -1);
  EXPECT_EQ(f.min_p, 0.1);
  EXPECT_EQ(f.repetition_penalty, 1.1);
  EXPECT_EQ(f.presence_penalty, -0.5);
  EXPECT_EQ(f.frequency_penalty, 1.0);
  EXPECT_EQ(f.max_tokens, 7);
  EXPECT_EQ(f.min_tokens, 2);
  EXPECT_EQ(f.seed, 18446744073709551615u);
  EXPECT_EQ(f.ignore_eos, true);
}

TEST(CommonOptions, stop_may_be_given_several_times_and_takes_one_text_each) {
  const Parsed p = parse("--stop one --stop 'two three' m");
  EXPECT_THAT(*p.sampling.fields.stop, ElementsAre("one", "two three"));
  EXPECT_EQ(p.model.model, "m");
}

TEST(CommonOptions, what_cannot_be_is_said_with_the_flag) {
  const auto message = [](const std::string& flags) {
    const Result<void> outcome = check(parse("m " + flags).model);
    return outcome ? std::string("fine") : outcome.error().message;
  };
  EXPECT_THAT(message("--quantization wint9"), testing::AllOf(HasSubstr("unknown quantization \"wint9\""), HasSubstr("Did you mean \"wint8\"?")));
  EXPECT_THAT(message("--lm-head wint9"), testing::AllOf(HasSubstr("--lm-head"), HasSubstr("wint8")));
  EXPECT_THAT(message("--load-choices default_v2"), testing::AllOf(HasSubstr("--load-choices"), HasSubstr("Did you mean \"default_v1\"?")));
  EXPECT_THAT(message("--compute fp16"), HasSubstr("--compute"));
  EXPECT_THAT(message("--kv-cache-dtype int8"), HasSubstr("--kv-cache-dtype"));
  EXPECT_THAT(message("--threads -1"), HasSubstr("--threads"));
  EXPECT_THAT(message("--max-num-seqs 0"), HasSubstr("--max-num-seqs"));
  EXPECT_THAT(message("--max-num-batched-tokens 0"), HasSubstr("--max-num-batched-tokens"));
  EXPECT_THAT(message("--block-size 20"), HasSubstr("multiple of 16"));
  EXPECT_THAT(message("--max-model-len -1"), HasSubstr("--max-model-len"));
}

TEST(CommonOptions, every_command_declares_arguments_without_clashes) {
  for (const Command& command : commands()) {
    CLI::App app;
    EXPECT_NO_THROW(command.declare(app)) << command.name;
    EXPECT_FALSE(command.summary.empty());
  }
}

}  // namespace
}  // namespace inflight::cli
