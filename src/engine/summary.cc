#include "engine/summary.h"

#include <cmath>

#include "engine/simple_plan.h"
#include "spec/facts.h"

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

namespace {

/// Tensors that are sent raw although the codec could encode them: it would save nothing.
std::string without_gain(const std::vector<sync::MessageSpec>& messages, std::string_view running,
                         std::uint64_t workers, bool sum_payloads) {
  const auto spec = codec::parse_spec(running);
  if (!spec || !codec::facts_of(*spec).encodes()) return {};
  std::size_t tensors = 0;
  for (const sync::MessageSpec& message : messages) {
    for (const sync::Member& member : message.members) {
      const bool fits = !codec::facts_of(*spec).is_low_rank() || member.shape.is_matrix();
      if (member.codec == "none" && fits &&
          !saves_bytes(*spec, member.shape, workers, sum_payloads)) {
        ++tensors;
      }
    }
  }
  if (tensors == 0) return {};
  return "  " + std::to_string(tensors) + (tensors == 1 ? " tensor travels" : " tensors travel") +
         " raw: " + std::string(running) + " would send no fewer bytes among " +
         std::to_string(workers) + " workers\n";
}

}  // namespace

std::string summary_of(Runtime& runtime, std::string_view running, std::uint64_t step,
                       const comm::Topology& topology, bool sum_payloads) {
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
  return text + without_gain(messages, running, topology.workers(), sum_payloads);
}

}  // namespace gradpress::engine
