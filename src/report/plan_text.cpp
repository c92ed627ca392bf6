// `plan`: the winner and why, what else was tried and why it lost, and the flags of the winner.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "format.hpp"
#include "json_value.hpp"
#include "pipewright/report.hpp"
#include "pipewright/scenario/fields.hpp"
#include "pipewright/scenario/io.hpp"
#include "to_json.hpp"

namespace pipewright::report {
namespace {

struct Form {
  const char *name, *title;
  emit::Groups (*groups)(const scenario::Scenario&);
  bool continued;
};
constexpr std::array<Form, 4> forms = {{
    {"megatron", "Megatron-LM flags", emit::megatron, true},
    {"bridge", "Megatron Bridge overrides", emit::bridge, false},
    {"harness", "Bridge performance harness options", emit::harness, true},
    {"env", "Environment", emit::environment, false},
}};

/// Words alone may be another run than the scenario: `remarks` says by form what they leave out or Megatron refuses.
Json flags_json(const scenario::Scenario& scenario) {
  Json out, remarks, variables = Json::object();
  for (const auto& [name, value] : emit::variables(scenario)) variables[name] = value;
  for (const auto& form : forms) {
    if (form.name == std::string_view("env")) continue;
    const auto groups = form.groups(scenario);
    out[form.name] = emit::words(groups);
    remarks[form.name] = emit::unsaid(groups);
  }
  out["env"] = variables;
  out["remarks"] = remarks;
  return out;
}

Json candidate_json(const plan::Candidate& candidate) {
  return {{"label", candidate.label},
          {"as_given", candidate.given},
          {"probability_to_fit", rounded(candidate.probability, 4)},
          {"settings", settings_json(candidate.settings)},
          {"environment", environment_json(candidate.environment)},
          {"configuration", configuration_json(candidate.scenario)},
          {"assumed", candidate.scenario.assumed},
          {"prediction", prediction_json(candidate.prediction)},
          {"flags", flags_json(candidate.scenario)},
          {"scenario", scenario::write(candidate.scenario)}};
}

/// The searched settings and variables as one object, where the contract has one place for both.
Json choice_json(const plan::Assignments& settings, const plan::Assignments& environment) {
  Json json = settings_json(settings);
  json.update(environment_json(environment));
  return json;
}

void add_row(Table& table, const std::string& mark, const plan::Candidate& candidate, std::int64_t best_ns) {
  const auto& p = candidate.prediction;
  const auto& tightest = tightest_rank(p);
  const auto& last = p.ranks.at(static_cast<std::size_t>(p.last_rank)).account;
  std::int64_t exposed = 0;
  for (const auto& cause : exposed_causes) exposed += last.*cause.member;
  table.add({mark, ms(p.step_ns), percent(static_cast<double>(p.step_ns) / static_cast<double>(best_ns) - 1),
             fmt::format("{:.1f}", p.tflops_per_gpu), ms(last.recompute), ms(exposed), ms(last.bubble),
             gibibytes(p.most_allocated()), gibibytes(p.most_reserved()), gibibytes(spare(p, tightest)),
             p.fits ? "yes" : "no"});
}

std::string candidates(const plan::Plan& plan) {
  const std::int64_t reference =
      plan.best ? plan.best->prediction.step_ns
                : (plan.baseline_refused.empty()
                       ? plan.baseline.prediction.step_ns
                       : (plan.alternatives.empty() ? 0 : plan.alternatives.front().prediction.step_ns));
  Table table({"#", "step ms", "to best", "TFLOP/s", "recompute", "exposed", "bubble", "peak GiB", "reserved",
               "to spare", "fits"});
  std::string legend;
  const auto add = [&](const std::string& mark, const plan::Candidate& candidate) {
    add_row(table, mark, candidate, reference);
    const auto label = plan.best && mark != "best" && !candidate.choices.empty()
                           ? plan::beside(plan.best->choices, candidate.choices)
                           : candidate.label;
    const bool unbounded = plan.bounded && !candidate.prediction.ignored.empty();
    legend += wrapped(fmt::format("{:>5}  {}{}", mark, label, unbounded ? " (no interval)" : ""), 7) + "\n";
  };
  if (plan.best) add("best", *plan.best);
  if (plan.baseline_refused.empty()) add("given", plan.baseline);
  int number = 0;
  for (const auto& other : plan.alternatives)
    if (!(other.given && plan.baseline_refused.empty())) add(fmt::format("{}", ++number), other);
  return "Candidates (ms and GiB; times of the rank that finishes last, memory of the worst rank)\n" + table.text() +
         (plan.best && !plan.alternatives.empty() ? "Where they differ from the best:\n" : "") + legend;
}

/// One entry a reason: a rule often refuses a whole family of candidates.
std::string rejected(const plan::Plan& plan) {
  if (plan.rejected.empty()) return "";
  std::string out = "Rejected\n";
  for (const auto& [r, count] : plan::rejected_by_reason(plan)) {
    const std::string more = count > 1 ? fmt::format(" and {} more", count - 1) : "";
    out += wrapped(fmt::format("- {}{}: {}: {}", r.label, more, r.rule.empty() ? "not modelled" : r.rule, r.reason)) +
           "\n";
  }
  return out;
}

std::string changes(const plan::Plan& plan) {
  Table table({"setting", "given", "planned"});
  const auto variable = [](const plan::Candidate& candidate, const std::string& name) {
    const auto found = candidate.scenario.environment.find(name);
    return found == candidate.scenario.environment.end() ? std::string("(unset)") : found->second;
  };
  const auto plain = [](const std::string& value) {
    return value.starts_with('\'') ? value.substr(1, value.size() - 2) : value;
  };
  bool any = false;
  const auto add = [&](const std::string& name, const std::string& given, const std::string& planned) {
    if (given == planned) return;
    table.add({name, plain(given), plain(planned)});
    any = true;
  };
  for (const auto& [name, value] : plan.best->settings) {
    add(name, scenario::get(plan.baseline.scenario, name), scenario::get(plan.best->scenario, name));
  }
  for (const auto& [name, value] : plan.best->environment) {
    add(name, variable(plan.baseline, name), variable(*plan.best, name));
  }
  return any ? "Changes\n" + table.text() : "Changes\n  none: the scenario as given is the best\n";
}

/// What was covered, and what became of it: the counts add up.
std::string searched(const plan::Searched& s) {
  std::string out = fmt::format("searched {} {} in {} {}:", grouped(s.candidates), plural(s.candidates, "candidate"),
                                grouped(s.structures), plural(s.structures, "structure"));
  const auto part = [&](std::int64_t count, const std::string& what) {
    if (count > 0) out += fmt::format("{} {} {}", out.ends_with(':') ? "" : ",", grouped(count), what);
  };
  part(s.predicted, s.predicted == s.simulated ? "simulated" : fmt::format("predicted ({} simulated)", s.simulated));
  part(s.by_time, "cannot be faster");
  part(s.by_memory,
       s.too_large > 0 ? fmt::format("cannot fit ({} whatever is recomputed)", grouped(s.too_large)) : "cannot fit");
  part(s.illegal, "illegal");
  part(s.pruned, "equal to another");
  part(s.not_modelled, "not modelled");
  part(s.undecided, "left undecided");
  if (s.interrupted) out += "; stopped early";
  if (s.predicted > 0 && s.gap >= 1)  // no bound but zero
    out += "; how fast what was not simulated may be is not known yet";
  else if (s.predicted > 0 && s.gap > 0)
    out += fmt::format("; nothing that fits is more than {:.1f} % faster", std::ceil(1000 * s.gap) / 10);
  else if (s.proved_optimal)
    out += "; none that was not simulated can be faster";
  out = wrapped(out) + "\n";
  if (!s.open.empty()) out += wrapped("open: " + fmt::format("{}", fmt::join(s.open, ", "))) + "\n";
  if (!s.closed.empty())
    out += wrapped(fmt::format(
               "as given: {} (--open NAME,... opens them, too){}", fmt::join(s.closed, ", "),
               s.rest ? fmt::format("; opening what moves no parameter brings at most {:.1f} %", 100 * *s.rest) : "")) +
           "\n";
  return out;
}

/// The cheapest ways down from the winner.
std::string ladder(const plan::Plan& plan) {
  if (!plan.best || plan.ladder.empty()) return "";
  const Bytes needed = plan.best->prediction.most_needed();
  Table table({"instead", "frees GiB", "costs ms", "ms per GiB"});
  for (const auto& step : plan.ladder) {
    const double freed = gib(needed - step.needed);
    const double price = ns_to_ms(step.step_ns - plan.best->prediction.step_ns);
    table.add({step.label + (step.exact ? "" : " (time estimated)"), fmt::format("{:.2f}", freed),
               fmt::format("{:+.1f}", price), fmt::format("{:.1f}", price / freed)});
  }
  return "Cheapest ways to free memory (of what the fullest rank takes of its device)\n" + table.text();
}

/// How sure the order is.
std::string sensitivity(const plan::Plan& plan) {
  if (plan.rivals.empty()) return "";
  std::string out = "How sure the choice is (differences with what both share cancelled)\n";
  for (const auto& [label, c] : plan.rivals) {
    std::string text = fmt::format("- {}: {:+.1f} ms +- {:.1f} (90 %){}", label, ns_to_ms(c.difference_ns),
                                   ns_to_ms(c.half_interval_ns()), c.tied() ? ", either may be faster" : "");
    if (c.family.empty())
      text += "; no measurement can turn it alone";
    else
      text += fmt::format("; turned if {} took {:+.1f} % (it is known to {:.1f} %)", c.family, 100 * c.error_to_turn,
                          100 * c.family_spread);
    out += wrapped(text) + "\n";
  }
  return out;
}

std::string notes(const plan::Plan& plan) {
  std::string out;
  for (const auto& note : plan.best->prediction.notes) out += wrapped("- " + note) + "\n";
  return out.empty() ? out : "Notes\n" + out;
}

/// What an engineer can rely on where nothing says how far the best's step may be off.
std::string with_interval(const plan::Plan& plan) {
  const auto& p = plan.bounded->prediction;
  const auto& choices = plan.bounded->choices;
  std::string why;
  for (const auto& note : plan.best->prediction.notes)
    if (note.starts_with("no interval holds: ")) why += wrapped(note) + "\n";
  return why +
         wrapped(fmt::format(
             "best with an interval: {}: {} ms, {} ({}); {}",
             plan.bounded->given ? "the scenario as given" : plan::beside(plan.best->choices, choices), ms(p.step_ns),
             percent(static_cast<double>(p.step_ns) / static_cast<double>(plan.best->prediction.step_ns) - 1),
             interval(p), p.fits ? "fits" : "does not fit")) +
         "\n";
}

/// What to run until the pull request that the best needs is there.
std::string released(const plan::Plan& plan, const std::vector<std::string>& emit_forms) {
  const auto& p = plan.released->prediction;
  return wrapped(fmt::format(
             "Without the pull request: {}: {} ms, {} against the best; {}", plan.released->label, ms(p.step_ns),
             percent(static_cast<double>(p.step_ns) / static_cast<double>(plan.best->prediction.step_ns) - 1),
             verdict(p))) +
         "\n" + flags_text(plan.released->scenario, emit_forms);
}

const char* headline_without_best(const plan::Plan& plan) {
  if (plan.searched.interrupted) return "stopped before anything that fits was found";
  if (plan.closest) return plan.closest->proved ? "nothing fits" : "nothing that fits was found";
  return plan.searched.not_modelled > 0 ? "nothing that is legal is modelled" : "nothing is legal";
}

}  // namespace

std::string grouped(std::int64_t count) {
  auto text = std::to_string(count);
  for (auto at = static_cast<std::ptrdiff_t>(text.size()) - 3; at > 0; at -= 3)
    text.insert(static_cast<std::size_t>(at), ",");
  return text;
}

std::string flags_text(const scenario::Scenario& scenario, const std::vector<std::string>& emit_forms) {
  std::string out;
  for (const auto& form : forms) {
    if (std::find(emit_forms.begin(), emit_forms.end(), form.name) == emit_forms.end()) continue;
    out += fmt::format("{}\n{}\n", form.title, emit::text(form.groups(scenario), form.continued));
  }
  if (out.size() > 1 && out[out.size() - 2] == '\n') out.pop_back();
  return out;
}

std::string plan_text(const plan::Plan& plan, const std::vector<std::string>& emit_forms) {
  std::string out;
  if (plan.best) {
    const auto& p = plan.best->prediction;
    out += wrapped(fmt::format("best: {}{}", plan.best->given && plan.best->label != "as given" ? "as given: " : "",
                               plan.best->label)) +
           "\n";
    const double likely = plan.best->probability;
    const std::string sure =
        likely < 0.99 ? fmt::format("; {:.0f} % likely, as reserved memory was predicted so far", 100 * likely) : "";
    out += wrapped(fmt::format("step {} ms ({}), {}", ms(p.step_ns), interval(p), throughput(p))) + "\n" +
           wrapped(verdict(p) + sure) + "\n";
    if (plan.bounded) out += with_interval(plan);
    out += fmt::format("profile {} ({}), Megatron Core {}\n", p.profile, p.origins.text(), p.megatron_core);
  } else {
    out += headline_without_best(plan) + std::string("\n");
  }
  out += searched(plan.searched);
  if (plan.has_baseline && !plan.baseline_refused.empty())
    out += wrapped("the scenario as given has no prediction: " + plan.baseline_refused) + "\n";
  if (!plan.why.empty()) {
    out += "\nWhy\n";
    for (const auto& reason : plan.why) out += wrapped("- " + reason) + "\n";
  }
  if (plan.best || !plan.alternatives.empty() || plan.baseline_refused.empty()) out += "\n" + candidates(plan);
  for (const auto& section : {ladder(plan), sensitivity(plan)})
    if (!section.empty()) out += "\n" + section;
  if (const auto text = rejected(plan); !text.empty()) out += "\n" + text;
  if (!plan.best) return out;
  if (const auto text = notes(plan); !text.empty()) out += "\n" + text;
  out += "\n" + changes(plan);
  if (const auto text = flags_text(plan.best->scenario, emit_forms); !text.empty()) out += "\n" + text;
  if (plan.released) out += "\n" + released(plan, emit_forms);
  return out;
}

std::string plan_json(const plan::Plan& plan, const Stamp* stamp) {
  Json alternatives = Json::array(), pareto = Json::array(), rejected = Json::array();
  for (const auto& candidate : plan.alternatives) alternatives.push_back(candidate_json(candidate));
  for (const auto& point : plan.pareto) {
    pareto.push_back({{"step_time_ms", ns_to_ms(point.step_ns)},
                      {"peak_bytes", point.peak.value},
                      {"settings", choice_json(point.settings, point.environment)}});
  }
  for (const auto& r : plan.rejected) {
    rejected.push_back({{"settings", choice_json(r.settings, r.environment)},
                        {"reason", r.rule.empty() ? r.reason : r.rule + ": " + r.reason}});
  }
  Json rivals = Json::array(), steps = Json::array();
  for (const auto& [label, c] : plan.rivals) {
    rivals.push_back({{"against", label},
                      {"difference_ms", ns_to_ms(c.difference_ns)},
                      {"half_interval_ms", ns_to_ms(c.half_interval_ns())},
                      {"tied", c.tied()},
                      {"measurement", c.family},
                      {"error_to_turn", c.error_to_turn},
                      {"known_to", c.family_spread}});
  }
  for (const auto& step : plan.ladder) {
    steps.push_back({{"step_time_ms", ns_to_ms(step.step_ns)},
                     {"peak_bytes", step.peak.value},
                     {"settings", choice_json(step.settings, step.environment)}});
  }
  const auto& s = plan.searched;
  Json bounds = Json::array();
  for (const auto& bound : s.bounds)
    bounds.push_back({{"by", bound.by}, {"memory", bound.memory}, {"time", bound.time}});
  Json closest;
  if (plan.closest)
    closest = {{"label", plan.closest->label},
               {"pp_rank", plan.closest->rank},
               {"lacking_bytes", plan.closest->lacking.value},
               {"exact", plan.closest->exact},
               {"proved_that_nothing_fits", plan.closest->proved}};
  return dumped({{"best", plan.best ? candidate_json(*plan.best) : Json()},
                 {"best_with_interval", plan.bounded ? candidate_json(*plan.bounded) : Json()},
                 {"released", plan.released ? candidate_json(*plan.released) : Json()},
                 {"baseline", plan.baseline_refused.empty() ? candidate_json(plan.baseline) : Json()},
                 {"alternatives", alternatives},
                 {"pareto", pareto},
                 {"ladder", steps},
                 {"sensitivity", rivals},
                 {"why", plan.why},
                 {"searched",
                  {{"candidates", s.candidates},
                   {"legal", s.legal},
                   {"simulated", s.simulated},
                   {"pruned", s.pruned},
                   {"estimated", s.estimated},
                   {"excluded", s.excluded},
                   {"illegal", s.illegal},
                   {"by_time", s.by_time},
                   {"by_memory", s.by_memory},
                   {"by_memory_as_a_structure", s.too_large},
                   {"bounds", bounds},
                   {"not_modelled", s.not_modelled},
                   {"undecided", s.undecided},
                   {"predicted", s.predicted},
                   {"structures", s.structures},
                   {"floors", s.bounded},
                   {"interrupted", s.interrupted},
                   {"open", s.open},
                   {"closed", s.closed},
                   {"rest_at_most", s.rest ? Json(*s.rest) : Json()},
                   {"gap", plan.best ? Json(s.gap) : Json()},
                   {"seconds", std::round(s.seconds * 1e3) / 1e3},
                   {"proved_optimal", s.proved_optimal}}},
                 {"closest", closest},
                 {"fewest_gpus", plan.fewest_gpus ? Json(*plan.fewest_gpus) : Json()},
                 {"rejected", rejected}},
                stamp);
}

}  // namespace pipewright::report
