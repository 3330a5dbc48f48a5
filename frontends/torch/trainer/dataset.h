// Samples in memory, read once and shared by the workers of a process.
#pragma once

#include <gradpress/status.h>
#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "settings.h"

namespace gradpress::trainer {

/// What a model must fit.
struct SampleShape {
  std::int64_t channels = 0;  ///< of images; 0: samples are sequences of tokens
  std::int64_t height = 0;
  std::int64_t width = 0;
  std::int64_t classes = 0;   ///< answers of an image, different tokens of a text
  std::int64_t sequence = 0;  ///< tokens of a sample
  bool is_text() const { return channels == 0; }
};

struct Batch {
  torch::Tensor inputs = {};   ///< float32 [n, channels, height, width], or int64 [n, sequence]
  torch::Tensor targets = {};  ///< int64 [n], or [n, sequence]
};

/// Threads: any number at once; none draws from torch's generator.
class Dataset {
 public:
  virtual ~Dataset() = default;
  Dataset(const Dataset&) = delete;
  Dataset& operator=(const Dataset&) = delete;

  virtual const std::string& name() const = 0;
  virtual SampleShape shape() const = 0;
  virtual std::int64_t train_samples() const = 0;
  virtual std::int64_t test_samples() const = 0;
  /// Requires: indices below train_samples().
  virtual Batch train_batch(std::span<const std::int64_t> indices) const = 0;
  /// Requires: 0 <= begin <= end <= test_samples().
  virtual Batch test_batch(std::int64_t begin, std::int64_t end) const = 0;

 protected:
  Dataset() = default;
};

/// Reads what `settings.source` names.
/// Errors: kInvalidArgument: a source that is none, a file that is missing (where it was looked for
///         and how to get it), damaged or of another format, fewer samples than were asked for.
Result<std::unique_ptr<Dataset>> open_dataset(const DataSettings& settings, std::uint64_t seed);

// The kinds, each in a file of its own.
Result<std::unique_ptr<Dataset>> open_fashion_mnist(const std::string& folder,
                                                    const DataSettings& settings);
Result<std::unique_ptr<Dataset>> open_cifar10(const std::string& folder,
                                              const DataSettings& settings);
Result<std::unique_ptr<Dataset>> open_text(const std::string& file, const DataSettings& settings);
/// Ten blurred patterns with noise, 28 × 28: for tests and for timing without any file.
Result<std::unique_ptr<Dataset>> make_synthetic(const DataSettings& settings, std::uint64_t seed);

/// The samples of one part, as bytes.
struct ImagePart {
  torch::Tensor images = {};  ///< uint8 [n, channels, height, width]
  torch::Tensor labels = {};  ///< int64 [n]
};
/// Images, brought to mean 0 and deviation 1 by the training part's own.
/// Errors: kInvalidArgument when an asked number of samples is not there.
Result<std::unique_ptr<Dataset>> make_images(std::string name, ImagePart train, ImagePart test,
                                             const DataSettings& settings);

}  // namespace gradpress::trainer
