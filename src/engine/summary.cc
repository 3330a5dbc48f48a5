#include "engine/summary.h"

#include <cmath>

namespace gradpress::engine {

std::string description_of(Runtime& runtime) {
  std::string text;
  for (std::size_t i = 0; i < runtime.messages(); ++i) {
    text += runtime.message(i).description();
    text += '\n';
  }
  for (const auto& order : runtime.program().order) {
    text += "order:";
    for (const Turn& turn : order) {
      text += ' ' + std::to_string(turn.message) + '.' + std::to_string(turn.stage);
    }
    text += '\n';
  }
  return text;
}

std::string summary_of(Runtime& runtime, std::string_view running, std::uint64_t step,
                       const comm::Topology& topology) {
  const auto& messages = runtime.program().messages;
  std::size_t tensors = 0;
  std::uint64_t elements = 0;
  std::uint64_t encoded = 0;
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    tensors += messages[i].members.size();
    for (const sync::Member& member : messages[i].members) {
      elements += member.shape.elements();
      if (member.codec != "none") encoded += member.shape.elements();
    }
    const SentBytes promised = runtime.message(i).promised_bytes(step);
    bytes += promised.intra + promised.inter;
  }
  const double share =
      elements == 0 ? 0.0 : 100.0 * static_cast<double>(encoded) / static_cast<double>(elements);
  std::string text =
      std::string(running) + " on " + std::to_string(topology.workers()) +
      " workers: " + std::to_string(tensors) + " tensors in " + std::to_string(messages.size()) +
      (messages.size() == 1 ? " message, " : " messages, ") + std::to_string(std::lround(share)) +
      " % of the elements encoded, " + std::to_string(bytes) + " bytes a step from this rank\n";
  for (const sync::MessageSpec& message : messages) {
    text += "  " + message.members.front().name;
    if (message.members.size() > 1) {
      text += " and " + std::to_string(message.members.size() - 1) + " more";
    }
    text += ": " + plan::to_text(message.option) + '\n';
  }
  return text;
}

}  // namespace gradpress::engine
