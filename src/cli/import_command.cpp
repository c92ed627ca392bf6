// pipewright import: traces of a real run, one a rank, output of nccl-tests, or published tables, into a profile and a
// report.
#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <optional>

#include "commands.hpp"
#include "embedded.hpp"
#include "input.hpp"
#include "pipewright/import.hpp"
#include "pipewright/nccl_tests.hpp"
#include "pipewright/public_tables.hpp"
#include "pipewright/report.hpp"
#include "pipewright/scenario/io.hpp"
#include "progress.hpp"

namespace pipewright::cli {
namespace {

struct ImportOptions {
  std::vector<std::string> traces, profiles, set;
  KeptFile out;
  std::string scenario, json;
  std::string aiconfigurator, simumax, gpu;
  std::optional<int> nvlink_domain;
  bool published_only = false;
  std::optional<double> host_overhead;
};

/// "run-7.json" and "profiles/run-7" are called run-7.
std::string name_of(const std::string& path) {
  const std::filesystem::path file(path);
  return file.extension() == ".json" ? file.stem().string() : file.filename().string();
}

const Position where = {"command line", 0};

/// --aiconfigurator: tables of others. What they lack is derived from the one profile that is named.
void import_published(const ImportOptions& options) {
  const auto lone = [&](const std::string& option, bool given) {
    if (given) throw UsageError(where, option, "is for traces, not for --aiconfigurator");
  };
  lone("TRACE", !options.traces.empty());
  lone("--scenario", !options.scenario.empty());
  lone("--json", !options.json.empty());
  if (options.gpu.empty()) throw UsageError(where, "--gpu", "is missing: whose tables are to be read");
  if (options.profiles.size() != 1)
    throw UsageError(where, "--profile", "one measured profile is needed: what the tables lack is derived from it");
  const auto result =
      tables::import_tables({options.aiconfigurator, options.simumax}, profile::load(options.profiles.front(), where),
                            profile::data_sheet(options.gpu, where));
  const auto kept = options.published_only ? tables::published_only(result.profile) : result.profile;
  write_result(options.out.path, profile::to_json(kept));
  if (options.out.path != "-") write_result("-", tables::text(result));
}

/// Every file is told by its content; all must be of one kind.
bool of_nccl_tests(const ImportOptions& options) {
  std::size_t tables = 0;
  for (const auto& file : options.traces) tables += nccl_tests::recognise(file) ? 1 : 0;
  if (tables == 0) return false;
  for (const auto& file : options.traces) {
    if (!nccl_tests::recognise(file))
      throw UsageError({file, 0}, {}, "is not output of nccl-tests, as the other files are: import them apart");
  }
  for (const auto& [given, option] :
       {std::pair(!options.scenario.empty(), "--scenario"), std::pair(!options.set.empty(), "--set"),
        std::pair(!options.profiles.empty(), "--profile")}) {
    if (given) throw UsageError(where, option, "is for traces, not for output of nccl-tests");
  }
  return true;
}

void import_benchmarks(const ImportOptions& options, bool quiet) {
  std::string command = "pipewright import";
  for (const auto& path : options.traces) command += " " + std::filesystem::path(path).filename().string();
  const auto result =
      nccl_tests::import_files(options.traces, {name_of(options.out.path), command, options.nvlink_domain});
  write_result(options.out.path, profile::to_json(result.profile));
  if (!options.json.empty()) write_result(options.json, report::stamped(nccl_tests::json(result)));
  if (!quiet) write_result("-", nccl_tests::text(result));
}

void import(const ImportOptions& options) {
  options.out.require_free();
  const bool quiet = on_standard_output({{"--out", options.out.path}, {"--json", options.json}});
  if (!options.aiconfigurator.empty()) return import_published(options);
  for (const auto& [given, option] :
       {std::pair(!options.simumax.empty(), "--simumax"), std::pair(!options.gpu.empty(), "--gpu"),
        std::pair(options.published_only, "--public-only")}) {
    if (given) throw UsageError(where, option, "is for --aiconfigurator");
  }
  for (const auto& path : options.traces)  // before what else is missing
    if (std::error_code none; !std::filesystem::exists(path, none))
      throw UsageError({path, 0}, {}, "cannot read: no such file");
  if (of_nccl_tests(options)) return import_benchmarks(options, quiet);
  if (options.nvlink_domain) throw UsageError(where, "--nvlink-domain", "is for output of nccl-tests");
  for (const auto& path : options.traces)
    if (std::error_code none;
        std::filesystem::is_regular_file(path, none) && std::filesystem::file_size(path, none) == 0)
      throw UsageError({path, 0}, {}, "is empty");
  const std::string scenario_missing = "is missing: what the traced run followed";
  if (options.traces.empty())
    throw UsageError(where, "TRACE",
                     std::string("is missing: a trace, or --aiconfigurator DIR") +
                         (options.scenario.empty() ? "; with a trace --scenario " + scenario_missing : ""));
  if (options.scenario.empty()) throw UsageError(where, "--scenario", scenario_missing);
  if (options.host_overhead && !(*options.host_overhead >= 1 && *options.host_overhead <= 10)) {
    throw UsageError(where, "--host-overhead", "a factor from 1 (a profiler that costs nothing) to 10");
  }
  auto scenario = read_scenario(options.scenario, {}, options.set);
  scenario::check(scenario);

  std::unique_ptr<profile::Profiles> lone;
  if (!options.profiles.empty()) {
    std::vector<profile::Profile> loaded;
    for (const auto& name : options.profiles) loaded.push_back(profile::load(name, where));
    lone = std::make_unique<profile::Profiles>(std::move(loaded));
  }
  std::vector<traces::Trace> read;
  std::string command = "pipewright import";
  {
    Progress progress("import");
    for (const auto& path : options.traces) {
      stop_if_asked();
      progress(static_cast<std::int64_t>(read.size()), static_cast<std::int64_t>(options.traces.size()));
      read.push_back(traces::read(path));
      command += " " + std::filesystem::path(path).filename().string();
    }
  }
  stop_if_asked();
  command += " --scenario " + std::filesystem::path(options.scenario).filename().string();
  if (options.host_overhead) command += fmt::format(" --host-overhead {}", *options.host_overhead);
  for (const auto& name : options.profiles) command += " --profile " + name_of(name);

  const traces::Options how{name_of(options.out.path), options.host_overhead, command};
  const auto result = traces::import_traces(scenario, read, how, lone.get());
  write_result(options.out.path, profile::to_json(result.profile));
  if (!options.json.empty()) write_result(options.json, report::stamped(traces::json(result, lone.get())));
  if (!quiet) write_result("-", traces::text(result, lone.get()));
}

}  // namespace

void add_import(Command& app, Outcome&) {
  auto& command = app.add_subcommand(
      "import", "Read traces of a real run, benchmarks of a network, or published kernel tables, into a profile");
  const auto options = std::make_shared<ImportOptions>();
  command
      .add_option("TRACE", options->traces,
                  "torch.profiler JSON (.gz), Nsight Systems .sqlite, or a kernel list; NAME.rR.* is rank R. Or output "
                  "of nccl-tests: what the programs print, or the file of their -J")
      .expected(0, 100000);
  command.add_option("--scenario", options->scenario, "scenario file (YAML) or launch script that the run followed")
      .reads();
  options->out.add_to(command, "profile");
  command.add_option("--set", options->set, "NAME=VALUE: any setting, overrides the scenario; repeatable").repeatable();
  add_profile_option(command, options->profiles);
  command.add_option("--host-overhead", options->host_overhead,
                     "host times are divided by it: the cost of the profiler itself (1.25 where the trace holds the "
                     "host's operators, more of it in backward passes; 1.1 by CUDA's records alone; 1: none)");
  command.add_option(
      "--aiconfigurator", options->aiconfigurator,
      "folder with tables of ai-dynamo/aiconfigurator as CSV (docs/public-tables.md), instead of traces");
  command.add_option("--simumax", options->simumax, "SimuMax's machine file of a B200, beside --aiconfigurator");
  command.add_option("--gpu", options->gpu, "whose tables: the profile's name of a GPU with a data sheet");
  command.add_flag("--public-only", options->published_only, "write what the tables hold, nothing derived");
  command.add_option("--nvlink-domain", options->nvlink_domain,
                     "of nccl-tests' output: GPUs that NVLink joins (default: those of a host; 72 in an NVL72 rack)");
  command.add_option("--json", options->json, "write the report as JSON (-: standard output)");
  command.footer(
      "With --profile, the report compares with times of lone kernels, and imported times are brought to a cool part\n"
      "by that profile's clock law, so that both can be used together.\n\n"
      "Examples:\n"
      "  pipewright import step.r0.json.gz step.r1.json.gz --scenario S.yaml --profile h200-sxm --out run.json\n"
      "  pipewright simulate S.yaml --profile run.json --profile h200-sxm\n"
      "  pipewright import all_gather.txt alltoall.json sendrecv.txt --out links.json\n"
      "  pipewright simulate S.yaml --profile links.json --profile h100-sxm\n"
      "  pipewright import --aiconfigurator CSV --simumax b200_bf16_ceperm.json --gpu gb200-nvl72 --profile h200-sxm\n"
      "      --out profiles/gb200-nvl72.json");
  command.callback([options] { import(*options); });
}

}  // namespace pipewright::cli
