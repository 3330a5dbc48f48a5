#include "dataset.h"

#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "random.h"

namespace gradpress::trainer {

namespace {

constexpr std::int64_t kClasses = 10;
constexpr std::string_view kDebianFolder = "/usr/share/datasets/fashion-mnist";

class Images final : public Dataset {
 public:
  Images(std::string name, ImagePart train, ImagePart test)
      : name_(std::move(name)), train_(std::move(train)), test_(std::move(test)) {
    // A thousand images say enough of all; a float copy of all would be large.
    const auto some = std::min<std::int64_t>(train_.images.size(0), 1000);
    const auto sample = train_.images.narrow(0, 0, some).to(torch::kFloat32);
    mean_ = sample.mean().item<float>();
    deviation_ = std::max(sample.std().item<float>(), 1.0F);
  }

  const std::string& name() const override { return name_; }
  SampleShape shape() const override {
    return {.channels = train_.images.size(1),
            .height = train_.images.size(2),
            .width = train_.images.size(3),
            .classes = kClasses};
  }
  std::int64_t train_samples() const override { return train_.images.size(0); }
  std::int64_t test_samples() const override { return test_.images.size(0); }

  Batch train_batch(std::span<const std::int64_t> indices) const override {
    const auto wanted =
        torch::tensor(torch::ArrayRef<std::int64_t>(indices.data(), indices.size()), torch::kInt64);
    return {.inputs = normal(train_.images.index_select(0, wanted)),
            .targets = train_.labels.index_select(0, wanted)};
  }
  Batch test_batch(std::int64_t begin, std::int64_t end) const override {
    return {.inputs = normal(test_.images.slice(0, begin, end)),
            .targets = test_.labels.slice(0, begin, end)};
  }

 private:
  torch::Tensor normal(const torch::Tensor& bytes) const {
    return bytes.to(torch::kFloat32).sub_(mean_).div_(deviation_);
  }

  std::string name_;
  ImagePart train_;
  ImagePart test_;
  float mean_ = 0.0F;
  float deviation_ = 1.0F;
};

Status shorten(ImagePart& part, std::int64_t wanted, std::string_view flag) {
  const std::int64_t there = part.images.size(0);
  if (wanted > there) {
    return Status::error(Code::kInvalidArgument, flag, " ", wanted, ": the data has only ", there);
  }
  if (wanted == 0) return {};
  part.images = part.images.narrow(0, 0, wanted);
  part.labels = part.labels.narrow(0, 0, wanted);
  return {};
}

/// Noise around one of ten patterns. Patterns are smooth, so that convolutions find them too.
ImagePart synthetic_part(std::int64_t samples, std::uint64_t seed, std::uint64_t purpose) {
  constexpr std::int64_t kSide = 28;
  Random patterns(seed, 0);
  std::array<std::array<double, 3>, kClasses> waves{};
  for (auto& wave : waves) {
    wave = {0.1 + 0.5 * patterns.uniform(), 0.1 + 0.5 * patterns.uniform(),
            6.28 * patterns.uniform()};
  }
  Random random(seed, purpose);
  ImagePart part{.images = torch::empty({samples, 1, kSide, kSide}, torch::kUInt8),
                 .labels = torch::empty({samples}, torch::kInt64)};
  auto* pixel = part.images.data_ptr<std::uint8_t>();
  auto* label = part.labels.data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < samples; ++i) {
    const std::uint64_t kind = random.below(kClasses);
    *label++ = static_cast<std::int64_t>(kind);
    const auto& [across, down, phase] = waves[kind];
    for (std::int64_t place = 0; place < kSide * kSide; ++place) {
      const std::int64_t row = place / kSide;
      const std::int64_t column = place % kSide;
      const double angle =
          across * static_cast<double>(column) + down * static_cast<double>(row) + phase;
      const double value = 128.0 + 50.0 * std::sin(angle) + 150.0 * (random.uniform() - 0.5);
      *pixel++ = static_cast<std::uint8_t>(std::clamp(value, 0.0, 255.0));
    }
  }
  return part;
}

/// What follows `prefix` and a colon; none where the text does not begin so.
std::optional<std::string> argument_of(const std::string& source, std::string_view prefix) {
  if (source == prefix) return std::string();
  if (source.rfind(std::string(prefix) + ":", 0) != 0) return {};
  return source.substr(prefix.size() + 1);
}

}  // namespace

Result<std::unique_ptr<Dataset>> make_images(std::string name, ImagePart train, ImagePart test,
                                             const DataSettings& settings) {
  if (Status status = shorten(train, settings.train_samples, "--train-samples"); !status) {
    return tl::unexpected(status);
  }
  if (Status status = shorten(test, settings.test_samples, "--test-samples"); !status) {
    return tl::unexpected(status);
  }
  return std::make_unique<Images>(std::move(name), std::move(train), std::move(test));
}

Result<std::unique_ptr<Dataset>> make_synthetic(const DataSettings& settings, std::uint64_t seed) {
  const std::int64_t train = settings.train_samples == 0 ? 8192 : settings.train_samples;
  const std::int64_t test = settings.test_samples == 0 ? 1024 : settings.test_samples;
  return make_images("synthetic", synthetic_part(train, seed, 1), synthetic_part(test, seed, 2),
                     settings);
}

Result<std::unique_ptr<Dataset>> open_dataset(const DataSettings& settings, std::uint64_t seed) {
  const std::string& source = settings.source;
  if (source == "synthetic") return make_synthetic(settings, seed);
  if (const auto folder = argument_of(source, "fashion-mnist")) {
    return open_fashion_mnist(folder->empty() ? std::string(kDebianFolder) : *folder, settings);
  }
  if (const auto folder = argument_of(source, "cifar10"); folder && !folder->empty()) {
    return open_cifar10(*folder, settings);
  }
  if (const auto file = argument_of(source, "text"); file && !file->empty()) {
    return open_text(*file, settings);
  }
  return fail(Code::kInvalidArgument, "--data \"", source,
              "\": wanted fashion-mnist, fashion-mnist:FOLDER, cifar10:FOLDER, text:FILE or "
              "synthetic");
}

}  // namespace gradpress::trainer
