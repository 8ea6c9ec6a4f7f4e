#include "kernels/dispatch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "tensor/buffer.h"

namespace inflight::kernels {
namespace {

using testing::Contains;
using testing::HasSubstr;

// Sets INFLIGHT_ISA for one test.
class Forced {
 public:
  explicit Forced(const char* isa) {
    const char* before = std::getenv("INFLIGHT_ISA");
    had_ = before != nullptr;
    if (had_) before_ = before;
    setenv("INFLIGHT_ISA", isa, 1);
  }
  ~Forced() {
    if (had_) setenv("INFLIGHT_ISA", before_.c_str(), 1);
    else unsetenv("INFLIGHT_ISA");
  }

 private:
  bool had_ = false;
  std::string before_;
};

TEST(Dispatch, every_available_isa_has_a_full_table_of_its_name) {
  EXPECT_THAT(available(), Contains("scalar"));
  for (std::string_view isa : available()) {
    auto table = find(isa);
    ASSERT_TRUE(table) << table.error().message;
    EXPECT_EQ((*table)->isa, isa);
    EXPECT_TRUE((*table)->load && (*table)->linear && (*table)->vector && (*table)->roofline);
  }
}

TEST(Dispatch, nothing_forced_chooses_the_strongest) {
  const Forced none("");
  auto table = choose();
  ASSERT_TRUE(table) << table.error().message;
  EXPECT_EQ((*table)->isa, available().back());
}

TEST(Dispatch, a_forced_isa_is_the_one_chosen) {
  for (std::string_view isa : available()) {
    const Forced forced(std::string(isa).c_str());
    auto table = choose();
    ASSERT_TRUE(table) << table.error().message;
    EXPECT_EQ((*table)->isa, isa);
  }
}

TEST(Dispatch, an_unknown_isa_is_an_error_that_names_the_variable_and_what_there_is) {
  const Forced wrong("scaler");
  auto table = choose();
  ASSERT_FALSE(table);
  EXPECT_EQ(table.error().code, Code::kUnsupported);
  EXPECT_THAT(table.error().message, testing::AllOf(HasSubstr("INFLIGHT_ISA"), HasSubstr("\"scaler\""), HasSubstr("scalar")));
}

class RooflineTest : public testing::Test {
 protected:
  void SetUp() override {
    auto table = choose();
    if (!table) GTEST_SKIP() << table.error().message;
    roofline = (*table)->roofline;
  }
  const RooflineKernels* roofline = nullptr;
};

// A bit anywhere in the range is seen in the value: every byte is loaded.
TEST_F(RooflineTest, read_sees_every_byte) {
  constexpr std::size_t kBytes = 4096;
  auto buffer = Buffer::map(kBytes);
  ASSERT_TRUE(buffer) << buffer.error().message;
  EXPECT_EQ(roofline->read(buffer->data(), kBytes), 0u);
  for (std::size_t at = 0; at < kBytes; ++at) {
    buffer->data()[at] = std::byte{0x10};
    EXPECT_EQ(roofline->read(buffer->data(), kBytes), std::uint64_t{0x10} << at % 8 * 8) << "byte " << at;
    buffer->data()[at] = std::byte{0};
  }
}

TEST_F(RooflineTest, operations_grow_with_iterations) {
  for (auto body : {roofline->int8, roofline->bf16, roofline->fp32}) {
    EXPECT_GT(body(1), 0);
    EXPECT_EQ(body(300), 300 * body(1));
  }
}

}  // namespace
}  // namespace inflight::kernels
