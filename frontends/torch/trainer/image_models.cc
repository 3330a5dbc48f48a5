#include <torch/torch.h>

#include <array>
#include <utility>

#include "models.h"

namespace gradpress::trainer {

namespace {

namespace nn = torch::nn;

std::int64_t or_else(std::int64_t value, std::int64_t fallback) {
  return value == 0 ? fallback : value;
}

nn::Conv2d convolution(std::int64_t in, std::int64_t out, std::int64_t stride = 1) {
  return nn::Conv2d(nn::Conv2dOptions(in, out, 3).stride(stride).padding(1).bias(false));
}

/// Fully connected layers with ReLU between them.
class Mlp final : public Model {
 public:
  Mlp(const ModelSettings& settings, const SampleShape& shape) {
    std::int64_t units = shape.channels * shape.height * shape.width;
    const std::int64_t hidden = or_else(settings.hidden, 512);
    for (std::int64_t i = 0; i < or_else(settings.layers, 2); ++i) {
      hidden_.emplace_back(
          register_module("hidden" + std::to_string(i + 1), nn::Linear(units, hidden)));
      units = hidden;
    }
    output_ = register_module("output", nn::Linear(units, shape.classes));
  }
  torch::Tensor forward(const torch::Tensor& inputs) override {
    auto x = inputs.flatten(1);
    for (auto& layer : hidden_) x = torch::relu(layer->forward(x));
    return output_->forward(x);
  }

 private:
  std::vector<nn::Linear> hidden_;
  nn::Linear output_{nullptr};
};

/// LeNet with ReLU and maximum pooling: two 5 × 5 convolutions, one hidden layer.
class LeNet final : public Model {
 public:
  LeNet(const ModelSettings& settings, const SampleShape& shape) {
    const std::int64_t width = or_else(settings.width, 20);
    const std::int64_t second = width * 5 / 2;
    const std::int64_t hidden = or_else(settings.hidden, 500);
    // Two poolings after convolutions that keep the size.
    const std::int64_t flat = second * (shape.height / 4) * (shape.width / 4);
    conv1_ = register_module("conv1",
                             nn::Conv2d(nn::Conv2dOptions(shape.channels, width, 5).padding(2)));
    conv2_ = register_module("conv2", nn::Conv2d(nn::Conv2dOptions(width, second, 5).padding(2)));
    hidden_ = register_module("hidden", nn::Linear(flat, hidden));
    output_ = register_module("output", nn::Linear(hidden, shape.classes));
  }
  torch::Tensor forward(const torch::Tensor& inputs) override {
    auto x = torch::max_pool2d(torch::relu(conv1_->forward(inputs)), 2);
    x = torch::max_pool2d(torch::relu(conv2_->forward(x)), 2);
    x = torch::relu(hidden_->forward(x.flatten(1)));
    return output_->forward(x);
  }

 private:
  nn::Conv2d conv1_{nullptr};
  nn::Conv2d conv2_{nullptr};
  nn::Linear hidden_{nullptr};
  nn::Linear output_{nullptr};
};

/// Two convolutions and a shortcut; where the shape changes the shortcut is strided and padded
/// with zero channels, so that it has no parameters (the form used for CIFAR-10).
class BlockImpl final : public nn::Module {
 public:
  BlockImpl(std::int64_t in, std::int64_t out, std::int64_t stride)
      : stride_(stride), new_channels_(out - in) {
    conv1_ = register_module("conv1", convolution(in, out, stride));
    norm1_ = register_module("norm1", nn::BatchNorm2d(out));
    conv2_ = register_module("conv2", convolution(out, out));
    norm2_ = register_module("norm2", nn::BatchNorm2d(out));
  }
  torch::Tensor forward(const torch::Tensor& inputs) {
    auto x = torch::relu(norm1_->forward(conv1_->forward(inputs)));
    x = norm2_->forward(conv2_->forward(x));
    return torch::relu(x + shortcut(inputs));
  }

 private:
  torch::Tensor shortcut(const torch::Tensor& inputs) const {
    if (stride_ == 1 && new_channels_ == 0) return inputs;
    const auto small =
        inputs.slice(2, 0, inputs.size(2), stride_).slice(3, 0, inputs.size(3), stride_);
    return torch::constant_pad_nd(small, {0, 0, 0, 0, 0, new_channels_}, 0);
  }

