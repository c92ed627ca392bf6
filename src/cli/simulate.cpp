// pipewright simulate: one scenario, predicted.
#include <memory>
#include <optional>

#include "commands.hpp"
#include "input.hpp"
#include "page.hpp"
#include "pipewright/report.hpp"
#include "progress.hpp"

namespace pipewright::cli {
namespace {

struct SimulateOptions {
  Input input;
  std::string json, trace, html;
};

void simulate(const SimulateOptions& options) {
  const Loaded loaded = options.input.runnable();
  predict::Run run;
  const auto profiles = options.input.profiles(loaded.scenario);
  std::optional<Progress> progress("simulating: the step, what would shorten it, memory");
  constexpr std::int64_t parts = 3;
  (*progress)(0, parts);
  auto prediction = predict::predict(loaded.scenario, profiles, &run);
  (*progress)(1, parts);
  predict::find_levers(prediction, loaded.scenario, profiles, run);
  (*progress)(2, parts);
  predict::find_pressure(prediction, loaded.scenario, profiles, run);
  progress.reset();
  prediction.notes.insert(prediction.notes.begin(), loaded.notes.begin(), loaded.notes.end());
  if (!options.json.empty()) write_result(options.json, report::simulate_json(prediction));
  if (!options.trace.empty()) report::write_trace(options.trace, prediction, run);
  if (!options.html.empty()) {
    report::Page page{prediction.scenario, "simulate", {{"simulate", report::simulate_json(prediction)}}, {}, {}};
    page.runs.push_back(shown("simulated", loaded.scenario, profiles, prediction, run));
    write_file(options.html, report::html(page));
  }
  if (options.json != "-") write_result("-", report::simulate_text(prediction));
}

}  // namespace

void add_simulate(Command& app, Outcome&) {
  auto& command = app.add_subcommand("simulate", "Predict a training step: time, exposed communication, memory");
  const auto options = std::make_shared<SimulateOptions>();
  options->input.add_to(command);
  command.add_option("--json", options->json, "write JSON to this file (-: standard output, and nothing else)");
  command.add_option("--trace", options->trace, "write a Chrome/Perfetto trace (packed if it ends in .gz)");
  command.add_option("--report", options->html, "write a self-contained HTML page");
  command.footer(
      "Examples:\n"
      "  pipewright simulate scenarios/llama3-70b-sft-32xh100.yaml\n"
      "  pipewright simulate S.yaml --set recompute_modules=[mlp] --set recompute_granularity=selective --json -\n"
      "  pipewright simulate S.yaml --profile h200-sxm --trace step.json.gz --report step.html");
  command.callback([options] { simulate(*options); });
}

}  // namespace pipewright::cli
