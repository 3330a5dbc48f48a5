#include <array>
#include <string>
#include <vector>

#include "codec/frame.h"
#include "sync/message.h"

namespace gradpress::sync {

namespace {

template <class T>
Status all_gather(Group& world, std::span<const T> in, std::span<T> out,
                  std::span<const std::size_t> counts = {}) {
  return world.run({.kind = CollectiveKind::kAllGather,
                    .type = DataType::kBytes,
                    .in = std::as_bytes(in),
                    .out = std::as_writable_bytes(out),
                    .counts = counts,
                    .tensor = "agreement on the plan"});
}

std::string_view line_of(std::string_view text, std::size_t number) {
  for (; number > 0; --number) {
    const std::size_t end = text.find('\n');
    if (end == std::string_view::npos) return "nothing more";
    text.remove_prefix(end + 1);
  }
  const std::string_view line = text.substr(0, text.find('\n'));
  return line.empty() ? "nothing more" : line;
}

/// Requires: a != b.
std::size_t first_difference(std::string_view a, std::string_view b) {
  std::size_t number = 0;
  while (line_of(a, number) == line_of(b, number)) ++number;
  return number;
}

/// The texts of all ranks, one after the other; called when they differ.
Status explain(Group& world, std::string_view description) {
  std::vector<std::uint64_t> lengths(world.size());
  const std::array<std::uint64_t, 1> length{description.size()};
  Status status = all_gather<std::uint64_t>(world, length, lengths);
  if (!status.is_ok()) return status;
  const std::vector<std::size_t> counts(lengths.begin(), lengths.end());
  std::size_t total = 0;
  for (const std::size_t count : counts) total += count;
  std::string texts(total, '\0');
  status = all_gather<char>(world, description, texts, counts);
  if (!status.is_ok()) return status;
  const std::string_view all = texts;
  const std::string_view first = all.substr(0, counts[0]);
  std::size_t begin = counts[0];
  for (unsigned rank = 1; rank < world.size(); ++rank) {
    const std::string_view other = all.substr(begin, counts[rank]);
    begin += counts[rank];
    if (other == first) continue;
    const std::size_t line = first_difference(first, other);
    return Status::error(Code::kInvalidArgument, "ranks 0 and ", rank,
                         " have different plans, line ", line + 1, ": rank 0 has \"",
                         line_of(first, line), "\", rank ", rank, " has \"", line_of(other, line),
                         "\": give all ranks the same model, plan and options");
  }
  return Status::error(Code::kInternal, "plans differ by their hashes, but not by their texts");
}

}  // namespace

Status check_agreement(Group& world, std::string_view description) {
  const std::array<std::uint64_t, 1> hash{
      codec::hash_of(std::as_bytes(std::span<const char>(description)))};
  std::vector<std::uint64_t> hashes(world.size());
  const Status status = all_gather<std::uint64_t>(world, hash, hashes);
  if (!status.is_ok()) return status;
  for (const std::uint64_t other : hashes) {
    if (other != hashes.front()) return explain(world, description);
  }
  return {};
}

}  // namespace gradpress::sync
