// pipewright capture: measures this machine and writes a profile.
#include "pipewright/capture.hpp"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <regex>

#include "commands.hpp"
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
  pipewright capture --out links-shm.json --links --link 'shared host memory'
      the same with NCCL_P2P_DISABLE=1
  pipewright profile merge my-gpu.json links.json links-shm.json --out profiles/my-node.json)";

struct Arguments {
  std::string out;
  bool force = false;
  capture::Options options;
};

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
  if (!arguments.force && arguments.out != "-" && std::filesystem::exists(arguments.out)) {
    throw UsageError({"command line", 0}, "--out", arguments.out + " exists; --force replaces it");
  }
  try {
    const std::regex compiled(arguments.options.ops);
  } catch (const std::regex_error&) {
    throw UsageError({"command line", 0}, "--ops", "\"" + arguments.options.ops + "\" is not a regular expression");
  }
}

int measure(const Arguments& arguments) {
  check(arguments);
  Interruptible interruptible;
  std::atomic<bool> stop{false};
  capture::Result result;
  {
    Line line;
    result = capture::run(
        arguments.options,
        [&](const capture::Progress& progress) {
          interruptible.poll();
          if (interruptible.token().stop_requested()) stop = true;
          line(progress);
        },
        stop);
  }
  for (const auto& warning : result.warnings) std::fprintf(stderr, "warning: %s\n", warning.c_str());
  std::size_t samples = 0;
  for (const auto& [family, list] : result.profile.samples) samples += list.size();
  if (samples + result.profile.scalars.size() + result.profile.clocks.size() == 0) {
    throw UsageError({"command line", 0}, "--ops", "nothing was measured: no family's name matches");
  }
  write_result(arguments.out, profile::to_json(result.profile));
  std::fprintf(stderr, "%s: %zu shapes of %zu families%s\n", arguments.out.c_str(), samples,
               result.profile.samples.size(), result.complete ? "" : "; stopped early, what was measured is valid");
  return result.complete ? 0 : 1;
}

}  // namespace

void add_capture(CLI::App& app, Outcome& outcome) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = app.add_subcommand("capture", "Measures this machine's GPUs and writes a profile.");
  command->footer(kExamples);
  auto& options = arguments->options;
  command->add_option("--out", arguments->out, "The profile to write, or - for standard output.")->required();
  command->add_flag("--force", arguments->force, "Replace an existing file.");
  command->add_option("--name", options.name, "Name of the profile (default: the device's, such as h200).");
  command->add_option("--ops", options.ops,
                      "Only families, links and scalars whose name matches this regular expression.");
  command->add_option("--lacking", options.lacking, "Only shapes that this profile (name or file) does not have yet.");
  command->add_flag("--quick", options.quick, "Few shapes and samples, under a minute.");
  auto* sustained = command->add_flag("--sustained", options.sustained, "Also the clock law under sustained load.");
  auto* links = command->add_flag("--links", options.links, "Links between all visible GPUs instead of kernels.");
  links->excludes(sustained);
  command->add_option("--link", options.link, "Which link class --links measures.")
      ->check(CLI::IsMember({"nvlink", "shared host memory"}))
      ->needs(links);
  command->callback([arguments, command, &outcome] {
    auto& line = arguments->options.arguments;
    line = {"pipewright", "capture"};
    for (const CLI::Option* option : command->get_options()) {
      if (option->count() == 0) continue;
      line.push_back(option->get_name());
      if (option->get_expected_max() == 0) continue;
      for (const auto& value : option->results()) {
        const bool plain = value.find_first_of(" ^$()|*?[]\\'\"") == std::string::npos;
        line.push_back(plain ? value : "'" + value + "'");
      }
    }
    outcome.status = measure(*arguments);
  });
}

}  // namespace pipewright::cli
