#include <csignal>
#include <cstdio>
#include <exception>

#include "demo.h"
#include "flags.h"
#include "stop.h"
#include "trainer.h"

namespace gradpress::trainer {

namespace {

/// As every verb of gradpress ends.
enum ExitCode : int { kSuccess = 0, kFailed = 1, kUsage = 2, kLost = 3 };

int exit_code_of(const Status& status) {
  if (status.code() == Code::kInvalidArgument) return kUsage;
  return status.code() == Code::kPeerLost ? kLost : kFailed;
}

int failed(const Status& status) {
  std::fprintf(stderr, "gradpress train: %s\n", status.to_string().c_str());
  return exit_code_of(status);
}

int run(int argc, char** argv) {
  const ParsedLine parsed = parse_command_line(argc, argv);
  if (!parsed.line) return parsed.exit_code;
  const std::atomic<bool>& stop = stop_on_interrupt();
  if (parsed.line->demo) {
    const Status status = run_demo(parsed.line->demo_folder, stop);
    return status.is_ok() ? kSuccess : failed(status);
  }
  const auto record = train(parsed.line->settings, stop);
  if (!record) return failed(record.error());
  if (record->interrupted) {
    std::fprintf(stderr, "gradpress train: interrupted after step %lld\n",
                 static_cast<long long>(record->steps));
    return kFailed;
  }
  return kSuccess;
}

}  // namespace

}  // namespace gradpress::trainer

int main(int argc, char** argv) {
  try {
    return gradpress::trainer::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gradpress train: internal error: %s\n", error.what());
  } catch (...) {
    std::fprintf(stderr, "gradpress train: internal error of an unknown kind\n");
  }
  return gradpress::trainer::kFailed;
}
