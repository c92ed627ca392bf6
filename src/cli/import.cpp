// pipewright import: traces of a real run, one a rank, into a profile and a report.
#include "pipewright/import.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <memory>

#include "commands.hpp"
#include "input.hpp"

namespace pipewright::cli {
namespace {

struct ImportOptions {
  std::vector<std::string> traces, profiles, set;
  std::string scenario, out, json;
  double host_overhead = 1.25;
  bool force = false;
};

/// "run-7.json" and "profiles/run-7" are called run-7.
std::string name_of(const std::string& path) {
  const std::filesystem::path file(path);
  return file.extension() == ".json" ? file.stem().string() : file.filename().string();
}

void import(const ImportOptions& options) {
  const Position where = {"command line", 0};
  if (!options.force && options.out != "-" && std::filesystem::exists(options.out)) {
    throw UsageError(where, "--out", options.out + " exists; --force replaces it");
  }
  if (!(options.host_overhead >= 1 && options.host_overhead <= 10)) {
    throw UsageError(where, "--host-overhead", "a factor from 1 (a profiler that costs nothing) to 10");
  }
  auto scenario = scenario::read(options.scenario);
  for (const auto& assignment : options.set) scenario::set(scenario, assignment);
  scenario::check(scenario);

  std::unique_ptr<profile::Profiles> lone;
  if (!options.profiles.empty()) {
    std::vector<profile::Profile> loaded;
    for (const auto& name : options.profiles) loaded.push_back(profile::load(name, where));
    lone = std::make_unique<profile::Profiles>(std::move(loaded));
  }
  std::vector<traces::Trace> read;
  std::string command = "pipewright import";
  for (const auto& path : options.traces) {
    read.push_back(traces::read(path));
    command += " " + std::filesystem::path(path).filename().string();
  }
  command += fmt::format(" --scenario {} --host-overhead {}",
                         std::filesystem::path(options.scenario).filename().string(), options.host_overhead);
  for (const auto& name : options.profiles) command += " --profile " + name_of(name);

  const traces::Options how{name_of(options.out), options.host_overhead, command};
  const auto result = traces::import_traces(scenario, read, how, lone.get());
  write_result(options.out, profile::to_json(result.profile));
  if (!options.json.empty()) write_result(options.json, traces::json(result, lone.get()));
  if (options.json != "-" && options.out != "-") write_result("-", traces::text(result, lone.get()));
}

}  // namespace

void add_import(Command& app, Outcome&) {
  auto& command = app.add_subcommand("import", "Read traces of a real run, one a rank, into a profile");
  const auto options = std::make_shared<ImportOptions>();
  command
      .add_option("TRACE", options->traces,
                  "torch.profiler JSON (.gz), Nsight Systems .sqlite, or a kernel list; NAME.rR.* is rank R")
      .required()
      .expected(1, 100000);
  command.add_option("--scenario", options->scenario, "scenario file (YAML) that the run followed").required();
  command.add_option("--out", options->out, "file of the profile (-: standard output)").required();
  command.add_flag("--force", options->force, "replace the file");
  command.add_option("--set", options->set, "NAME=VALUE: any setting, overrides the scenario; repeatable").repeatable();
  add_profile_option(command, options->profiles);
  command.add_option("--host-overhead", options->host_overhead,
                     "host times are divided by it: the cost of the profiler itself (1.25: torch.profiler on a step "
                     "bound by the host, 438.1 ms traced, 349.7 ms untraced; 1 for a profiler without cost)");
  command.add_option("--json", options->json, "write the report as JSON (-: standard output)");
  command.footer(
      "With --profile, the report compares with times of lone kernels, and imported times are brought to a cool part\n"
      "by that profile's clock law, so that both can be used together.\n\n"
      "Examples:\n"
      "  pipewright import step.r0.json.gz step.r1.json.gz --scenario S.yaml --profile h200-sxm --out run.json\n"
      "  pipewright simulate S.yaml --profile run.json --profile h200-sxm");
  command.callback([options] { import(*options); });
}

}  // namespace pipewright::cli
