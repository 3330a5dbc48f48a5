// What a training run is told: one struct per part, filled by flags.cc.
#pragma once

#include <gradpress/status.h>

#include <cstdint>
#include <string>
#include <vector>

namespace gradpress::trainer {

/// Sizes that are 0 are the model's own.
struct ModelSettings {
  std::string name = "lenet";
  std::int64_t width = 0;   ///< channels of the first convolution
  std::int64_t layers = 0;  ///< hidden layers, LSTM layers, transformer blocks
  std::int64_t hidden = 0;  ///< units of a hidden layer
  std::int64_t heads = 0;   ///< of attention
  double dropout = 0.0;     ///< of language models
};

struct DataSettings {
  /// fashion-mnist[:DIR], cifar10:DIR, text:FILE, synthetic
  std::string source = "fashion-mnist";
  std::int64_t train_samples = 0;   ///< only the first so many; 0: all
  std::int64_t test_samples = 0;    ///< the same of the test set
  std::int64_t sequence = 32;       ///< tokens of a text's sample
  bool words = false;               ///< a text's tokens are words, not bytes
  std::int64_t vocabulary = 10000;  ///< words kept, by count; the others are one token
};

struct OptimizerSettings {
  std::string name = "sgd";  ///< or adamw
  double lr = 0.05;
  double momentum = 0.9;  ///< of sgd
  bool nesterov = false;
  double weight_decay = 0.0;  ///< of tensors with two or more dimensions
  double beta1 = 0.9;         ///< of adamw, as the two below
  double beta2 = 0.999;
  double epsilon = 1e-8;
};

struct ScheduleSettings {
  std::string name = "constant";               ///< step, cosine
  std::int64_t warmup_steps = 0;               ///< the rate grows linearly from lr / warmup_steps
  std::vector<double> decay_at = {0.5, 0.75};  ///< of `step`: parts of the run
  double decay = 0.1;                          ///< of `step`: factor at each of them
  double floor = 0.0;                          ///< part of the rate that no schedule goes below
};

enum class Choice : std::uint8_t { kAuto, kOn, kOff };

struct CompressionSettings {
  std::string codec = "none";
  std::string plan = {};                      ///< "auto" or a plan's file; goes before `codec`
  std::vector<std::string> auto_codecs = {};  ///< what "auto" may choose from; none: the engine's
  Choice momentum_correction = Choice::kAuto;
  bool masking = true;
  double local_clip = 0.0;              ///< norm of the summed gradient, tensor by tensor; 0: none
  double dense_epochs = 0.0;            ///< uncompressed at the start
  double falling_epochs = 0.0;          ///< after those: the ratio falls to the codec's own
  unsigned falling_stages = 0;          ///< in so many equal parts; 0: one per epoch
  std::uint64_t least_elements = 1024;  ///< smaller tensors travel raw
  bool dense_output = false;            ///< the output layer travels raw
  bool rate_correction = false;         ///< residuals follow the learning rate
  bool overlap = true;
  bool fusion = true;
};

struct WorkerSettings {
  std::string backend = "local";
  std::string link = "unlimited";
  unsigned workers = 0;     ///< 0: local 4, elsewhere what the launcher started
  unsigned local_size = 0;  ///< 0: local 1, elsewhere what the launcher says
  double timeout_s = 30.0;
};

struct Settings {
  ModelSettings model = {};
  DataSettings data = {};
  OptimizerSettings optimizer = {};
  ScheduleSettings schedule = {};
  CompressionSettings compression = {};
  WorkerSettings workers = {};
  std::int64_t batch = 32;      ///< samples per worker and backward
  std::int64_t accumulate = 1;  ///< backwards per step
  double epochs = 1.0;
  std::int64_t steps = 0;  ///< goes before `epochs`
  double clip_before = 0.0;
  double clip_after = 0.0;
  std::uint64_t seed = 1;
  std::int64_t eval_every = 0;  ///< steps; 0: once per epoch
  std::int64_t log_every = 10;
  double time_to = 0.0;  ///< ends the run when the metric is reached; 0: no
  std::string json = {};
  std::string save = {};  ///< folder
  std::int64_t save_every = 0;
  std::string resume = {};      ///< folder
  std::string write_plan = {};  ///< what ran at the end
  std::string record_trace = {};
  unsigned trace_steps = 50;
  std::string record_gradients = {};
  unsigned gradient_steps = 4;
  std::string command = {};  ///< as typed, for the record
};

/// Whether the codec keeps the largest few and leaves the rest for later.
bool is_sparsifier(const std::string& codec);

/// Whether parts fit each other, as far as no data and no world is needed for it.
/// Errors: kInvalidArgument, naming the flag, what was wanted and what was got.
Status check(const Settings& settings);

}  // namespace gradpress::trainer
