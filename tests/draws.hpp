// How many draws a property takes.
#pragma once

#include <cstdlib>

namespace pipewright::test {

/// `usual`; what the environment's `variable` says, for longer hunts; a quarter of `usual` under sanitizers, which make
/// each ten times as slow and look for what happens to memory, not for figures (also with PIPEWRIGHT_FEW=1).
inline unsigned draws(unsigned usual, const char* variable = nullptr) {
  const char* wanted = variable != nullptr ? std::getenv(variable) : nullptr;
  if (wanted != nullptr) return static_cast<unsigned>(std::atoi(wanted));
#ifdef __SANITIZE_ADDRESS__
  constexpr bool slow = true;
#else
  constexpr bool slow = false;
#endif
  const bool few = std::getenv("PIPEWRIGHT_LONG") == nullptr && (slow || std::getenv("PIPEWRIGHT_FEW") != nullptr);
  return few ? (usual + 3) / 4 : usual;
}

}  // namespace pipewright::test
