// pipewright sweep: every combination of some values, predicted.
#include <algorithm>
#include <cstdio>
#include <memory>

#include "commands.hpp"
#include "input.hpp"
#include "pipewright/page.hpp"
#include "pipewright/report.hpp"
#include "pipewright/scenario/io.hpp"
#include "progress.hpp"

namespace pipewright::cli {
namespace {

struct SweepOptions {
  Input input;
  std::vector<std::string> over;
  std::string json, csv, html, part;
};

/// "NAME=V1,V2": commas inside brackets belong to a value. "recompute_modules" alone: every legal set.
plan::Axis axis(const std::string& text) {
  const Position where = {"--over", 0};
  const auto equals = text.find('=');
  plan::Axis out{scenario::full_name(text.substr(0, equals)), {}};
  if (out.name.empty()) throw UsageError(where, text, "expected NAME=V1,V2");
  if (equals == std::string::npos) {
    if (out.name != "recompute_modules") throw UsageError(where, text, "expected NAME=V1,V2", {"recompute_modules"});
    return out;
  }
  int depth = 0;
  std::string value;
  for (const char c : text.substr(equals + 1)) {
    depth += (c == '[') - (c == ']');
    if (c == ',' && depth == 0) {
      out.values.push_back(std::move(value));
      value.clear();
    } else {
      value += c;
    }
  }
  out.values.push_back(std::move(value));
  for (const auto& one : out.values) {
    if (one.empty()) throw UsageError(where, text, "a value is empty; expected NAME=V1,V2");
  }
  return out;
}

/// "3/16" -> the third of 16.
std::optional<plan::Part> part_of(const std::string& text) {
  if (text.empty()) return {};
  long long number = 0, of = 0;
  char more = 0;
  if (std::sscanf(text.c_str(), "%lld/%lld%c", &number, &of, &more) != 2 || number < 1 || number > of || of > 20'000)
    throw UsageError({"command line", 0}, "--part", "\"" + text + "\" is no part", {"1/N to N/N"});
  return plan::Part{number - 1, of};
}

void run(const SweepOptions& options, Outcome& outcome) {
  const auto part = part_of(options.part);
  const bool quiet = on_standard_output({{"--json", options.json}, {"--csv", options.csv}, {"--report", options.html}});
  std::vector<plan::Axis> axes;
  const auto bare = [](const std::string& name) { return name.substr(name.rfind('.') + 1); };
  for (const auto& text : options.over) {
    auto one = axis(text);
    for (const auto& other : axes)
      if (bare(one.name) == bare(other.name)) throw UsageError({"--over", 0}, one.name, "is swept twice");
    axes.push_back(std::move(one));
  }
  Loaded loaded = options.input.runnable();
  const auto profiles = options.input.profiles(loaded.scenario);
  plan::Sweep sweep;
  {
    Progress progress("sweep");
    Interruptible interruptible;
    plan::Options search;
    search.predict = [&](const scenario::Scenario& candidate) { return predict::predict(candidate, profiles); };
    search.progress = [&](const plan::Progress& now) { progress(now.done, now.total); };
    search.stop = interruptible.token();
    sweep = plan::sweep(loaded.scenario, axes, search, part.value_or(plan::Part{}));
  }
  const bool any =
      std::any_of(sweep.rows.begin(), sweep.rows.end(), [](const plan::Row& row) { return row.prediction; });
  outcome.status = (any || part) && sweep.missing == 0 ? 0 : 1;  // a part does not know of the others
  if (sweep.missing > 0) std::fprintf(stderr, "sweep: %s\n", sweep.notes.back().c_str());
  const report::Stamp stamp{&loaded.scenario, loaded.scenario.assumed};
  Files files;
  if (!options.json.empty()) files.write([&] { write_result(options.json, report::sweep_json(sweep, &stamp, part)); });
  if (!options.csv.empty()) files.write([&] { write_result(options.csv, report::sweep_csv(sweep)); });
  if (!options.html.empty()) {
    std::string extra = "{}";
    if (sweep.baseline) extra = "{\"baseline\":" + report::simulate_json(*sweep.baseline) + "}";
    files.write([&] {
      write_result(
          options.html,
          report::html({loaded.scenario.name, "sweep", {{"sweep", report::sweep_json(sweep, &stamp)}}, {}, extra}));
    });
  }
  if (!quiet) {
    write_result("-", report::configuration_text(loaded.scenario) + report::sweep_text(sweep));
  }
  files.done();
}

}  // namespace

void add_sweep(Command& app, Outcome& outcome) {
  auto& command = app.add_subcommand("sweep", "Predict every combination of some values");
  const auto options = std::make_shared<SweepOptions>();
  options->input.add_to(command);
  command.add_option("--over", options->over, "NAME=V1,V2: values of a setting; repeatable (all combinations)")
      .required()
      .repeatable();
  command.add_option("--part", options->part,
                     "only every Nth combination from the Kth on, for several machines; `merge` puts parts together");
  add_json_option(command, options->json);
  command.add_option("--csv", options->csv, "write CSV to this file (-: standard output, and nothing else)");
  add_report_option(command, options->html);
  command.footer(
      "Exit status 1: no combination is legal and modelled, or it was interrupted (what is there is "
      "written).\n\nExamples:\n"
      "  pipewright sweep S.yaml --over recompute_modules\n"
      "  pipewright sweep S.yaml --over virtual_pipeline_model_parallel_size=none,2,4 --over micro_batch_size=1,2\n"
      "  pipewright sweep S.yaml --over recompute_modules=[mlp],[mlp,core_attn] --csv -\n"
      "  pipewright sweep S.yaml --over recompute_modules --part 3/16 --json part3.json");
  command.callback([options, &outcome] { run(*options, outcome); });
}

}  // namespace pipewright::cli
