#include "base/json.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace gradpress {
namespace {

/// A folder of its own per test, gone afterwards.
class JsonFile : public ::testing::Test {
 protected:
  JsonFile()
      : folder_(std::filesystem::path(::testing::TempDir()) /
                (std::string("gradpress_json_") +
                 ::testing::UnitTest::GetInstance()->current_test_info()->name())) {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  ~JsonFile() override { std::filesystem::remove_all(folder_); }
  std::filesystem::path file(const std::string& text) const {
    const auto path = folder_ / "file.json";
    std::ofstream(path) << text;
    return path;
  }
  bool says(const Status& status, std::string_view part) const {
    return status.message().find(part) != std::string::npos;
  }

  std::filesystem::path folder_;
};

TEST_F(JsonFile, ComesBackAsItWasWrittenInTheSameOrder) {
  const Json value = {{"zebra", 1}, {"ant", {1.5, "x", nullptr, true}}, {"mole", Json::object()}};
  const auto path = folder_ / "out.json";
  const Status status = write_json(path, value);
  ASSERT_TRUE(status.is_ok()) << status.to_string();
  const auto back = read_json(path);
  ASSERT_TRUE(back.has_value());
  EXPECT_EQ(*back, value);
  EXPECT_EQ(back->begin().key(), "zebra") << "fields keep their order";
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1)
      << "no temporary file is left";
}

TEST_F(JsonFile, ThatIsMissingIsNamed) {
  const auto value = read_json(folder_ / "absent.json");
  ASSERT_FALSE(value.has_value());
  EXPECT_EQ(value.error().code(), Code::kInvalidArgument);
  EXPECT_TRUE(says(value.error(), "absent.json")) << value.error().to_string();
  EXPECT_TRUE(says(value.error(), "No such file")) << value.error().to_string();
}

TEST_F(JsonFile, ThatIsAFolderIsRefusedWithoutAnException) {
  const auto value = read_json(folder_);
  ASSERT_FALSE(value.has_value());
  EXPECT_TRUE(says(value.error(), "directory")) << value.error().to_string();
}

TEST_F(JsonFile, SyntaxErrorsNameFileAndLine) {
  const auto value = read_json(file("{\n  \"a\": 1,\n  \"b\": oops\n}\n"));
  ASSERT_FALSE(value.has_value());
  EXPECT_EQ(value.error().code(), Code::kInvalidArgument);
  EXPECT_TRUE(says(value.error(), "file.json:3:")) << value.error().to_string();
}

TEST_F(JsonFile, EmptyAndTruncatedFilesAreRefusedAtTheirLastLine) {
  EXPECT_TRUE(says(read_json(file("")).error(), "file.json:1:"));
  const auto cut = read_json(file("{\n\"a\": [1,\n2"));
  ASSERT_FALSE(cut.has_value());
  EXPECT_TRUE(says(cut.error(), "file.json:3:")) << cut.error().to_string();
  EXPECT_FALSE(read_json(file("{} {}")).has_value()) << "two values are no JSON file";
  EXPECT_FALSE(read_json(file("{\"a\": \"\xFF\"}")).has_value()) << "not UTF-8";
}

TEST_F(JsonFile, ThatCannotBeWrittenIsNamed) {
  const Status status = write_json(folder_ / "no" / "such" / "folder.json", Json::object());
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_TRUE(says(status, "folder.json")) << status.to_string();
}

TEST_F(JsonFile, WritingReplacesTheOldFileWhole) {
  const auto path = file(std::string(10'000, ' ') + "{}");
  ASSERT_TRUE(write_json(path, {{"a", 1}}).is_ok());
  EXPECT_EQ((*read_json(path))["a"], 1);
}

}  // namespace
}  // namespace gradpress
