// pipewright capture: measures this machine, or a command that runs on it, and writes a profile.
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <set>

#include "commands.hpp"
#include "pipewright/capture.hpp"
#include "pipewright/import.hpp"
#include "pipewright/model.hpp"
#include "pipewright/scenario/io.hpp"
#include "progress.hpp"

namespace pipewright::cli {
namespace {

constexpr const char* kExamples = R"(Examples:
  pipewright capture --out profiles/my-gpu.json --name my-gpu --sustained
      kernels, copies, host costs and the clock law of GPU 0 (about five minutes; nothing else may use the GPU)
  pipewright capture --out gemms.json --ops '^gemm\.fp8' --quick
      only FP8 matrix products, few shapes
  pipewright capture --out more.json --lacking my-gpu.json --ops '^gemm'
      only the matrix products of the grid that a profile does not have; merge the two afterwards
  pipewright capture --out links.json --links
      NCCL over NVLink between 2 and 4 GPUs, memory of communicators
  srun --ntasks-per-node 8 pipewright capture --out /shared/links.json --links
      NCCL between hosts, too: one process a GPU, by srun, mpirun or torchrun
  pipewright capture --out links-shm.json --links --link 'shared host memory'
      the same with NCCL_P2P_DISABLE=1
  pipewright capture --out again.json --again my-gpu.json --ops '^gemm\.grouped'
      the shapes that a profile has of these families, with another driver or library
  pipewright capture --out mine.json --scenario S.yaml --lacking h200-sxm
      only what the kernels of a scenario need and a profile does not have
  pipewright capture --out run.json --scenario S.yaml --profile h200-sxm --steps 5:6 -- torchrun ... pretrain_gpt.py ...
      what the kernels of a real run take: its steps 5 and 6, mapped to the operations of the scenario
  pipewright capture --out kernels.json -- ./my_program
      without a scenario: the list of its kernels
  pipewright profile merge my-gpu.json links.json links-shm.json --out profiles/my-node.json)";

struct Arguments {
  KeptFile out;
  std::string raw, again, steps = "3:4";
  std::vector<std::string> scenarios, profiles;
  capture::Options options;
  capture::Attach attach;
};

const Position kHere = {"command line", 0};

/// One line on a terminal, else a line every few seconds.
class Line {
 public:
  void operator()(const capture::Progress& p) {
    const auto now = std::chrono::steady_clock::now();
    const bool terminal = isatty(STDERR_FILENO) == 1;
    if (now - last_ < std::chrono::milliseconds(terminal ? 200 : 5000)) return;
    last_ = now;
    const char* begin = terminal ? "\r\033[K" : "";
    const char* end = terminal ? "" : "\n";
    if (p.total == 0)
      std::fprintf(stderr, "%s%s%s", begin, p.what.c_str(), end);
    else
      std::fprintf(stderr, "%s%zu of %zu, about %.0f s left: %s%s", begin, p.done, p.total, p.remaining_s,
                   p.what.c_str(), end);
    used_ = terminal;
  }
  ~Line() {
    if (used_) std::fputs("\r\033[K", stderr);
  }

