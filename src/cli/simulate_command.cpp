// pipewright simulate: one scenario, predicted.
#include <fmt/format.h>
#include <tbb/parallel_invoke.h>

#include <cstdio>
#include <memory>
#include <optional>

#include "commands.hpp"
#include "embedded.hpp"
#include "input.hpp"
#include "pipewright/page.hpp"
#include "pipewright/report.hpp"
#include "pipewright/trace.hpp"
#include "progress.hpp"
#include "training.hpp"

namespace pipewright::cli {
namespace {

struct SimulateOptions {
  Input input;
  std::string json, trace, html;
  Training training;
};

void simulate(const SimulateOptions& options, Outcome& outcome) {
  const bool quiet =
      on_standard_output({{"--json", options.json}, {"--trace", options.trace}, {"--report", options.html}});
  if (options.training.asked()) options.training.tokens();  // refused before anything is simulated
  const Loaded loaded = options.input.legal();
  predict::Run run;
  const auto profiles = options.input.profiles(loaded.scenario);
  std::optional<Progress> progress("simulating: the step and its memory, what would shorten it");
  constexpr std::int64_t parts = 2;
  (*progress)(0, parts);
  auto prediction = predict::predict(loaded.scenario, profiles, &run, predict::every_rank);
  (*progress)(1, parts);
  stop_if_asked();
  std::optional<predict::Imbalance> imbalance;
  tbb::parallel_invoke([&] { predict::find_levers(prediction, loaded.scenario, profiles, run); },
                       [&] { imbalance = predict::find_imbalance(prediction, loaded.scenario, profiles, run); });
  progress.reset();
  if (imbalance)
    prediction.notes.push_back(
        imbalance->any
            ? "dropless experts: it fits whatever the routing is"
            : fmt::format("dropless experts: it fits up to a load imbalance of {:.1f} (tokens of the busiest "
                          "expert-parallel rank over the mean; moe_load_imbalance states yours)",
                          imbalance->largest));
  if (const auto gain = predict::find_packing(loaded.scenario, profiles)) {
    std::string text = fmt::format(
        "packing: the same sequences, each padded to a row of its own, take {:.1f} times as long", gain->padded);
    if (loaded.scenario.settings.pack_order != "balanced")
      text += fmt::format("; dealt by equal attention (pack_order: balanced) the step changes by {:+.1f} %",
                          100 * gain->balanced);
    prediction.notes.push_back(text);
  }
  outcome.status = prediction.fits ? 0 : 1;
  const report::Stamp stamp{&loaded.scenario, loaded.scenario.assumed};
  prediction.notes.insert(prediction.notes.begin(), loaded.notes.begin(), loaded.notes.end());
  Files files;
  if (!options.json.empty()) {
    const std::string json = report::simulate_json(prediction, &stamp);
    files.write([&] {
      write_result(options.json,
                   options.training.asked() ? options.training.with(json, loaded.scenario, prediction.step_ns) : json);
    });
  }
  std::vector<predict::RankHistory> memory;
  if (!options.trace.empty() || !options.html.empty())
    memory = predict::histories(prediction, loaded.scenario, profiles, run);
  if (!options.trace.empty()) {
    const auto trace = report::trace(prediction, run, memory, options.trace.ends_with(".gz"));
    files.write([&] { write_result(options.trace, trace.text); });
    if (!trace.left_out.empty())
      std::fprintf(stderr, "%s: without %s\n", options.trace.c_str(), trace.left_out.c_str());
  }
  if (!options.html.empty()) {
    report::Page page{
        prediction.scenario, "simulate", {{"simulate", report::simulate_json(prediction, &stamp)}}, {}, {}};
    page.runs.push_back({"simulated", &prediction, &run, std::move(memory)});
    files.write([&] { write_result(options.html, report::html(page)); });
  }
  if (quiet) return files.done();
  write_result(
      "-", report::configuration_text(loaded.scenario, loaded.scenario.assumed) + report::simulate_text(prediction));
  if (options.training.asked()) write_result("-", options.training.line(loaded.scenario, prediction.step_ns));
  files.done();
}

}  // namespace

void add_simulate(Command& app, Outcome& outcome) {
  auto& command = app.add_subcommand("simulate", "Predict a training step: time, exposed communication, memory");
  const auto options = std::make_shared<SimulateOptions>();
  options->input.add_to(command);
  add_json_option(command, options->json);
  command.add_option("--trace", options->trace,
                     "write a Chrome/Perfetto trace (packed if it ends in .gz; -: standard output)");
  add_report_option(command, options->html);
  options->training.add_to(command);
  command.footer(
      "Exit status 1: it does not fit.\n\nExamples:\n"
      "  pipewright simulate scenarios/llama3-70b-sft-32xh100.yaml\n"
      "  pipewright simulate S.yaml --set recompute_modules=[mlp] --set recompute_granularity=selective --json -\n"
      "  pipewright simulate S.yaml --profile h200-sxm --trace step.json.gz --report step.html");
  command.callback([options, &outcome] { simulate(*options, outcome); });
}

}  // namespace pipewright::cli
