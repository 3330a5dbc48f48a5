#include "worker_processes.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <string_view>

namespace gradpress::cli {

namespace {

using SteadyTime = std::chrono::steady_clock::time_point;

/// A line that does not end is passed on in pieces of this size.
constexpr std::size_t kLongestLine = std::size_t{64} << 10;

Status system_error(std::string_view what) {
  return Status::error(Code::kInternal, what, ": ", std::string_view(strerrordesc_np(errno)));
}

class File {
 public:
  explicit File(int number = -1) : number_(number) {}
  File(File&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  File& operator=(File&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() { close(); }

  int number() const { return number_; }
  bool is_open() const { return number_ >= 0; }
  void close() {
    if (number_ >= 0) ::close(number_);
    number_ = -1;
  }

 private:
  int number_;
};

struct Pipe {
  File read;
  File write;
};

Result<Pipe> make_pipe() {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) return tl::unexpected(system_error("a pipe"));
  return Pipe{.read = File(ends[0]), .write = File(ends[1])};
}

/// Passes whole lines on, so that those of different ranks do not mix.
class Lines {
 public:
  Lines(File from, int to, std::string prefix)
      : from_(std::move(from)), to_(to), prefix_(std::move(prefix)) {
    (void)fcntl(from_.number(), F_SETFL, O_NONBLOCK);
  }

  const File& file() const { return from_; }

  /// Takes what is there. Closes at the end of the stream.
  void drain() {
    std::array<char, 1U << 14> block{};
    while (from_.is_open()) {
      const ssize_t got = ::read(from_.number(), block.data(), block.size());
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && errno == EAGAIN) return;
      if (got <= 0) return finish();
      for (const char c : std::string_view(block.data(), static_cast<std::size_t>(got))) {
        line_ += c;
        if (c == '\n' || line_.size() >= kLongestLine) put_line();
      }
    }
  }
  /// Passes on the last line, also an unfinished one, and takes no more.
  void finish() {
    if (!line_.empty()) put_line();
    from_.close();
  }

 private:
  void put_line() {
    if (line_.back() != '\n') line_ += '\n';
    line_.insert(0, prefix_);
    for (std::string_view rest = line_; !rest.empty();) {
      const ssize_t put = ::write(to_, rest.data(), rest.size());
      if (put < 0 && errno == EINTR) continue;
      // Who read our output is gone: the job goes on.
      if (put < 0) break;
      rest.remove_prefix(static_cast<std::size_t>(put));
    }
    line_.clear();
  }

  File from_;
  int to_;
  std::string prefix_;
  std::string line_;
};

struct Worker {
  pid_t pid = -1;
  bool running = false;
  std::vector<Lines> outputs = {};
};

/// Arguments or environment as exec wants them. Lives as long as the strings.
std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> all;
  all.reserve(texts.size() + 1);
  for (std::string& text : texts) all.push_back(text.data());
  all.push_back(nullptr);
  return all;
}

/// This process's environment with `variables` in place of those of the same name.
std::vector<std::string> environment_with(const Environment& variables) {
  std::vector<std::string> all;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const std::string_view name = text.substr(0, text.find('='));
    if (std::ranges::none_of(variables, [&](const auto& one) { return one.first == name; })) {
      all.emplace_back(text);
    }
  }
  for (const auto& [name, value] : variables) all.emplace_back(name).append("=").append(value);
  return all;
}

std::string cause_of(int wait_status) {
  if (!WIFSIGNALED(wait_status)) {
    return "ended with exit code " + std::to_string(WEXITSTATUS(wait_status));
  }
  const int signal = WTERMSIG(wait_status);
  const char* name = sigdescr_np(signal);
  return "was killed by signal " + std::to_string(signal) + " (" +
         (name == nullptr ? "unknown" : name) + ")";
}

class Job {
 public:
  explicit Job(const JobOptions& options) : options_(options) {}
  /// Nothing of the job outlives it.
  ~Job() {
    signal_all(SIGKILL);
    for (Worker& worker : workers_) {
      if (worker.running) (void)waitpid(worker.pid, nullptr, 0);
    }
    (void)pthread_sigmask(SIG_SETMASK, &outer_mask_, nullptr);
  }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  Status start() {
    sigset_t ours;
    sigemptyset(&ours);
    for (const int signal : {SIGCHLD, SIGINT, SIGTERM, SIGHUP}) sigaddset(&ours, signal);
    if (pthread_sigmask(SIG_BLOCK, &ours, &outer_mask_) != 0)
      return system_error("the signal mask");
    // A reader of our output that goes away is an error of write, no death.
    (void)std::signal(SIGPIPE, SIG_IGN);
    signals_ = File(signalfd(-1, &ours, SFD_CLOEXEC | SFD_NONBLOCK));
    if (!signals_.is_open()) return system_error("a file of signals");
    for (unsigned rank = 0; rank < options_.variables.size(); ++rank) {
      const Status status = start_worker(rank);
      if (!status.is_ok()) return status;
    }
    return {};
  }

  JobEnd run_to_end() {
    while (std::ranges::any_of(workers_, &Worker::running)) {
      wait_for_something();
      take_signals();
      for (Worker& worker : workers_) {
        for (Lines& lines : worker.outputs) lines.drain();
      }
      reap();
      enforce_deadlines();
    }
    return end_;
  }

