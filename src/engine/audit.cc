#include "engine/audit.h"

#include <cmath>
#include <utility>

namespace gradpress::engine {

namespace {

/// What the audit lets pass: the layouts are exact, so that more is a fault of ours or of a
/// backend.
constexpr double kLimit = 0.01;
/// Steps in which messages are counted after one that was off: ACP-SGD's two kinds.
constexpr unsigned kCloseSteps = 2;

std::uint64_t total(const SentBytes& bytes) { return bytes.intra + bytes.inter; }

Status what_is_off(const AuditedStep& step) {
  const StepReport& report = step.report;
  Status status = Status::error(Code::kInternal, "audit of step ", step.step, ": ", step.running,
                                " promised ", total(report.promised), " bytes, the ", step.backend,
                                " backend counted ", total(report.sent));
  if (!report.furthest) return status;
  const auto& members = step.program.messages[report.furthest->message].members;
  std::string others;
  if (members.size() > 1) others = " and " + std::to_string(members.size() - 1) + " more";
  return Status::error(Code::kInternal, status.message(), "; furthest off is the message of ",
                       members.front().name, others, ", which promised ",
                       total(report.furthest->promised), " and sent ",
                       total(report.furthest->sent));
}

}  // namespace

std::string ByteAudit::warn(std::string line) {
  warned_ = true;
  closely_ = 0;
  return line;
}

Result<std::optional<std::string>> ByteAudit::judge(const AuditedStep& step) {
  const auto sent = static_cast<double>(total(step.report.sent));
  const auto promised = static_cast<double>(total(step.report.promised));
  const bool honest = std::abs(sent - promised) <= kLimit * promised;
  if (warned_ || (honest && closely_ == 0)) return std::nullopt;
  const bool last_look = closely_ == 1;
  if (honest) {
    --closely_;
    if (!last_look) return std::nullopt;
    return warn(suspicion_ + "; the steps after it sent what was promised");
  }
  const Status status = what_is_off(step);
  if (strict_) return tl::unexpected(status);
  if (step.report.furthest) return warn(status.message());
  // Without any that is off, what was counted belongs to no message.
  if (last_look) return warn(status.message() + "; every message sent what it promised");
  if (closely_ == 0) suspicion_ = status.message();
  closely_ = closely_ == 0 ? kCloseSteps : closely_ - 1;
  return std::nullopt;
}

}  // namespace gradpress::engine
