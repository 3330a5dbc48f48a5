// Payload bytes that must never change under a codec's name: one file per codec text, checked on
// every SIMD target, and judged by the model, which knows the wire format but not the library.
//
// To write the files anew (a new codec, or a new name for changed bytes):
//     GRADPRESS_WRITE_GOLDEN=1 build/bin/golden_test
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>

#include "kernels/target.h"
#include "support/group.h"

namespace gradpress::test {
namespace {

constexpr std::uint64_t kSteps = 3;

struct Case {
  Shape shape;
  std::uint32_t shards = 1;
};

std::vector<Case> cases(const Traits& traits) {
  std::vector<Case> all = {{{37}, 1}, {{5, 7}, 1}, {{2, 3, 2, 2}, 1}, {{1}, 1}};
  if (traits.shardable) all.push_back({{37}, 3});
  return all;
}

/// Quarters between −8 and 8 with a few powers of two mixed in: exact in every format, no two steps
/// alike, both zeros.
std::vector<float> input(std::size_t elements, std::uint64_t step) {
  std::vector<float> values(elements);
  for (std::size_t i = 0; i < elements; ++i) {
    const auto turn = static_cast<int>((i * 29 + step * 17) % 64) - 32;
    values[i] = static_cast<float>(turn) / 4.0F;
    if (i % 11 == 5) values[i] *= 8.0F;
    if (i % 17 == 3) values[i] = step % 2 == 0 ? 0.0F : -0.0F;
  }
  return values;
}

std::string hex(const std::vector<std::byte>& bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const std::byte b : bytes) {
    text += kDigits[std::to_integer<unsigned>(b) >> 4];
    text += kDigits[std::to_integer<unsigned>(b) & 15];
  }
  return text.empty() ? "-" : text;
}

std::vector<std::byte> unhex(const std::string& text) {
  std::vector<std::byte> bytes;
  for (std::size_t i = 0; text != "-" && i + 1 < text.size(); i += 2) {
    bytes.push_back(static_cast<std::byte>(std::stoi(text.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

void append_round(std::string& out, const Case& c, std::uint64_t step, unsigned round,
                  const Payloads& payloads) {
  for (std::size_t s = 0; s < payloads.size(); ++s) {
    out += "shape " + c.shape.to_string() + " step " + std::to_string(step) + " round " +
           std::to_string(round) + " shard " + std::to_string(s) + "/" + std::to_string(c.shards) +
           ": " + hex(payloads[s]) + "\n";
  }
}

/// The file that belongs to what the codec does now.
std::string written_now(const std::string& text) {
  const auto codec = *make_codec(text);
  std::string out = "codec " + text + "\n";
  for (const Case& c : cases(codec->traits())) {
    Group group({.codec = text, .shape = c.shape, .seed = 7, .tensor = 3});
    for (std::uint64_t step = 0; step < kSteps; ++step) {
      const Status status = group.step({input(c.shape.elements(), step)}, step, c.shards);
      EXPECT_TRUE(status.is_ok()) << status.to_string();
      append_round(out, c, step, 0, group.first_round[0]);
      if (codec->traits().rounds > 1) append_round(out, c, step, 1, group.sent[0]);
    }
  }
  return out;
}

std::string path_of(const std::string& text) {
  return std::string(GRADPRESS_GOLDEN_DIR) + "/" + text_as_name(text) + ".txt";
}

std::string read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

class Golden : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Codecs, Golden, ::testing::ValuesIn(codec_texts()),
                         [](const auto& param_info) { return text_as_name(param_info.param); });

TEST_P(Golden, BytesAreTheRecordedOnesOnEveryTarget) {
  const std::string path = path_of(GetParam());
  if (std::getenv("GRADPRESS_WRITE_GOLDEN") != nullptr) {
    std::ofstream(path, std::ios::binary) << written_now(GetParam());
  }
  const std::string recorded = read(path);
  ASSERT_FALSE(recorded.empty())
      << path << " is missing: write it with GRADPRESS_WRITE_GOLDEN=1, then read what it says";
  for (const std::string& target : kernels::supported_targets()) {
    const auto pinned = kernels::ScopedTarget::pin(target);
    ASSERT_TRUE(pinned.has_value());
    EXPECT_EQ(written_now(GetParam()), recorded) << target;
  }
}

TEST_P(Golden, RecordedBytesAreWhatTheWireFormatSays) {
  const auto codec = *make_codec(GetParam());
  std::istringstream file(read(path_of(GetParam())));
  std::string line;
  std::getline(file, line);
  ASSERT_EQ(line, "codec " + GetParam());
  for (const Case& c : cases(codec->traits())) {
    SCOPED_TRACE(c.shape.to_string());
    const auto model = make_model({.spec = *codec::parse_spec(GetParam()),
                                   .shape = c.shape,
                                   .seed = 7,
                                   .tensor = 3,
                                   .feedback = codec->traits().needs_feedback});
    const bool dense = codec::effective_rank(*codec::parse_spec(GetParam()), c.shape) == 0;
    for (std::uint64_t step = 0; step < kSteps; ++step) {
      Payloads payloads(c.shards);
      for (unsigned round = 0; round < codec->traits().rounds; ++round) {
        for (auto& payload : payloads) {
          ASSERT_TRUE(std::getline(file, line));
          // The dense payload of a low-rank codec travels in its first round.
          if (round == 0 || !dense) payload = unhex(line.substr(line.rfind(' ') + 1));
        }
      }
      const std::vector<std::vector<float>> grads = {input(c.shape.elements(), step)};
      (void)model->step(grads, step, {payloads});
      ASSERT_TRUE(model->complaints.empty()) << model->complaints.front();
    }
  }
  EXPECT_FALSE(std::getline(file, line)) << "more in the file than the test knows: " << line;
}

/// Worked out by hand from docs/wire_format.md.
struct ByHand {
  std::string codec;
  std::vector<float> x;
  std::string bytes;
};

TEST(GoldenByHand, SmallPayloadsAreAsWorkedOutOnPaper) {
  const std::vector<float> x = {1.0F, -2.0F, 3.0F, -4.0F};
  const std::vector<ByHand> table = {
      // 1.0f = 3f800000, −2 = c0000000, 3 = 40400000, −4 = c0800000, lowest byte first.
      {"none", x, "0000803f000000c000004040000080c0"},
      {"fp16", x, "003c00c0004200c4"},
      {"bf16", x, "803f00c0404080c0"},
      // Bits 1 and 3 are negative: 0b1010.
      {"sign", x, "0a000000"},
      // Zeros of either sign vote by their words' lowest bits: ac29b99e and c7728972 have 0.
      {"sign", {1.0F, -2.0F, 0.0F, -0.0F, 3.0F}, "02000000"},
      {"signum:0.9", x, "0a000000"},
      // mean|x| = 2.5 = 40200000.
      {"efsign", x, "000020400a000000"},
      // Means 2 = 40000000 and −3 = c0400000.
      {"onebit", x, "00000040000040c00a000000"},
      // The two largest magnitudes stand at 2 and 3.
      {"topk:0.5", x, "020000000300000000004040000080c0"},
      // A tie goes to the smaller index.
      {"topk:0.25", {2.0F, -2.0F, 2.0F, 1.0F}, "0000000000000040"},
      // Two entries, 3 and −4, and of the gaps 2 and 0 no low bits: zero, zero, one, one.
      {"topk:0.5:index=rice", x, "0200000000004040000080c00c"},
      {"topk:0.5:index=rice:value=fp16", x, "02000000004200c40c"},
      {"topk:0.5:index=rice:value=bf16", x, "02000000404080c00c"},
      // The mean magnitude is 3.5: 3 is code 0 and −4 code 3; a table of 3, 0, 0, −4.
      {"topk:0.5:value=2bit", x,
       "0200000000004040"
       "0000000000000000"
       "000080c00c"
       "0200000003000000"},
      // One of four: one low bit. A gap of 3 is the low bit 1, then zero, one.
      {"topk:0.25:index=rice", {0.0F, 0.0F, 0.0F, 5.0F}, "010000000000a0400102"},
      {"randomk:1:value=fp16", x, "003c00c0004200c4"},
      // 4 / 127 = 2^-5 · 1.00787… = 3d010204; 31.75 → 32, −63.5 → −64 (even), 95.25 → 95, −127.
      {"int8", x, "0402013d20c05f81"},
      // Powers of two round to themselves: 2^e is e + 110, the sign adds 128.
      {"natural", {1.0F, -2.0F, 4.0F, 0.0F}, "6eef7000"},
      // All of one size: every element is kept (u < 1), scale 2 (no deviation, so no clipping).
      {"terngrad", {2.0F, 2.0F, 2.0F, 2.0F}, "000000400f"},
      // One element: its norm is itself, code s = 127, or 7, or 1.
      {"qsgd:8", {-2.0F}, "0000004081"},
      {"qsgd:4", {-2.0F}, "0000004009"},
      {"qsgd:2", {2.0F}, "0000004001"},
      // One element's coefficients are all itself (its word 53106dea keeps the sign): the highest
      // or
      // the lowest level, 16 times.
      {"kashin:4", {2.0F}, "00000040ffffffffffffffff"},
      {"kashin:2", {-2.0F}, "0000004000000000"},
      // Every stratum is one element wide.
      {"randomk:1", x, "0000803f000000c000004040000080c0"},
      // A vector travels dense.
      {"acpsgd:4", x, "0000803f000000c000004040000080c0"},
  };
  for (const ByHand& row : table) {
    bool registered = false;
    for (const CodecHelp& help : codec_help()) {
      const auto name = help.example.substr(0, help.example.find(':'));
      registered = registered || name == row.codec.substr(0, row.codec.find(':'));
    }
    if (!registered) continue;
    Group group({.codec = row.codec, .shape = {row.x.size()}});
    ASSERT_TRUE(group.step({row.x}, 0).is_ok());
    EXPECT_EQ(hex(group.first_round[0][0]), row.bytes) << row.codec;
  }
}

}  // namespace
}  // namespace gradpress::test
