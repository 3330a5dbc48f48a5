// What the trainer reads: formats, windows, and what it says of files that are not there.
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <zlib.h>

#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

#include "dataset.h"

namespace gradpress::trainer {
namespace {

namespace fs = std::filesystem;

class TrainData : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "gradpress-data-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  void write_gzip(const std::string& name, const std::string& bytes) const {
    gzFile_s* const file = gzopen(path(name).c_str(), "wb");
    ASSERT_NE(file, nullptr);
    ASSERT_EQ(gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size())),
              static_cast<int>(bytes.size()));
    ASSERT_EQ(gzclose(file), Z_OK);
  }
  void write(const std::string& name, const std::string& bytes) const {
    std::ofstream(path(name), std::ios::binary) << bytes;
  }

  /// `samples` images of 2 × 2 whose pixels count up from 0.
  static std::string idx_images(unsigned char samples) {
    std::string bytes = {0, 0, 8, 3, 0, 0, 0, static_cast<char>(samples), 0, 0, 0, 2, 0, 0, 0, 2};
    for (unsigned i = 0; i < 4U * samples; ++i) bytes.push_back(static_cast<char>(i));
    return bytes;
  }
  static std::string idx_labels(const std::vector<char>& labels) {
    std::string bytes = {0, 0, 8, 1, 0, 0, 0, static_cast<char>(labels.size())};
    bytes.append(labels.begin(), labels.end());
    return bytes;
  }
  void write_fashion() const {
    write_gzip("train-images-idx3-ubyte.gz", idx_images(5));
    write_gzip("train-labels-idx1-ubyte.gz", idx_labels({4, 3, 2, 1, 0}));
    write_gzip("t10k-images-idx3-ubyte.gz", idx_images(2));
    write_gzip("t10k-labels-idx1-ubyte.gz", idx_labels({9, 0}));
  }
  std::string told(const DataSettings& settings) const {
    const auto data = open_dataset(settings, 1);
    EXPECT_FALSE(data.has_value());
    if (data) return "";
    EXPECT_EQ(data.error().code(), Code::kInvalidArgument);
    return data.error().message();
  }

  fs::path folder_;
};

TEST_F(TrainData, GzippedIdxFilesAreReadInOrder) {
  write_fashion();
  const auto data = open_dataset({.source = "fashion-mnist:" + folder_.string()}, 1);
  ASSERT_TRUE(data.has_value()) << data.error().to_string();
  EXPECT_EQ((*data)->train_samples(), 5);
  EXPECT_EQ((*data)->test_samples(), 2);
  EXPECT_EQ((*data)->shape().height, 2);
  const std::vector<std::int64_t> wanted = {3, 0};
  const Batch batch = (*data)->train_batch(wanted);
  EXPECT_EQ(batch.targets[0].item<int>(), 1);
  EXPECT_EQ(batch.targets[1].item<int>(), 4);
  // Normalised, but a pixel is still one step from the next.
  const auto difference = batch.inputs[0] - batch.inputs[1];
  EXPECT_TRUE(torch::allclose(difference, difference[0][0][0].expand_as(difference)));
  EXPECT_GT(difference[0][0][0].item<float>(), 0.0F);
}

TEST_F(TrainData, AMissingFileSaysWhereAndHowToGetIt) {
  const std::string text = told({.source = "fashion-mnist:" + folder_.string()});
  EXPECT_NE(text.find(folder_.string()), std::string::npos) << text;
  EXPECT_NE(text.find("dataset-fashion-mnist"), std::string::npos) << text;
  const std::string cifar = told({.source = "cifar10:" + folder_.string()});
  EXPECT_NE(cifar.find(path("data_batch_1.bin")), std::string::npos) << cifar;
  EXPECT_NE(cifar.find("cifar-10-binary.tar.gz"), std::string::npos) << cifar;
  EXPECT_NE(told({.source = "text:" + path("none.txt")}).find("none.txt"), std::string::npos);
  EXPECT_NE(told({.source = "imagenet"}).find("wanted fashion-mnist"), std::string::npos);
}

