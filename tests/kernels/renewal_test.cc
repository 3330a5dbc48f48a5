// Passes that write a residual to another place, or past the caches, make the same as in place.
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "base/buffer.h"
#include "kernels/cast.h"
#include "kernels/lowrank.h"
#include "kernels/panels.h"
#include "kernels/quantise.h"
#include "kernels/select.h"
#include "kernels/sign.h"
#include "kernels/sparse.h"
#include "kernels/ternary.h"
#include "kernels/vector.h"
#include "support/gradient.h"
#include "support/targets.h"

namespace gradpress::kernels {
namespace {

constexpr float kLimit = 1e17F;
const RandomKey kKey = random_key({.seed = 8, .tensor = 2, .step = 9, .site = 0, .shard = 1});

using Bytes = std::vector<std::byte>;

/// Makes a payload of g and the residual, renewing that.
struct Pass {
  std::string name;
  std::function<Bytes(std::span<const float> g, const Renewal& x)> run;
};

Bytes blocks(std::span<const float> g, const Renewal& x, unsigned bits) {
  constexpr std::size_t kBlock = 48;
  const std::size_t scales = (g.size() + kBlock - 1) / kBlock * sizeof(float);
  const std::size_t codes = bits == 0 ? g.size() : (g.size() * bits + 7) / 8;
  Bytes out(scales + codes);
  const BlockPayload payload{.scales = std::span(out).first(scales),
                             .codes = std::span(out).subspan(scales),
                             .block = kBlock};
  const FeedbackPass pass{.g = g, .residual = x, .limit = kLimit};
  (void)(bits == 0 ? encode_int8(pass, payload) : encode_qsgd(pass, kKey, bits, payload));
  return out;
}

Bytes scanned(std::span<const float> g, const Renewal& x) {
  Bytes out;
  for (std::size_t begin = 0; begin < g.size(); begin += kScanBlock) {
    const std::size_t count = std::min(kScanBlock, g.size() - begin);
    std::vector<std::uint32_t> index(count + kScanSlack);
    std::vector<float> value(count);
    ScanTotals totals;
    const std::size_t found = scan_add(
        g.subspan(begin, count), x.subspan(begin, count),
        {.threshold = std::bit_cast<std::uint32_t>(0.2F), .limit = kLimit}, index, value, totals);
    const auto append = [&out](std::span<const std::byte> more) {
      out.insert(out.end(), more.begin(), more.end());
    };
    append(std::as_bytes(std::span(index).first(found)));
    append(std::as_bytes(std::span(value).first(found)));
  }
  return out;
}

/// As a matrix of eight columns, or of seven where the elements do not fit.
Bytes projected(std::span<const float> g, const Renewal& x, std::size_t cols) {
  constexpr std::size_t kRank = 5;
  const MatrixSize size{.rows = g.size() / cols, .cols = cols};
  const std::size_t n = size.elements();
  if (n == 0) return {};
  const auto left = test::gradient(size.rows * kRank, 3);
  std::vector<float> panels(panel_floats(cols, kRank));
  pack_panels(test::gradient(cols * kRank, 4), cols, kRank, panels);
  std::vector<float> floats(project_scratch_floats(kRank));
  std::vector<double> doubles(project_scratch_doubles(size, kRank));
  std::vector<float> out(size.rows * kRank);
  (void)project_rows({.size = size,
                      .grad = g.first(n),
                      .stored = x.subspan(0, n),
                      .sent = {.left = left.data(), .right_panels = panels.data(), .rank = kRank},
                      .limit = kLimit},
                     panels, kRank, {.floats = floats, .doubles = doubles}, out);
  const auto bytes = std::as_bytes(std::span(out));
  return {bytes.begin(), bytes.end()};
}

std::vector<Pass> all_passes() {
  const auto feedback = [](std::span<const float> g, const Renewal& x) {
    return FeedbackPass{.g = g, .residual = x, .limit = kLimit};
  };
  return {
      {"signs",
       [](auto g, const Renewal& x) {
         Bytes out((g.size() + 7) / 8);
         (void)encode_signs(g, x, {.positive = 0.1F, .negative = -0.2F}, kLimit, out);
         return out;
       }},
      {"int8", [](auto g, const Renewal& x) { return blocks(g, x, 0); }},
      {"qsgd:2", [](auto g, const Renewal& x) { return blocks(g, x, 2); }},
      {"qsgd:4", [](auto g, const Renewal& x) { return blocks(g, x, 4); }},
      {"qsgd:8", [](auto g, const Renewal& x) { return blocks(g, x, 8); }},
      {"natural",
       [=](auto g, const Renewal& x) {
         Bytes out(g.size());
         (void)encode_natural(feedback(g, x), kKey, out);
         return out;
       }},
      {"fp16",
       [=](auto g, const Renewal& x) {
         Bytes out(2 * g.size());
         (void)encode_fp16(feedback(g, x), out);
         return out;
       }},
      {"bf16",
       [=](auto g, const Renewal& x) {
         Bytes out(2 * g.size());
         (void)encode_bf16(feedback(g, x), out);
         return out;
       }},
      {"ternary",
       [=](auto g, const Renewal& x) {
         Bytes out((g.size() + 3) / 4);
         encode_ternary(feedback(g, x), kKey, measure_spread(feedback(g, x)).peak, out);
         return out;
       }},
      {"scan", scanned},
      {"add",
       [](auto g, const Renewal& x) {
         return Bytes{add_in_range(g, x, kLimit) ? std::byte{1} : std::byte{0}};
       }},
      {"rows of 8", [](auto g, const Renewal& x) { return projected(g, x, 8); }},
      {"rows of 7", [](auto g, const Renewal& x) { return projected(g, x, 7); }},
  };
}

class RenewalPass : public test::OnEveryTarget {};
GRADPRESS_ON_EVERY_TARGET(RenewalPass);

TEST_P(RenewalPass, IsTheSameInPlaceApartAndPastTheCaches) {
  for (const Pass& pass : all_passes()) {
    for (const std::size_t n : {0, 1, 7, 16, 31, 64, 129, 800, 4096, 5003}) {
      for (const std::size_t offset : {0, 1, 4}) {
        const auto g = test::gradient(n, n + 1);
        const auto old = test::gradient(n, n + 500);
        std::vector<float> in_place = old;
        const Bytes wanted = pass.run(g, in_place);
        for (const bool past : {false, true}) {
          SCOPED_TRACE(pass.name + ", n=" + std::to_string(n) + ", offset " +
                       std::to_string(offset) + (past ? ", past the caches" : ""));
          const std::vector<float> from = old;
          Buffer<float> room(n + offset + 1);
          // What a pass does not reach stays, as it does in place.
          std::ranges::copy(old, room.data() + offset);
          room[n + offset] = 7.0F;
          const std::span<float> to = room.span().subspan(offset, n);
          EXPECT_EQ(pass.run(g, Renewal(from, to, past)), wanted);
          flush_stores();
          EXPECT_EQ(std::vector<float>(to.begin(), to.end()), in_place);
          EXPECT_EQ(from, old);
          EXPECT_EQ(room[n + offset], 7.0F);
        }
      }
    }
  }
}

}  // namespace
}  // namespace gradpress::kernels
