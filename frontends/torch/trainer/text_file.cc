// A text as samples: windows of tokens, each predicting the next.
#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <iterator>
#include <sstream>
#include <unordered_map>
#include <utility>
#include <vector>

#include "dataset.h"

namespace gradpress::trainer {

namespace {

struct Tokens {
  std::vector<std::int64_t> tokens = {};
  std::int64_t kinds = 0;
};

/// Bytes that occur, numbered in their own order.
Tokens byte_tokens(const std::string& text) {
  std::array<std::int64_t, 256> number{};
  for (const char byte : text) number[static_cast<unsigned char>(byte)] = 1;
  Tokens result;
  for (auto& entry : number) entry = entry == 0 ? -1 : result.kinds++;
  for (const char byte : text) result.tokens.push_back(number[static_cast<unsigned char>(byte)]);
  return result;
}

/// Words by white space, numbered by how often they occur; the end of a line is a word. Number 0
/// is every word beyond the vocabulary.
Tokens word_tokens(const std::string& text, std::int64_t vocabulary) {
  std::vector<std::string> words;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream in(line);
    for (std::string word; in >> word;) words.push_back(word);
    words.emplace_back("\n");
  }
  std::unordered_map<std::string, std::int64_t> number;
  for (const std::string& word : words) ++number[word];
  std::vector<std::pair<std::string, std::int64_t>> ranked(number.begin(), number.end());
  std::ranges::sort(ranked, [](const auto& a, const auto& b) {
    return a.second != b.second ? a.second > b.second : a.first < b.first;
  });
  Tokens result{.kinds = 1};
  for (auto& [word, count] : ranked) {
    number[word] = result.kinds < vocabulary ? result.kinds++ : 0;
  }
  for (const std::string& word : words) result.tokens.push_back(number[word]);
  return result;
}

class Text final : public Dataset {
 public:
  Text(std::string name, const Tokens& tokens, std::int64_t train_tokens, std::int64_t sequence)
      : name_(std::move(name)), kinds_(tokens.kinds), sequence_(sequence) {
    const auto all = torch::tensor(tokens.tokens, torch::kInt64);
    train_ = all.narrow(0, 0, train_tokens);
    test_ = all.narrow(0, train_tokens, all.size(0) - train_tokens);
  }

  const std::string& name() const override { return name_; }
  SampleShape shape() const override { return {.classes = kinds_, .sequence = sequence_}; }
  std::int64_t train_samples() const override { return (train_.size(0) - 1) / sequence_; }
  std::int64_t test_samples() const override { return (test_.size(0) - 1) / sequence_; }

  Batch train_batch(std::span<const std::int64_t> indices) const override {
    std::vector<torch::Tensor> inputs;
    std::vector<torch::Tensor> targets;
    inputs.reserve(indices.size());
    targets.reserve(indices.size());
    for (const std::int64_t index : indices) {
      inputs.push_back(train_.narrow(0, index * sequence_, sequence_));
      targets.push_back(train_.narrow(0, index * sequence_ + 1, sequence_));
    }
    return {.inputs = torch::stack(inputs), .targets = torch::stack(targets)};
  }
  Batch test_batch(std::int64_t begin, std::int64_t end) const override {
    const auto part = [&](std::int64_t shift) {
      return test_.narrow(0, begin * sequence_ + shift, (end - begin) * sequence_)
          .view({end - begin, sequence_});
    };
    return {.inputs = part(0), .targets = part(1)};
  }

 private:
  std::string name_;
  std::int64_t kinds_;
  std::int64_t sequence_;
  torch::Tensor train_;
  torch::Tensor test_;
};

}  // namespace

Result<std::unique_ptr<Dataset>> open_text(const std::string& file, const DataSettings& settings) {
  std::ifstream in(file, std::ios::binary);
  if (!in) {
    return fail(Code::kInvalidArgument, "--data text:", file,
                ": cannot be read; wanted a text file, such as a book or "
                "WikiText's wiki.valid.tokens");
  }
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  const Tokens tokens = settings.words ? word_tokens(text, settings.vocabulary) : byte_tokens(text);
  const auto there = static_cast<std::int64_t>(tokens.tokens.size());
  // The last tenth is the test, at least one sample of it.
  const std::int64_t test = std::max(there / 10, settings.sequence + 1);
  std::int64_t train = there - test;
  if (train < settings.sequence + 1) {
    return fail(Code::kInvalidArgument, file, ": wanted at least ", 2 * (settings.sequence + 1),
                " tokens for --sequence ", settings.sequence, ", got ", there);
  }
  Tokens kept = tokens;
  if (settings.train_samples > 0) {
    const std::int64_t wanted = settings.train_samples * settings.sequence + 1;
    if (wanted > train) {
      return fail(Code::kInvalidArgument, "--train-samples ", settings.train_samples,
                  ": the text has only ", (train - 1) / settings.sequence);
    }
    kept.tokens.erase(kept.tokens.begin() + wanted, kept.tokens.begin() + train);
    train = wanted;
  }
  if (settings.test_samples > 0) {
    const std::int64_t wanted = settings.test_samples * settings.sequence + 1;
    if (wanted > test) {
      return fail(Code::kInvalidArgument, "--test-samples ", settings.test_samples,
                  ": the text has only ", (test - 1) / settings.sequence);
    }
    kept.tokens.resize(static_cast<std::size_t>(train + wanted));
  }
  return std::make_unique<Text>("text", kept, train, settings.sequence);
}

}  // namespace gradpress::trainer