TEST_F(TrainData, DamagedFilesAreRefused) {
  write_fashion();
  const DataSettings settings{.source = "fashion-mnist:" + folder_.string()};
  write_gzip("train-images-idx3-ubyte.gz", idx_images(5).substr(0, 30));
  EXPECT_NE(told(settings).find("promises"), std::string::npos);
  write_gzip("train-images-idx3-ubyte.gz", "nonsense, but long enough for a header");
  EXPECT_NE(told(settings).find("IDX"), std::string::npos);
  write_gzip("train-images-idx3-ubyte.gz", "");
  EXPECT_NE(told(settings).find("IDX"), std::string::npos);
  write_gzip("train-images-idx3-ubyte.gz", idx_images(4));
  EXPECT_NE(told(settings).find("4 images, but 5 labels"), std::string::npos);
  write_fashion();
  write_gzip("t10k-labels-idx1-ubyte.gz", idx_labels({9, 10}));
  EXPECT_NE(told(settings).find("got 10"), std::string::npos);
  // Extents whose product wraps around.
  write_gzip("train-images-idx3-ubyte.gz", std::string("\0\0\x8\x3", 4) + std::string(12, '\xff'));
  EXPECT_NE(told(settings).find("promises"), std::string::npos);
}

TEST_F(TrainData, CifarRecordsAreALabelAndThreePlanes) {
  std::string records;
  for (const char label : {7, 2}) {
    records.push_back(label);
    records.append(1024, '\x10').append(1024, '\x20').append(1024, static_cast<char>(label));
  }
  for (const char* const name : {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin",
                                 "data_batch_4.bin", "data_batch_5.bin", "test_batch.bin"}) {
    write(name, records);
  }
  const auto data = open_dataset({.source = "cifar10:" + folder_.string(), .train_samples = 3}, 1);
  ASSERT_TRUE(data.has_value()) << data.error().to_string();
  EXPECT_EQ((*data)->train_samples(), 3);
  const Batch batch = (*data)->test_batch(0, 2);
  EXPECT_EQ(batch.inputs.size(1), 3);
  EXPECT_EQ(batch.targets[0].item<int>(), 7);
  EXPECT_LT(batch.inputs[0][0][0][0].item<float>(), batch.inputs[0][1][0][0].item<float>());
  write("test_batch.bin", records.substr(1));
  EXPECT_NE(told({.source = "cifar10:" + folder_.string()}).find("3073"), std::string::npos);
}

TEST_F(TrainData, ATextsSamplesPredictTheNextByte) {
  std::string text;
  for (int i = 0; i < 100; ++i) text += "abcd";
  write("text.txt", text);
  const auto data = open_dataset({.source = "text:" + path("text.txt"), .sequence = 8}, 1);
  ASSERT_TRUE(data.has_value()) << data.error().to_string();
  EXPECT_EQ((*data)->shape().classes, 4);
  EXPECT_EQ((*data)->train_samples(), (360 - 1) / 8);
  EXPECT_EQ((*data)->test_samples(), (40 - 1) / 8);
  const std::vector<std::int64_t> last = {(*data)->train_samples() - 1};
  for (const Batch& batch : {(*data)->train_batch(last), (*data)->test_batch(1, 3)}) {
    EXPECT_TRUE(torch::equal(batch.targets, (batch.inputs + 1).remainder(4)));
  }
}

TEST_F(TrainData, WordsBeyondTheVocabularyAreOneToken) {
  std::string text;
  for (int i = 0; i < 50; ++i) text += "the cat and the hat " + std::to_string(i) + "\n";
  write("text.txt", text);
  const auto data = open_dataset(
      {.source = "text:" + path("text.txt"), .sequence = 7, .words = true, .vocabulary = 4}, 1);
  ASSERT_TRUE(data.has_value()) << data.error().to_string();
  EXPECT_EQ((*data)->shape().classes, 4);
  const std::vector<std::int64_t> first = {0};
  const auto tokens = (*data)->train_batch(first).inputs[0];
  EXPECT_EQ(tokens[0].item<int>(), 1);  // the most frequent
  EXPECT_EQ(tokens[3].item<int>(), 1);
  EXPECT_EQ(tokens[5].item<int>(), 0);  // a number that occurs once
}

TEST_F(TrainData, MoreSamplesThanThereAreIsAnError) {
  write_fashion();
  const std::string source = "fashion-mnist:" + folder_.string();
  EXPECT_NE(told({.source = source, .train_samples = 6}).find("only 5"), std::string::npos);
  EXPECT_NE(told({.source = source, .test_samples = 3}).find("only 2"), std::string::npos);
}

TEST_F(TrainData, SyntheticSamplesDependOnTheSeedAlone) {
  const auto images = [](std::uint64_t seed) {
    return (*make_synthetic({.train_samples = 20, .test_samples = 20}, seed))->test_batch(0, 20);
  };
  EXPECT_TRUE(torch::equal(images(1).inputs, images(1).inputs));
  EXPECT_FALSE(torch::equal(images(1).inputs, images(2).inputs));
}

}  // namespace
}  // namespace gradpress::trainer
