#include <ATen/CPUGeneratorImpl.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>
#include <optional>
#include <tuple>
#include <utility>

#include "models.h"

namespace gradpress::trainer {

namespace {

namespace nn = torch::nn;

std::int64_t or_else(std::int64_t value, std::int64_t fallback) {
  return value == 0 ? fallback : value;
}

}  // namespace

Dropout::Dropout(double part)
    : keeps_(1.0 - part), generator_(at::make_generator<at::CPUGeneratorImpl>(0)) {}

void Dropout::seed(std::uint64_t seed) { generator_.set_current_seed(seed); }

torch::Tensor Dropout::operator()(const torch::Tensor& x) {
  return x * torch::empty_like(x).bernoulli_(keeps_, generator_).div_(keeps_);
}

namespace {

/// Every sample begins with an empty state, so that samples can be taken in any order.
class LstmModel final : public Model {
 public:
  LstmModel(const ModelSettings& settings, const SampleShape& shape) {
    const std::int64_t hidden = or_else(settings.hidden, 256);
    embedding_ = register_module("embedding", nn::Embedding(shape.classes, hidden));
    lstm_ = register_module("lstm", nn::LSTM(nn::LSTMOptions(hidden, hidden)
                                                 .num_layers(or_else(settings.layers, 1))
                                                 .batch_first(true)));
    output_ = register_module("output", nn::Linear(hidden, shape.classes));
    if (settings.dropout > 0.0) dropout_.emplace(settings.dropout);
  }
  void seed_dropout(std::uint64_t seed) override {
    if (dropout_) dropout_->seed(seed);
  }
  // Before and after the stack. Between its layers torch would draw from the generator that all
  // workers of a process share.
  torch::Tensor forward(const torch::Tensor& inputs) override {
    const bool drops = dropout_ && is_training();
    auto x = embedding_->forward(inputs);
    if (drops) x = (*dropout_)(x);
    x = std::get<0>(lstm_->forward(x));
    if (drops) x = (*dropout_)(x);
    return output_->forward(x.flatten(0, 1));
  }

 private:
  std::optional<Dropout> dropout_;
  nn::Embedding embedding_{nullptr};
  nn::LSTM lstm_{nullptr};
  nn::Linear output_{nullptr};
};

/// Norms before attention and before the two layers, as in GPT-2.
class TransformerBlockImpl final : public nn::Module {
 public:
  TransformerBlockImpl(std::int64_t hidden, std::int64_t heads) : heads_(heads) {
    norm1_ = register_module("norm1", nn::LayerNorm(nn::LayerNormOptions({hidden})));
    inward_ = register_module("attention_in", nn::Linear(hidden, 3 * hidden));
    outward_ = register_module("attention_out", nn::Linear(hidden, hidden));
    norm2_ = register_module("norm2", nn::LayerNorm(nn::LayerNormOptions({hidden})));
    wide_ = register_module("wide", nn::Linear(hidden, 4 * hidden));
    narrow_ = register_module("narrow", nn::Linear(4 * hidden, hidden));
  }
  /// `dropout`, where there is one, takes what is added to the stream.
  torch::Tensor forward(const torch::Tensor& inputs, const torch::Tensor& future,
                        Dropout* dropout) {
    const auto dropped = [&](const torch::Tensor& x) {
      return dropout != nullptr ? (*dropout)(x) : x;
    };
    const auto x = inputs + dropped(attention(norm1_->forward(inputs), future));
    return x + dropped(narrow_->forward(torch::gelu(wide_->forward(norm2_->forward(x)))));
  }

 private:
  torch::Tensor attention(const torch::Tensor& x, const torch::Tensor& future) {
    const std::int64_t samples = x.size(0);
    const std::int64_t sequence = x.size(1);
    const std::int64_t per_head = x.size(2) / heads_;
    // [query, key or value, samples, heads, sequence, per_head]
    const auto parts =
        inward_->forward(x).view({samples, sequence, 3, heads_, per_head}).permute({2, 0, 3, 1, 4});
    auto scores = torch::matmul(parts[0], parts[1].transpose(-2, -1)) /
                  std::sqrt(static_cast<double>(per_head));
    scores = scores.masked_fill(future, -std::numeric_limits<float>::infinity());
    const auto mixed = torch::matmul(torch::softmax(scores, -1), parts[2]);
    return outward_->forward(mixed.transpose(1, 2).reshape({samples, sequence, x.size(2)}));
  }

  std::int64_t heads_;
  nn::LayerNorm norm1_{nullptr};
  nn::Linear inward_{nullptr};
  nn::Linear outward_{nullptr};
  nn::LayerNorm norm2_{nullptr};
  nn::Linear wide_{nullptr};
  nn::Linear narrow_{nullptr};
};
TORCH_MODULE(TransformerBlock);

class TransformerModel final : public Model {
 public:
  TransformerModel(const ModelSettings& settings, const SampleShape& shape) {
    const std::int64_t hidden = or_else(settings.hidden, 128);
    embedding_ = register_module("embedding", nn::Embedding(shape.classes, hidden));
    position_ = register_module("position", nn::Embedding(shape.sequence, hidden));
    for (std::int64_t i = 0; i < or_else(settings.layers, 2); ++i) {
      blocks_.emplace_back(register_module("block" + std::to_string(i + 1),
                                           TransformerBlock(hidden, or_else(settings.heads, 4))));
    }
    norm_ = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({hidden})));
    output_ = register_module("output", nn::Linear(hidden, shape.classes));
    const torch::NoGradGuard guard;
    for (auto& weight : {embedding_->weight, position_->weight}) weight.mul_(0.02);
    if (settings.dropout > 0.0) dropout_.emplace(settings.dropout);
  }
  void seed_dropout(std::uint64_t seed) override {
    if (dropout_) dropout_->seed(seed);
  }
  torch::Tensor forward(const torch::Tensor& inputs) override {
    const std::int64_t sequence = inputs.size(1);
    const auto future = torch::ones({sequence, sequence}, torch::kBool).triu(1);
    auto x = embedding_->forward(inputs) + position_->forward(torch::arange(sequence));
    Dropout* const dropout = dropout_ && is_training() ? &*dropout_ : nullptr;
    if (dropout != nullptr) x = (*dropout)(x);
    for (auto& block : blocks_) x = block->forward(x, future, dropout);
    return output_->forward(norm_->forward(x).flatten(0, 1));
  }

 private:
  std::optional<Dropout> dropout_;
  nn::Embedding embedding_{nullptr};
  nn::Embedding position_{nullptr};
  std::vector<TransformerBlock> blocks_;
  nn::LayerNorm norm_{nullptr};
  nn::Linear output_{nullptr};
};

}  // namespace

std::shared_ptr<Model> make_language_model(const ModelSettings& settings,
                                           const SampleShape& shape) {
  if (settings.name == "lstm-lm") return std::make_shared<LstmModel>(settings, shape);
  if (settings.name == "transformer-lm") return std::make_shared<TransformerModel>(settings, shape);
  return nullptr;
}

}  // namespace gradpress::trainer