  std::int64_t stride_;
  std::int64_t new_channels_;
  nn::Conv2d conv1_{nullptr};
  nn::BatchNorm2d norm1_{nullptr};
  nn::Conv2d conv2_{nullptr};
  nn::BatchNorm2d norm2_{nullptr};
};
TORCH_MODULE(Block);

/// Three stages of three blocks.
class ResNet20 final : public Model {
 public:
  ResNet20(const ModelSettings& settings, const SampleShape& shape) {
    std::int64_t channels = or_else(settings.width, 16);
    conv_ = register_module("conv", convolution(shape.channels, channels));
    norm_ = register_module("norm", nn::BatchNorm2d(channels));
    for (std::int64_t stage = 0; stage < 3; ++stage) {
      for (std::int64_t i = 0; i < 3; ++i) {
        const bool shrinks = stage > 0 && i == 0;
        const std::int64_t out = shrinks ? 2 * channels : channels;
        blocks_.emplace_back(
            register_module("stage" + std::to_string(stage + 1) + "_" + std::to_string(i + 1),
                            Block(channels, out, shrinks ? 2 : 1)));
        channels = out;
      }
    }
    output_ = register_module("output", nn::Linear(channels, shape.classes));
  }
  torch::Tensor forward(const torch::Tensor& inputs) override {
    auto x = torch::relu(norm_->forward(conv_->forward(inputs)));
    for (auto& block : blocks_) x = block->forward(x);
    return output_->forward(x.mean({2, 3}));
  }

 private:
  nn::Conv2d conv_{nullptr};
  nn::BatchNorm2d norm_{nullptr};
  std::vector<Block> blocks_;
  nn::Linear output_{nullptr};
};

/// VGG-11 with batch norms and two large hidden layers, which hold most of the parameters.
class Vgg11 final : public Model {
 public:
  Vgg11(const ModelSettings& settings, const SampleShape& shape) {
    const std::int64_t width = or_else(settings.width, 16);
    const std::int64_t hidden = or_else(settings.hidden, 1024);
    std::int64_t channels = shape.channels;
    for (std::size_t i = 0; i < kTimesWidth.size(); ++i) {
      const std::int64_t out = kTimesWidth[i] * width;
      const std::string number = std::to_string(i + 1);
      convs_.emplace_back(register_module("conv" + number, convolution(channels, out)));
      norms_.emplace_back(register_module("norm" + number, nn::BatchNorm2d(out)));
      channels = out;
    }
    hidden1_ = register_module("hidden1", nn::Linear(channels, hidden));
    hidden2_ = register_module("hidden2", nn::Linear(hidden, hidden));
    output_ = register_module("output", nn::Linear(hidden, shape.classes));
  }
  torch::Tensor forward(const torch::Tensor& inputs) override {
    // Five poolings need 32 × 32.
    const std::int64_t missing = std::max<std::int64_t>(32 - inputs.size(2), 0);
    auto x = torch::constant_pad_nd(
        inputs, {missing / 2, missing - missing / 2, missing / 2, missing - missing / 2}, 0);
    for (std::size_t i = 0; i < convs_.size(); ++i) {
      x = torch::relu(norms_[i]->forward(convs_[i]->forward(x)));
      if (kPooled[i]) x = torch::max_pool2d(x, 2);
    }
    x = torch::relu(hidden1_->forward(x.flatten(1)));
    x = torch::relu(hidden2_->forward(x));
    return output_->forward(x);
  }

 private:
  static constexpr std::array<std::int64_t, 8> kTimesWidth = {1, 2, 4, 4, 8, 8, 8, 8};
  static constexpr std::array<bool, 8> kPooled = {true,  true, false, true,
                                                  false, true, false, true};
  std::vector<nn::Conv2d> convs_;
  std::vector<nn::BatchNorm2d> norms_;
  nn::Linear hidden1_{nullptr};
  nn::Linear hidden2_{nullptr};
  nn::Linear output_{nullptr};
};

}  // namespace

std::shared_ptr<Model> make_image_model(const ModelSettings& settings, const SampleShape& shape) {
  if (settings.name == "mlp") return std::make_shared<Mlp>(settings, shape);
  if (settings.name == "lenet") return std::make_shared<LeNet>(settings, shape);
  if (settings.name == "resnet20") return std::make_shared<ResNet20>(settings, shape);
  if (settings.name == "vgg11") return std::make_shared<Vgg11>(settings, shape);
  return nullptr;
}

}  // namespace gradpress::trainer
