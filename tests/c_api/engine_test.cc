// Engines through the C interface: the same numbers as the C++ engine's, whatever the memory.
#include <gradpress/c_api.h>
#include <gradpress/engine.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "c_api/model.h"
#include "engine/element_type.h"

namespace gradpress {
namespace {

using engine::ElementType;
using test::call;
using test::EngineGradients;
using test::gradients_of;
using test::History;
using test::kWorkers;
using test::on_every_c_rank;
using test::same_bits;
using test::small_model;

constexpr unsigned kSteps = 4;

std::string codec_option(const std::string& codec) { return R"({"codec": ")" + codec + R"("})"; }

/// Means of the C++ engine; gradients pass through `type` on the way in and out.
History by_the_engine(const std::string& codec, ElementType type) {
  History history(kSteps);
  const auto through = [type](std::vector<float>& values) {
    std::vector<std::byte> stored(values.size() * engine::size_of(type));
    engine::from_floats(values, type, stored.data());
    engine::to_floats(stored.data(), type, values);
  };
  const auto failures =
      test::on_every_rank(test::alike({.codec = codec}), [&](unsigned rank, Engine& engine) {
        for (unsigned step = 0; step < kSteps; ++step) {
          EngineGradients gradients = gradients_of(rank, step);
          for (auto& gradient : gradients) through(gradient);
          ASSERT_TRUE(test::run_step(engine, gradients).has_value());
          for (auto& gradient : gradients) through(gradient);
          history.steps[rank][step] = std::move(gradients);
        }
      });
  test::expect_all_ok(failures);
  return history;
}

/// Two buckets with gaps between their tensors, as a framework lays them out.
class Buckets {
 public:
  Buckets(gradpress_engine* engine, ElementType type, gradpress_type c_type)
      : engine_(engine), type_(type), c_type_(c_type) {
    std::array<std::vector<std::uint32_t>, 2> tensors;
    std::array<std::vector<std::uint64_t>, 2> offsets;
    for (std::uint32_t i = 0; i < small_model().size(); ++i) {
      const std::size_t bucket = i % 2;
      tensors[bucket].push_back(i);
      offsets[bucket].push_back(elements_[bucket]);
      elements_[bucket] += small_model()[i].shape.elements() + 3;
    }
    for (std::size_t i = 0; i < 2; ++i) {
      EXPECT_TRUE(call(gradpress_engine_layout, engine, tensors[i].data(), offsets[i].data(),
                       tensors[i].size(), &layouts_[i]));
      // Doubles, so that every type is aligned.
      memory_[i].resize(elements_[i]);
    }
    tensors_ = tensors;
    offsets_ = offsets;
  }

  void run_step(EngineGradients& gradients) {
    for (std::size_t b = 0; b < 2; ++b) {
      for (std::size_t i = 0; i < tensors_[b].size(); ++i) {
        engine::from_floats(gradients[tensors_[b][i]], type_, at(b, i));
      }
      ASSERT_TRUE(call(gradpress_engine_push, engine_, layouts_[b], memory_[b].data(), c_type_,
                       b == 1 ? 1 : 0));
    }
    EXPECT_EQ(test::next_event(engine_)["event"], "step");
    for (std::size_t b = 0; b < 2; ++b) {
      for (std::size_t i = 0; i < tensors_[b].size(); ++i) {
        engine::to_floats(at(b, i), type_, gradients[tensors_[b][i]]);
      }
    }
  }

 private:
  std::byte* at(std::size_t bucket, std::size_t i) {
    return reinterpret_cast<std::byte*>(memory_[bucket].data()) +
           offsets_[bucket][i] * engine::size_of(type_);
  }

