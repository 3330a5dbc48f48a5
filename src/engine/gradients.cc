#include "engine/gradients.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <set>
#include <string>
#include <system_error>
#include <utility>

#include "codec/frame.h"
#include "sync/snapshot.h"

namespace gradpress::engine {

namespace {

// Numbers are written as they lie in memory.
static_assert(std::endian::native == std::endian::little);

constexpr std::array<char, 8> kMagic = {'G', 'P', 'G', 'R', 'A', 'D', 'S', '\0'};
constexpr std::uint32_t kVersion = 1;

/// What a file begins with; then come the tensors.
struct Head {
  std::array<char, 8> magic = kMagic;
  std::uint32_t version = kVersion;
  std::uint32_t rank = 0;
  std::uint32_t workers = 0;
  std::uint32_t steps = 0;
  std::uint32_t tensors = 0;
  std::uint32_t tensor_bytes = 0;  ///< of all tensors' names and shapes
};
static_assert(sizeof(Head) == 32);

std::vector<std::byte> tensor_table(const RecordedGradients& gradients) {
  sync::ByteWriter table;
  for (const EngineTensor& tensor : gradients.tensors) {
    const auto dims = tensor.shape.dims();
    table.put_text(tensor.name);
    table.put(static_cast<std::uint64_t>(dims.size()));
    for (const std::uint64_t extent : dims) table.put(extent);
  }
  return table.take();
}

std::uint64_t checksum(const Head& head, std::span<const std::byte> table) {
  std::vector<std::byte> all(sizeof head + table.size());
  std::memcpy(all.data(), &head, sizeof head);
  if (!table.empty()) std::memcpy(all.data() + sizeof head, table.data(), table.size());
  return codec::hash_of(all);
}

void put(std::ostream& out, std::span<const std::byte> bytes) {
  out.write(reinterpret_cast<const char*>(bytes.data()),
            static_cast<std::streamsize>(bytes.size()));
}
template <class T>
void put_value(std::ostream& out, const T& value) {
  put(out, std::as_bytes(std::span(&value, 1)));
}

/// Reads from a stream whose length is known.
class Source {
 public:
  Source(std::istream& in, std::string_view name) : in_(in), name_(name) {
    in_.seekg(0, std::ios::end);
    const auto end = in_.tellg();
    in_.seekg(0, std::ios::beg);
    left_ = in_ && end > 0 ? static_cast<std::uint64_t>(end) : 0;
  }

  std::uint64_t left() const { return left_; }
  bool fill(std::span<std::byte> bytes) {
    if (bytes.size() > left_) return false;
    in_.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    left_ -= bytes.size();
    return static_cast<bool>(in_);
  }
  template <class T>
  bool get(T& value) {
    return fill(std::as_writable_bytes(std::span(&value, 1)));
  }
  template <class... Parts>
  tl::unexpected<Status> wrong(const Parts&... parts) const {
    return fail(Code::kInvalidArgument, name_, ": ", parts...);
  }

