// Values of settings without a field, and of variables, that are refused though the name is not.
#pragma once

#include <span>
#include <string>

#include "pipewright/scenario/types.hpp"

namespace pipewright::scenario {

struct RefusedValue {
  const char *name, *missing;
  bool (*acts)(const std::string& value);
  bool (*beside)(const Scenario&) = nullptr;  ///< nullptr: whatever is beside it
};

std::span<const RefusedValue> refused_values();

/// A name that is refused whatever its value: what is missing with values that begin so.
struct NamedValue {
  const char *name, *value, *missing;
};

std::span<const NamedValue> named_values();

/// Values of names without effect on a step that are told all the same.
struct NotedValue {
  const char* name;
  bool (*acts)(const std::string& value);
  std::string (*note)(const std::string& value);
};

std::span<const NotedValue> noted_values();

}  // namespace pipewright::scenario
