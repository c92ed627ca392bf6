// How many draws a property takes.
#pragma once

#include <cstddef>
#include <cstdlib>

extern "C" void __asan_init() __attribute__((weak));

namespace pipewright::test {

/// Whether AddressSanitizer watches this program; the tests themselves need not be compiled with it.
inline bool sanitized() { return &__asan_init != nullptr; }

/// Under sanitizers one of so many draws, and of so many cases of a long list: each is seven times as slow there, and
/// what is looked for is what happens to memory. Every draw and case is checked in the release build.
constexpr unsigned one_of = 7;

/// Whether few are taken: under sanitizers, or with PIPEWRIGHT_FEW=1; never with PIPEWRIGHT_LONG=1.
inline bool few() {
  return std::getenv("PIPEWRIGHT_LONG") == nullptr && (sanitized() || std::getenv("PIPEWRIGHT_FEW") != nullptr);
}

/// `usual`, or what the environment's `variable` says, for longer hunts; where few are taken, one of `one_of`.
inline unsigned draws(unsigned usual, const char* variable = nullptr) {
  const char* wanted = variable != nullptr ? std::getenv(variable) : nullptr;
  if (wanted != nullptr) return static_cast<unsigned>(std::atoi(wanted));
  return few() ? (usual + one_of - 1) / one_of : usual;
}

/// Whether the case of a list is taken: each, or where few are, the first of every `one_of`.
inline bool taken(std::size_t nth) { return !few() || nth % one_of == 0; }

}  // namespace pipewright::test
