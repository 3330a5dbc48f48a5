// Compresses one gradient, adds it back and reads a plan, as a program outside the tree would.
#include <gradpress/codec.h>
#include <gradpress/plan.h>
#include <gradpress/version.h>

#include <cstdio>
#include <vector>

namespace {

bool reads_a_plan() {
  const gradpress::PlanTarget target{.tensors = {{"weight", gradpress::Shape{8, 4}}},
                                     .machines = 2};
  const auto plan = gradpress::parse_plan(
      R"({"format": "gradpress-plan-1", "hash": "any", "tensors": [
          {"name": "*", "codec": "efsign", "option": "Comp@host > allgather@flat > Decomp@host"}]})",
      "text", target);
  return plan && plan->tensors.size() == 1 && plan->tensors[0].codec == "efsign";
}

}  // namespace

int main() {
  if (!reads_a_plan()) return std::fprintf(stderr, "the plan was not read\n"), 1;
  const auto codec = gradpress::make_codec("efsign");
  if (!codec) return std::fprintf(stderr, "%s\n", codec.error().to_string().c_str()), 1;
  const std::vector<float> grad = {0.5F, -0.25F, 0.125F, -1.0F, 2.0F};
  const auto state = (*codec)->make_state({.shape = gradpress::Shape::flat(grad.size())});
  if (!state) return std::fprintf(stderr, "%s\n", state.error().to_string().c_str()), 1;
  std::vector<std::byte> payload((*codec)->encode_bound((*state)->shape()));
  const auto bytes = (*codec)->encode(**state, {.grad = grad}, payload);
  if (!bytes) return std::fprintf(stderr, "%s\n", bytes.error().to_string().c_str()), 1;
  std::vector<float> sum(grad.size());
  const auto status = (*codec)->decode(**state, {.payload = std::span(payload).first(*bytes)}, sum);
  std::printf("gradpress %s: %zu B, %s\n", std::string(gradpress::version()).c_str(), *bytes,
              status.to_string().c_str());
  return status.is_ok() && sum[0] == 0.775F && sum[3] == -0.775F ? 0 : 1;
}