 private:
  std::chrono::steady_clock::time_point last_{};
  bool used_ = false;
};

void check(const Arguments& arguments) {
  arguments.out.require_free();
  const bool others = !arguments.scenarios.empty() || arguments.options.links || !arguments.attach.command.empty();
  if (!arguments.again.empty() && others)
    throw UsageError(kHere, "--again", "measures a profile's shapes; leave out --scenario, --links and a command");
  require_regex("--ops", arguments.options.ops);
  require_regex("--step-kernel", arguments.attach.step_kernel);
}

scenario::Scenario checked_scenario(const std::string& path) {
  auto result = read_scenario(path, {});
  scenario::check(result);
  return result;
}

/// Is its time one GPU's alone? Links are measured by --links, the host's own work whatever its size.
bool runs_alone(const std::string& family) {
  return family != "adam.host" && family != "copy.h2d.pageable" &&
         profile::family(family).load != profile::Load::network;
}

void add_keys(std::set<profile::Key>& keys, const std::vector<model::Kernel>& kernels) {
  for (const auto& kernel : kernels)
    if (!kernel.key.family.empty() && runs_alone(kernel.key.family)) keys.insert(kernel.key);
}

std::vector<profile::Key> keys_of(const std::vector<std::string>& scenarios) {
  std::set<profile::Key> keys;
  for (const auto& path : scenarios) {
    const auto stages = model::build(checked_scenario(path), profile::assumed_device());
    for (const auto& piece : stages.pieces) add_keys(keys, piece.kernels);
    for (const auto& rank : stages.ranks) {
      add_keys(keys, rank.finalize);
      add_keys(keys, rank.optimizer);
      for (const auto& chunk : rank.chunks) {
        add_keys(keys, chunk.gradient_sync);
        add_keys(keys, chunk.parameter_gather);
      }
    }
  }
  return {keys.begin(), keys.end()};
}

std::vector<profile::Key> keys_of(const profile::Profile& profile) {
  std::vector<profile::Key> keys;
  for (const auto& [name, samples] : profile.samples)
    if (runs_alone(name))
      for (const auto& sample : samples) keys.push_back({name, sample.dims});
  return keys;
}

/// Started by mpirun, srun or torchrun, --links is one measurement of all its processes.
void take_seat(Arguments& arguments) {
  auto& options = arguments.options;
  if (options.links) options.seat = capture::seat([](const char* name) { return std::getenv(name); });
  if (!options.seat) {
    for (const auto& [given, option] : {std::pair(!options.meet.empty(), "--meet"),
                                        std::pair(options.nvlink_domain.has_value(), "--nvlink-domain")}) {
      if (given) throw UsageError(kHere, option, "is for --links in several processes: mpirun, srun or torchrun");
    }
    return;
  }
  if (options.meet.empty() && arguments.out.path == "-")
    throw UsageError(kHere, "--meet", "is needed with --out -: a folder that all ranks see");
  if (options.meet.empty()) options.meet = arguments.out.path + ".ranks";
}

int measure(Arguments& arguments) {
  take_seat(arguments);
  if (!arguments.scenarios.empty()) arguments.options.keys = keys_of(arguments.scenarios);
  if (!arguments.again.empty()) arguments.options.keys = keys_of(profile::load(arguments.again, {"--again", 0}));
  Interruptible interruptible;
  std::atomic<bool> stop{false};
  capture::Result result;
  {
    Line line;
    result = capture::run(
        arguments.options,
        [&](const capture::Progress& progress) {
          if (interruptible.token().stop_requested()) stop = true;
          line(progress);
        },
        stop);
  }
  if (!result.written_here) return result.complete ? 0 : 1;
  for (const auto& warning : result.warnings) std::fprintf(stderr, "warning: %s\n", warning.c_str());
  std::size_t samples = 0;
  for (const auto& [family, list] : result.profile.samples) samples += list.size();
  if (samples + result.profile.scalars.size() + result.profile.clocks.size() == 0) {
    throw UsageError({"command line", 0}, "--ops", "nothing was measured: no family's name matches");
  }
  write_result(arguments.out.path, profile::to_json(result.profile));
  std::fprintf(stderr, "%s: %zu shapes of %zu families%s\n", arguments.out.path.c_str(), samples,
               result.profile.samples.size(), result.complete ? "" : "; stopped early, what was measured is valid");
  return result.complete ? 0 : 1;
}

/// The folder of the recordings; removed again unless the user named it.
class Folder {
 public:
  explicit Folder(const std::string& named) : path_(named), keep_(!named.empty()) {
    if (keep_) {
      std::filesystem::create_directories(path_);
      if (!std::filesystem::is_empty(path_)) throw UsageError(kHere, "--raw", path_ + " is not empty");
      return;
    }
    std::string pattern = (std::filesystem::temp_directory_path() / "pipewright-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) throw UsageError("no temporary folder can be made: " + pattern);
    path_ = pattern;
  }
  ~Folder() {
    std::error_code ignored;
    if (!keep_) std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  bool keep_;
};

void parse_steps(Arguments& arguments) {
  auto& how = arguments.attach;
  int read = 0;
  const bool two = std::sscanf(arguments.steps.c_str(), "%d:%d%n", &how.first_step, &how.last_step, &read) == 2 &&
                   static_cast<std::size_t>(read) == arguments.steps.size();
  if (!two || how.first_step < 1 || how.last_step < how.first_step) {
    throw UsageError(kHere, "--steps", "\"" + arguments.steps + "\" is not A:B with 1 <= A <= B");
  }
}

/// Every process's kernels; "run.json" of rank 1 of several goes to run.r1.json.
void write_lists(const Arguments& arguments, const std::vector<traces::Trace>& all) {
  for (const auto& trace : all) {
    std::filesystem::path path(arguments.out.path);
    if (all.size() > 1 && arguments.out.path != "-") {
      path.replace_extension(".r" + std::to_string(trace.rank) + path.extension().string());
      arguments.out.require_free(path.string());
    }
    write_result(path.string(), traces::kernel_list(trace));
    std::fprintf(stderr, "%s: %zu kernels and copies of rank %d\n", path.c_str(), trace.activities.size(), trace.rank);
  }
}

void write_profile(const Arguments& arguments, const std::vector<traces::Trace>& all) {
  std::unique_ptr<profile::Profiles> lone;
  std::vector<profile::Profile> loaded;
  for (const auto& name : arguments.profiles) loaded.push_back(profile::load(name, kHere));
  if (!loaded.empty()) lone = std::make_unique<profile::Profiles>(std::move(loaded));
  const auto scenario = checked_scenario(arguments.scenarios.front());
  std::string command;
  for (const auto& argument : arguments.options.arguments) command += (command.empty() ? "" : " ") + argument;
  const std::string name = arguments.options.name.empty() ? std::filesystem::path(arguments.out.path).stem().string()
                                                          : arguments.options.name;
  const auto result = traces::import_traces(scenario, all, {name, 1.0, command}, lone.get());
  write_result(arguments.out.path, profile::to_json(result.profile));
  if (arguments.out.path != "-") write_result("-", traces::text(result, lone.get()));
}

int attach(Arguments& arguments) {
  parse_steps(arguments);
  if (arguments.scenarios.size() > 1) throw UsageError(kHere, "--scenario", "one scenario, that of the command");
  if (!arguments.scenarios.empty()) checked_scenario(arguments.scenarios.front());  // before the command runs
  const Folder folder(arguments.raw);
  arguments.attach.folder = folder.path();
  const auto attached = capture::attach(arguments.attach);
  if (attached.recordings.empty()) {
    throw UsageError(kHere, "--",
                     "no process of the command ran a kernel, or none let itself be recorded (exit status " +
                         std::to_string(attached.status) + ")");
  }
  std::vector<traces::Trace> all;
  for (const auto& path : attached.recordings) all.push_back(traces::read(path));
  if (arguments.scenarios.empty())
    write_lists(arguments, all);
  else
    write_profile(arguments, all);
  if (attached.status != 0) {
    std::fprintf(stderr, "warning: the command ended with status %d; what it recorded until then is written\n",
                 attached.status);
  }
  return attached.status == 0 ? 0 : 1;
}

}  // namespace

void add_capture(Command& app, Outcome& outcome) {
  auto arguments = std::make_shared<Arguments>();
  auto& command = app.add_subcommand("capture", "Measures this machine's GPUs and writes a profile.");
  command.footer(kExamples);
  auto& options = arguments->options;
  arguments->out.add_to(command, "profile");
  command.add_option("--name", options.name, "Name of the profile (default: the device's, such as h200).");
  command.add_option("--ops", options.ops,
                     "Only families, links and scalars whose name matches this regular expression.");
  auto& lacking = command.add_option("--lacking", options.lacking,
                                     "Only shapes that this profile (name or file) does not have yet.");
  command.add_option("--again", arguments->again, "Only shapes that this profile (name or file) has, once more.")
      .excludes(lacking);
  command.add_flag("--quick", options.quick, "Few shapes and samples, under a minute.");
  auto& sustained = command.add_flag("--sustained", options.sustained, "Also the clock law under sustained load.");
  auto& links = command.add_flag("--links", options.links, "Links between all visible GPUs instead of kernels.");
  links.excludes(sustained);
  command.add_option("--link", options.link, "Which link class --links measures.")
      .allowed({"nvlink", "shared host memory"})
      .needs(links);
  command
      .add_option("--meet", options.meet,
                  "Of --links in several processes: a folder that all of them see, to find each other in (default: "
                  "OUT.ranks; removed at the end).")
      .needs(links);
  command
      .add_option("--nvlink-domain", options.nvlink_domain,
                  "Of --links in several processes: GPUs that NVLink joins (default: those of a host; 72 in a rack).")
      .needs(links);
  command
      .add_option("--scenario", arguments->scenarios,
                  "Only shapes that this scenario's kernels need (repeatable); of a command: what it runs.")
      .repeatable();
  command.add_option("--steps", arguments->steps, "Of a command: steps A to B, counted from 1 (default 3:4).");
  auto& kernel = command.add_option("--step-kernel", arguments->attach.step_kernel,
                                    "Of a command: kernels whose name matches end a step (default: optimizers).");
  command.add_option("--step-range", arguments->attach.step_range, "Of a command: the NVTX range that is one step.")
      .excludes(kernel);
  command.add_option("--raw", arguments->raw, "Of a command: keep the recordings in this folder.");
  command
      .add_option("--profile", arguments->profiles,
                  "Of a command: compare with this profile, and bring times to a cool part by its clock law.")
      .repeatable();
  command.add_option("COMMAND", arguments->attach.command, "After --: a command to run and record.").after_dashes();
  command.callback([arguments, &command, &outcome] {
    auto& line = arguments->options.arguments;
    line = {"pipewright", "capture"};
    for (const Option& option : command.options()) {
      if (option.given().empty()) continue;
      line.push_back(option.positional() ? "--" : option.name());
      if (option.flag()) continue;
      for (const auto& value : option.given()) {
        const bool plain = value.find_first_of(" ^$()|*?[]\\'\"") == std::string::npos;
        line.push_back(plain ? value : "'" + value + "'");
      }
    }
    check(*arguments);
    outcome.status = arguments->attach.command.empty() ? measure(*arguments) : attach(*arguments);
  });
}

}  // namespace pipewright::cli
