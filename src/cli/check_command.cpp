// pipewright check: which rules a configuration breaks, what in it does nothing, what bites; or what a symptom means.
#include <algorithm>
#include <map>
#include <memory>

#include "baseline.hpp"
#include "commands.hpp"
#include "input.hpp"
#include "pipewright/effects.hpp"
#include "pipewright/report.hpp"
#include "pipewright/scenario/io.hpp"

namespace pipewright::cli {
namespace {

struct CheckOptions {
  Input input;
  std::vector<std::string> symptom;
  std::string json, baseline, markdown, memory_budget;
  double step_budget = report::Budget{}.step_percent;
};

const std::map<std::string, plan::Symptom> symptoms = {
    {"oom", plan::Symptom::out_of_memory}, {"slow", plan::Symptom::slow}, {"assert", plan::Symptom::assertion}};

std::vector<plan::Finding> diagnose(const CheckOptions& options, const Loaded& loaded) {
  const auto& words = options.symptom;
  const auto found = symptoms.find(words.front());
  if (found == symptoms.end()) {
    std::vector<std::string> known;
    for (const auto& [name, symptom] : symptoms) known.push_back(name);
    throw UsageError({"command line", 0}, "--symptom", "unknown symptom \"" + words.front() + "\"", known,
                     nearest_name(words.front(), known));
  }
  if (found->second == plan::Symptom::assertion) {
    if (words.size() < 2 || words[1].find_first_not_of(" \t\n") == std::string::npos)
      throw UsageError({"command line", 0}, "--symptom", "assert needs the message's text");
    return plan::diagnose(loaded.scenario, found->second, words[1]);
  }
  // A configuration that cannot be predicted can still be diagnosed, without numbers.
  std::optional<predict::Prediction> prediction;
  try {
    scenario::check(loaded.scenario);
    const auto profiles = options.input.profiles(loaded.scenario);
    prediction = predict::predict(loaded.scenario, profiles, nullptr, predict::every_rank);
  } catch (const UsageError&) {
  }
  return plan::diagnose(loaded.scenario, found->second, {}, prediction ? &*prediction : nullptr);
}

bool is_violation(const plan::Finding& finding) { return finding.severity == plan::Severity::violation; }

plan::Finding refusal(const UsageError& error) {
  const std::string name = error.key().substr(error.key().rfind('.') + 1);
  std::string allowed;
  for (const auto& one : error.allowed()) allowed += (allowed.empty() ? "" : ", ") + one;
  return {"refused." + name,
          plan::Severity::violation,
          {name},
          error.message(),
          allowed.empty() ? "change " + name + ": no command predicts it as it is" : "allowed: " + allowed,
          ""};
}

void compare(const CheckOptions& options, Outcome& outcome) {
  on_standard_output({{"--json", options.json}, {"--markdown", options.markdown}});
  report::Budget budget;
  if (!(options.step_budget >= 0 && options.step_budget < 1e9))
    throw UsageError({"command line", 0}, "--step-budget", "a percentage of at least 0 is needed");
  budget.step_percent = options.step_budget;
  if (!options.memory_budget.empty())
    budget.memory = parse_bytes(options.memory_budget, {"command line", 0}, "--memory-budget");
  const auto json = report::change_json(recipe_changes(options.input, options.baseline, options.input.path), budget);
  outcome.status = report::within_budget(json) ? 0 : 1;
  if (!options.json.empty()) write_result(options.json, json);
  if (!options.markdown.empty()) write_result(options.markdown, report::change_markdown(json));
  if (options.json != "-" && options.markdown != "-") write_result("-", report::change_text(json));
}

void run(CheckOptions options, Outcome& outcome) {
  if (!options.baseline.empty()) return compare(options, outcome);
  // `--symptom oom S.yaml`, `--symptom assert TEXT S.yaml`: what stands behind the symptom's own words is the scenario.
  const std::size_t own = !options.symptom.empty() && options.symptom.front() == "assert" ? 2 : 1;
  if (options.symptom.size() > own + (options.input.path.empty() ? 1 : 0))
    throw UsageError({"command line", 0}, "--symptom", "too many words: " + options.symptom.back());
  if (options.symptom.size() > own) {
    options.input.path = options.symptom.back();
    options.symptom.pop_back();
  }
  Loaded loaded = options.input.load();
  std::vector<plan::Finding> findings = loaded.findings;
  const auto more = options.symptom.empty() ? plan::check(loaded.scenario) : diagnose(options, loaded);
  findings.insert(findings.end(), more.begin(), more.end());
  // What no rule has, but Megatron Core cannot run: other commands refuse it with the same words.
  if (options.symptom.empty() && std::ranges::none_of(findings, is_violation)) {
    try {
      scenario::check(loaded.scenario);
    } catch (const UsageError& error) {
      findings.push_back(refusal(error));
    }
  }
  for (const auto& one : scenario::unmodelled(loaded.scenario))
    findings.push_back({"unmodelled." + one.name,
                        plan::Severity::trap,
                        {one.name},
                        one.name + (one.value.empty() ? "" : " " + one.value) + " is not modelled: " + one.missing,
                        "predictions need --ignore " + one.name + ", and have no interval then",
                        ""});
  const bool violated = std::ranges::any_of(findings, is_violation);
  outcome.status = violated ? 1 : 0;
  const report::Stamp stamp{&loaded.scenario, {}};
  if (!options.json.empty()) write_result(options.json, report::check_json(findings, &stamp));
  if (options.json == "-") return;
  std::string notes;
  for (const auto& note : loaded.notes) notes += "note: " + note + "\n";
  write_result("-", report::configuration_text(loaded.scenario) + report::check_text(findings) + notes);
}

}  // namespace

void add_check(Command& app, Outcome& outcome) {
  auto& command = app.add_subcommand("check", "Say what a configuration breaks, what has no effect, what is a trap");
  const auto options = std::make_shared<CheckOptions>();
  options->input.add_to(command);
  auto& symptom = command.add_option("--symptom", options->symptom, "diagnose: oom, slow, or assert \"TEXT\"")
                      .expected(1, 3)
                      .suggested({"oom", "slow", "assert"});
  auto& baseline =
      command
          .add_option("--baseline", options->baseline,
                      "SCENARIO as it was before: says what the change does to step, memory and verdict; two folders: "
                      "every recipe of the same name")
          .excludes(symptom);
  command.add_option("--step-budget", options->step_budget, "of --baseline: percent more time a token (0.5)")
      .needs(baseline);
  command
      .add_option("--memory-budget", options->memory_budget,
                  "of --baseline: bytes more on a rank (1GiB); without it, what fits is allowed")
      .needs(baseline);
  command
      .add_option("--markdown", options->markdown,
                  "of --baseline: write it as Markdown to this file (-: standard output)")
      .needs(baseline);
  add_json_option(command, options->json);
  command.footer(
      "Exit status 1: a violation was found, or the change exceeds the budget.\n\nExamples:\n"
      "  pipewright check S.yaml\n"
      "  pipewright check --megatron \"--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 4096\n"
      "    --micro-batch-size 1 --vocab-size 32000 --bf16 --recompute-granularity selective\"\n"
      "  pipewright check S.yaml --symptom oom\n"
      "  pipewright check S.yaml --symptom assert \"the text of the assertion\"\n"
      "  pipewright check --baseline before/ after/ --step-budget 1 --markdown comment.md");
  command.callback([options, &outcome] { run(*options, outcome); });
}

}  // namespace pipewright::cli
