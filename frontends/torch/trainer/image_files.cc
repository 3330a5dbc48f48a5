// Fashion-MNIST in its own files (gzipped IDX), CIFAR-10 in its binary ones.
#include <torch/torch.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <utility>
#include <vector>

#include "dataset.h"

namespace gradpress::trainer {

namespace {

namespace fs = std::filesystem;
using Bytes = std::vector<std::uint8_t>;

constexpr std::string_view kGetFashion =
    "; install the Debian package dataset-fashion-mnist, or name the folder: "
    "--data fashion-mnist:FOLDER";
constexpr std::string_view kGetCifar =
    "; it belongs to the binary version of CIFAR-10, cifar-10-binary.tar.gz of "
    "https://www.cs.toronto.edu/~kriz/cifar.html: unpack that and name its folder";

/// Plain or gzipped, zlib tells them apart.
Result<Bytes> read_gzip(const fs::path& path) {
  gzFile_s* const file = gzopen(path.c_str(), "rb");
  if (file == nullptr) return fail(Code::kInvalidArgument, path.string(), ": cannot be read");
  Bytes bytes;
  constexpr unsigned kPiece = 1U << 20;
  int got = 0;
  do {
    const std::size_t before = bytes.size();
    bytes.resize(before + kPiece);
    got = gzread(file, bytes.data() + before, kPiece);
    bytes.resize(before + static_cast<std::size_t>(std::max(got, 0)));
  } while (got > 0);
  int problem = Z_OK;
  const std::string reason = gzerror(file, &problem);
  gzclose_r(file);
  if (got < 0 || problem == Z_BUF_ERROR) {
    return fail(Code::kInvalidArgument, path.string(), ": damaged after ", bytes.size(),
                " bytes: ", reason);
  }
  return bytes;
}

std::uint32_t big_endian(const Bytes& bytes, std::size_t at) {
  return std::uint32_t{bytes[at]} << 24 | std::uint32_t{bytes[at + 1]} << 16 |
         std::uint32_t{bytes[at + 2]} << 8 | std::uint32_t{bytes[at + 3]};
}

/// The file by its name, gzipped or not.
Result<fs::path> find(const fs::path& folder, const std::string& name) {
  for (const fs::path& path : {folder / (name + ".gz"), folder / name}) {
    if (fs::exists(path)) return path;
  }
  return fail(Code::kInvalidArgument, "Fashion-MNIST: no ", name, ".gz and no ", name, " in ",
              folder.string(), kGetFashion);
}

/// An IDX file of bytes: 0, 0, 8, the number of dimensions, each extent as 32 bits, the bytes.
Result<torch::Tensor> read_idx(const fs::path& folder, const std::string& name,
                               std::size_t dimensions) {
  const auto path = find(folder, name);
  if (!path) return tl::unexpected(path.error());
  const auto bytes = read_gzip(*path);
  if (!bytes) return tl::unexpected(bytes.error());
  const std::size_t header = 4 + 4 * dimensions;
  if (bytes->size() < header || big_endian(*bytes, 0) != 0x800U + dimensions) {
    return fail(Code::kInvalidArgument, path->string(), ": wanted an IDX file of bytes with ",
                dimensions, " dimensions");
  }
  std::vector<std::int64_t> extents;
  std::uint64_t elements = 1;
  for (std::size_t i = 0; i < dimensions; ++i) {
    extents.push_back(big_endian(*bytes, 4 + 4 * i));
    // Each factor is below 2^32 and the product is compared before the next.
    elements *= static_cast<std::uint64_t>(extents.back());
    if (elements == 0 || elements > bytes->size()) break;
  }
  if (elements != bytes->size() - header) {
    return fail(Code::kInvalidArgument, path->string(), ": its header promises ", elements,
                " bytes or more, ", bytes->size() - header, " follow");
  }
  auto tensor = torch::empty(extents, torch::kUInt8);
  std::copy(bytes->begin() + static_cast<std::ptrdiff_t>(header), bytes->end(),
            tensor.data_ptr<std::uint8_t>());
  return tensor;
}

Status check_labels(const torch::Tensor& labels, std::string_view where) {
  const auto largest = labels.max().item<std::int64_t>();
  if (largest <= 9) return {};
  return Status::error(Code::kInvalidArgument, where, ": wanted labels 0 to 9, got ", largest);
}

Result<ImagePart> read_idx_part(const fs::path& folder, const std::string& prefix) {
  auto images = read_idx(folder, prefix + "-images-idx3-ubyte", 3);
  if (!images) return tl::unexpected(images.error());
  auto labels = read_idx(folder, prefix + "-labels-idx1-ubyte", 1);
  if (!labels) return tl::unexpected(labels.error());
  if (images->size(0) != labels->size(0)) {
    return fail(Code::kInvalidArgument, folder.string(), ", ", prefix, ": ", images->size(0),
                " images, but ", labels->size(0), " labels");
  }
  ImagePart part{.images = images->unsqueeze(1), .labels = labels->to(torch::kInt64)};
  if (Status status = check_labels(part.labels, folder.string()); !status) {
    return tl::unexpected(status);
  }
  return part;
}

/// Records of one label and 3 × 32 × 32 pixels.
Result<ImagePart> read_cifar_part(const fs::path& folder, std::span<const std::string_view> names) {
  constexpr std::int64_t kRecord = 1 + 3 * 32 * 32;
  Bytes all;
  for (const std::string_view name : names) {
    const fs::path path = folder / name;
    if (!fs::exists(path)) {
      return fail(Code::kInvalidArgument, "CIFAR-10: no ", path.string(), kGetCifar);
    }
    const auto bytes = read_gzip(path);
    if (!bytes) return tl::unexpected(bytes.error());
    if (bytes->empty() || bytes->size() % kRecord != 0) {
      return fail(Code::kInvalidArgument, path.string(), ": wanted records of ", kRecord,
                  " bytes, got ", bytes->size(), " bytes");
    }
    all.insert(all.end(), bytes->begin(), bytes->end());
  }
  const auto samples = static_cast<std::int64_t>(all.size()) / kRecord;
  const auto records = torch::from_blob(all.data(), {samples, kRecord}, torch::kUInt8);
  ImagePart part{.images = records.narrow(1, 1, kRecord - 1).reshape({samples, 3, 32, 32}).clone(),
                 .labels = records.select(1, 0).to(torch::kInt64)};
  if (Status status = check_labels(part.labels, folder.string()); !status) {
    return tl::unexpected(status);
  }
  return part;
}

}  // namespace

Result<std::unique_ptr<Dataset>> open_fashion_mnist(const std::string& folder,
                                                    const DataSettings& settings) {
  auto train = read_idx_part(folder, "train");
  if (!train) return tl::unexpected(train.error());
  auto test = read_idx_part(folder, "t10k");
  if (!test) return tl::unexpected(test.error());
  return make_images("fashion-mnist", std::move(*train), std::move(*test), settings);
}

Result<std::unique_ptr<Dataset>> open_cifar10(const std::string& folder,
                                              const DataSettings& settings) {
  constexpr std::array<std::string_view, 5> kTrain = {"data_batch_1.bin", "data_batch_2.bin",
                                                      "data_batch_3.bin", "data_batch_4.bin",
                                                      "data_batch_5.bin"};
  constexpr std::array<std::string_view, 1> kTest = {"test_batch.bin"};
  auto train = read_cifar_part(folder, kTrain);
  if (!train) return tl::unexpected(train.error());
  auto test = read_cifar_part(folder, kTest);
  if (!test) return tl::unexpected(test.error());
  return make_images("cifar10", std::move(*train), std::move(*test), settings);
}

}  // namespace gradpress::trainer
