// What clang-tidy must still find when own_code_scope.cc narrows its view: tidy.py wants findings
// in the lines marked `wrong` and in no others. They are of different kinds of checks: by matcher,
// by data flow, by the preprocessor, over the whole unit, by the compiler; in a namespace, a
// template, a lambda, a macro. No target builds this.
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
#include <vector>  // wrong

using std::unique_ptr;  // wrong

namespace gradpress {
namespace {

#define gradpress_twice(x) (2 * (x))  // wrong

int CamelFunction(int value) { return gradpress_twice(value); }  // wrong

std::size_t by_value(std::vector<std::string> names) { return names.size(); }  // wrong

template <typename item>  // wrong
bool is_empty(const std::vector<item>& items) {
  return items.size() == 0;  // wrong
}

struct Base {
  virtual ~Base() = default;
  virtual void run() {}
};
struct Derived : Base {
  virtual void run() {}  // wrong
};

std::string moved(std::string text) {
  std::string other = std::move(text);
  return other + text;  // wrong
}

}  // namespace

int everything() {
  const int* nothing = 0;                                                                 // wrong
  std::string_view none = nullptr;                                                        // wrong
  const auto lambda = [](std::string text) { return text.c_str() == std::string("a"); };  // wrong
  const int unused = 3;                                                                   // wrong
  std::vector<int> numbers;
  for (int i = 0; i < 10; ++i) numbers.push_back(i);  // wrong
  if (is_empty(numbers)) {
    return 1;
  } else {  // wrong
    Derived().run();
  }
  return CamelFunction(3) + int(by_value({"a"})) + int(moved("a").size()) + int(none.size()) +
         int(lambda("b")) + int(nothing == nullptr);
}

}  // namespace gradpress
