#include "engine/checkpoint.h"

#include <algorithm>
#include <sstream>
#include <utility>

#include "codec/frame.h"

namespace gradpress::engine {

namespace {

constexpr std::uint64_t kMark = 0x324B435052474447;  // "GDGRPCK2", little-endian

}  // namespace

std::vector<std::byte> save_checkpoint(const CheckpointHead& head, Runtime& runtime,
                                       const Velocity* velocity) {
  sync::ByteWriter body;
  body.put_text(head.description);
  body.put_text(head.plan);
  body.put(head.rank);
  body.put(head.step);
  body.put(head.turn);
  body.put(static_cast<std::uint32_t>(velocity != nullptr ? 1 : 0));
  body.put(static_cast<std::uint32_t>(runtime.tensors()));
  for (std::uint32_t tensor = 0; tensor < runtime.tensors(); ++tensor) {
    const auto [message, member] = runtime.place_of(tensor);
    const sync::Message& carrier = runtime.message(message);
    sync::ByteWriter state;
    carrier.save(member, state);
    if (velocity != nullptr) velocity->save(tensor, state);
    body.put(std::uint64_t{carrier.spec().members[member].shape.elements()});
    body.put_bytes(state.take());
  }
  const std::vector<std::byte> bytes = body.take();
  sync::ByteWriter all;
  all.put(kMark);
  all.put(codec::hash_of(bytes));
  all.put_bytes(bytes);
  return all.take();
}

Result<Checkpoint> Checkpoint::open(std::span<const std::byte> bytes) {
  sync::ByteReader outer(bytes);
  const auto mark = outer.get<std::uint64_t>();
  const auto hash = outer.get<std::uint64_t>();
  const std::span<const std::byte> body = outer.bytes();
  if (mark != kMark || !outer.status() || !outer.at_end()) {
    return fail(Code::kCorruptPayload, "checkpoint: ", bytes.size(),
                " bytes are not a whole checkpoint of an engine");
  }
  if (codec::hash_of(body) != hash) {
    return fail(Code::kCorruptPayload, "checkpoint: its ", body.size(),
                " bytes do not have the checksum they were saved with");
  }
  Checkpoint found(body);
  found.head_.description = found.rest_.text();
  found.head_.plan = found.rest_.text();
  found.head_.rank = found.rest_.get<std::uint32_t>();
  found.head_.step = found.rest_.get<std::uint64_t>();
  found.head_.turn = found.rest_.get<std::uint32_t>() % 2;
  found.has_momentum_ = found.rest_.get<std::uint32_t>() != 0;
  found.tensors_ = found.rest_.get<std::uint32_t>();
  if (!found.rest_.status()) return tl::unexpected(found.rest_.status());
  return found;
}

Status Checkpoint::load(Runtime& runtime, Velocity* velocity) {
  if (has_momentum_ != (velocity != nullptr)) {
    return Status::error(
        Code::kInvalidArgument, "checkpoint: was taken ", has_momentum_ ? "with" : "without",
        " momentum correction, this engine is ", has_momentum_ ? "without" : "with");
  }
  for (std::uint32_t tensor = 0; tensor < runtime.tensors(); ++tensor) {
    const auto [message, member] = runtime.place_of(tensor);
    sync::Message& carrier = runtime.message(message);
    const auto elements = rest_.get<std::uint64_t>();
    sync::ByteReader state(rest_.bytes());
    if (!rest_.status()) return rest_.status();
    if (Status status = carrier.load(member, state); !status) return status;
    if (velocity == nullptr) continue;
    if (Status status = velocity->load(tensor, elements, state); !status) return status;
  }
  if (rest_.at_end()) return {};
  return Status::error(Code::kCorruptPayload, "checkpoint: bytes are left over at its end");
}

Result<std::vector<std::vector<float>>> Checkpoint::residuals() {
  std::vector<std::vector<float>> all;
  for (std::uint32_t tensor = 0; tensor < tensors_; ++tensor) {
    const auto elements = rest_.get<std::uint64_t>();
    sync::ByteReader state(rest_.bytes());
    if (!rest_.status()) return tl::unexpected(rest_.status());
    if (elements > kMaxElements) {
      return fail(Code::kCorruptPayload, "checkpoint: tensor ", tensor, " has ", elements,
                  " elements, at most ", kMaxElements, " are possible");
    }
    std::vector<float>& residual = all.emplace_back(elements);
    Status status = sync::Message::add_saved_residual(state, residual);
    if (status && has_momentum_) status = Velocity::add_saved_carried(state, residual);
    if (!status) return tl::unexpected(status);
  }
  return all;
}

std::string first_difference(const std::string& saved, const std::string& here) {
  std::istringstream a(saved);
  std::istringstream b(here);
  std::string line_a;
  std::string line_b;
  while (true) {
    const bool more_a = static_cast<bool>(std::getline(a, line_a));
    const bool more_b = static_cast<bool>(std::getline(b, line_b));
    if (!more_a && !more_b) return {};
    if (more_a && more_b && line_a == line_b) continue;
    return "saved \"" + (more_a ? line_a : "nothing more") + "\", here \"" +
           (more_b ? line_b : "nothing more") + "\"";
  }
}

}  // namespace gradpress::engine
