#include "comm/exchange.h"

#include <gradpress/shape.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "comm/agreement.h"
#include "kernels/vector.h"

namespace gradpress::comm {

Exchange::Exchange(Transport& transport, const Collective& call, std::chrono::milliseconds timeout,
                   Scratch& scratch)
    : transport_(transport),
      call_(call),
      timeout_(timeout),
      scratch_(scratch),
      rank_(transport.rank()),
      size_(transport.size()),
      grain_(transport.grain()) {}

void Exchange::stage(std::string_view name, std::size_t step, std::size_t steps) {
  stage_ = name;
  step_ = step;
  steps_ = steps;
}

Status Exchange::begin() {
  stage("begin");
  return explained(transport_.begin(call_));
}

std::uint64_t Exchange::send(unsigned to, ConstBytes bytes) {
  transport_.post_send(to, bytes);
  scratch_.sends.push_back() = to;
  return ++sent_;
}

void Exchange::send_segments(unsigned to, ConstBytes bytes, std::size_t segment) {
  for (std::size_t i = 0; i < segment_count(bytes.size(), segment); ++i) {
    send(to, segment_of(bytes, segment, i));
  }
}

Status Exchange::finish_sends(std::uint64_t last) {
  while (finished_ < last) {
    const Status status = transport_.wait_send(scratch_.sends.front(), timeout_);
    if (!status.is_ok()) return explained(status);
    scratch_.sends.pop_front();
    ++finished_;
  }
  return {};
}

void Exchange::post_segments(unsigned from, Bytes bytes, std::size_t segment) {
  for (std::size_t i = 0; i < segment_count(bytes.size(), segment); ++i) {
    post(from, segment_of(bytes, segment, i));
  }
}

Status Exchange::receive(unsigned from) {
  const Status status = transport_.wait_receive(from, timeout_);
  return status.is_ok() ? status : explained(status);
}

Status Exchange::receive_segments(unsigned from, std::size_t bytes, std::size_t segment) {
  for (std::size_t i = 0; i < segment_count(bytes, segment); ++i) {
    const Status status = receive(from);
    if (!status.is_ok()) return status;
  }
  return {};
}

Status Exchange::explained(const Status& status) const {
  if (status.is_ok()) return status;
  std::string where = call_name(call_.kind, call_.tensor);
  where.append(", ").append(stage_);
  if (steps_ > 0) {
    where.append(" step ").append(std::to_string(step_)).append(" of ");
    where.append(std::to_string(steps_));
  }
  return Status::error(status.code(), where, ": ", status.message());
}

void piece_offsets(std::span<const std::size_t> counts, std::size_t unit, std::size_t bytes,
                   unsigned size, std::vector<std::size_t>& offsets) {
  offsets.assign(size + std::size_t{1}, 0);
  for (unsigned rank = 0; rank < size; ++rank) {
    const std::size_t count =
        counts.empty() ? shard_range(bytes / unit, size, rank).count : counts[rank];
    offsets[rank + 1] = offsets[rank] + count * unit;
  }
}

void copy_bytes(ConstBytes from, Bytes to) {
  if (from.data() != to.data() && !from.empty()) std::memcpy(to.data(), from.data(), from.size());
}

void add_floats(ConstBytes from, Bytes to) {
  kernels::add(std::span(reinterpret_cast<float*>(to.data()), to.size() / sizeof(float)),
               std::span(reinterpret_cast<const float*>(from.data()), from.size() / sizeof(float)));
}

}  // namespace gradpress::comm
