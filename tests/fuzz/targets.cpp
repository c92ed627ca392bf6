#include "targets.hpp"

#include <unistd.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "pipewright/emit.hpp"
#include "pipewright/import.hpp"
#include "pipewright/memory.hpp"
#include "pipewright/nccl_tests.hpp"
#include "pipewright/plan.hpp"
#include "pipewright/profile.hpp"
#include "pipewright/scenario/io.hpp"
#include "pipewright/trial.hpp"

namespace pipewright::fuzz {

namespace {

const emit::Machine machine = {8, 8, "h200-sxm", ""};

/// For readers that take a path. The rank in the name is what traces need.
class File {
 public:
  explicit File(const std::string& bytes)
      : path_(std::filesystem::temp_directory_path() / ("pipewright_fuzz_" + std::to_string(getpid()) + ".r0.json")) {
    std::ofstream(path_, std::ios::binary) << bytes;
  }
  ~File() {
    std::error_code error;
    std::filesystem::remove(path_, error);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

/// What was read goes on: written and read again, checked, and said in every notation.
void use(const scenario::Scenario& s) {
  scenario::parse(scenario::write(s), "written");
  plan::check(s);
  scenario::check(s);
  emit::text(emit::megatron(s), true);
  emit::text(emit::bridge(s), false);
  emit::text(emit::harness(s), true);
}

constexpr std::array all = {
    Target{"scenario", [](const std::string& bytes) { use(scenario::parse(bytes, "fuzz.yaml")); }},
    Target{"flags", [](const std::string& bytes) { use(emit::from_megatron(bytes, machine).scenario); }},
    Target{"script", [](const std::string& bytes) { use(emit::from_launch_file(bytes, "fuzz.sh", machine).scenario); }},
    Target{"bridge", [](const std::string& bytes) { use(emit::from_bridge_text(bytes, "fuzz.py", machine).scenario); }},
    Target{"hf",
           [](const std::string& bytes) {
             const File file(bytes);
             auto s = scenario::from_hf(file.path());
             for (const auto* value : {"seq_length=4096", "global_batch_size=8", "num_gpus=8"}) scenario::set(s, value);
             use(s);
           }},
    Target{"profile",
           [](const std::string& bytes) {
             const auto profile = profile::parse(bytes, "fuzz.json");
             profile::parse(profile::to_json(profile), "written");
           }},
    Target{"trace",
           [](const std::string& bytes) {
             const File file(bytes);
             traces::read(file.path());
           }},
    Target{"events", [](const std::string& bytes) { memory::replay(bytes, "fuzz.json"); }},
    Target{"nccl",
           [](const std::string& bytes) {
             const File file(bytes);
             nccl_tests::recognise(file.path());
             nccl_tests::Options options;
             options.name = "fuzz";
             nccl_tests::text(nccl_tests::import_files({file.path()}, options));
           }},
    Target{"lengths",
           [](const std::string& bytes) {
             const File file(bytes);
             scenario::Scenario s;
             scenario::set(s, "sequence_lengths=[" + file.path() + "]");
           }},
    Target{"log",
           [](const std::string& bytes) {
             trial::read_log(bytes);
             trial::failure_of(bytes, 1);
           }},
    Target{"plan", [](const std::string& bytes) { trial::candidates_of_plan(bytes, "fuzz.json", 3); }},
};

}  // namespace

std::span<const Target> targets() { return all; }

bool survives(const Target& target, const std::string& bytes) {
  try {
    target.run(bytes);
    return true;
  } catch (const UsageError&) {
    return false;
  }
}

}  // namespace pipewright::fuzz
