// pipewright validate: measured runs beside their predictions.
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "commands.hpp"
#include "embedded.hpp"
#include "input.hpp"
#include "pipewright/page.hpp"
#include "pipewright/report.hpp"
#include "pipewright/scenario/io.hpp"
#include "pipewright/validate.hpp"
#include "progress.hpp"

namespace pipewright::cli {
namespace {

struct ValidateOptions {
  std::vector<std::string> paths, profiles;
  double tolerance = 0;
  bool has_tolerance = false, calibrate = false, traces = false;
  std::string json, html, markdown;
};

/// A profile that was read from a real run knows this machine's behaviour, not only its kernels.
bool from_a_real_run(const profile::Profile& p) {
  if (p.scalars.count("machine.slowdown") > 0) return true;
  return std::any_of(p.provenance.begin(), p.provenance.end(),
                     [](const auto& command) { return command.find("pipewright import") != std::string::npos; });
}

void run(const ValidateOptions& options, Outcome& outcome) {
  if (options.has_tolerance && !(options.tolerance >= 0 && options.tolerance < 1e9)) {  // also NaN
    throw UsageError({"command line", 0}, "--tolerance", "a percentage of at least 0 is needed");
  }
  const std::vector<std::pair<std::string, std::string>> outputs = {
      {"--json", options.json}, {"--report", options.html}, {"--markdown", options.markdown}};
  const bool quiet = on_standard_output(outputs);
  std::vector<scenario::Scenario> scenarios;
  for (const auto& file : scenario_files(options.paths)) {
    scenarios.push_back(scenario::parse(content_of(file), file));
    if (!scenarios.back().measured)
      throw UsageError({file, 0}, "measured", "missing section: there is nothing to compare a prediction with");
    name_gpu(scenarios.back(), options.profiles);
  }
  validate::Validation validation;
  validation.mode = "cold";
  std::vector<profile::Profiles> profiles;
  {
    Progress progress("validate");
    for (std::size_t i = 0; i < scenarios.size(); ++i) {
      auto with = predict::profiles_of(scenarios[i], options.profiles);
      const auto& all = with.all();
      // What capture measured comes last; a run's own profile stands before it.
      if (std::any_of(all.begin(), all.end() - 1, from_a_real_run)) validation.mode = "calibrated";
      if (const auto broken = broken_rule(scenarios[i]); !broken.empty())
        validation.refused.push_back({scenarios[i].name, broken});  // that cannot have run as it is described
      else if (validate::add(validation, scenarios[i], with))
        profiles.push_back(std::move(with));
      stop_if_asked();
      progress(static_cast<std::int64_t>(i + 1), static_cast<std::int64_t>(scenarios.size()));
    }
    if (options.calibrate) validate::calibrate_without_itself(validation, profiles);
  }
  if (options.has_tolerance && (100 * validation.largest_error() > options.tolerance || !validation.refused.empty()))
    outcome.status = 1;
  const report::Stamp stamp;
  if (!options.json.empty()) write_result(options.json, report::validate_json(validation, &stamp));
  if (!options.markdown.empty()) write_result(options.markdown, report::validate_markdown(validation));
  if (!options.html.empty())
    write_result(options.html, report::html({"Measured runs beside predictions",
                                             "validate",
                                             {{"validate", report::validate_json(validation, &stamp)}},
                                             {},
                                             report::validate_extra(validation)}));
  if (!quiet) write_result("-", report::validate_text(validation, options.traces));
}

}  // namespace

void add_validate(Command& app, Outcome& outcome) {
  auto& command = app.add_subcommand("validate", "Compare predictions with measured runs");
  const auto options = std::make_shared<ValidateOptions>();
  command.add_option("PATHS", options->paths, "scenario files with `measured:`, or directories of them").required();
  add_profile_option(command, options->profiles);
  auto& tolerance =
      command.add_option("--tolerance", options->tolerance,
                         "exit with 1 if a time or a peak is off by more than this many percent, or a run is refused");
  command.add_flag("--calibrate", options->calibrate,
                   "the machine's speed for each run from the other runs of its model, never from itself");
  command.add_flag("--traces", options->traces, "also busy and exposed times against trace summaries, rank by rank");
  add_json_option(command, options->json);
  add_report_option(command, options->html);
  command.add_option("--markdown", options->markdown,
                     "write the runs' tables as Markdown to this file (-: standard output)");
  command.footer(
      "Examples:\n  pipewright validate measured/ --profile h200-sxm --tolerance 6\n"
      "  pipewright validate measured/ --calibrate --traces");
  command.callback([options, &tolerance, &outcome] {
    options->has_tolerance = !tolerance.given().empty();
    run(*options, outcome);
  });
}

}  // namespace pipewright::cli
