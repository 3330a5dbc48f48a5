#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "comm/store/server.h"
#include "verbs.h"
#include "worker_processes.h"

namespace gradpress::cli {

namespace {

struct Options {
  unsigned workers = 1;
  unsigned local_size = 0;
  double grace_s = 60.0;
  bool prefix = false;
  std::vector<std::string> command;
};

/// A port of this machine that nobody holds now. Somebody may take it before the workers do; then
/// they say so.
Result<unsigned> free_port() {
  const int file = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  const bool found = file >= 0 &&
                     bind(file, reinterpret_cast<const sockaddr*>(&address), size) == 0 &&
                     getsockname(file, reinterpret_cast<sockaddr*>(&address), &size) == 0;
  if (file >= 0) close(file);
  if (!found) return fail(Code::kInternal, "no free TCP port on 127.0.0.1");
  return ntohs(address.sin_port);
}

/// The store at which the workers meet: it outlives any of them, so that those who live learn who
/// does not.
Result<std::unique_ptr<comm::store::StoreServer>> host_store() {
  // Its thread takes no signals: they are for the thread that waits for the workers.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  bool in_use = false;
  auto server = comm::store::StoreServer::start({.host = "127.0.0.1", .port = 0}, in_use);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return server;
}

struct Ports {
  unsigned master = 0;
  unsigned store = 0;
};

Environment variables_of(unsigned rank, const Options& options, const Ports& ports) {
  const unsigned local_size = options.local_size;
  return {{"RANK", std::to_string(rank)},
          {"WORLD_SIZE", std::to_string(options.workers)},
          {"LOCAL_RANK", std::to_string(rank % local_size)},
          {"LOCAL_WORLD_SIZE", std::to_string(local_size)},
          {"GROUP_RANK", std::to_string(rank / local_size)},
          {"MASTER_ADDR", "127.0.0.1"},
          {"MASTER_PORT", std::to_string(ports.master)},
          {"GRADPRESS_STORE", "127.0.0.1:" + std::to_string(ports.store)}};
}

Result<JobEnd> run(Options options) {
  if (options.local_size == 0) options.local_size = options.workers;
  if (options.workers % options.local_size != 0) {
    return fail(Code::kInvalidArgument, options.workers, " workers do not fill machines of ",
                options.local_size);
  }
  const auto port = free_port();
  if (!port) return tl::unexpected(port.error());
  const auto store = host_store();
  if (!store) return tl::unexpected(store.error());
  JobOptions job{.command = options.command,
                 .grace = std::chrono::milliseconds(std::llround(options.grace_s * 1e3)),
                 .prefix = options.prefix};
  for (unsigned rank = 0; rank < options.workers; ++rank) {
    job.variables.push_back(
        variables_of(rank, options, {.master = *port, .store = (*store)->port()}));
  }
  return run_job(job);
}

}  // namespace

void add_launch(CLI::App& app, int& exit_code) {
  CLI::App* verb =
      app.add_subcommand("launch", "N local processes of one job, with the rank variables set");
  auto options = std::make_shared<Options>();
  verb->add_option("-n,--workers", options->workers, "processes to start")
      ->required()
      ->check(CLI::Range(1U, 4096U));
  verb->add_option("--local-size", options->local_size,
                   "workers per machine, as the job is to believe; default: all on one")
      ->check(CLI::Range(1U, 4096U));
  verb->add_option("--grace", options->grace_s,
                   "seconds that the others may go on after one has failed")
      ->check(CLI::Range(0.0, 86400.0))
      ->capture_default_str();
  verb->add_flag("--prefix", options->prefix, "puts the rank in front of every line");
  verb->add_option("command", options->command, "the program and its arguments, after --")
      ->required();
  verb->positionals_at_end();
  verb->footer(
      "Sets RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK, MASTER_ADDR, MASTER_PORT "
      "and\n"
      "GRADPRESS_STORE, the address of a store that it hosts.\n"
      "Exit code: 0 when all end with 0, else that of the first that failed, or 128 + its signal.\n"
      "Example: gradpress launch -n 4 --prefix -- build/bin/gradpress bench collective --backend "
      "gloo");
  verb->callback([options, &exit_code] {
    const auto end = run(*options);
    if (!end) {
      std::fprintf(stderr, "gradpress launch: %s\n", end.error().message().c_str());
      exit_code = end.error().code() == Code::kInvalidArgument ? kUsage : kFailed;
      return;
    }
    exit_code = end->exit_code;
    if (exit_code != 0) {
      std::fprintf(stderr, "gradpress launch: rank %u %s\n", end->rank, end->cause.c_str());
    }
  });
}

}  // namespace gradpress::cli
