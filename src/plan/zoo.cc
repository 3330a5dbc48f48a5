#include "plan/zoo.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <vector>

namespace gradpress::plan {

namespace {

struct Parameter {
  std::string name;
  Shape shape;
};

/// Parameters whose gradients one backward operation makes, and its forward cost per item.
struct Layer {
  std::vector<Parameter> parameters;
  double flops = 0.0;
};

/// Layers in forward order.
class Network {
 public:
  /// Every element is used once per item and place: 2 operations, a multiply and an add.
  void linear(const std::string& name, std::uint64_t out, std::uint64_t in, double extra = 0.0) {
    layers_.push_back({{{name + ".weight", Shape{out, in}}, {name + ".bias", Shape{out}}},
                       2.0 * static_cast<double>(out * in) + extra});
  }
  void conv(const std::string& name, std::uint64_t out, std::uint64_t in, std::uint64_t kernel,
            std::uint64_t side, bool bias = false) {
    Layer layer{{{name + ".weight", Shape{out, in, kernel, kernel}}},
                2.0 * static_cast<double>(out * in * kernel * kernel * side * side)};
    if (bias) layer.parameters.push_back({name + ".bias", Shape{out}});
    layers_.push_back(std::move(layer));
  }
  /// Normalisation: a weight and a bias, about ten operations per activation.
  void norm(const std::string& name, std::uint64_t width, std::uint64_t activations) {
    layers_.push_back({{{name + ".weight", Shape{width}}, {name + ".bias", Shape{width}}},
                       10.0 * static_cast<double>(activations)});
  }
  void table(const std::string& name, std::uint64_t rows, std::uint64_t width) {
    layers_.push_back({{{name, Shape{rows, width}}}, static_cast<double>(width)});
  }
  void layer(Layer layer) { layers_.push_back(std::move(layer)); }

  Trace trace(std::string_view model, double tflops, double batch, std::string_view items) const {
    Trace trace;
    trace.model = model;
    const double us_per_flop = 1e-6 / tflops;
    for (auto layer = layers_.rbegin(); layer != layers_.rend(); ++layer) {
      const double forward_us = layer->flops * batch * us_per_flop;
      trace.forward_us += forward_us;
      double elements = 0.0;
      for (const Parameter& p : layer->parameters) elements += double(p.shape.elements());
      for (auto p = layer->parameters.rbegin(); p != layer->parameters.rend(); ++p) {
        const std::uint64_t count = p->shape.elements();
        trace.tensors.push_back({.name = p->name,
                                 .shape = p->shape,
                                 .elements = count,
                                 .ready_gap_us = 2.0 * forward_us * double(count) / elements});
      }
    }
    std::string speed;
    detail::append_number(speed, tflops);
    std::string size;
    detail::append_number(size, batch);
    trace.source = "estimate from the architecture: " + speed + " Tflop/s, " + size + " " +
                   std::string(items) + " per worker";
    return trace;
  }

