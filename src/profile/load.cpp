// Where profiles are found: beside the program, in $PIPEWRIGHT_PROFILES, or at a path.
#include <sys/stat.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include "pipewright/profile.hpp"
#include "pipewright/profile_folders.hpp"

namespace pipewright::profile {
namespace {

namespace fs = std::filesystem;

/// The profiles of the checkout (profiles/) or installation (PREFIX/share/pipewright/profiles) that the program lies
/// in: the nearest above it.
std::vector<std::string> beside_the_program() {
  std::error_code error;
  for (fs::path at = fs::read_symlink("/proc/self/exe", error).parent_path(); !error && at.has_relative_path();
       at = at.parent_path()) {
    for (const char* below : {"profiles", "share/pipewright/profiles"})
      if (fs::is_directory(at / below, error)) return {(at / below).string()};
    error.clear();
  }
  return {};
}

std::mutex own_mutex;
std::string own_folder;  // instead of the program's, by use_profiles_of

/// What a pipe holds can be read once, and a command may ask twice for a profile.
Profile from_pipe(const std::string& path) {
  static std::mutex mutex;
  static std::map<std::pair<dev_t, ino_t>, Profile> read;
  struct stat pipe {};
  ::stat(path.c_str(), &pipe);
  const std::pair of{pipe.st_dev, pipe.st_ino};
  const std::lock_guard lock(mutex);
  if (const auto known = read.find(of); known != read.end()) return known->second;
  return read.emplace(of, parse(read_file(path), path)).first->second;
}

}  // namespace

void use_profiles_of(const std::string& folder) {
  const std::lock_guard lock(own_mutex);
  own_folder = folder;
}

std::vector<std::string> profile_folders() {
  std::vector<std::string> result;
  {
    const std::lock_guard lock(own_mutex);
    if (!own_folder.empty()) result.push_back(own_folder);
  }
  if (result.empty()) result = beside_the_program();
  if (const char* given = std::getenv("PIPEWRIGHT_PROFILES"); given != nullptr && *given != '\0')
    result.emplace_back(given);
  return result;
}

std::vector<std::string> known_profiles() {
  std::set<std::string> names;
  for (const auto& folder : profile_folders()) {
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
    for (const auto& folder : profile_folders()) {
      const fs::path path = fs::path(folder) / (name_or_path + ".json");
      if (fs::is_regular_file(path, error)) return parse(read_file(path.string()), path.string());
    }
  }
  const auto kind = fs::status(name_or_path, error);
  if (fs::is_regular_file(kind)) return parse(read_file(name_or_path), name_or_path);
  if (fs::exists(kind) && !fs::is_directory(kind)) return from_pipe(name_or_path);
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
  const std::string none = known.empty() ? ": none at all is above the program or in $PIPEWRIGHT_PROFILES" : "";
  throw UsageError(where, "profile",
                   "there is no profile \"" + name_or_path + "\", neither by name nor as a file" + none, known,
                   begun == alike.end() ? nearest_name(name_or_path, alike) : *begun);
}

}  // namespace pipewright::profile
