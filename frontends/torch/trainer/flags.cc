#include "flags.h"

#include <gradpress/engine.h>
#include <gradpress/version.h>

#include <CLI/CLI.hpp>
#include <limits>
#include <map>

namespace gradpress::trainer {

namespace {

constexpr int kUsage = 2;
constexpr std::int64_t kMany = 1'000'000'000;

void add_model_flags(CLI::App& app, ModelSettings& model) {
  auto* group = app.add_option_group("model");
  group->add_option("--model", model.name, "mlp, lenet, resnet20, vgg11, lstm-lm or transformer-lm")
      ->capture_default_str();
  group->add_option("--width", model.width, "channels of the first convolution")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{4096}));
  group->add_option("--layers", model.layers, "hidden layers, LSTM layers or transformer blocks")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1000}));
  group->add_option("--hidden", model.hidden, "units of a hidden layer")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{65536}));
  group->add_option("--heads", model.heads, "attention heads of transformer-lm")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1024}));
  group
      ->add_option("--dropout", model.dropout,
                   "part of the activations that lstm-lm and transformer-lm drop while training")
      ->check(CLI::Range(0.0, 0.99));
}

void add_data_flags(CLI::App& app, DataSettings& data) {
  auto* group = app.add_option_group("data");
  group
      ->add_option("--data", data.source,
                   "fashion-mnist[:FOLDER], cifar10:FOLDER, text:FILE or synthetic")
      ->capture_default_str();
  group->add_option("--train-samples", data.train_samples, "only the first so many; default: all")
      ->check(CLI::Range(std::int64_t{1}, kMany));
  group->add_option("--test-samples", data.test_samples, "only the first so many; default: all")
      ->check(CLI::Range(std::int64_t{1}, kMany));
  group->add_option("--sequence", data.sequence, "tokens of a text's sample")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{65536}))
      ->capture_default_str();
  group->add_flag("--words", data.words, "a text's tokens are words, not bytes");
  group->add_option("--vocab", data.vocabulary, "words kept, the most frequent")
      ->check(CLI::Range(std::int64_t{2}, kMany))
      ->capture_default_str();
}

void add_optimizer_flags(CLI::App& app, Settings& settings) {
  OptimizerSettings& optimizer = settings.optimizer;
  auto* group = app.add_option_group("optimizer");
  group->add_option("--optimizer", optimizer.name, "sgd or adamw")->capture_default_str();
  group->add_option("--lr", optimizer.lr, "learning rate")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  group->add_option("--momentum", optimizer.momentum, "of sgd")
      ->check(CLI::Range(0.0, 0.9999))
      ->capture_default_str();
  group->add_flag("--nesterov", optimizer.nesterov, "Nesterov's momentum");
  group
      ->add_option("--weight-decay", optimizer.weight_decay,
                   "of tensors with two or more dimensions")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  group->add_option("--schedule", settings.schedule.name, "constant, step or cosine")
      ->capture_default_str();
  group
      ->add_option("--lr-warmup", settings.schedule.warmup_steps,
                   "steps in which the rate grows linearly to --lr")
      ->check(CLI::Range(std::int64_t{0}, kMany));
  group
      ->add_option("--decay-at", settings.schedule.decay_at,
                   "parts of the run at which `step` decays, comma-separated")
      ->delimiter(',')
      ->check(CLI::Range(0.0, 1.0));
  group->add_option("--decay", settings.schedule.decay, "factor of `step` at each of them")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  group
      ->add_option("--lr-floor", settings.schedule.floor,
                   "part of --lr that `step` and `cosine` do not go below")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  group
      ->add_option("--clip", settings.clip_after,
                   "largest norm of the mean gradient, after synchronising")
      ->check(CLI::NonNegativeNumber);
  group
      ->add_option("--clip-before", settings.clip_before,
                   "largest norm of the summed gradient, each worker's own at 1/sqrt(workers) of "
                   "it, before anything is sent (RedSync's way for recurrent models)")
      ->check(CLI::NonNegativeNumber);
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text.append(text.empty() ? "" : ",").append(word);
  return text;
}

void add_compression_flags(CLI::App& app, CompressionSettings& compression) {
  const std::map<std::string, Choice> choices = {
      {"auto", Choice::kAuto}, {"on", Choice::kOn}, {"off", Choice::kOff}};
  auto* group = app.add_option_group("compression");
  group->add_option("--codec", compression.codec, "none, acpsgd:4, dgc:0.001, efsign, ...")
      ->capture_default_str();
  group->add_option("--plan", compression.plan,
                    "auto (measure, decide, go back where it does not pay) or a plan's file");
  group
      ->add_option("--auto-codecs", compression.auto_codecs,
                   "what --plan auto may choose from, comma-separated; default: " +
                       joined(AutoOptions{}.codecs))
      ->delimiter(',');
  group
      ->add_option("--momentum-correction", compression.momentum_correction,
                   "momentum accumulates before a sparsifier: auto, on or off")
      ->transform(CLI::CheckedTransformer(choices))
      ->default_str("auto");
  group->add_flag("!--no-masking", compression.masking, "what is sent keeps its momentum");
  group
      ->add_option("--local-clip", compression.local_clip,
                   "largest norm of a tensor's summed gradient, each worker's own at "
                   "1/sqrt(workers) of it, before it accumulates; with momentum correction")
      ->check(CLI::NonNegativeNumber);
  group->add_option("--dense-epochs", compression.dense_epochs, "uncompressed at the start")
      ->check(CLI::NonNegativeNumber);
  group
      ->add_option("--falling-epochs", compression.falling_epochs,
                   "epochs after those, parts of one too, in which a sparsifier's ratio falls to "
                   "its own")
      ->check(CLI::Range(0.0, 100000.0));
  group
      ->add_option("--falling-stages", compression.falling_stages,
                   "equal parts of --falling-epochs, a ratio each; default: one per epoch")
      ->check(CLI::Range(1U, 1000U));
  group->add_option("--least-elements", compression.least_elements, "smaller tensors travel raw")
      ->capture_default_str();
  group->add_flag("--dense-output", compression.dense_output, "the output layer travels raw");
  group->add_flag("--rate-correction", compression.rate_correction,
                  "residuals are multiplied by old / new learning rate when it changes, as in the "
                  "published EF-SGD; without momentum correction");
  group->add_flag("!--no-overlap", compression.overlap, "send after backward, in a row");
  group->add_flag("!--no-fusion", compression.fusion, "a message per tensor");
}

