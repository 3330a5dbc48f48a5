#include <gradpress/status.h>
#include <gradpress/version.h>
#include <gtest/gtest.h>

#include <limits>
#include <set>

namespace gradpress {
namespace {

TEST(Status, IsOkAndEmptyByDefault) {
  const Status status;
  EXPECT_TRUE(status.is_ok());
  EXPECT_TRUE(static_cast<bool>(status));
  EXPECT_EQ(status.code(), Code::kOk);
  EXPECT_EQ(status.message(), "");
  EXPECT_EQ(status.to_string(), "ok");
}

TEST(Status, JoinsTextAndNumbersOfEveryKind) {
  const Status status =
      Status::error(Code::kInvalidArgument, "wanted ", 3U, ", got ", -4, std::string(" of "), 2.5,
                    " and ", std::uint64_t{18446744073709551615U}, std::string_view("!"));
  EXPECT_EQ(status.message(), "wanted 3, got -4 of 2.5 and 18446744073709551615!");
  EXPECT_EQ(status.to_string(), "invalid argument: " + status.message());
  EXPECT_FALSE(status.is_ok());
  EXPECT_EQ(Status::error(Code::kInternal, std::numeric_limits<std::int64_t>::min()).message(),
            "-9223372036854775808");
  EXPECT_EQ(Status::error(Code::kInternal, 1e300).message(), "1e+300");
  EXPECT_EQ(Status::error(Code::kInternal, 0.1F).message().substr(0, 3), "0.1");
}

TEST(Status, CopiesKeepCodeAndMessage) {
  Status copy;
  {
    const Status status = Status::error(Code::kPeerLost, "rank 3");
    copy = status;
    EXPECT_EQ(copy.message().data(), status.message().data()) << "shared, not copied";
  }
  EXPECT_EQ(copy.code(), Code::kPeerLost);
  EXPECT_EQ(copy.message(), "rank 3");
}

TEST(Status, EveryCodeHasANameOfItsOwn) {
  std::set<std::string_view> names;
  for (const Code code : {Code::kOk, Code::kInvalidArgument, Code::kNonFinite,
                          Code::kCorruptPayload, Code::kPeerLost, Code::kInternal}) {
    EXPECT_TRUE(names.insert(code_name(code)).second) << code_name(code);
  }
  EXPECT_EQ(code_name(static_cast<Code>(200)), "unknown");
}

TEST(Result, CarriesAValueOrTheStatus) {
  const auto half = [](int value) -> Result<int> {
    if (value % 2 != 0) return fail(Code::kInvalidArgument, value, " is odd");
    return value / 2;
  };
  EXPECT_EQ(*half(6), 3);
  ASSERT_FALSE(half(7).has_value());
  EXPECT_EQ(half(7).error().message(), "7 is odd");
}

TEST(Version, OfHeadersAndLibraryAgree) {
  EXPECT_EQ(version(), std::to_string(GRADPRESS_VERSION_MAJOR) + "." +
                           std::to_string(GRADPRESS_VERSION_MINOR) + "." +
                           std::to_string(GRADPRESS_VERSION_PATCH));
}

}  // namespace
}  // namespace gradpress
