// libFuzzer's entry for one target (-DTARGET="name"): build-fuzz/tests/fuzz/fuzz_flags tests/fuzz/corpus/flags
#include <cstddef>
#include <cstdint>

#include "targets.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace pipewright;
  static const auto* target = [] {
    for (const auto& one : fuzz::targets())
      if (one.name == TARGET) return &one;
    __builtin_trap();
  }();
  fuzz::survives(*target, std::string(reinterpret_cast<const char*>(data), size));
  return 0;
}