 private:
  Status start_worker(unsigned rank) {
    auto out = make_pipe();
    auto err = make_pipe();
    auto failure = make_pipe();
    for (const auto* made : {&out, &err, &failure}) {
      if (!*made) return made->error();
    }
    const File null(open("/dev/null", O_RDONLY | O_CLOEXEC));
    // All memory is taken before the fork: afterwards only plain system calls are safe.
    std::vector<std::string> arguments = options_.command;
    std::vector<std::string> environment = environment_with(options_.variables[rank]);
    const std::vector<char*> argv = pointers(arguments);
    const std::vector<char*> envp = pointers(environment);
    const pid_t parent = getpid();
    const pid_t pid = fork();
    if (pid < 0) return system_error("a process");
    if (pid == 0) {
      (void)setpgid(0, 0);
      (void)prctl(PR_SET_PDEATHSIG, static_cast<unsigned long>(SIGKILL), 0UL, 0UL, 0UL);
      if (getppid() != parent) _exit(EXIT_FAILURE);  // it died before the line above
      (void)pthread_sigmask(SIG_SETMASK, &outer_mask_, nullptr);
      (void)std::signal(SIGPIPE, SIG_DFL);
      (void)dup2(null.number(), STDIN_FILENO);
      (void)dup2(out->write.number(), STDOUT_FILENO);
      (void)dup2(err->write.number(), STDERR_FILENO);
      (void)execvpe(argv[0], argv.data(), envp.data());
      const int error = errno;
      (void)!::write(failure->write.number(), &error, sizeof error);
      _exit(EXIT_FAILURE);
    }
    // Also here: whoever of the two is first, the group exists before anybody signals it.
    (void)setpgid(pid, pid);
    Worker& worker = workers_.emplace_back();
    worker.pid = pid;
    worker.running = true;
    std::string prefix;
    if (options_.prefix) prefix.append("[").append(std::to_string(rank)).append("] ");
    worker.outputs.emplace_back(std::move(out->read), STDOUT_FILENO, prefix);
    worker.outputs.emplace_back(std::move(err->read), STDERR_FILENO, prefix);
    failure->write.close();
    int error = 0;
    if (::read(failure->read.number(), &error, sizeof error) == sizeof error) {
      return Status::error(Code::kInvalidArgument, "cannot run \"", options_.command[0],
                           "\": ", std::string_view(strerrordesc_np(error)));
    }
    return {};
  }

  void wait_for_something() const {
    std::vector<pollfd> files{{.fd = signals_.number(), .events = POLLIN, .revents = 0}};
    for (const Worker& worker : workers_) {
      for (const Lines& lines : worker.outputs) {
        if (lines.file().is_open()) {
          files.push_back({.fd = lines.file().number(), .events = POLLIN, .revents = 0});
        }
      }
    }
    int wait_ms = -1;
    if (deadline_) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(
          *deadline_ - std::chrono::steady_clock::now());
      wait_ms = static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, INT_MAX));
    }
    (void)poll(files.data(), files.size(), wait_ms);
  }

  void take_signals() {
    signalfd_siginfo info{};
    while (::read(signals_.number(), &info, sizeof info) == sizeof info) {
      if (info.ssi_signo == SIGCHLD) continue;
      if (told_to_end_) {
        signal_all(SIGKILL);
      } else {
        end_all(static_cast<int>(info.ssi_signo));
      }
    }
  }

  void reap() {
    for (unsigned rank = 0; rank < workers_.size(); ++rank) {
      Worker& worker = workers_[rank];
      siginfo_t info{};
      // Looks first and leaves the process unreaped: until then its number, and so that of its
      // group, cannot be another's.
      if (!worker.running ||
          waitid(P_PID, static_cast<id_t>(worker.pid), &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
          info.si_pid == 0) {
        continue;
      }
      (void)kill(-worker.pid, SIGKILL);
      int wait_status = 0;
      (void)waitpid(worker.pid, &wait_status, 0);
      worker.running = false;
      for (Lines& lines : worker.outputs) {
        lines.drain();
        lines.finish();
      }
      if (wait_status == 0 || end_.exit_code != 0) continue;
      end_.exit_code =
          WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
      end_.rank = rank;
      end_.cause = cause_of(wait_status);
      if (!told_to_end_) deadline_ = std::chrono::steady_clock::now() + options_.grace;
    }
  }

  void enforce_deadlines() {
    if (!deadline_ || std::chrono::steady_clock::now() < *deadline_) return;
    if (told_to_end_) {
      deadline_.reset();
      signal_all(SIGKILL);
    } else {
      end_all(SIGTERM);
    }
  }

  void end_all(int signal) {
    told_to_end_ = true;
    signal_all(signal);
    deadline_ = std::chrono::steady_clock::now() + options_.patience;
  }

  void signal_all(int signal) const {
    for (const Worker& worker : workers_) {
      if (worker.running) (void)kill(-worker.pid, signal);
    }
  }

  const JobOptions& options_;
  std::vector<Worker> workers_;
  File signals_;
  sigset_t outer_mask_{};
  JobEnd end_;
  bool told_to_end_ = false;
  std::optional<SteadyTime> deadline_;  ///< when those that still run are told to end, or killed
};

}  // namespace

Result<JobEnd> run_job(const JobOptions& options) {
  Job job(options);
  const Status status = job.start();
  if (!status.is_ok()) return tl::unexpected(status);
  return job.run_to_end();
}

}  // namespace gradpress::cli