 private:
  std::vector<Layer> layers_;
};

Network vgg16() {
  Network net;
  struct Conv {
    unsigned index;
    std::uint64_t out, side;
  };
  std::uint64_t in = 3;
  for (const Conv& conv : std::array<Conv, 13>{{{0, 64, 224},
                                                {2, 64, 224},
                                                {5, 128, 112},
                                                {7, 128, 112},
                                                {10, 256, 56},
                                                {12, 256, 56},
                                                {14, 256, 56},
                                                {17, 512, 28},
                                                {19, 512, 28},
                                                {21, 512, 28},
                                                {24, 512, 14},
                                                {26, 512, 14},
                                                {28, 512, 14}}}) {
    net.conv("features." + std::to_string(conv.index), conv.out, in, 3, conv.side, true);
    in = conv.out;
  }
  net.linear("classifier.0", 4096, std::uint64_t{512} * 7 * 7);
  net.linear("classifier.3", 4096, 4096);
  net.linear("classifier.6", 1000, 4096);
  return net;
}

/// Bottleneck ResNets: 50, 101 and 152 differ in the blocks of their third and second stage.
Network resnet(const std::array<unsigned, 4>& blocks) {
  Network net;
  const auto conv_norm = [&net](const std::string& conv, const std::string& norm, std::uint64_t out,
                                std::uint64_t in, std::uint64_t kernel, std::uint64_t side) {
    net.conv(conv, out, in, kernel, side);
    net.norm(norm, out, out * side * side);
  };
  conv_norm("conv1", "bn1", 64, 3, 7, 112);
  std::uint64_t in = 64;
  for (std::uint64_t stage = 0; stage < 4; ++stage) {
    const std::uint64_t width = std::uint64_t{64} << stage;
    const std::uint64_t side = std::uint64_t{56} >> stage;
    for (unsigned block = 0; block < blocks[stage]; ++block) {
      const std::string at =
          "layer" + std::to_string(stage + 1) + "." + std::to_string(block) + ".";
      // The first block of a stage halves the picture in its second convolution.
      const std::uint64_t side_in = block == 0 && stage > 0 ? 2 * side : side;
      conv_norm(at + "conv1", at + "bn1", width, in, 1, side_in);
      conv_norm(at + "conv2", at + "bn2", width, width, 3, side);
      conv_norm(at + "conv3", at + "bn3", 4 * width, width, 1, side);
      if (block == 0) {
        conv_norm(at + "downsample.0", at + "downsample.1", 4 * width, in, 1, side);
      }
      in = 4 * width;
    }
  }
  net.linear("fc", 1000, 2048);
  return net;
}

constexpr std::uint64_t kSequence = 128;  ///< tokens that attend to each other

Network bert(std::uint64_t width, unsigned layers) {
  Network net;
  const std::string embeddings = "bert.embeddings.";
  net.table(embeddings + "word_embeddings.weight", 30522, width);
  net.table(embeddings + "position_embeddings.weight", 512, width);
  net.table(embeddings + "token_type_embeddings.weight", 2, width);
  net.norm(embeddings + "LayerNorm", width, width);
  const double attention = 4.0 * double(kSequence) * double(width);
  for (unsigned i = 0; i < layers; ++i) {
    const std::string at = "bert.encoder.layer." + std::to_string(i) + ".";
    net.linear(at + "attention.self.query", width, width);
    net.linear(at + "attention.self.key", width, width);
    net.linear(at + "attention.self.value", width, width, attention);
    net.linear(at + "attention.output.dense", width, width);
    net.norm(at + "attention.output.LayerNorm", width, width);
    net.linear(at + "intermediate.dense", 4 * width, width);
    net.linear(at + "output.dense", width, 4 * width);
    net.norm(at + "output.LayerNorm", width, width);
  }
  net.linear("qa_outputs", 2, width);
  return net;
}

Network gpt2(std::uint64_t width, unsigned layers) {
  Network net;
  constexpr std::uint64_t kVocabulary = 50257;
  // The word table is the output layer too: its gradient is complete at the end of backward.
  net.layer(
      {{{"transformer.wte.weight", Shape{kVocabulary, width}}}, 2.0 * double(kVocabulary * width)});
  net.table("transformer.wpe.weight", 1024, width);
  const double attention = 4.0 * double(kSequence) * double(width);
  for (unsigned i = 0; i < layers; ++i) {
    const std::string at = "transformer.h." + std::to_string(i) + ".";
    net.norm(at + "ln_1", width, width);
    net.linear(at + "attn.c_attn", 3 * width, width, attention);
    net.linear(at + "attn.c_proj", width, width);
    net.norm(at + "ln_2", width, width);
    net.linear(at + "mlp.c_fc", 4 * width, width);
    net.linear(at + "mlp.c_proj", width, 4 * width);
  }
  net.norm("transformer.ln_f", width, width);
  return net;
}

/// Two layers of 1500 on WikiText-2, the word table shared with the output layer.
Network lstm() {
  Network net;
  constexpr std::uint64_t kVocabulary = 33278;
  constexpr std::uint64_t kWidth = 1500;
  net.table("encoder.weight", kVocabulary, kWidth);
  for (unsigned i = 0; i < 2; ++i) {
    const std::string at = "rnns." + std::to_string(i) + ".";
    net.layer({{{at + "weight_ih_l0", Shape{4 * kWidth, kWidth}},
                {at + "weight_hh_l0", Shape{4 * kWidth, kWidth}},
                {at + "bias_ih_l0", Shape{4 * kWidth}},
                {at + "bias_hh_l0", Shape{4 * kWidth}}},
               2.0 * 2.0 * double(4 * kWidth * kWidth)});
  }
  net.layer({{{"decoder.bias", Shape{kVocabulary}}}, 2.0 * double(kVocabulary * kWidth)});
  return net;
}

struct Entry {
  std::string_view name;
  std::string_view items;
  std::uint64_t batch;
  Network (*make)();
};

constexpr std::array kEntries = {
    Entry{"vgg16", "images", 32, vgg16},
    Entry{"resnet50", "images", 32,
          [] {
            return resnet({3, 4, 6, 3});
          }},
    Entry{"resnet101", "images", 32,
          [] {
            return resnet({3, 4, 23, 3});
          }},
    Entry{"resnet152", "images", 32,
          [] {
            return resnet({3, 8, 36, 3});
          }},
    Entry{"bert-base", "tokens", 1024, [] { return bert(768, 12); }},
    Entry{"bert-large", "tokens", 1024, [] { return bert(1024, 24); }},
    Entry{"gpt2", "tokens", 1024, [] { return gpt2(768, 12); }},
    Entry{"gpt2-medium", "tokens", 1024, [] { return gpt2(1024, 24); }},
    Entry{"gpt2-large", "tokens", 1024, [] { return gpt2(1280, 36); }},
    Entry{"gpt2-xl", "tokens", 1024, [] { return gpt2(1600, 48); }},
    Entry{"lstm", "tokens", 1024, lstm},
};

constexpr auto kNames = [] {
  std::array<std::string_view, kEntries.size()> names{};
  for (std::size_t i = 0; i < names.size(); ++i) names[i] = kEntries[i].name;
  return names;
}();

}  // namespace

std::span<const std::string_view> zoo_models() { return kNames; }

Result<Trace> zoo_trace(std::string_view model, const ZooOptions& options) {
  const auto* const entry = std::ranges::find(kEntries, model, &Entry::name);
  if (entry == kEntries.end()) {
    std::string names;
    for (const std::string_view name : kNames) names.append(names.empty() ? "" : ", ").append(name);
    return fail(Code::kInvalidArgument, "unknown model \"", model, "\"; known are ", names,
                "; for any other give a trace file");
  }
  if (!(options.tflops > 0.0) || !std::isfinite(options.tflops)) {
    return fail(Code::kInvalidArgument, "model ", model,
                ": wanted the speed of a worker above 0 Tflop/s, got ", options.tflops);
  }
  const std::uint64_t batch = options.batch.value_or(entry->batch);
  if (batch == 0) return fail(Code::kInvalidArgument, "model ", model, ": wanted a batch, got 0");
  return entry->make().trace(entry->name, options.tflops, double(batch), entry->items);
}

}  // namespace gradpress::plan
