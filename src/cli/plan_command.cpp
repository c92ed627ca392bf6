// pipewright plan: the best legal configuration, why, and its flags.
#include <algorithm>
#include <memory>

#include "commands.hpp"
#include "embedded.hpp"
#include "input.hpp"
#include "page_output.hpp"
#include "pipewright/report.hpp"
#include "pipewright/split_floor.hpp"
#include "progress.hpp"
#include "training.hpp"

namespace pipewright::cli {
namespace {

struct PlanOptions {
  Input input;
  std::string json, html;
  Training training;
  std::vector<std::string> emit_forms, open;
  int top = 10;
  std::optional<double> time_limit_s;
};

const std::vector<std::string> all_forms = {"megatron", "bridge", "harness", "env"};

std::vector<std::string> forms(const std::vector<std::string>& asked) {
  if (asked.empty()) return {"megatron", "env"};
  std::vector<std::string> known = all_forms;
  known.emplace_back("all");
  for (const auto& form : asked) {
    if (std::find(known.begin(), known.end(), form) == known.end()) {
      throw UsageError({"command line", 0}, "--emit", "unknown form \"" + form + "\"", known,
                       nearest_name(form, known));
    }
    if (form == "all") return all_forms;
  }
  return asked;
}

/// Of lists with commas.
std::vector<std::string> names_in(const std::vector<std::string>& lists) {
  std::vector<std::string> names;
  for (const auto& list : lists)
    for (std::size_t at = 0; at <= list.size();) {
      const auto end = std::min(list.find(',', at), list.size());
      names.push_back(list.substr(at, end - at));
      at = end + 1;
    }
  return names;
}

void run(const PlanOptions& options, Outcome& outcome) {
  const auto emit_forms = forms(names_in(options.emit_forms));
  if (options.top < 1) throw UsageError({"command line", 0}, "--top", "must be at least 1");
  if (options.time_limit_s && !(*options.time_limit_s > 0))
    throw UsageError({"command line", 0}, "--time-limit", "must be a positive number of seconds");
  const bool quiet = on_standard_output({{"--json", options.json}, {"--report", options.html}});
  if (options.training.asked()) options.training.tokens();  // refused before the search
  Loaded loaded = options.input.runnable();
  // A written `search:` is exact.
  if (!plan::opens_something(loaded.scenario)) loaded.scenario = plan::opened(std::move(loaded.scenario));
  loaded.scenario = plan::opened(std::move(loaded.scenario), names_in(options.open));
  const auto profiles = options.input.profiles(loaded.scenario);

  plan::Plan plan;
  {
    Progress progress("plan");
    Interruptible interruptible(options.time_limit_s);
    plan::Options search;
    search.until_stopped = options.time_limit_s.has_value();
    const StopCheck stop_check;
    search.predict = [&](const scenario::Scenario& candidate) {
      stop_check();
      return predict::predict(candidate, profiles);
    };
    search.repredict_reserved = [&](const scenario::Scenario& candidate, const predict::Prediction& same) {
      return predict::predict_memory(candidate, profiles, same);
    };
    search.floor = [&](const scenario::Scenario& candidate) {
      stop_check();
      scenario::refuse_unmodelled(candidate);  // as the exact engine would, before anything else is spent on it
      return predict::floor(candidate, profiles);
    };
    search.fits_by_floor = [&](const scenario::Scenario& candidate, const std::vector<Bytes>& state) {
      stop_check();
      return predict::fits_by_floor(candidate, profiles, state);
    };
    search.floor_of_any_split = [&](const scenario::Scenario& candidate, bool any_size) {
      stop_check();
      return predict::floor_of_any_split(candidate, profiles, any_size);
    };
    search.layers = [&](const scenario::Scenario& s) {
      stop_check();
      return predict::LayersDraft(s, profiles);
    };
    search.spread_floor = [&](const scenario::Scenario& s) {
      stop_check();
      return std::make_shared<predict::SpreadFloor>(s, profiles);
    };
    search.split = [splits = std::make_shared<predict::Splits>(profiles)](const scenario::Scenario& s) {
      return splits->of(s);
    };
    search.least_memory = [&](const scenario::Scenario& s) {
      stop_check();
      return predict::LeastMemory(s, profiles);
    };
    search.estimate = [&](const scenario::Scenario& candidate) {
      stop_check();
      return predict::estimate(candidate, profiles);
    };
    search.glance = [&](const scenario::Scenario& candidate) {
      stop_check();
      return predict::glance(candidate, profiles);
    };
    search.scout = [&](const scenario::Scenario& candidate, predict::Depth depth, predict::Prediction& into) {
      predict::scout_memory(candidate, profiles, depth, into);
    };
    search.compare = [&](const scenario::Scenario& one, const std::vector<const scenario::Scenario*>& others) {
      return predict::compare(one, others, profiles);
    };
    search.probability = [&](const predict::Prediction& prediction) {
      return predict::probability_to_fit(prediction, profiles);
    };
    search.progress = [&](const plan::Progress& now) { progress(now.done, now.total, now.phase); };
    search.stop = interruptible.token();
    search.top = options.top;
    search.has_baseline = options.input.states_a_run();
    plan = plan::search(loaded.scenario, search);
  }
  if (plan.best) {
    auto& notes = plan.best->prediction.notes;
    notes.insert(notes.begin(), loaded.notes.begin(), loaded.notes.end());
  }
  outcome.status = plan.best ? 0 : 1;

  Files files;
  if (!options.json.empty()) {
    const report::Stamp stamp{&loaded.scenario, loaded.scenario.assumed};
    const std::string json = report::plan_json(plan, &stamp);
    const bool priced = options.training.asked() && plan.best;
    files.write([&] {
      write_result(options.json,
                   priced ? options.training.with(json, plan.best->scenario, plan.best->prediction.step_ns) : json);
    });
  }
  if (!options.html.empty()) {
    const plan::Candidate& shown_candidate = plan.best ? *plan.best : plan.baseline;
    predict::Run details;
    const auto prediction = predict::predict(shown_candidate.scenario, profiles, &details);
    const report::Stamp stamp{&loaded.scenario, loaded.scenario.assumed};
    report::Page page{
        loaded.scenario.name, "plan", {{"plan", report::plan_json(plan, &stamp)}}, {}, report::plan_extra(plan)};
    page.runs.push_back(shown("best", shown_candidate.scenario, profiles, prediction, details));
    files.write([&] { write_result(options.html, report::html(page)); });
  }
  if (quiet) return files.done();
  write_result("-",
               report::configuration_text(plan.best ? plan.best->scenario : loaded.scenario, loaded.scenario.assumed) +
                   report::plan_text(plan, emit_forms));
  if (options.training.asked() && plan.best)
    write_result("-", "\n" + options.training.line(plan.best->scenario, plan.best->prediction.step_ns));
  if (!loaded.script.empty() && plan.best) {
    const std::string diff = emit::script_diff(loaded.script, loaded.scenario, plan.best->scenario);
    write_result("-", "\nChanges to " + options.input.path + "\n" + (diff.empty() ? "  none\n" : diff));
  }
  files.done();
}

}  // namespace

void add_plan(Command& app, Outcome& outcome) {
  auto& command = app.add_subcommand("plan", "Find the best legal configuration of what `search:` leaves open");
  const auto options = std::make_shared<PlanOptions>();
  options->input.add_to(command);
  options->input.propose = true;
  add_json_option(command, options->json);
  command
      .add_option("--emit", options->emit_forms,
                  "flags to print: megatron, bridge, harness, env, all; repeatable, or with commas")
      .suggested({"megatron", "bridge", "harness", "env", "all"})
      .repeatable();
  options->training.add_to(command);
  command.add_option("--top", options->top, "how many alternatives to keep (10)");
  command
      .add_option("--open", options->open,
                  "all or NAME,...: opens dimensions beside those that are; closes none (parallelism, microbatch, "
                  "pipeline, layout, wgrad_delay, recompute, offload, allocator)")
      .repeatable();
  command.add_option("--time-limit", options->time_limit_s, "seconds after which the best so far is the answer");
  add_report_option(command, options->html);
  command.footer(
      "Exit status 1: nothing that is legal fits.\n\nExamples:\n"
      "  pipewright plan scenarios/llama3-70b-sft-32xh100.yaml --emit all\n"
      "  pipewright plan --hf config.json --gpus 64 --profile h100-sxm --set seq_length=4096 --set "
      "global_batch_size=512\n"
      "  pipewright plan S.yaml --open parallelism,microbatch --time-limit 60 --json plan.json");
  command.callback([options, &outcome] { run(*options, outcome); });
}

}  // namespace pipewright::cli
