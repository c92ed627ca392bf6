// pipewright trial: the plan's candidates run for real, measured beside predicted.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <memory>

#include "commands.hpp"
#include "input.hpp"
#include "pipewright/page.hpp"
#include "pipewright/report.hpp"
#include "pipewright/scenario/io.hpp"
#include "pipewright/trial.hpp"
#include "progress.hpp"

namespace pipewright::cli {
namespace {

const Position trial_line = {"command line", 0};

struct TrialOptions {
  Input input;
  trial::Options how;
  std::string json, html, form = "megatron";
  int top = 3;
  bool dry_run = false, unrecorded = false, force = false;
};

bool is_plan(const std::string& path) { return std::filesystem::path(path).extension() == ".json"; }

std::vector<trial::Candidate> candidates_of(const TrialOptions& options) {
  if (is_plan(options.input.path)) {
    options.input.require_no_overrides();
    auto candidates = trial::candidates_of_plan(read_file(options.input.path), options.input.path, options.top);
    for (auto& candidate : candidates) {  // before any of them runs: somebody may have edited the plan
      options.input.name_gpu(candidate.scenario);
      scenario::check(candidate.scenario);
      require_legal(candidate.scenario);
    }
    return candidates;
  }
  auto scenario = options.input.legal().scenario;
  scenario::check(scenario);
  return {{"given", "as given", std::move(scenario)}};
}

trial::Form form_of(const std::string& text) {
  if (text == "bridge") return trial::Form::bridge;
  return text == "harness" ? trial::Form::harness : trial::Form::megatron;
}

void check(const TrialOptions& options) {
  if (options.how.command.empty())
    throw UsageError(trial_line, "--", "after -- stands the command that trains, with {flags} where the flags belong");
  if (options.top < 1) throw UsageError(trial_line, "--top", "must be at least 1");
  constexpr int fewest = trial::first_counted_step + 1;
  if (options.how.steps < fewest)
    throw UsageError(trial_line, "--steps",
                     "must be at least " + std::to_string(fewest) + ": steps before step " +
                         std::to_string(trial::first_counted_step) + " are not counted");
  if (!(options.how.limit_s > 0) || !std::isfinite(options.how.limit_s))
    throw UsageError(trial_line, "--limit", "must be a number of seconds, more than 0");
  require_regex("--step-kernel", options.how.step_kernel);
  if (options.unrecorded && !(options.how.step_kernel.empty() && options.how.step_range.empty()))
    throw UsageError(trial_line, "--no-record",
                     "nothing is recorded whose steps --step-kernel or --step-range could end");
}

void print_commands(const std::vector<trial::Candidate>& candidates, const std::vector<trial::Command>& commands,
                    const TrialOptions& options, bool quiet) {
  if (!quiet) write_result("-", trial::text(candidates, commands));
  if (!options.json.empty()) write_result(options.json, report::stamped(trial::json(candidates, commands)));
}

void run(const TrialOptions& options, Outcome& outcome) {
  check(options);
  const std::vector<std::pair<std::string, std::string>> outputs = {{"--json", options.json},
                                                                    {"--report", options.html}};
  const bool quiet = on_standard_output(outputs);
  const auto candidates = candidates_of(options);
  std::vector<trial::Command> commands;
  for (const auto& candidate : candidates)
    commands.push_back(trial::fill(options.how.command, candidate, options.how.form, options.how.steps));
  if (options.dry_run) return print_commands(candidates, commands, options, quiet);
  const trial::HeldFolder held(options.how.folder);
  const auto others = trial::open_folder(options.how.folder, candidates, options.force);
  if (!others.empty()) {
    std::string names;
    for (const auto& name : others) names += (names.empty() ? "" : ", ") + name;
    std::fprintf(stderr, "note: %s also holds %s, of another trial: `pipewright validate %s` counts them too\n",
                 options.how.folder.c_str(), names.c_str(), options.how.folder.c_str());
  }
  std::vector<trial::Run> runs;
  {
    Interruptible interruptible({}, Interruptible::Second::at_once);
    for (const auto& candidate : candidates) {
      if (interruptible.token().stop_requested()) break;
      std::fprintf(stderr, "%s: running (%zu of %zu)\n", candidate.name.c_str(), runs.size() + 1, candidates.size());
      runs.push_back(trial::run(candidate, options.input.profiles(candidate.scenario), options.how,
                                interruptible.token(), interruptible.at_once()));
    }
  }
  const bool any = std::any_of(runs.begin(), runs.end(), [](const auto& r) { return r.step_ms.has_value(); });
  outcome.status = any ? 0 : 1;
  // Told first: a disk may be too full for the rest.
  if (!quiet) write_result("-", trial::text(runs));
  const std::string json = report::stamped(trial::json(runs));
  if (!options.json.empty()) write_result(options.json, json);
  if (!options.html.empty()) write_result(options.html, report::html({"Trial", "trial", {{"trial", json}}, {}, {}}));
}

}  // namespace

void add_trial(Command& app, Outcome& outcome) {
  auto& command = app.add_subcommand("trial", "Run the plan's candidates for real, measured beside predicted");
  const auto options = std::make_shared<TrialOptions>();
  auto& how = options->how;
  how.folder = "trial";
  options->input.add_to(command);
  command.add_option("--top", options->top, "of a plan: its best so many, and the run as given (3)");
  command.add_option("--steps", how.steps,
                     "training steps of a run, {steps} in COMMAND (8); from the fifth on they count");
  command.add_option("--limit", how.limit_s, "seconds after which a run is killed (900)");
  command.add_option("--out", how.folder, "folder for logs, recordings and measured scenarios (trial)");
  command
      .add_option(
          "--form", options->form,
          "what {flags} is: Megatron-LM's flags, Megatron Bridge's overrides, options of its harness (megatron)")
      .allowed({"megatron", "bridge", "harness"});
  command.add_flag("--no-record", options->unrecorded, "do not record step 3 of every run");
  auto& kernel = command.add_option("--step-kernel", how.step_kernel, "kernels whose name matches end a step");
  command.add_option("--step-range", how.step_range, "the NVTX range that is one step").excludes(kernel);
  command.add_flag("--resume", how.resume,
                   "take over what an earlier trial in --out has run by the same commands, but for failures that may "
                   "not come again");
  command.add_flag("--force", options->force, "replace what --out holds of other runs under the same names");
  command.add_flag("--dry-run", options->dry_run, "print the commands and run nothing");
  add_json_option(command, options->json);
  add_report_option(command, options->html);
  command.add_option("COMMAND", how.command, "after --: what trains, with {flags}, {env}, {name} and {steps} in it")
      .after_dashes();
  command.footer(
      "SCENARIO may be what `plan --json` wrote. {flags} and {env} are the candidate's (its variables are set for the\n"
      "command too). Exit status 1: nothing ran to its end.\n\nExamples:\n"
      "  pipewright plan S.yaml --json plan.json\n"
      "  pipewright trial plan.json --top 3 --dry-run -- torchrun --nproc-per-node 8 pretrain_gpt.py {flags} \\\n"
      "      --mock-data --tokenizer-type NullTokenizer --train-iters {steps} --log-interval 1 --lr 1e-4\n"
      "  pipewright trial plan.json --form bridge -- torchrun --nproc-per-node 8 run_recipe.py --recipe X {flags}\n"
      "  pipewright trial plan.json -- srun --export=ALL,NAME={name} bash -c 'env {env} python3 pretrain_gpt.py "
      "{flags}'\n"
      "  pipewright validate trial/");
  command.callback([options, &outcome] {
    options->how.record = !options->unrecorded;
    options->how.form = form_of(options->form);
    run(*options, outcome);
  });
}

}  // namespace pipewright::cli
