// Where the libraries that need CUDA are.
#pragma once

#include <filesystem>
#include <string>

namespace pipewright::capture {

/// Beside the program (installed), or in the build's kernels/ (the program is in src/cli). Empty: nowhere.
inline std::string beside_program(const char* library) {
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error).parent_path();
  for (const auto& folder : {program, program / ".." / ".." / "kernels"}) {
    if (std::filesystem::exists(folder / library, error)) return std::filesystem::absolute(folder / library).string();
  }
  return {};
}

}  // namespace pipewright::capture