void add_worker_flags(CLI::App& app, WorkerSettings& workers) {
  auto* group = app.add_option_group("workers");
  group
      ->add_option("--backend", workers.backend,
                   "local (threads of this process), gloo or mpi (processes that a launcher "
                   "started)")
      ->capture_default_str();
  group
      ->add_option("--workers", workers.workers,
                   "workers in all; default: 4 on local, else what the launcher started")
      ->check(CLI::Range(1U, 4096U));
  group
      ->add_option("--local-size", workers.local_size,
                   "workers per machine; default: 1 on local, else what the launcher says")
      ->check(CLI::Range(1U, 4096U));
  group
      ->add_option("--link", workers.link,
                   "RATE[,LATENCY] between machines, such as 100mbit,50us: emulated on local")
      ->capture_default_str();
  group->add_option("--timeout", workers.timeout_s, "seconds that a peer may be silent")
      ->check(CLI::Range(0.1, 86400.0))
      ->capture_default_str();
}

void add_run_flags(CLI::App& app, Settings& settings) {
  auto* group = app.add_option_group("run");
  group->add_option("--batch", settings.batch, "samples per worker")
      ->check(CLI::Range(std::int64_t{1}, kMany))
      ->capture_default_str();
  group
      ->add_option("--accumulate", settings.accumulate,
                   "backwards whose gradients are added up before they are sent")
      ->check(CLI::Range(std::int64_t{1}, kMany))
      ->capture_default_str();
  group->add_option("--epochs", settings.epochs, "parts of one too")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  group->add_option("--steps", settings.steps, "instead of --epochs")
      ->check(CLI::Range(std::int64_t{1}, kMany));
  group->add_option("--seed", settings.seed, "of parameters, order and codecs")
      ->capture_default_str();
  group->add_option("--eval-every", settings.eval_every, "steps; default: once per epoch")
      ->check(CLI::Range(std::int64_t{1}, kMany));
  group->add_option("--log-every", settings.log_every, "steps")
      ->check(CLI::Range(std::int64_t{1}, kMany))
      ->capture_default_str();
  group
      ->add_option("--time-to", settings.time_to,
                   "end when the test reaches this accuracy (per cent) or perplexity")
      ->check(CLI::PositiveNumber);
  group->add_option("--json", settings.json, "write the run to this file");
  group->add_option("--save", settings.save, "folder for a checkpoint, written at the end");
  group->add_option("--save-every", settings.save_every, "and every so many steps")
      ->check(CLI::Range(std::int64_t{1}, kMany));
  group->add_option("--resume", settings.resume, "go on from the checkpoint in this folder");
  group->add_option("--write-plan", settings.write_plan,
                    "write what ran at the end to this file, for --plan FILE");
  group->add_option("--record-trace", settings.record_trace,
                    "write when gradients became ready to this file, for gradpress plan");
  group->add_option("--record-gradients", settings.record_gradients,
                    "write rank 0's gradients of the first steps to this file, for gradpress "
                    "replay");
  group->add_option("--gradient-steps", settings.gradient_steps, "how many steps of them")
      ->check(CLI::Range(1U, 1000U))
      ->capture_default_str();
}

std::string typed(int argc, char** argv) {
  std::string text = "gradpress train";
  for (int i = 1; i < argc; ++i) text.append(" ").append(argv[i]);
  return text;
}

}  // namespace

ParsedLine parse_command_line(int argc, char** argv) {
  CommandLine line;
  CLI::App app("gradpress train: data-parallel training with compressed gradients",
               "gradpress train");
  app.set_version_flag("--version", std::string(version()));
  app.add_flag("--demo", line.demo,
               "Fashion-MNIST, 4 workers on an emulated 100 Mbit link: first uncompressed, then "
               "with --plan auto, then a table and report.html");
  app.add_option("--out", line.demo_folder, "the demo's folder")->capture_default_str();
  add_model_flags(app, line.settings.model);
  add_data_flags(app, line.settings.data);
  add_optimizer_flags(app, line.settings);
  add_compression_flags(app, line.settings.compression);
  add_worker_flags(app, line.settings.workers);
  add_run_flags(app, line.settings);
  app.footer(
      "Exit code: 0 ok, 1 failed or interrupted, 2 wrong usage or input, 3 a peer was lost.\n"
      "Example:\n"
      "  gradpress train --model lenet --workers 4 --link 100mbit --codec acpsgd:4 --json a.json\n"
      "  gradpress launch -n 4 -- gradpress train --backend gloo --plan auto");
  line.settings.command = typed(argc, argv);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return {.exit_code = app.exit(error) == 0 ? 0 : kUsage};
  }
  return {.line = std::move(line)};
}

}  // namespace gradpress::trainer
