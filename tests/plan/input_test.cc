#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "plan/cluster.h"
#include "plan/trace.h"
#include "plan/zoo.h"
#include "support/data.h"

namespace gradpress::plan {
namespace {

/// A file in the test's own folder, gone afterwards.
class Written {
 public:
  explicit Written(const std::string& text)
      : path_(::testing::TempDir() + "gradpress_input_" +
              ::testing::UnitTest::GetInstance()->current_test_info()->name() + ".json") {
    std::ofstream(path_) << text;
  }
  ~Written() { std::filesystem::remove(path_); }
  Written(const Written&) = delete;
  Written& operator=(const Written&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

std::string trace_error(const std::string& text) {
  const Written file(text);
  const auto trace = read_trace(file.path());
  EXPECT_FALSE(trace.has_value()) << text;
  if (trace.has_value()) return {};
  EXPECT_EQ(trace.error().code(), Code::kInvalidArgument);
  EXPECT_EQ(trace.error().message().find(file.path()), 0U) << trace.error().message();
  return trace.error().message().substr(file.path().size());
}

std::string cluster_error(const std::string& text) {
  const Written file(text);
  const auto cluster = read_cluster(file.path());
  EXPECT_FALSE(cluster.has_value()) << text;
  if (cluster.has_value()) return {};
  EXPECT_EQ(cluster.error().code(), Code::kInvalidArgument);
  EXPECT_EQ(cluster.error().message().find(file.path()), 0U) << cluster.error().message();
  return cluster.error().message().substr(file.path().size());
}

std::string trace_with(const std::string& tensors, const std::string& more = "") {
  return R"({"format": "gradpress-trace-1", "model": "m", )" + more + R"("tensors": [)" + tensors +
         "]}";
}

constexpr const char* kTensor =
    R"({"name": "a", "shape": [2, 3], "elements": 6, "ready_gap_us": 1.5, "unknown": 1})";

TEST(TraceFile, ReadsWhatItNeedsAndIgnoresTheRest) {
  const Written file(trace_with(kTensor, R"("forward_us": 7, "extra": {}, )"));
  const auto trace = read_trace(file.path());
  ASSERT_TRUE(trace.has_value()) << trace.error().to_string();
  EXPECT_EQ(trace->model, "m");
  EXPECT_EQ(trace->forward_us, 7.0);
  ASSERT_EQ(trace->tensors.size(), 1U);
  EXPECT_EQ(trace->tensors[0].shape, (Shape{2, 3}));
  EXPECT_EQ(trace->tensors[0].ready_gap_us, 1.5);
}

TEST(TraceFile, ErrorsNameTheFileAndThePath) {
  const auto has = [](const std::string& text, const std::string& part) {
    const std::string message = trace_error(text);
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  has("{\n\"format\": oops}", ":2: not JSON");
  has("[]", "the whole file: wanted an object");
  has("{}", "format: missing");
  has(R"({"format": "gradpress-cluster-1"})", "format: wanted \"gradpress-trace-1\"");
  has(R"({"format": "gradpress-trace-1", "model": "m"})", "tensors: missing");
  has(trace_with(""), "tensors: wanted at least one tensor");
  has(trace_with("{}"), "tensors[0].name: missing");
  const std::string start = R"({"name": "b", "shape": [2, 3], "elements": )";
  has(trace_with(std::string(kTensor) + "," + start + "6}"), "tensors[1].ready_gap_us: missing");
  has(trace_with(start + R"(6, "ready_gap_us": -1})"),
      "tensors[0].ready_gap_us: wanted a number of at least 0, got -1");
  has(trace_with(start + R"(6, "ready_gap_us": "soon"})"), "tensors[0].ready_gap_us");
  has(trace_with(start + R"(7, "ready_gap_us": 1})"), "tensors[0].elements: wanted 6 elements");
  has(trace_with(start + R"(0, "ready_gap_us": 1})"), "tensors[0].elements");
  has(trace_with(R"({"name": "a", "shape": [2, 0], "elements": 0, "ready_gap_us": 1})"),
      "tensors[0].shape[1]");
  has(trace_with(std::string(kTensor) + "," + kTensor), "tensors[1]: wanted a name that no other");
  has(trace_with(kTensor, R"("forward_us": -3, )"), "forward_us");
}

TEST(TraceFile, RefusesAMillionTensors) {
  std::string tensors;
  for (int i = 0; i < 1'000'000; ++i) tensors += i == 0 ? "{}" : ",{}";
  const std::string message = trace_error(trace_with(tensors));
  EXPECT_NE(message.find("at most 100000 tensors, got a list of 1000000"), std::string::npos)
      << message;
}

TEST(TraceFile, AMissingFileIsAnErrorWithItsName) {
  const auto trace = read_trace("/nowhere/t.json");
  ASSERT_FALSE(trace.has_value());
  EXPECT_NE(trace.error().message().find("/nowhere/t.json"), std::string::npos);
}

TEST(Trace, CutToTheLargestKeepsBackwardAsLong) {
  const auto trace = zoo_trace("vgg16", {.tflops = 10});
  ASSERT_TRUE(trace.has_value());
  const Trace cut = trace->largest(3);
  ASSERT_EQ(cut.tensors.size(), 3U);
  EXPECT_EQ(cut.tensors[2].name, "classifier.0.weight");
  EXPECT_NEAR(cut.backward_us(), trace->backward_us(), 1e-6);
}

std::string cluster_with(const std::string& change_from, const std::string& change_to) {
  std::string text = R"({"format": "gradpress-cluster-1", "name": "c", "machines": 2,
    "workers_per_machine": 4, "intra": {"gbps": 100, "latency_us": 5},
    "inter": {"gbps": 10, "latency_us": 50,
              "collectives": {"alltoall": {"gbps": 5, "flat": {"latency_us": 7}}}},
    "codec_costs": {"dgc": {"device": [{"elements": 100, "encode_us": 10, "decode_us": 1},
                                       {"elements": 200, "encode_us": 30, "decode_us": 2}]},
                    "dgc:0.5": {"host": [{"elements": 1, "encode_us": 7, "decode_us": 3}]}}})";
  if (const auto at = text.find(change_from); !change_from.empty() && at != std::string::npos) {
    text.replace(at, change_from.size(), change_to);
  }
  return text;
}

TEST(ClusterFile, ReadsLinksOverridesAndCurves) {
  const Written file(cluster_with("", ""));
  const auto cluster = read_cluster(file.path());
  ASSERT_TRUE(cluster.has_value()) << cluster.error().to_string();
  EXPECT_EQ(cluster->topology, (Topology{.machines = 2, .workers = 4}));
  EXPECT_EQ(cluster->decode_costs, DecodeCosts::kPerPayload);
  EXPECT_EQ(cluster->inter.of(Collective::kAllToAll).gbps, 5.0);
  EXPECT_EQ(cluster->inter.of(Collective::kAllToAll).latency_us, 50.0);
  EXPECT_EQ(cluster->inter.of_flat(Collective::kAllToAll).gbps, 5.0);
  EXPECT_EQ(cluster->inter.of_flat(Collective::kAllToAll).latency_us, 7.0);
  EXPECT_EQ(cluster->inter.of_flat(Collective::kAllReduce).gbps, 10.0);
  EXPECT_EQ(cluster->inter.of(Collective::kAllReduce).gbps, 10.0);
  const auto dgc = *codec::parse_spec("dgc:0.01");
  const CostCurve* curve = cluster->costs(dgc, Place::kDevice);
  ASSERT_NE(curve, nullptr);
  EXPECT_EQ(curve->encode_us(1), 10.0);
  EXPECT_EQ(curve->encode_us(100), 10.0);
  EXPECT_EQ(curve->encode_us(150), 20.0);
  EXPECT_EQ(curve->encode_us(200), 30.0);
  EXPECT_EQ(curve->encode_us(300), 50.0);
  EXPECT_EQ(curve->decode_us(300), 3.0);
  EXPECT_EQ(cluster->costs(dgc, Place::kHost), nullptr);
  // The full text comes first, the name before the colon second.
  const auto half = *codec::parse_spec("dgc:0.5");
  ASSERT_NE(cluster->costs(half, Place::kHost), nullptr);
  EXPECT_EQ(cluster->costs(half, Place::kHost)->encode_us(99999), 7.0);
  EXPECT_NE(cluster->costs(half, Place::kDevice), nullptr);
  EXPECT_TRUE(cluster->check_codec(dgc).is_ok());
  const Status unknown = cluster->check_codec(*codec::parse_spec("efsign"));
  EXPECT_NE(unknown.message().find("no costs for codec efsign"), std::string::npos);
  EXPECT_NE(unknown.message().find("dgc, dgc:0.5"), std::string::npos);
}

TEST(ClusterFile, SaysWhatADecodeTimeIsTheTimeOf) {
  for (const DecodeCosts costs : {DecodeCosts::kPerPayload, DecodeCosts::kPerOperation}) {
    const std::string field =
        std::string(R"("decode_costs": ")").append(to_text(costs)).append(R"(", "codec_costs":)");
    const Written file(cluster_with("\"codec_costs\":", field));
    const auto cluster = read_cluster(file.path());
    ASSERT_TRUE(cluster.has_value()) << cluster.error().to_string();
    EXPECT_EQ(cluster->decode_costs, costs);
  }
}

TEST(ClusterFile, ErrorsNameTheFileAndThePath) {
  const auto has = [](const std::string& from, const std::string& to, const std::string& part) {
    const std::string message = cluster_error(cluster_with(from, to));
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  has("\"machines\": 2", "\"machines\": 0", "machines: wanted a whole number from 1");
  has("\"machines\": 2", "\"machines\": 1.5", "machines");
  has("\"machines\": 2", "\"boxes\": 2", "machines: missing");
  has("\"workers_per_machine\": 4", "\"workers_per_machine\": -4", "workers_per_machine");
  has("\"gbps\": 100", "\"gbps\": 0", "intra.gbps");
  has("\"gbps\": 100", "\"gbps\": 1e305", "intra.gbps: wanted at most 1000000 Gb/s");
  has("\"latency_us\": 50", "\"latency_us\": -50", "inter.latency_us: wanted");
  has("{\"gbps\": 5,", "{\"gbps\": -5,", "inter.collectives.alltoall.gbps");
  has("{\"latency_us\": 7}", "{\"latency_us\": -7}", "inter.collectives.alltoall.flat.latency_us");
  has("{\"latency_us\": 7}", "{}", "inter.collectives.alltoall.flat");
  has("{\"gbps\": 5, \"flat\": {\"latency_us\": 7}}", "{}", "inter.collectives.alltoall: wanted");
  has("\"codec_costs\":", "\"decode_costs\": \"per-call\", \"codec_costs\":",
      "decode_costs: wanted \"per-payload\" or \"per-operation\", got \"per-call\"");
  has("\"codec_costs\":", "\"decode_costs\": 1, \"codec_costs\":", "decode_costs: wanted a text");
  has("\"dgc\":", "\"gzip\":", "codec_costs.gzip: wanted a codec");
  has("\"encode_us\": 30", "\"encode_us\": -30", "codec_costs.dgc.device[1].encode_us");
  has("\"elements\": 200", "\"elements\": 100", "codec_costs.dgc.device[1].elements: wanted more");
  has("\"host\": [{\"elements\": 1, \"encode_us\": 7, \"decode_us\": 3}]", "\"host\": []",
      "codec_costs.dgc:0.5.host: wanted at least one point");
  has("\"host\"", "\"moon\"", "codec_costs.dgc:0.5: wanted costs for device or host");
}

TEST(Zoo, BuildsEveryModelWithPlausibleSizes) {
  const std::map<std::string_view, double> millions = {
      {"vgg16", 138.36},      {"resnet50", 25.56},    {"resnet101", 44.55}, {"resnet152", 60.19},
      {"bert-base", 108.89},  {"bert-large", 334.09}, {"gpt2", 124.44},     {"gpt2-medium", 354.82},
      {"gpt2-large", 774.03}, {"gpt2-xl", 1557.61},   {"lstm", 85.97}};
  ASSERT_EQ(zoo_models().size(), millions.size());
  for (const std::string_view model : zoo_models()) {
    const auto trace = zoo_trace(model, {.tflops = 15});
    ASSERT_TRUE(trace.has_value()) << model;
    EXPECT_NEAR(double(trace->elements()) / 1e6, millions.at(model), 0.006) << model;
    EXPECT_NEAR(trace->backward_us(), 2.0 * trace->forward_us, 1e-6 * trace->forward_us) << model;
    EXPECT_NE(trace->source.find("estimate"), std::string::npos);
  }
  // 15.5 Gflop (multiply and add) per image and direction: 2 × 15.5 × 32 images / 15 Tflop/s.
  EXPECT_NEAR(zoo_trace("vgg16", {.tflops = 15})->forward_us, 66'000, 1'000);
}

/// Tensors by their number of elements.
using Sizes = std::map<std::uint64_t, int>;

Sizes sizes_of(const Trace& trace) {
  Sizes sizes;
  for (const Tensor& tensor : trace.tensors) ++sizes[tensor.elements];
  return sizes;
}

TEST(Zoo, HasTheTensorsOfThePublishedModels) {
  const std::map<std::string, Sizes> published = {
      {"vgg16",
       {{64, 2},
        {128, 2},
        {256, 3},
        {512, 6},
        {1000, 1},
        {1728, 1},
        {4096, 2},
        {36864, 1},
        {73728, 1},
        {147456, 1},
        {294912, 1},
        {589824, 2},
        {1179648, 1},
        {2359296, 5},
        {4096000, 1},
        {16777216, 1},
        {102760448, 1}}},
      {"resnet101",
       {{64, 14},     {128, 16},    {256, 100},   {512, 22},    {1000, 1},   {1024, 48},
        {2048, 8},    {4096, 1},    {9408, 1},    {16384, 6},   {32768, 1},  {36864, 3},
        {65536, 7},   {131072, 2},  {147456, 4},  {262144, 45}, {524288, 2}, {589824, 23},
        {1048576, 5}, {2048000, 1}, {2097152, 1}, {2359296, 3}}},
      {"bert-base",
       {{2, 1},
        {768, 110},
        {1536, 2},
        {3072, 12},
        {393216, 1},
        {589824, 48},
        {2359296, 24},
        {30522 * 768, 1}}},
      {"gpt2",
       {{768, 74},
        {2304, 12},
        {3072, 12},
        {589824, 12},
        {786432, 1},
        {1769472, 12},
        {2359296, 24},
        {38597376, 1}}},
      {"lstm", {{6000, 4}, {33278, 1}, {9000000, 4}, {49917000, 1}}}};
  for (const auto& [model, sizes] : published) {
    EXPECT_EQ(sizes_of(*zoo_trace(model, {.tflops = 15})), sizes) << model;
    if (test::data_folder().empty()) continue;
    const auto recorded = read_trace(test::data_folder() + "/traces/" + model + ".json");
    ASSERT_TRUE(recorded.has_value()) << recorded.error().to_string();
    Sizes found = sizes_of(*recorded);
    // The recording of BERT pads its vocabulary to a multiple of 64.
    if (const auto padded = found.extract(30528 * 768); padded) ++found[30522 * 768];
    EXPECT_EQ(found, sizes) << model;
  }
}

TEST(Zoo, WritesATraceThatReadsBack) {
  const auto trace = zoo_trace("lstm", {.tflops = 3, .batch = 80});
  const Written file("");
  ASSERT_TRUE(write_trace(file.path(), *trace).is_ok());
  const auto again = read_trace(file.path());
  ASSERT_TRUE(again.has_value()) << again.error().to_string();
  ASSERT_EQ(again->tensors.size(), trace->tensors.size());
  for (std::size_t i = 0; i < trace->tensors.size(); ++i) {
    EXPECT_EQ(again->tensors[i].name, trace->tensors[i].name);
    EXPECT_EQ(again->tensors[i].shape, trace->tensors[i].shape);
    EXPECT_EQ(again->tensors[i].ready_gap_us, trace->tensors[i].ready_gap_us);
  }
}

TEST(Zoo, RefusesWhatItDoesNotKnow) {
  EXPECT_NE(zoo_trace("gpt9", {.tflops = 1}).error().message().find("gpt2-xl"), std::string::npos);
  EXPECT_FALSE(zoo_trace("vgg16", {}).has_value());
  EXPECT_FALSE(zoo_trace("vgg16", {.tflops = -1}).has_value());
  EXPECT_FALSE(zoo_trace("vgg16", {.tflops = 1, .batch = 0}).has_value());
}

}  // namespace
}  // namespace gradpress::plan
