#include "checkpoint.h"

#include <torch/torch.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>

namespace gradpress::trainer {

namespace {

constexpr std::int64_t kVersion = 1;

torch::Tensor bytes_tensor(const void* data, std::size_t size) {
  auto tensor = torch::empty({static_cast<std::int64_t>(size)}, torch::kUInt8);
  if (size > 0) std::memcpy(tensor.data_ptr(), data, size);
  return tensor;
}

torch::Tensor history_tensor(const std::vector<HistoryPoint>& history) {
  auto tensor = torch::empty({static_cast<std::int64_t>(history.size()), 4}, torch::kFloat64);
  auto* value = tensor.data_ptr<double>();
  for (const HistoryPoint& point : history) {
    *value++ = static_cast<double>(point.step);
    *value++ = point.seconds;
    *value++ = point.loss;
    *value++ = point.metric_value.value_or(std::numeric_limits<double>::quiet_NaN());
  }
  return tensor;
}

std::vector<HistoryPoint> history_of(const torch::Tensor& tensor) {
  std::vector<HistoryPoint> history;
  const auto* value = tensor.data_ptr<double>();
  for (std::int64_t i = 0; i < tensor.size(0); ++i, value += 4) {
    HistoryPoint point{
        .step = static_cast<std::int64_t>(value[0]), .seconds = value[1], .loss = value[2]};
    if (!std::isnan(value[3])) point.metric_value = value[3];
    history.push_back(point);
  }
  return history;
}

using Archive = c10::impl::GenericDict;

/// Throws where there is none, as torch does on all that is no archive.
torch::Tensor read(const Archive& archive, const std::string& key) {
  TORCH_CHECK(archive.contains(key), "it has no ", key);
  return archive.at(key).toTensor().contiguous();
}

Result<Position> read_archive(const std::string& file, const std::string& identity,
                              NamedTensors& tensors) {
  std::ifstream in(file, std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(in), {}};
  const Archive archive = torch::pickle_load(bytes).toGenericDict();
  const auto numbers = read(archive, "numbers");
  const auto* number = numbers.data_ptr<double>();
  if (static_cast<std::int64_t>(number[0]) != kVersion) {
    return fail(Code::kInvalidArgument, file, ": wanted a checkpoint of version ", kVersion,
                ", got ", number[0]);
  }
  const auto saved = read(archive, "identity");
  Position position{.step = static_cast<std::int64_t>(number[1]),
                    .seconds = number[2],
                    .wire_bytes = number[3],
                    .skipped_steps = static_cast<std::uint64_t>(number[4]),
                    .history = history_of(read(archive, "history"))};
  position.identity.assign(static_cast<const char*>(saved.data_ptr()),
                           static_cast<std::size_t>(saved.numel()));
  if (position.identity != identity) {
    return fail(Code::kInvalidArgument, file, ": it is of another run: wanted ", identity, ", got ",
                position.identity);
  }
  const auto engine = read(archive, "engine");
  position.engine.resize(static_cast<std::size_t>(engine.numel()));
  if (engine.numel() > 0) {
    std::memcpy(position.engine.data(), engine.data_ptr(), position.engine.size());
  }
  const torch::NoGradGuard guard;
  for (auto& [name, tensor] : tensors) {
    const auto found = read(archive, "tensor/" + name);
    if (found.sizes() != tensor.sizes()) {
      return fail(Code::kInvalidArgument, file, ": ", name, " has another shape than the model's");
    }
    tensor.copy_(found);
  }
  return position;
}

}  // namespace

std::string checkpoint_file(const std::string& folder, unsigned rank) {
  return (std::filesystem::path(folder) / ("rank-" + std::to_string(rank) + ".pt")).string();
}

Status write_checkpoint(const std::string& file, const NamedTensors& tensors,
                        const Position& position) {
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(file).parent_path(), error);
  try {
    c10::Dict<std::string, torch::Tensor> archive;
    const std::vector<double> numbers = {
        static_cast<double>(kVersion), static_cast<double>(position.step), position.seconds,
        position.wire_bytes, static_cast<double>(position.skipped_steps)};
    archive.insert("numbers", torch::tensor(numbers, torch::kFloat64));
    archive.insert("identity", bytes_tensor(position.identity.data(), position.identity.size()));
    archive.insert("history", history_tensor(position.history));
    archive.insert("engine", bytes_tensor(position.engine.data(), position.engine.size()));
    for (const auto& [name, tensor] : tensors) archive.insert("tensor/" + name, tensor.detach());
    const std::vector<char> bytes = torch::pickle_save(archive);
    std::ofstream out(file + ".part", std::ios::binary);
    out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    out.flush();
    if (!out) return Status::error(Code::kInvalidArgument, file, ": cannot be written");
  } catch (const std::exception& problem) {
    return Status::error(Code::kInvalidArgument, file,
                         ": cannot be written: ", std::string_view(problem.what()));
  }
  return {};
}

Status finish_checkpoint(const std::string& file) {
  std::error_code error;
  std::filesystem::rename(file + ".part", file, error);
  if (error) return Status::error(Code::kInvalidArgument, file, ": ", error.message());
  return {};
}

Result<Position> read_checkpoint(const std::string& file, const std::string& identity,
                                 NamedTensors tensors) {
  if (!std::filesystem::exists(file)) {
    return fail(Code::kInvalidArgument, "--resume: no ", file,
                "; wanted a folder that --save wrote with as many workers");
  }
  try {
    return read_archive(file, identity, tensors);
  } catch (const std::exception& problem) {
    const std::string_view text(problem.what());
    return fail(Code::kInvalidArgument, file,
                ": not a checkpoint: ", text.substr(0, text.find('\n')));
  }
}

}  // namespace gradpress::trainer
