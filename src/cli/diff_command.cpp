// pipewright diff: two scenarios, two predictions, or a prediction and a trace.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>

#include "commands.hpp"
#include "input.hpp"
#include "page_output.hpp"
#include "pipewright/diff.hpp"
#include "pipewright/import.hpp"
#include "pipewright/report.hpp"
#include "pipewright/scenario/io.hpp"
#include "progress.hpp"

namespace pipewright::cli {
namespace {

struct DiffOptions {
  std::vector<std::string> sides, profiles, set_a, set_b;
  std::string json, html;
  bool any_trace = false;
};

const Position diff_line = {"command line", 0};

/// One side, with all that it was made from.
struct Side {
  report::DiffSide shown;
  std::optional<scenario::Scenario> scenario;
  std::optional<profile::Profiles> profiles;
  predict::Prediction prediction;
  predict::Run run;
  bool has_run = false;
  std::optional<traces::Trace> trace;
};

/// What one side is given: --set-a or --set-b.
struct Given {
  const char* option;
  const std::vector<std::string>& settings;
};

void predict_side(Side& side, const DiffOptions& options) {
  scenario::check(*side.scenario);
  require_legal(*side.scenario);
  side.profiles.emplace(predict::profiles_of(*side.scenario, options.profiles));
  side.prediction = predict::predict(*side.scenario, *side.profiles, &side.run, predict::every_rank);
  side.has_run = true;
  side.shown.prediction = report::simulate_json(side.prediction);
}

/// A JSON of ours holds its prediction; a plan its best one, with the scenario.
bool read_json(Side& side, const std::string& path) {
  auto read = report::read_prediction(read_file(path), path);
  if (!read) return false;
  side.shown.prediction = std::move(read->prediction);
  if (!read->scenario.empty()) side.scenario = scenario::parse(read->scenario, path);
  return true;
}

void read_side(Side& side, const std::string& path, const DiffOptions& options, const Given& given) {
  const std::filesystem::path file(path);
  side.shown.name = path;
  const auto extension = file.extension();
  std::error_code none;
  const auto status = std::filesystem::status(file, none);
  const bool pipe = std::filesystem::is_fifo(status) ||
                    path == "/dev/stdin";  // `<(git show HEAD:S.yaml)` of a shell: no trace, those are read twice
  if (pipe || extension == ".yaml" || extension == ".yml" || emit::is_launch_file(path, "")) {
    side.scenario = read_scenario(path, options.profiles, given.settings, given.option);
    return predict_side(side, options);
  }
  if (!given.settings.empty()) throw UsageError(diff_line, given.option, "is for scenarios; " + path + " is none");
  if (extension == ".json" && read_json(side, path)) return;
  side.trace = traces::read(path);
}

/// A prediction is of one step of its scenario: another's trace, several steps or a part of one are no match for it.
void require_one_step(const traces::Trace& trace, const scenario::Scenario& scenario, bool any_trace) {
  const std::string otherwise = "; --any-trace compares nevertheless";
  std::string why;
  try {
    const double steps =
        traces::import_traces(scenario, {trace}, {"diff", 1, "pipewright diff"}, nullptr).ranks.front().steps;
    if (steps == 1) return;
    why = fmt::format(
        "holds {:.4g} steps of the scenario beside it, and a prediction is of one: record one step "
        "(`pipewright capture` does)",
        steps);
  } catch (const UsageError& error) {
    if (!any_trace) throw UsageError(error.where(), error.key(), error.message() + otherwise);
    why = error.message();
  }
  if (!any_trace) throw UsageError({trace.file, 0}, {}, why + otherwise);
  std::fprintf(stderr, "note: %s: %s\n", trace.file.c_str(), why.c_str());
}

/// Ranks are laid out tp-cp-dp-pp.
void summarise(Side& traced, const Side& other, bool any_trace) {
  if (!other.scenario) throw UsageError(diff_line, "A, B", "beside a trace stands the scenario that it followed");
  const auto& s = *other.scenario;
  require_one_step(*traced.trace, s, any_trace);
  const auto stages = s.settings.pipeline_model_parallel_size;
  const auto rank = static_cast<int>(traced.trace->rank / std::max<std::int64_t>(1, s.cluster.num_gpus / stages));
  traced.shown.traced[rank] = traces::summarise(*traced.trace, traces::exchanges_of(s));
}

report::RunTraced traced_run(const std::string& title, const Side& traced, const Side& other) {
  report::RunTraced out{title, 0, {}};
  const auto kinds = traces::kinds(*traced.trace, traces::exchanges_of(*other.scenario));
  auto& slices = out.ranks[traced.shown.traced.begin()->first];
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    const auto& activity = traced.trace->activities[i];
    slices.push_back({traced.trace->names[activity.name], kinds[i], activity.start, activity.duration});
    out.step_ns = std::max(out.step_ns, activity.end());
  }
  return out;
}

void run(const DiffOptions& options) {
  const std::vector<std::pair<std::string, std::string>> outputs = {{"--json", options.json},
                                                                    {"--report", options.html}};
  const bool quiet = on_standard_output(outputs);
  Side a, b;
  {
    Progress progress("diff");
    progress(0, 2);
    read_side(a, options.sides.at(0), options, {"--set-a", options.set_a});
    progress(1, 2);
    read_side(b, options.sides.at(1), options, {"--set-b", options.set_b});
  }
  for (Side* side : {&a, &b})
    if (side->scenario) side->shown.scenario = &*side->scenario;
  if (a.trace && !b.trace) summarise(a, b, options.any_trace);
  if (b.trace && !a.trace) summarise(b, a, options.any_trace);
  if (options.sides.at(0) == options.sides.at(1)) a.shown.name += " (A)", b.shown.name += " (B)";
  const std::string json = report::stamped(report::diff_json(a.shown, b.shown));
  if (!options.json.empty()) write_result(options.json, json);
  if (!options.html.empty()) {
    report::Page page{"A against B", "diff", {{"diff", json}}, {}, {}};
    for (const auto& [side, name] : {std::pair(&a, "A"), {&b, "B"}}) {
      if (!side->shown.prediction.empty()) page.results.emplace_back(name, side->shown.prediction);
      if (side->has_run)
        page.runs.push_back(shown(name, *side->scenario, *side->profiles, side->prediction, side->run));
    }
    if (a.trace) page.traced.push_back(traced_run("A", a, b));
    if (b.trace) page.traced.push_back(traced_run("B", b, a));
    write_result(options.html, report::html(page));
  }
  if (!quiet) write_result("-", report::diff_text(json));
}

}  // namespace

