#include "support/group.h"

#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <stdexcept>

#include "support/gradient.h"

namespace gradpress::test {

namespace {

template <class Word, class Add>
void add_words(std::vector<std::byte>& total, const std::vector<std::byte>& part, Add add) {
  for (std::size_t at = 0; at + sizeof(Word) <= total.size(); at += sizeof(Word)) {
    Word a{};
    Word b{};
    std::memcpy(&a, total.data() + at, sizeof a);
    std::memcpy(&b, part.data() + at, sizeof b);
    a = add(a, b);
    std::memcpy(total.data() + at, &a, sizeof a);
  }
}

}  // namespace

Group::Group(const GroupOptions& options) : options_(options) {
  auto made = make_codec(options.codec);
  if (!made) throw std::runtime_error(made.error().to_string());
  codec_ = std::move(*made);
  make_states();
}

void Group::make_states() {
  states_.clear();
  const std::optional<bool> feedback =
      codec_->traits().supports_feedback ? options_.feedback : std::optional<bool>();
  for (std::uint32_t w = 0; w < options_.workers; ++w) {
    auto state = codec_->make_state({.shape = options_.shape,
                                     .seed = options_.seed,
                                     .tensor = options_.tensor,
                                     .site = options_.site,
                                     .feedback = feedback});
    if (!state) throw std::runtime_error(state.error().to_string());
    states_.push_back(std::move(*state));
  }
}

Status Group::encode_step(const std::vector<std::vector<float>>& grads, std::uint64_t step,
                          std::uint32_t shards) {
  std::vector<std::byte> reduced;
  for (unsigned round = 0; round < codec_->traits().rounds; ++round) {
    if (Status status = encode_all(grads, step, shards, round, reduced); !status.is_ok()) {
      return status;
    }
    if (round == 0) first_round = sent;
    if (codec_->traits().rounds > 1) reduced = summed(codec_->traits(), sent, 0);
  }
  return {};
}

const std::vector<Payloads>& Group::carrying() const {
  return codec_->traits().rounds > 1 && sent[0][0].empty() ? first_round : sent;
}

Status Group::step(const std::vector<std::vector<float>>& grads, std::uint64_t step,
                   std::uint32_t shards) {
  if (Status status = encode_step(grads, step, shards); !status.is_ok()) return status;
  results.assign(options_.workers, std::vector<float>(options_.shape.elements(), 0.0F));
  for (std::uint32_t w = 0; w < options_.workers; ++w) {
    if (Status status = decode_all(w, step, shards); !status.is_ok()) return status;
  }
  return {};
}

Status Group::encode_all(const std::vector<std::vector<float>>& grads, std::uint64_t step,
                         std::uint32_t shards, unsigned round,
                         const std::vector<std::byte>& reduced) {
  sent.assign(options_.workers, Payloads(shards));
  std::vector<std::byte> out(codec_->encode_bound(options_.shape, shards, round));
  std::vector<std::size_t> bytes(shards);
  for (std::uint32_t w = 0; w < options_.workers; ++w) {
    const auto written = codec_->encode(
        *states_[w],
        {.grad = grads[w], .shards = shards, .step = step, .round = round, .reduced = reduced}, out,
        bytes);
    if (!written) return written.error();
    std::size_t at = 0;
    for (std::uint32_t s = 0; s < shards; ++s) {
      if (at + bytes[s] > *written) {
        return Status::error(Code::kInternal, "shard sizes exceed the ", *written, " B written");
      }
      const auto begin = out.begin() + static_cast<std::ptrdiff_t>(at);
      sent[w][s].assign(begin, begin + static_cast<std::ptrdiff_t>(bytes[s]));
      at += bytes[s];
    }
    if (at != *written) {
      return Status::error(Code::kInternal, "shard sizes add up to ", at, " B of ", *written);
    }
  }
  return {};
}

Status Group::decode_all(std::uint32_t worker, std::uint64_t step, std::uint32_t shards) {
  const Traits& traits = codec_->traits();
  const float weight =
      traits.combine == Combine::kMean ? 1.0F / static_cast<float>(options_.workers) : 1.0F;
  std::span<float> dst(results[worker]);
  for (std::uint32_t s = 0; s < shards; ++s) {
    const ShardRange range = shard_range(dst.size(), shards, s);
    const std::span<float> part = dst.subspan(range.begin, range.count);
    if (traits.rounds > 1 || (traits.reducible && options_.exchange == Exchange::kSummed)) {
      const auto total = summed(traits, sent, s);
      Status status = codec_->decode(
          *states_[worker], {.payload = total, .shard = s, .step = step, .weight = weight}, part);
      if (!status.is_ok()) return status;
      continue;
    }
    for (const Payloads& payloads : sent) {
      Status status = codec_->decode(
          *states_[worker], {.payload = payloads[s], .shard = s, .step = step, .weight = weight},
          part);
      if (!status.is_ok()) return status;
    }
  }
  return codec_->finish(*states_[worker], options_.workers, dst);
}

std::vector<float> Group::residual(std::uint32_t worker) const {
  std::vector<float> out(options_.shape.elements());
  states_[worker]->materialise(out);
  return out;
}

Status Group::swap_codec(const std::string& text) {
  std::vector<std::vector<float>> residuals;
  for (std::uint32_t w = 0; w < options_.workers; ++w) residuals.push_back(residual(w));
  auto made = make_codec(text);
  if (!made) return made.error();
  codec_ = std::move(*made);
  options_.codec = text;
  make_states();
  for (std::uint32_t w = 0; w < options_.workers; ++w) {
    if (Status status = states_[w]->load(residuals[w]); !status.is_ok()) return status;
  }
  return {};
}

ModelOptions Group::model_options() const {
  return {.spec = *codec::parse_spec(options_.codec),
          .shape = options_.shape,
          .workers = options_.workers,
          .seed = options_.seed,
          .tensor = options_.tensor,
          .site = options_.site,
          .feedback = states_[0]->has_feedback()};
}

std::vector<std::byte> summed(const Traits& traits, const std::vector<Payloads>& sent,
                              std::size_t shard) {
  std::vector<std::byte> total = sent[0][shard];
  for (std::size_t w = 1; w < sent.size(); ++w) {
    const std::vector<std::byte>& part = sent[w][shard];
    if (part.size() != total.size()) throw std::runtime_error("payloads of unequal length");
    switch (traits.payload_type) {
      case DataType::kFloat32:
        add_words<float>(total, part, [](float a, float b) { return a + b; });
        break;
      case DataType::kFloat16:
        add_words<std::uint16_t>(total, part, [](std::uint16_t a, std::uint16_t b) {
          return half_bits(half_value(a) + half_value(b));
        });
        break;
      case DataType::kBfloat16:
        add_words<std::uint16_t>(total, part, [](std::uint16_t a, std::uint16_t b) {
          return bfloat_bits(bfloat_value(a) + bfloat_value(b));
        });
        break;
      case DataType::kBytes:
        throw std::runtime_error("bytes cannot be summed");
    }
  }
  return total;
}

std::vector<std::vector<float>> gradients(std::size_t elements, std::uint32_t workers,
                                          std::uint64_t step, std::uint64_t seed) {
  std::vector<std::vector<float>> grads;
  for (std::uint32_t w = 0; w < workers; ++w) {
    grads.push_back(gradient(elements, seed + 1000 * step + w));
  }
  return grads;
}

std::uint64_t run_seed() {
  static const std::uint64_t seed = [] {
    const char* text = std::getenv("GRADPRESS_TEST_SEED");
    const std::uint64_t value = text == nullptr ? 20250117 : std::strtoull(text, nullptr, 10);
    std::printf("GRADPRESS_TEST_SEED=%llu\n", static_cast<unsigned long long>(value));
    return value;
  }();
  return seed;
}

std::vector<std::string> codec_texts() {
  static const std::map<std::string_view, std::vector<std::string>> further = {
      {"topk",
       {"topk:1", "topk:0.001", "topk:0.1:index=rice", "topk:0.1:value=fp16",
        "topk:0.1:index=rice:value=fp16", "topk:0.1:index=rice:value=bf16",
        "topk:0.1:index=rice:value=2bit", "topk:1:index=rice:value=2bit"}},
      {"chunktopk",
       {"chunktopk:1/16", "chunktopk:4/32:index=rice:value=fp16",
        "chunktopk:16/16:index=rice:value=2bit"}},
      {"randomk",
       {"randomk:1", "randomk:0.3", "randomk:0.3:value=fp16", "randomk:0.3:value=bf16",
        "randomk:0.3:value=2bit", "randomk:0.3:unbiased=1", "randomk:0.07:unbiased=1"}},
      {"dgc", {"dgc:1", "dgc:0.05:sample=0.2", "dgc:0.05:index=rice:value=fp16"}},
      {"redsync",
       {"redsync:0.05:exact=0:trimmed=1000000", "redsync:0.05:exact=0:trimmed=0:reuse=1",
        "redsync:0.05:exact=0:trimmed=0", "redsync:0.05:exact=0:trimmed=0:cut=1",
        "redsync:0.05:exact=0:trimmed=0:index=rice:value=2bit"}},
      {"redsync-q", {"redsync-q:0.05:exact=0:trimmed=1000000", "redsync-q:0.05:exact=0:trimmed=0"}},
      {"signum", {"signum:0"}},
      {"qsgd", {"qsgd:2", "qsgd:4:block=16", "qsgd:8:block=64"}},
      {"terngrad", {"terngrad:clip=0"}},
      {"int8", {"int8:block=16"}},
      {"kashin", {"kashin:2", "kashin:8"}},
      {"powersgd", {"powersgd:1", "powersgd:2", "powersgd:2:rate=4"}},
      {"acpsgd", {"acpsgd:1", "acpsgd:2"}},
  };
  std::vector<std::string> texts;
  for (const CodecHelp& help : codec_help()) {
    texts.emplace_back(help.example);
    const auto found = further.find(help.example.substr(0, help.example.find(':')));
    if (found == further.end()) continue;
    for (const std::string& text : found->second) {
      if (text != help.example) texts.push_back(text);
    }
  }
  return texts;
}

std::string text_as_name(const std::string& text) {
  std::string name;
  for (const char c : text) {
    if (c == '-') name += "Dash";
    name += std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  }
  return name;
}

}  // namespace gradpress::test
