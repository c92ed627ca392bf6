// What a reader does with bytes from anywhere: it reads them or throws a UsageError. One function a form of input.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace pipewright::fuzz {

struct Target {
  std::string_view name;  ///< also of its folder of seeds
  void (*run)(const std::string& bytes);
};
std::span<const Target> targets();
/// Runs one; false: refused. Anything but a UsageError escapes.
bool survives(const Target& target, const std::string& bytes);

}  // namespace pipewright::fuzz