  gradpress_engine* engine_;
  ElementType type_;
  gradpress_type c_type_;
  std::array<std::uint32_t, 2> layouts_{};
  std::array<std::uint64_t, 2> elements_{};
  std::array<std::vector<std::uint32_t>, 2> tensors_;
  std::array<std::vector<std::uint64_t>, 2> offsets_;
  std::array<std::vector<double>, 2> memory_;
};

void expect_equal(const History& a, const History& b) {
  for (unsigned rank = 0; rank < kWorkers; ++rank) {
    for (unsigned step = 0; step < kSteps; ++step) {
      EXPECT_TRUE(same_bits(a.steps[rank][step], b.steps[rank][step]))
          << "rank " << rank << ", step " << step;
    }
  }
}

class EveryCodecThroughC : public testing::TestWithParam<const char*> {};

TEST_P(EveryCodecThroughC, EqualsTheEngineBitForBit) {
  const History want = by_the_engine(GetParam(), ElementType::kFloat32);
  History got(kSteps);
  on_every_c_rank(codec_option(GetParam()), [&](unsigned rank, gradpress_engine* engine) {
    for (unsigned step = 0; step < kSteps; ++step) {
      EngineGradients gradients = gradients_of(rank, step);
      const test::Outcome done = test::run_c_step(engine, gradients);
      ASSERT_TRUE(done) << done;
      got.steps[rank][step] = std::move(gradients);
    }
  });
  expect_equal(want, got);
}

INSTANTIATE_TEST_SUITE_P(Engine, EveryCodecThroughC,
                         testing::Values("none", "acpsgd:4", "topk:0.05", "efsign", "powersgd:2"),
                         [](const auto& param) {
                           std::string name;
                           for (const char c : std::string(param.param)) {
                             name += std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
                           }
                           return name;
                         });

struct TypeCase {
  const char* name;
  ElementType type;
  gradpress_type c_type;
};

class EveryTypeThroughC : public testing::TestWithParam<TypeCase> {};

TEST_P(EveryTypeThroughC, BucketsEqualTheEngineOnConvertedGradients) {
  const TypeCase& one = GetParam();
  for (const char* codec : {"none", "topk:0.05"}) {
    const History want = by_the_engine(codec, one.type);
    History got(kSteps);
    on_every_c_rank(codec_option(codec), [&](unsigned rank, gradpress_engine* engine) {
      Buckets buckets(engine, one.type, one.c_type);
      for (unsigned step = 0; step < kSteps; ++step) {
        EngineGradients gradients = gradients_of(rank, step);
        buckets.run_step(gradients);
        got.steps[rank][step] = std::move(gradients);
      }
    });
    expect_equal(want, got);
  }
}

TEST_P(EveryTypeThroughC, NanAndInfinityMakeTheStepNotFinite) {
  const TypeCase& one = GetParam();
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    on_every_c_rank(codec_option("topk:0.05"), [&](unsigned rank, gradpress_engine* engine) {
      EngineGradients gradients = gradients_of(rank, 0);
      if (rank == 1) gradients[0][77] = bad;
      std::vector<std::vector<double>> memory;
      for (std::uint32_t i = 0; i < gradients.size(); ++i) {
        auto& stored = memory.emplace_back(gradients[i].size());
        engine::from_floats(gradients[i], one.type, reinterpret_cast<std::byte*>(stored.data()));
        ASSERT_TRUE(call(gradpress_engine_ready, engine, i, stored.data(), gradients[i].size(),
                         one.c_type));
      }
      std::string report;
      ASSERT_TRUE(test::call_for_text(report, gradpress_engine_wait, engine));
      EXPECT_EQ(Json::parse(report)["finite"], false) << report;
      engine::to_floats(reinterpret_cast<std::byte*>(memory[0].data()), one.type, gradients[0]);
      EXPECT_TRUE(std::isnan(gradients[0][0])) << "NaN stays NaN on the way back";
    });
  }
}

INSTANTIATE_TEST_SUITE_P(
    Engine, EveryTypeThroughC,
    testing::Values(TypeCase{"float32", ElementType::kFloat32, GRADPRESS_FLOAT32},
                    TypeCase{"float16", ElementType::kFloat16, GRADPRESS_FLOAT16},
                    TypeCase{"bfloat16", ElementType::kBfloat16, GRADPRESS_BFLOAT16},
                    TypeCase{"float64", ElementType::kFloat64, GRADPRESS_FLOAT64}),
    [](const auto& param) { return std::string(param.param.name); });

TEST(EngineThroughC, CheckpointsGoOnWhereTheyWereTaken) {
  History straight(kSteps);
  History resumed(kSteps);
  std::vector<std::string> saved(kWorkers);
  const auto steps = [&](unsigned rank, gradpress_engine* engine, unsigned from, History& into) {
    for (unsigned step = from; step < kSteps; ++step) {
      EngineGradients gradients = gradients_of(rank, step);
      const test::Outcome done = test::run_c_step(engine, gradients);
      ASSERT_TRUE(done) << done;
      into.steps[rank][step] = std::move(gradients);
      if (step == 1) {
        ASSERT_TRUE(test::call_for_text(saved[rank], gradpress_engine_checkpoint, engine));
      }
    }
  };
  on_every_c_rank(codec_option("acpsgd:2"), [&](unsigned rank, gradpress_engine* engine) {
    steps(rank, engine, 0, straight);
  });
  on_every_c_rank(codec_option("acpsgd:2"), [&](unsigned rank, gradpress_engine* engine) {
    ASSERT_TRUE(call(gradpress_engine_restore, engine, saved[rank].data(), saved[rank].size()));
    steps(rank, engine, 2, resumed);
    const test::Outcome cut =
        call(gradpress_engine_restore, engine, saved[rank].data(), saved[rank].size() / 2);
    EXPECT_EQ(cut.code, GRADPRESS_CORRUPT_PAYLOAD) << cut;
  });
  for (unsigned rank = 0; rank < kWorkers; ++rank) {
    for (unsigned step = 2; step < kSteps; ++step) {
      EXPECT_TRUE(same_bits(straight.steps[rank][step], resumed.steps[rank][step]));
    }
  }
}

TEST(EngineThroughC, ResidualsAreReadScaledAndAddedTo) {
  on_every_c_rank(codec_option("topk:0.05"), [&](unsigned rank, gradpress_engine* engine) {
    EngineGradients gradients = gradients_of(rank, 0);
    ASSERT_TRUE(test::run_c_step(engine, gradients));
    const std::size_t elements = gradients[0].size();
    const auto residual = [&] {
      std::vector<float> out(elements);
      EXPECT_TRUE(call(gradpress_engine_residual, engine, 0U, out.data(), elements));
      return out;
    };
    const std::vector<float> before = residual();
    EXPECT_GT(std::abs(before[0]) + std::abs(before[1]), 0.0F);
    ASSERT_TRUE(call(gradpress_engine_scale_residuals, engine, 0.5));
    const std::vector<float> half = residual();
    ASSERT_TRUE(call(gradpress_engine_add_residual, engine, 0U, half.data(), elements));
    const std::vector<float> again = residual();
    for (std::size_t i = 0; i < elements; ++i) {
      ASSERT_EQ(half[i], 0.5F * before[i]);
      ASSERT_EQ(again[i], before[i]);
    }
    EXPECT_REFUSED(call(gradpress_engine_residual, engine, 0U, gradients[0].data(), elements - 1),
                   "fc.weight: wanted 2400 elements, got 2399");
    EXPECT_REFUSED(call(gradpress_engine_residual, engine, 9U, gradients[0].data(), elements),
                   "wanted a tensor below 5, got 9");
    EXPECT_REFUSED(call(gradpress_engine_scale_residuals, engine, std::nan("")), "finite");
  });
}

TEST(EngineThroughC, DescribesWhatRuns) {
  on_every_c_rank(R"({"codec": "acpsgd:4", "rules": [["conv.*", "topk:0.1"]]})",
                  [&](unsigned, gradpress_engine* engine) {
                    std::string text;
                    ASSERT_TRUE(test::call_for_text(text, gradpress_engine_describe, engine));
                    const Json what = Json::parse(text);
                    EXPECT_EQ(what["running"], "acpsgd:4");
                    EXPECT_EQ(what["kinds"], 2);
                    EXPECT_EQ(what["tensors"][0]["name"], "fc.weight");
                    EXPECT_EQ(what["tensors"][0]["elements"], 2400);
                    EXPECT_EQ(what["tensors"][0]["codec"], "acpsgd:4");
                    EXPECT_EQ(what["tensors"][2]["codec"], "topk:0.1");
                    EXPECT_EQ(what["plan"]["format"], "gradpress-plan-1");
                    ASSERT_TRUE(call(gradpress_engine_set_codec, engine, "int8"));
                    EXPECT_REFUSED(call(gradpress_engine_set_codec, engine, "bogus"), "bogus");
                    ASSERT_TRUE(test::call_for_text(text, gradpress_engine_describe, engine));
                    EXPECT_EQ(Json::parse(text)["running"], "int8") << "the refused one is not in";
                    EXPECT_EQ(Json::parse(text)["kinds"], 1);
                  });
}

TEST(EngineThroughC, RunsAPlanThatItDescribed) {
  std::string plan;
  on_every_c_rank(R"({"codec": "efsign"})", [&](unsigned rank, gradpress_engine* engine) {
    std::string text;
    ASSERT_TRUE(test::call_for_text(text, gradpress_engine_describe, engine));
    if (rank == 0) plan = Json::parse(text)["plan"].dump();
  });
  on_every_c_rank(R"({"plan": )" + plan + "}", [&](unsigned, gradpress_engine* engine) {
    std::string text;
    ASSERT_TRUE(test::call_for_text(text, gradpress_engine_describe, engine));
    EXPECT_EQ(Json::parse(text)["running"], "plan");
    EXPECT_EQ(Json::parse(text)["tensors"][0]["codec"], "efsign");
  });
}

}  // namespace
}  // namespace gradpress
