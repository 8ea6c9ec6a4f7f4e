#include "checkpoint/model_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <optional>

#include "checkpoint/test_files.h"

namespace inflight::checkpoint {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

// Sets an environment variable (or removes it) until the end of the scope.
class Variable {
 public:
  Variable(const char* name, const std::optional<std::string>& value) : name_(name) {
    if (const char* old = std::getenv(name)) old_ = old;
    set(value);
  }
  ~Variable() { set(old_); }
  Variable(const Variable&) = delete;

 private:
  void set(const std::optional<std::string>& value) const { value ? ::setenv(name_, value->c_str(), 1) : ::unsetenv(name_); }
  const char* name_;
  std::optional<std::string> old_;
};

// A home folder and nothing in the environment that points elsewhere.
struct ModelFolder : testing::Test {
  TestFolder home;
  Variable a{"HOME", home.path()}, b{"HF_HOME", std::nullopt}, c{"HF_HUB_CACHE", std::nullopt}, d{"XDG_CACHE_HOME", std::nullopt};

  // A complete one-file snapshot under the cache root; returns its folder.
  std::string add(const std::string& root, const std::string& commit = "0123abcd") const {
    const std::string repository = root + "/models--org--name/";
    home.write(repository + "refs/main", commit);
    home.write(repository + "snapshots/" + commit + "/config.json", "{}");
    home.write(repository + "snapshots/" + commit + "/model.safetensors", pack_floats({"x"}));
    return home / (repository + "snapshots/" + commit);
  }
  static std::string problem(const std::string& name, Code code = Code::kNotFound) {
    const auto folder = resolve_model_folder(name);
    if (folder) return "";
    EXPECT_EQ(folder.error().code, code) << folder.error().message;
    return folder.error().message;
  }
};

TEST_F(ModelFolder, a_folder_is_returned_as_it_is) { EXPECT_EQ(*resolve_model_folder(home.path()), home.path()); }

TEST_F(ModelFolder, the_cache_is_found_as_the_hub_client_finds_it) {
  const std::string by_home = add(".cache/huggingface/hub");
  EXPECT_EQ(*resolve_model_folder("org/name"), by_home);

  const std::string by_xdg = add("xdg/huggingface/hub");
  const Variable xdg("XDG_CACHE_HOME", home / "xdg");
  EXPECT_EQ(*resolve_model_folder("org/name"), by_xdg);

  const std::string by_hf_home = add("hf/hub");
  const Variable hf_home("HF_HOME", home / "hf");
  EXPECT_EQ(*resolve_model_folder("org/name"), by_hf_home);

  const std::string by_hub_cache = add("cache");
  const Variable hub_cache("HF_HUB_CACHE", home / "cache");
  EXPECT_EQ(*resolve_model_folder("org/name"), by_hub_cache);

  const Variable empty("HF_HUB_CACHE", "");
  EXPECT_EQ(*resolve_model_folder("org/name"), by_hf_home);
  const Variable tilde("HF_HUB_CACHE", "~/cache");
  EXPECT_EQ(*resolve_model_folder("org/name"), by_hub_cache);
}

TEST_F(ModelFolder, refs_main_chooses_the_snapshot) {
  add(".cache/huggingface/hub", "aaaa");
  const std::string newer = add(".cache/huggingface/hub", "bbbb");
  EXPECT_EQ(*resolve_model_folder("org/name"), newer);
  home.write(".cache/huggingface/hub/models--org--name/refs/main", "aaaa\n");
  EXPECT_THAT(*resolve_model_folder("org/name"), testing::EndsWith("snapshots/aaaa"));
}

TEST_F(ModelFolder, an_absent_model_gives_the_command) {
  EXPECT_THAT(problem("org/name"), AllOf(HasSubstr("hf download org/name"), HasSubstr(home / ".cache/huggingface/hub")));
}

TEST_F(ModelFolder, an_incomplete_snapshot_is_not_taken) {
  const std::string snapshot = add(".cache/huggingface/hub");
  const std::string repository = ".cache/huggingface/hub/models--org--name/";
  std::filesystem::remove(snapshot + "/model.safetensors");
  std::filesystem::create_symlink("../../blobs/0123", snapshot + "/model.safetensors");
  EXPECT_THAT(problem("org/name"), AllOf(HasSubstr("not complete"), HasSubstr("hf download org/name")));
  std::filesystem::remove(snapshot + "/model.safetensors");
  EXPECT_THAT(problem("org/name"), AllOf(HasSubstr("not complete"), HasSubstr("hf download org/name")));
  home.write(repository + "snapshots/0123abcd/model.safetensors.index.json", R"({"weight_map":{"a":"m-1.safetensors","b":"m-2.safetensors"}})");
  home.write(repository + "snapshots/0123abcd/m-2.safetensors", pack_floats({"b"}));
  EXPECT_THAT(problem("org/name"), AllOf(HasSubstr("\"m-1.safetensors\""), Not(HasSubstr("\"m-2.safetensors\"")), HasSubstr("hf download org/name")));
  home.write(repository + "snapshots/0123abcd/m-1.safetensors", pack_floats({"a"}));
  EXPECT_EQ(problem("org/name"), "");
  std::filesystem::remove(snapshot + "/config.json");
  EXPECT_THAT(problem("org/name"), AllOf(HasSubstr("config.json"), HasSubstr("hf download org/name")));
  std::filesystem::remove_all(snapshot);
  EXPECT_THAT(problem("org/name"), HasSubstr("hf download org/name"));
  std::filesystem::remove(home / (repository + "refs/main"));
  EXPECT_THAT(problem("org/name"), AllOf(HasSubstr("refs/main"), HasSubstr("hf download org/name")));
}

TEST_F(ModelFolder, a_snapshot_with_other_weights_says_so) {
  const std::string snapshot = add(".cache/huggingface/hub");
  std::filesystem::rename(snapshot + "/model.safetensors", snapshot + "/pytorch_model.bin");
  EXPECT_THAT(problem("org/name", Code::kUnsupported), HasSubstr("pytorch_model.bin"));
}

TEST_F(ModelFolder, refs_main_cannot_lead_out_of_the_cache) {
  add(".cache/huggingface/hub");
  for (const char* commit : {"../../../..", "/etc", "a/b", "", "..", "a b"}) {
    home.write(".cache/huggingface/hub/models--org--name/refs/main", commit);
    EXPECT_THAT(problem("org/name", Code::kCorrupt), HasSubstr("does not hold a commit id")) << commit;
  }
}

TEST_F(ModelFolder, names_that_are_no_hub_ids_are_missing_folders) {
  for (const char* name : {"no/such/folder", "nothing", "../x", "org/..", "org/.hidden", "/absent/folder", "org/na--me", "org/", "/name", "o rg/name"})
    EXPECT_THAT(problem(name), AllOf(HasSubstr("does not exist"), Not(HasSubstr("hf download")))) << name;
  EXPECT_THAT(problem("", Code::kInvalidArgument), HasSubstr("no model given"));
}

TEST_F(ModelFolder, files_get_a_hint) {
  const std::string weights = home.write("m/model.safetensors", pack_floats({"x"}));
  EXPECT_THAT(problem(weights, Code::kInvalidArgument), AllOf(HasSubstr("give its folder"), HasSubstr(home / "m")));
  EXPECT_EQ(resolve_model_folder(home.write("m/x.gguf", "GGUF")).value(), home / "m/x.gguf");
  EXPECT_THAT(problem(home / "m/absent.gguf"), HasSubstr("does not exist"));
  EXPECT_THAT(problem(home.write("m/x.txt", "x"), Code::kInvalidArgument), HasSubstr("not a folder"));
}

}  // namespace
}  // namespace inflight::checkpoint
