// Candidates of a plan, and the user's command with a candidate filled in.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>

#include "pipewright/emit.hpp"
#include "pipewright/json_schema.hpp"
#include "pipewright/scenario/io.hpp"
#include "pipewright/trial.hpp"

namespace pipewright::trial {
namespace {

using Words = std::vector<std::string>;

const Position kCommand = {"command line", 0};

std::string joined(const Words& words) {
  std::string out;
  for (const auto& word : words) out += (out.empty() ? "" : " ") + emit::quoted(word);
  return out;
}

/// `cfg.model.x = 4` as an override on run_recipe.py's command line: `model.x=4`.
std::string override_of(std::string line) {
  constexpr std::string_view prefix = "cfg.", between = " = ";
  if (line.starts_with(prefix)) line.erase(0, prefix.size());
  if (const auto at = line.find(between); at != std::string::npos) line.replace(at, between.size(), "=");
  return line;
}

emit::Groups groups_of(const scenario::Scenario& scenario, Form form) {
  if (form == Form::megatron) return emit::megatron(scenario);
  return form == Form::harness ? emit::harness(scenario) : emit::bridge(scenario);
}

Words flags_of(const emit::Groups& groups, Form form) {
  Words words = emit::words(groups);
  if (form != Form::bridge) return words;
  // Statements around the overrides (imports, cfg.comm_overlap's making) are Python: a launcher's words are fields
  // only.
  std::erase_if(words, [](const std::string& word) {
    return !word.starts_with("cfg.") || word.find(" = CommOverlapConfig(") != std::string::npos;
  });
  std::transform(words.begin(), words.end(), words.begin(), override_of);
  return words;
}

struct Placeholder {
  std::string name;
  Words words;
};

/// "{ Flags }" -> "flags": what was meant, however it is written.
std::string meant(const std::string& name) {
  std::string plain;
  for (const char c : name)
    if (c != ' ') plain += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return plain;
}

/// The placeholder that begins at `at` ("{name}"); nullptr: braces of the command's own, such as a shell's ${name}.
const Placeholder* placeholder_at(const std::string& word, std::size_t at, const std::vector<Placeholder>& all) {
  const auto end = word.find('}', at);
  if (end == std::string::npos || (at > 0 && word[at - 1] == '$')) return nullptr;
  const std::string name = word.substr(at + 1, end - at - 1);
  const auto named = [&](const std::string& text) {
    return std::find_if(all.begin(), all.end(), [&](const auto& p) { return p.name == text; });
  };
  const bool doubled = at > 0 && word[at - 1] == '{' && end + 1 < word.size() && word[end + 1] == '}';
  const auto found = named(name);
  if (found != all.end() && doubled)
    throw UsageError(kCommand, "{{" + name + "}}", "one brace on each side makes a placeholder", {}, "{" + name + "}");
  if (found != all.end()) return &*found;
  const bool a_name = !name.empty() && name.find_first_not_of("abcdefghijklmnopqrstuvwxyz") == std::string::npos;
  if (!a_name && named(meant(name)) == all.end()) return nullptr;
  Words known;
  for (const auto& p : all) known.push_back("{" + p.name + "}");
  throw UsageError(kCommand, "{" + name + "}", "unknown placeholder", known,
                   nearest_name("{" + meant(name) + "}", known));
}

/// An argument of the command's own quotes would be one word of all; a single quote ends at the first one of theirs.
void refuse_quotes(const std::string& word, std::size_t at, const Placeholder& placeholder) {
  const std::string written = "{" + placeholder.name + "}";
  const auto after = at + written.size();
  const auto is = [&](std::size_t i, std::string_view any) {
    return i >= word.size() || any.find(word[i]) != any.npos;
  };
  const bool quoted = at > 0 && after < word.size() && word[at - 1] == word[after] && is(after, "'\"");
  const bool alone = quoted && is(at - 2, " \t\n") && is(after + 1, " \t\n;&|") && placeholder.words.size() > 1;
  char open = 0;
  for (std::size_t i = 0; i < at; ++i) {
    if (word[i] == '\\' && open != '\'')
      ++i;
    else if ((word[i] == '\'' || word[i] == '"') && (open == 0 || open == word[i]))
      open = open == 0 ? word[i] : '\0';
  }
  if (alone || (open == '\'' && joined(placeholder.words).find('\'') != std::string::npos))
    throw UsageError(kCommand, written, "stands in quotes: its words are quoted for a shell already, one by one");
}

}  // namespace

std::vector<Candidate> candidates_of_plan(const std::string& json, const std::string& file, int top) {
  const auto plan = nlohmann::json::parse(json, nullptr, false);
  if (!plan.is_object())
    throw UsageError({file, 0}, {},
                     plan.is_discarded() ? "is not JSON: truncated, or not what `pipewright plan --json` writes"
                                         : "is not what `pipewright plan --json` writes: expected an object");
  if (const auto schema = plan.find("schema"); schema != plan.end()) {
    if (!schema->is_number_integer())
      throw UsageError({file, 0}, "schema", fmt::format("expected a whole number, found {}", schema->type_name()));
    refuse_later_schema(schema->get<std::int64_t>(), file);
  }
  if (!plan.contains("alternatives"))
    throw UsageError({file, 0}, "alternatives", "missing: this is not what `pipewright plan --json` writes");
  const auto text_of = [&](const nlohmann::json& entry, const std::string& of, const char* key) {
    const auto& value = entry.at(key);
    if (!value.is_string())
      throw UsageError({file, 0}, of + "." + key, fmt::format("expected a text, found {}", value.type_name()));
    return value.get<std::string>();
  };
  std::vector<Candidate> result;
  const auto add = [&](const nlohmann::json& entry, const std::string& name) {
    if (entry.is_null()) return;  // nothing fits
    if (!entry.is_object())
      throw UsageError({file, 0}, name, fmt::format("expected an object, found {}", entry.type_name()));
    if (!entry.contains("scenario"))
      throw UsageError({file, 0}, name, "has no scenario: write the plan again with this version");
    Candidate candidate{name, entry.contains("label") ? text_of(entry, name, "label") : name,
                        scenario::parse(text_of(entry, name, "scenario"), file + ", scenario of " + name)};
    candidate.scenario.name = name;
    const auto same = std::find_if(result.begin(), result.end(),
                                   [&](const Candidate& other) { return other.scenario == candidate.scenario; });
    if (same == result.end())
      result.push_back(std::move(candidate));
    else if (name == "given" && !same->label.starts_with("as given"))
      same->label = "as given: " + same->label;
  };
  if (!plan["alternatives"].is_array())
    throw UsageError({file, 0}, "alternatives",
                     fmt::format("expected a list, found {}", plan["alternatives"].type_name()));
  if (plan.contains("best")) add(plan["best"], "best");
  for (std::size_t i = 0; i < plan["alternatives"].size() && static_cast<int>(result.size()) < top; ++i)
    add(plan["alternatives"][i], "alternative-" + std::to_string(i + 1));
  if (result.empty()) throw UsageError({file, 0}, "best", "the plan found nothing that fits: there is nothing to run");
  if (plan.contains("baseline")) add(plan["baseline"], "given");
  return result;
}

Command fill(const std::vector<std::string>& command, const Candidate& candidate, Form form, int steps) {
  Command result;
  Words variables;
  for (const auto& [name, value] : emit::variables(candidate.scenario)) {
    result.environment.emplace_back(name, value);
    variables.push_back(name + "=" + value);
  }
  const auto groups = groups_of(candidate.scenario, form);
  result.remarks = emit::unsaid(groups);
  const std::vector<Placeholder> placeholders = {{"flags", flags_of(groups, form)},
                                                 {"env", variables},
                                                 {"name", {candidate.name}},
                                                 {"steps", {std::to_string(steps)}}};
  bool has_flags = false;
  for (const auto& word : command) {
    std::string out;
    bool whole = false;
    for (std::size_t at = 0; at < word.size() && !whole;) {
      const auto* found = word[at] == '{' ? placeholder_at(word, at, placeholders) : nullptr;
      if (found == nullptr) {
        out += word[at++];
        continue;
      }
      has_flags |= found->name == "flags";
      const std::size_t length = found->name.size() + 2;
      whole = length == word.size();
      if (whole)
        result.words.insert(result.words.end(), found->words.begin(), found->words.end());
      else
        refuse_quotes(word, at, *found), out += joined(found->words);
      at += length;
    }
    if (!whole) result.words.push_back(out);
  }
  if (!has_flags)
    throw UsageError(kCommand, "--",
                     "the command says nowhere where the flags belong: put {flags} there, such as "
                     "torchrun --nproc-per-node 8 pretrain_gpt.py {flags} --mock-data");
  return result;
}

std::string shell_line(const Command& command) {
  std::string line;
  for (const auto& [name, value] : command.environment) line += name + "=" + emit::quoted(value) + " ";
  return line + joined(command.words);
}

}  // namespace pipewright::trial
