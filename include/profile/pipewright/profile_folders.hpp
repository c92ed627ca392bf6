// Where profiles are looked up by name.
#pragma once

#include <string>
#include <vector>

namespace pipewright::profile {

/// In the order of precedence: profiles/ or share/pipewright/profiles, the nearest above the program; then
/// $PIPEWRIGHT_PROFILES.
std::vector<std::string> profile_folders();

/// This folder instead of the program's: for code that lives in somebody else's program.
void use_profiles_of(const std::string& folder);

}  // namespace pipewright::profile
