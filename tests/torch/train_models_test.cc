// Every model of the trainer: shapes, gradients, causality, and no hidden random numbers.
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>

#include "models.h"

namespace gradpress::trainer {
namespace {

constexpr std::int64_t kSamples = 3;
constexpr std::int64_t kSequence = 6;
constexpr std::int64_t kClasses = 10;

SampleShape shape_for(const std::string& model) {
  if (model.ends_with("-lm")) return {.classes = kClasses, .sequence = kSequence};
  return {.channels = 1, .height = 28, .width = 28, .classes = kClasses};
}

torch::Tensor inputs_for(const SampleShape& shape) {
  if (shape.is_text()) {
    return torch::arange(kSamples * kSequence).remainder(kClasses).view({kSamples, kSequence});
  }
  return torch::linspace(-1, 1, kSamples * 28 * 28).view({kSamples, 1, 28, 28});
}

class EveryModel : public ::testing::TestWithParam<std::string_view> {
 protected:
  void SetUp() override {
    torch::manual_seed(1);
    const std::string name(GetParam());
    shape_ = shape_for(name);
    auto model = make_model({.name = name, .width = 4, .hidden = 16}, shape_);
    ASSERT_TRUE(model.has_value()) << model.error().to_string();
    model_ = *model;
  }

  SampleShape shape_;
  std::shared_ptr<Model> model_;
};

TEST_P(EveryModel, HasOneRowOfLogitsPerTargetAndAGradientForEveryParameter) {
  const auto logits = model_->forward(inputs_for(shape_));
  const std::int64_t rows = shape_.is_text() ? kSamples * kSequence : kSamples;
  ASSERT_EQ(logits.sizes(), (std::vector<std::int64_t>{rows, kClasses}));
  torch::nll_loss(torch::log_softmax(logits, 1), torch::zeros({rows}, torch::kInt64)).backward();
  for (const auto& item : model_->named_parameters()) {
    ASSERT_TRUE(item.value().grad().defined()) << item.key();
    EXPECT_TRUE(torch::isfinite(item.value().grad()).all().item<bool>()) << item.key();
  }
}

TEST_P(EveryModel, NamesItsOutputLayerOutput) {
  EXPECT_TRUE(model_->named_parameters().contains("output.weight"));
}

TEST_P(EveryModel, DrawsNothingAfterItWasMade) {
  auto generator = at::detail::getDefaultCPUGenerator();
  const auto before = generator.get_state();
  model_->forward(inputs_for(shape_)).sum().backward();
  EXPECT_TRUE(torch::equal(before, generator.get_state()));
}

TEST_P(EveryModel, DropsWhatItsOwnSeedSaysAndOnlyWhileTraining) {
  if (!shape_.is_text()) return;
  const ModelSettings settings{.name = std::string(GetParam()), .hidden = 16, .dropout = 0.5};
  const auto model = make_model(settings, shape_).value();
  auto generator = at::detail::getDefaultCPUGenerator();
  const auto before = generator.get_state();
  const auto logits = [&](std::uint64_t seed) {
    model->seed_dropout(seed);
    return model->forward(inputs_for(shape_));
  };
  EXPECT_TRUE(torch::equal(logits(5), logits(5)));
  EXPECT_FALSE(torch::equal(logits(5), logits(6)));
  model->eval();
  EXPECT_TRUE(torch::equal(logits(5), logits(6)));
  EXPECT_TRUE(torch::equal(before, generator.get_state()));
}

TEST_P(EveryModel, PredictsFromThePastAlone) {
  if (!shape_.is_text()) return;
  auto inputs = inputs_for(shape_);
  const auto before = model_->forward(inputs).view({kSamples, kSequence, kClasses});
  inputs.select(1, 4).fill_(7);
  const auto after = model_->forward(inputs).view({kSamples, kSequence, kClasses});
  EXPECT_TRUE(torch::allclose(before.narrow(1, 0, 4), after.narrow(1, 0, 4)));
  EXPECT_FALSE(torch::allclose(before.narrow(1, 4, 2), after.narrow(1, 4, 2)));
}

INSTANTIATE_TEST_SUITE_P(Models, EveryModel, ::testing::ValuesIn(model_names()), [](const auto& i) {
  std::string name(i.param);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

TEST(TrainModels, AreRefusedForOtherData) {
  const auto told = [](const ModelSettings& settings, const SampleShape& shape) {
    const auto model = make_model(settings, shape);
    return model ? std::string() : model.error().message();
  };
  EXPECT_NE(told({.name = "lenet"}, shape_for("lstm-lm")).find("images"), std::string::npos);
  EXPECT_NE(told({.name = "lstm-lm"}, shape_for("lenet")).find("text:FILE"), std::string::npos);
  EXPECT_NE(told({.name = "alexnet"}, shape_for("lenet")).find("vgg11"), std::string::npos);
  EXPECT_NE(told({.name = "transformer-lm", .hidden = 10, .heads = 3}, shape_for("lstm-lm"))
                .find("--heads 3"),
            std::string::npos);
}

TEST(TrainModels, Resnet20HasThePublishedNumberOfParameters) {
  const auto model = make_model({.name = "resnet20"},
                                {.channels = 3, .height = 32, .width = 32, .classes = kClasses});
  ASSERT_TRUE(model.has_value());
  std::int64_t parameters = 0;
  for (const auto& parameter : (*model)->parameters()) parameters += parameter.numel();
  EXPECT_EQ(parameters, 269722);  // "0.27 M" of the paper, with shortcuts free of parameters
}

TEST(TrainModels, MostOfVgg11IsInItsFullyConnectedLayers) {
  const auto model = make_model({.name = "vgg11"}, shape_for("vgg11"));
  ASSERT_TRUE(model.has_value());
  std::int64_t all = 0;
  std::int64_t connected = 0;
  for (const auto& item : (*model)->named_parameters()) {
    all += item.value().numel();
    if (item.key().starts_with("hidden")) connected += item.value().numel();
  }
  EXPECT_GT(2 * connected, all);
}

}  // namespace
}  // namespace gradpress::trainer