 private:
  std::istream& in_;
  const std::string_view name_;
  std::uint64_t left_ = 0;
};

Result<std::vector<EngineTensor>> tensors_of(const Source& source, std::uint32_t count,
                                             std::span<const std::byte> table) {
  sync::ByteReader reader(table);
  std::vector<EngineTensor> tensors;
  std::set<std::string> names;
  for (std::uint32_t i = 0; i < count; ++i) {
    EngineTensor tensor{.name = reader.text()};
    const auto dims = reader.get<std::uint64_t>();
    if (dims > Shape::kMaxDims) {
      return source.wrong("tensor ", i, " has ", dims, " dimensions, wanted at most ",
                          Shape::kMaxDims);
    }
    std::vector<std::uint64_t> extents(dims);
    for (std::uint64_t& extent : extents) extent = reader.get<std::uint64_t>();
    if (!reader.status()) {
      return source.wrong("its table of tensors ends within tensor ", i, " of ", count);
    }
    tensor.shape = *Shape::from(extents);
    if (tensor.shape.elements() > kMaxElements) {
      return source.wrong("tensor ", tensor.name, " has more than ", kMaxElements, " elements");
    }
    if (!names.insert(tensor.name).second) {
      return source.wrong("two tensors are called ", tensor.name);
    }
    tensors.push_back(std::move(tensor));
  }
  if (!reader.at_end()) return source.wrong("its table of tensors is longer than ", count);
  return tensors;
}

}  // namespace

void GradientRecorder::start(unsigned steps) {
  left_ = steps;
  in_step_ = false;
  steps_.clear();
}

void GradientRecorder::ready(std::size_t tensor, std::span<const float> gradient,
                             std::span<const TensorSpec> tensors) {
  if (left_ == 0) return;
  if (!std::exchange(in_step_, true)) {
    auto& step = steps_.emplace_back();
    for (const TensorSpec& spec : tensors) step.emplace_back(spec.shape.elements(), 0.0F);
  }
  std::ranges::copy(gradient, steps_.back()[tensor].begin());
}

void GradientRecorder::end_step() {
  if (std::exchange(in_step_, false)) --left_;
}

RecordedGradients GradientRecorder::gradients(std::span<const TensorSpec> tensors, unsigned rank,
                                              unsigned workers) const {
  RecordedGradients all{.rank = rank, .workers = workers};
  for (const TensorSpec& tensor : tensors) {
    all.tensors.push_back({.name = tensor.name, .shape = tensor.shape});
  }
  // One that is under way may still lack tensors.
  all.steps.assign(steps_.begin(), steps_.end() - (in_step_ ? 1 : 0));
  return all;
}

Status write_gradients(std::ostream& out, std::string_view name,
                       const RecordedGradients& gradients) {
  if (gradients.steps.empty() || gradients.tensors.empty()) {
    return Status::error(Code::kInvalidArgument, name,
                         ": no gradients were recorded: call record_gradients() before the steps");
  }
  for (const auto& step : gradients.steps) {
    const bool fits = std::ranges::equal(step, gradients.tensors,
                                         [](const auto& values, const EngineTensor& tensor) {
                                           return values.size() == tensor.shape.elements();
                                         });
    if (!fits) {
      return Status::error(Code::kInvalidArgument, name,
                           ": a step's gradients do not have the sizes of the tensors");
    }
  }
  const std::vector<std::byte> table = tensor_table(gradients);
  if (table.size() > std::numeric_limits<std::uint32_t>::max()) {
    return Status::error(Code::kInvalidArgument, name, ": too many tensors: their names and ",
                         "shapes take ", table.size(), " bytes");
  }
  const Head head{.rank = gradients.rank,
                  .workers = gradients.workers,
                  .steps = static_cast<std::uint32_t>(gradients.steps.size()),
                  .tensors = static_cast<std::uint32_t>(gradients.tensors.size()),
                  .tensor_bytes = static_cast<std::uint32_t>(table.size())};
  put_value(out, head);
  put(out, table);
  put_value(out, checksum(head, table));
  for (const auto& step : gradients.steps) {
    for (const std::vector<float>& values : step) {
      put(out, std::as_bytes(std::span(values)));
      put_value(out, codec::hash_of(std::as_bytes(std::span(values))));
    }
  }
  return {};
}

Result<RecordedGradients> read_gradients(std::istream& in, std::string_view name) {
  Source source(in, name);
  Head head;
  if (!source.get(head) || head.magic != kMagic) {
    return source.wrong("is no file of recorded gradients");
  }
  if (head.version != kVersion) {
    return source.wrong("is of version ", head.version, ", wanted ", kVersion,
                        ": record it again with this version");
  }
  if (head.tensor_bytes > source.left()) {
    return source.wrong("ends within its table of tensors");
  }
  std::vector<std::byte> table(head.tensor_bytes);
  std::uint64_t sum = 0;
  if (!source.fill(table) || !source.get(sum)) {
    return source.wrong("ends within its table of tensors");
  }
  if (sum != checksum(head, table)) {
    return source.wrong("the checksum of its head does not match: it is damaged");
  }
  auto tensors = tensors_of(source, head.tensors, table);
  if (!tensors) return tl::unexpected(tensors.error());
  if (head.steps == 0 || tensors->empty()) return source.wrong("holds no gradients");
  // Below 2^28 tensors, by the table's bytes, of below 2^35 bytes each: the sum does not wrap.
  std::uint64_t step_bytes = 0;
  for (const EngineTensor& tensor : *tensors) {
    step_bytes += tensor.shape.elements() * sizeof(float) + sizeof sum;
  }
  if (source.left() % head.steps != 0 || source.left() / head.steps != step_bytes) {
    return source.wrong("wanted ", head.steps, " steps of ", step_bytes, " bytes, got ",
                        source.left(), " bytes: it is not complete, or longer than it says");
  }
  RecordedGradients gradients{
      .tensors = std::move(*tensors), .rank = head.rank, .workers = head.workers};
  for (std::uint32_t step = 0; step < head.steps; ++step) {
    auto& values = gradients.steps.emplace_back();
    for (const EngineTensor& tensor : gradients.tensors) {
      auto& gradient = values.emplace_back(tensor.shape.elements());
      if (!source.fill(std::as_writable_bytes(std::span(gradient))) || !source.get(sum)) {
        return source.wrong("cannot be read: step ", step, ", tensor ", tensor.name);
      }
      if (sum != codec::hash_of(std::as_bytes(std::span(gradient)))) {
        return source.wrong("the checksum of ", tensor.name, " in step ", step,
                            " does not match: it is damaged");
      }
    }
  }
  return gradients;
}

}  // namespace gradpress::engine

namespace gradpress {

Status write_gradients(const std::string& file, const RecordedGradients& gradients) {
  // Whoever reads meanwhile finds the old file or the new one.
  const std::string scratch = file + ".part";
  {
    std::ofstream out(scratch, std::ios::binary | std::ios::trunc);
    Status status;
    if (out) status = engine::write_gradients(out, file, gradients);
    out.flush();
    if (!status) return status;
    if (!out) {
      return Status::error(Code::kInvalidArgument, file,
                           ": cannot be written: ", std::generic_category().message(errno));
    }
  }
  std::error_code error;
  std::filesystem::rename(scratch, file, error);
  if (error) {
    return Status::error(Code::kInvalidArgument, file, ": cannot be written: ", error.message());
  }
  return {};
}

Result<RecordedGradients> read_gradients(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in || std::filesystem::is_directory(file)) {
    return fail(Code::kInvalidArgument, file, ": cannot be read: ",
                in ? "it is a folder" : std::generic_category().message(errno));
  }
  return engine::read_gradients(in, file);
}

}  // namespace gradpress
