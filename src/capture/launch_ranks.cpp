// Runs a command with the recorder in its environment and gathers what its processes recorded.
#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>

#include "beside.hpp"
#include "pipewright/capture.hpp"
#include "pipewright/process.hpp"

namespace pipewright::capture {
namespace {

namespace fs = std::filesystem;

constexpr const char* kRecorder = "libpipewright_attach.so";

/// While it lives, Ctrl-C is the command's alone.
class IgnoreInterrupts {
 public:
  IgnoreInterrupts() : before_(std::signal(SIGINT, SIG_IGN)) {}
  ~IgnoreInterrupts() { std::signal(SIGINT, before_); }
  IgnoreInterrupts(const IgnoreInterrupts&) = delete;
  IgnoreInterrupts& operator=(const IgnoreInterrupts&) = delete;

 private:
  void (*before_)(int);
};

int run_to_end(const Attach& how) {
  const IgnoreInterrupts ours;
  Process process({how.command, recorder_environment(how), {}});
  process.wait();
  return process.status();
}

struct Head {
  std::optional<int> rank;  ///< that the launcher gave
  bool kernels = false;     ///< the process ran some
};

Head head_of(const fs::path& recording) {
  Head head;
  std::ifstream in(recording);
  for (std::string line; !head.kernels && std::getline(in, line);) {
    constexpr std::string_view rank = "M\trank\t";
    if (line.rfind(rank, 0) == 0 && line.size() > rank.size()) head.rank = std::atoi(line.c_str() + rank.size());
    head.kernels = line.rfind("A\t0\t", 0) == 0;
  }
  return head;
}

}  // namespace

std::vector<std::string> gather(const std::string& folder) {
  std::map<int, fs::path> by_rank;
  std::vector<fs::path> without;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const auto& path = entry.path();
    if (path.extension() != ".rec" || path.stem().string().rfind("rec.", 0) == 0) continue;
    const Head head = head_of(path);
    if (!head.kernels) continue;
    if (!head.rank) {
      without.push_back(path);
      continue;
    }
    // Helpers that a rank starts inherit its number; the rank itself has recorded most.
    auto [known, fresh] = by_rank.try_emplace(*head.rank, path);
    if (!fresh && fs::file_size(path) > fs::file_size(known->second)) known->second = path;
  }
  std::sort(without.begin(), without.end());
  for (int next = 0; const auto& path : without) {
    while (by_rank.contains(next)) ++next;
    by_rank[next] = path;
  }
  std::vector<std::string> result;
  for (const auto& [rank, path] : by_rank) {
    const auto to = fs::path(folder) / ("rec.r" + std::to_string(rank) + ".rec");
    fs::rename(path, to);
    result.push_back(to.string());
  }
  return result;
}

std::vector<std::pair<std::string, std::string>> recorder_environment(const Attach& how) {
  const auto library = beside_program(kRecorder);
  if (library.empty()) return {};
  return {{"CUDA_INJECTION64_PATH", library},
          {"NVTX_INJECTION64_PATH", library},
          {"PIPEWRIGHT_ATTACH", fs::absolute(how.folder).string()},
          {"PIPEWRIGHT_ATTACH_STEPS", std::to_string(how.first_step) + ":" + std::to_string(how.last_step)},
          {"PIPEWRIGHT_ATTACH_KERNEL", how.step_kernel},
          {"PIPEWRIGHT_ATTACH_RANGE", how.step_range}};
}

Attached attach(const Attach& how) {
  if (beside_program(kRecorder).empty()) {
    throw UsageError(
        "this build cannot attach to a command: it was configured without CUDA; install the CUDA toolkit "
        "with CUPTI and configure with -Dcapture=enabled");
  }
  Attached result;
  result.status = run_to_end(how);
  result.recordings = gather(how.folder);
  return result;
}

}  // namespace pipewright::capture
