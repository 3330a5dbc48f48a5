#include "sync/snapshot.h"

namespace gradpress::sync {

void ByteWriter::append(std::span<const std::byte> bytes) {
  bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
}

std::span<const std::byte> ByteReader::next(std::uint64_t size) {
  if (size > rest_.size()) {
    status_ = Status::error(Code::kCorruptPayload, "checkpoint: wanted ", size, " bytes more, got ",
                            rest_.size());
    rest_ = {};
    return {};
  }
  const auto found = rest_.first(size);
  rest_ = rest_.subspan(size);
  return found;
}

}  // namespace gradpress::sync
