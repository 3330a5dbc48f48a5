// Read by clang before torch's headers, which it refuses otherwise.
//
// libtorch 1.13 names std::vector<c10::IValue> where IValue is only declared. The members of a
// vector that are constexpr, as all are in C++20, must then be known at once to clang, and cannot
// be. g++ puts that off. So the vector of GCC's library is read with members that are inline as in
// C++17; nothing evaluates a vector at compile time here. The symbols are the same.
#pragma once
#pragma GCC system_header

#include <string>

#ifdef __GLIBCXX__
#pragma push_macro("_GLIBCXX20_CONSTEXPR")
#undef _GLIBCXX20_CONSTEXPR
#define _GLIBCXX20_CONSTEXPR inline
// std::fill over bits calls a function that <string> has declared constexpr already, and that would
// now be defined as another: it gets a name of its own, and the symbol of the declared one.
namespace std {
__attribute__((used)) void __fill_a1_of_bits(_Bit_iterator, _Bit_iterator, const bool&) __asm__(
    "_ZSt9__fill_a1St13_Bit_iteratorS_RKb");
}
#define __fill_a1 __fill_a1_of_bits
#include <vector>
#undef __fill_a1
#pragma pop_macro("_GLIBCXX20_CONSTEXPR")
#endif
