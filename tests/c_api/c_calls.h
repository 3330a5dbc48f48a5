// The C interface as tests call it: errors and texts as values, handles that free themselves.
#pragma once

#include <gradpress/c_api.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <memory>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace gradpress::test {

inline std::string take(gradpress_text* text) {
  std::string bytes(gradpress_text_data(text) == nullptr ? "" : gradpress_text_data(text),
                    gradpress_text_size(text));
  gradpress_text_free(text);
  return bytes;
}

struct Outcome {
  gradpress_code code = GRADPRESS_OK;
  std::string error = {};

  explicit operator bool() const { return code == GRADPRESS_OK; }
  bool tells(std::string_view words) const { return error.find(words) != std::string::npos; }
  friend std::ostream& operator<<(std::ostream& out, const Outcome& one) {
    return out << "code " << one.code << ": " << one.error;
  }
};

/// Calls a function whose last argument is where the error goes.
template <class Function, class... Arguments>
Outcome call(const Function& function, Arguments... arguments) {
  gradpress_text* error = nullptr;
  const gradpress_code code = function(arguments..., &error);
  EXPECT_EQ(error != nullptr, code != GRADPRESS_OK) << "every failure has a text, no success has";
  return {.code = code, .error = take(error)};
}

/// The same where a text comes out before the error; it is left in `out`.
template <class Function, class... Arguments>
Outcome call_for_text(std::string& out, const Function& function, Arguments... arguments) {
  gradpress_text* text = nullptr;
  Outcome outcome = call(function, arguments..., &text);
  EXPECT_EQ(text != nullptr, static_cast<bool>(outcome));
  out = take(text);
  return outcome;
}

#define EXPECT_REFUSED(outcome, words)                                                        \
  do {                                                                                        \
    const ::gradpress::test::Outcome expected_refusal = (outcome);                            \
    EXPECT_EQ(expected_refusal.code, GRADPRESS_INVALID_ARGUMENT);                             \
    EXPECT_TRUE(expected_refusal.tells(words)) << expected_refusal << "; wanted " << (words); \
  } while (false)

/// A call as a C program begins one: all fields zero.
inline gradpress_call call_of(gradpress_collective kind) {
  gradpress_call one{};
  one.struct_size = sizeof one;
  one.kind = kind;
  return one;
}

struct Free {
  void operator()(gradpress_group* group) const { gradpress_group_free(group); }
  void operator()(gradpress_engine* engine) const { gradpress_engine_free(engine); }
  void operator()(gradpress_codec* codec) const { gradpress_codec_free(codec); }
};
using GroupHandle = std::unique_ptr<gradpress_group, Free>;
using EngineHandle = std::unique_ptr<gradpress_engine, Free>;
using CodecHandle = std::unique_ptr<gradpress_codec, Free>;

inline std::vector<GroupHandle> local_groups(std::size_t count, const char* options = "{}") {
  std::vector<gradpress_group*> raw(count);
  const Outcome made = call(gradpress_group_local, options, raw.data(), count);
  EXPECT_TRUE(made) << made;
  std::vector<GroupHandle> groups;
  for (gradpress_group* group : raw) groups.emplace_back(group);
  return groups;
}

inline EngineHandle make_engine(GroupHandle group, const std::string& tensors,
                                const std::string& options) {
  gradpress_engine* engine = nullptr;
  const Outcome made =
      call(gradpress_engine_make, group.release(), tensors.c_str(), options.c_str(), &engine);
  EXPECT_TRUE(made) << made;
  return EngineHandle(engine);
}

}  // namespace gradpress::test