void add_diff(Command& app, Outcome&) {
  auto& command = app.add_subcommand("diff", "Two scenarios, two predictions, or a prediction and a trace, by cause");
  const auto options = std::make_shared<DiffOptions>();
  command
      .add_option("SIDES", options->sides,
                  "A and B: scenarios (.yaml, .sh), what simulate --json or plan --json wrote, or a trace of a run "
                  "beside its scenario")
      .required()
      .expected(2);
  add_profile_option(command, options->profiles);
  command.add_option("--set-a", options->set_a, "NAME=VALUE: a setting of scenario A; repeatable").repeatable();
  command.add_option("--set-b", options->set_b, "NAME=VALUE: a setting of scenario B; repeatable").repeatable();
  command.add_flag(
      "--any-trace", options->any_trace,
      "compare even where the trace is not one step of the scenario beside it (another model, several steps)");
  add_json_option(command, options->json);
  command.add_option("--report", options->html,
                     "write a self-contained HTML page, timelines on one axis (-: standard output)");
  command.footer(
      "Examples:\n"
      "  pipewright diff S.yaml S.yaml --set-b recompute_modules=[mlp]\n"
      "  pipewright diff before.json after.json\n"
      "  pipewright diff S.yaml trace.r0.json.gz --report diff.html");
  command.callback([options] { run(*options); });
}

}  // namespace pipewright::cli
