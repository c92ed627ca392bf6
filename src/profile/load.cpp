// Where profiles are found: beside the program, in $PIPEWRIGHT_PROFILES, or at a path.
#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <set>

#include "pipewright/profile.hpp"

namespace pipewright::profile {
namespace {

namespace fs = std::filesystem;

/// The folder profiles/ of the checkout or installation that the program lies in: the nearest above it.
std::vector<fs::path> folders() {
  std::vector<fs::path> result;
  std::error_code error;
  for (fs::path at = fs::read_symlink("/proc/self/exe", error).parent_path(); !error && at.has_relative_path();
       at = at.parent_path()) {
    if (fs::is_directory(at / "profiles", error)) {
      result.push_back(at / "profiles");
      break;
    }
    error.clear();
  }
  if (const char* given = std::getenv("PIPEWRIGHT_PROFILES"); given != nullptr && *given != '\0') {
    result.emplace_back(given);
  }
  return result;
}

}  // namespace

std::vector<std::string> known_profiles() {
  std::set<std::string> names;
  for (const auto& folder : folders()) {
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(folder, error)) {
      if (entry.path().extension() == ".json") names.insert(entry.path().stem().string());
    }
  }
  return {names.begin(), names.end()};
}

Profile load(const std::string& name_or_path, const Position& where) {
  const bool plain = name_or_path.find('/') == std::string::npos;
  std::error_code error;
  if (plain && !name_or_path.empty()) {
    for (const auto& folder : folders()) {
      const fs::path path = folder / (name_or_path + ".json");
      if (fs::is_regular_file(path, error)) return parse(read_file(path.string()), path.string());
    }
  }
  if (fs::is_regular_file(name_or_path, error)) return parse(read_file(name_or_path), name_or_path);
  const auto known = known_profiles();
  // Another letter or another number is another GPU, not a misspelling: an A100 is no H100.
  const auto digits = [](const std::string& name) {
    std::string out;
    std::copy_if(name.begin(), name.end(), std::back_inserter(out), [](char c) { return c >= '0' && c <= '9'; });
    return out;
  };
  std::vector<std::string> alike;
  for (const auto& name : known)
    if (digits(name) == digits(name_or_path) &&
        std::tolower(name[0]) == std::tolower(name_or_path.empty() ? 0 : name_or_path.front()))
      alike.push_back(name);
  const auto begun =
      std::find_if(alike.begin(), alike.end(), [&](const auto& name) { return name.starts_with(name_or_path); });
  throw UsageError(where, "profile", "there is no profile \"" + name_or_path + "\", neither by name nor as a file",
                   known, begun == alike.end() ? nearest_name(name_or_path, alike) : *begun);
}

}  // namespace pipewright::profile
