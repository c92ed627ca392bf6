// Scalars that not every profile has; those that every one must have are asked for by profile::Profiles::scalar.
#pragma once

#include <optional>
#include <string>

#include "pipewright/profile.hpp"

namespace pipewright::timeline {

/// Of the first profile that knows it.
inline std::optional<double> find_scalar(const profile::Profiles& profiles, const std::string& name) {
  for (const profile::Profile& profile : profiles.all())
    if (const auto found = profile.scalars.find(name); found != profile.scalars.end()) return found->second.value;
  return std::nullopt;
}

}  // namespace pipewright::timeline
