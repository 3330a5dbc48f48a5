#include <gradpress/plan.h>
#include <gtest/gtest.h>

#include <random>
#include <set>
#include <string>

#include "plan/plan_file.h"
#include "plan/timeline.h"
#include "plan/zoo.h"
#include "support/random_setting.h"

namespace gradpress::plan {
namespace {

/// A small model on four machines, planned with what the caller names.
struct Planned {
  Trace trace;
  Cluster cluster;
  std::vector<codec::Spec> codecs;
  Plan plan;

  Setting setting() const { return {trace, cluster, codecs}; }
  PlanTarget target() const { return target_of(trace, cluster.topology); }
  Json json() const { return to_json(setting(), plan); }
  Result<gradpress::Plan> parse(const Json& json) const {
    return parse_plan(json.dump(), "p.json", target());
  }
};

Planned planned(const char* model, const char* codec, bool extended) {
  Planned made;
  made.trace = *zoo_trace(model, {.tflops = 10});
  made.cluster.name = "four";
  made.cluster.topology = {.machines = 4, .workers = 2};
  made.cluster.intra.link = {.latency_us = 10, .gbps = 100};
  made.cluster.inter.link = {.latency_us = 50, .gbps = 1};
  for (auto& curve : made.cluster.codec_costs[std::string(codec).substr(0, 6)]) {
    curve = CostCurve({{1024, 10.0, 5.0}, {1048576, 200.0, 100.0}});
  }
  made.codecs = {*codec::parse_spec(codec)};
  PlanOptions options{.fusion = Fusion::kAuto};
  options.tree.extended = extended;
  made.plan = *make_plan(made.setting(), options);
  return made;
}

std::string message_of(const Result<gradpress::Plan>& plan) {
  return plan.has_value() ? std::string("accepted") : plan.error().message();
}

TEST(PlanFile, ComesBackAsItWas) {
  const Planned made = planned("lstm", "efsign", false);
  const gradpress::Plan wanted = public_plan(made.setting(), made.plan);
  const std::string file = ::testing::TempDir() + "gradpress_plan_file_test.json";
  ASSERT_TRUE(save_plan(file, wanted).is_ok());
  const auto got = load_plan(file, made.target());
  ASSERT_TRUE(got.has_value()) << got.error().to_string();
  EXPECT_EQ(got->model, wanted.model);
  EXPECT_EQ(got->iteration_us, wanted.iteration_us);
  EXPECT_EQ(got->order.inter, wanted.order.inter);
  EXPECT_EQ(got->order.intra, wanted.order.intra);
  EXPECT_FALSE(got->alternates);
  ASSERT_EQ(got->tensors.size(), wanted.tensors.size());
  for (std::size_t i = 0; i < wanted.tensors.size(); ++i) {
    EXPECT_EQ(got->tensors[i].name, wanted.tensors[i].name);
    EXPECT_EQ(got->tensors[i].shape, wanted.tensors[i].shape);
    EXPECT_EQ(got->tensors[i].codec, wanted.tensors[i].codec);
    EXPECT_EQ(got->tensors[i].option, wanted.tensors[i].option);
    EXPECT_EQ(got->tensors[i].bucket, wanted.tensors[i].bucket);
    EXPECT_EQ(got->tensors[i].bucket_q, wanted.tensors[i].bucket);
    EXPECT_GT(wanted.tensors[i].predicted_us, 0.0);
  }
  const auto again = read_plan(file, made.trace, made.cluster);
  ASSERT_TRUE(again.has_value()) << again.error().to_string();
  EXPECT_NEAR(predict_us({made.trace, made.cluster, again->codecs}, again->strategy),
              made.plan.iteration_us, 1e-6 * made.plan.iteration_us);
}

TEST(PlanFile, IsRefusedElsewhereWithWhatDiffers) {
  const Planned made = planned("lstm", "efsign", false);
  const std::string text = made.json().dump();
  const auto refused = [&](const PlanTarget& target) {
    return message_of(parse_plan(text, "p.json", target));
  };
  PlanTarget world = made.target();
  world.machines = 8;
  EXPECT_NE(refused(world).find("p.json: machines: wanted 8: the plan is for another world, got 4"),
            std::string::npos)
      << refused(world);
  PlanTarget shape = made.target();
  shape.tensors[2].shape = Shape{3, 5};
  EXPECT_NE(refused(shape).find("tensors[2].shape: wanted [3, 5]"), std::string::npos)
      << refused(shape);
  PlanTarget name = made.target();
  name.tensors[1].name = "other";
  EXPECT_NE(refused(name).find("tensors[1].name: wanted tensor other"), std::string::npos)
      << refused(name);
  PlanTarget fewer = made.target();
  fewer.tensors.pop_back();
  EXPECT_NE(refused(fewer).find("another model"), std::string::npos) << refused(fewer);
  // The fields agree, the hash does not.
  Json edited = made.json();
  edited["hash"] = "0000000000000000";
  EXPECT_NE(message_of(made.parse(edited)).find("p.json: hash: wanted"), std::string::npos);
}

TEST(PlanFile, HashesNamesShapesWorldAndTree) {
  const PlanTarget target{.tensors = {{"a", Shape{2, 3}}, {"b", Shape{4}}}, .machines = 2};
  std::set<std::string> hashes = {plan_hash(target, "paper"), plan_hash(target, "extended")};
  PlanTarget changed = target;
  changed.machines = 3;
  hashes.insert(plan_hash(changed, "paper"));
  changed = target;
  changed.workers_per_machine = 2;
  hashes.insert(plan_hash(changed, "paper"));
  changed = target;
  changed.tensors[0].shape = Shape{3, 2};
  hashes.insert(plan_hash(changed, "paper"));
  changed = target;
  changed.tensors[1].name = "c";
  hashes.insert(plan_hash(changed, "paper"));
  EXPECT_EQ(hashes.size(), 6U);
  EXPECT_EQ(plan_hash(target, "paper").size(), 16U);
  EXPECT_EQ(plan_hash(target, "paper"), plan_hash(target, "paper"));
}

TEST(PlanFile, AddressesTensorsByPattern) {
  const PlanTarget target{.tensors = {{"conv1.weight", Shape{8, 8}},
                                      {"conv1.bias", Shape{8}},
                                      {"fc.weight", Shape{4, 4}}},
                          .machines = 4};
  const Json plan = Json::parse(
      R"({"format": "gradpress-plan-1", "hash": "any", "note": "unknown fields do not matter",
    "tensors": [
      {"name": "fc.weight", "codec": "none", "option": "allreduce@flat"},
      {"name": "conv?.*", "codec": "efsign", "option": "Comp@device > allgather@flat > Decomp@device", "bucket": 7}]})");
  const auto read = parse_plan(plan.dump(), "hand.json", target);
  ASSERT_TRUE(read.has_value()) << read.error().to_string();
  ASSERT_EQ(read->tensors.size(), 3U);
  EXPECT_EQ(read->tensors[0].codec, "efsign");
  EXPECT_EQ(read->tensors[0].bucket, 7U);
  EXPECT_EQ(read->tensors[1].bucket, 7U);
  EXPECT_EQ(read->tensors[2].name, "fc.weight");
  EXPECT_NE(read->tensors[2].bucket, 7U);
  EXPECT_TRUE(read->order.inter.empty());
  Json uncovered = plan;
  uncovered["tensors"].erase(0);
  EXPECT_NE(
      message_of(parse_plan(uncovered.dump(), "hand.json", target))
          .find("hand.json: tensors: wanted an entry whose name or pattern fits tensor fc.weight"),
      std::string::npos);
  Json useless = plan;
  useless["tensors"].push_back(
      {{"name", "layer9.*"}, {"codec", "none"}, {"option", "allreduce@flat"}});
  EXPECT_NE(message_of(parse_plan(useless.dump(), "hand.json", target)).find("tensors[2].name"),
            std::string::npos);
  Json mixed = plan;
  mixed["tensors"][0]["bucket"] = 7;
  EXPECT_NE(message_of(parse_plan(mixed.dump(), "hand.json", target)).find("bucket 7"),
            std::string::npos);
}

TEST(PlanFile, NamesTheMissingOrWrongField) {
  const Planned made = planned("lstm", "efsign", false);
  for (const char* const key :
       {"format", "hash", "model", "tree", "iteration_us", "order", "tensors"}) {
    Json json = made.json();
    json.erase(key);
    const std::string message = message_of(made.parse(json));
    EXPECT_NE(message.find(std::string("p.json: ") + key + ": missing"), std::string::npos)
        << message;
  }
  for (const char* const key : {"name", "codec", "option", "bucket"}) {
    Json json = made.json();
    json["tensors"][1].erase(key);
    const std::string message = message_of(made.parse(json));
    EXPECT_NE(message.find(std::string("tensors[1].") + key + ": missing"), std::string::npos)
        << message;
  }
  Json json = made.json();
  json["tensors"][0]["option"] = "allreduce@moon";
  EXPECT_NE(message_of(made.parse(json)).find("tensors[0].option"), std::string::npos);
  json = made.json();
  json["tensors"][0]["codec"] = "zip";
  EXPECT_NE(message_of(made.parse(json)).find("tensors[0].codec"), std::string::npos);
  json = made.json();
  json["order"]["inter"].push_back(100'000);
  EXPECT_NE(message_of(made.parse(json)).find("the number of a bucket"), std::string::npos);
  EXPECT_NE(message_of(parse_plan("{\n\n  \"format\" 1", "p.json", made.target())).find("p.json:3"),
            std::string::npos);
}

TEST(PlanFile, KeepsTheBucketsOfBothStepsOfAcpSgd) {
  const Planned made = planned("bert-base", "acpsgd:4", true);
  const Json json = made.json();
  const gradpress::Plan wanted = public_plan(made.setting(), made.plan);
  ASSERT_TRUE(wanted.alternates) << "the cluster is slow enough for acpsgd to pay";
  EXPECT_TRUE(json["tensors"][0].contains("bucket_p"));
  EXPECT_TRUE(json["tensors"][0].contains("bucket_q"));
  const auto read = made.parse(json);
  ASSERT_TRUE(read.has_value()) << read.error().to_string();
  bool differs = false;
  for (std::size_t i = 0; i < wanted.tensors.size(); ++i) {
    EXPECT_EQ(read->tensors[i].bucket_q, wanted.tensors[i].bucket_q);
    differs = differs || wanted.tensors[i].bucket_q != wanted.tensors[i].bucket;
  }
  EXPECT_TRUE(differs) << "P and Q have the same buckets";
  EXPECT_EQ(read->order_q.inter, wanted.order_q.inter);
  // The iteration is the mean of the two steps, each with its own buckets.
  const double p = predict(made.setting(), made.plan.strategy, 0).iteration_us;
  const double q = predict(made.setting(), made.plan.strategy, 1).iteration_us;
  EXPECT_NEAR(made.plan.iteration_us, (p + q) / 2, 1e-9 * p);
  Json without = json;
  for (Json& entry : without["tensors"]) entry.erase("bucket_q");
  EXPECT_NE(message_of(made.parse(without)).find("bucket_q: missing"), std::string::npos);
}

TEST(PlanFile, ListsEveryCollectiveOfEveryMessageInItsLanesOrder) {
  const Planned made = planned("resnet50", "efsign", false);
  const gradpress::Plan plan = public_plan(made.setting(), made.plan);
  std::size_t inter = 0;
  std::size_t intra = 0;
  for (const Span& span : made.plan.timeline.spans) {
    inter += span.lane == Lane::kInter ? 1 : 0;
    intra += span.lane == Lane::kIntra ? 1 : 0;
  }
  EXPECT_EQ(plan.order.inter.size(), inter);
  EXPECT_EQ(plan.order.intra.size(), intra);
  EXPECT_GT(inter, 0U);
}

}  // namespace
}  // namespace gradpress::plan
