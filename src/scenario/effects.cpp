// The tables of effects as one index by name, and what of a scenario they say is not modelled.
#include "pipewright/effects.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <sstream>

#include "effects_refused.hpp"
#include "effects_values.hpp"
#include "field_rows.hpp"
#include "pipewright/scenario/fields.hpp"

namespace pipewright::scenario {
namespace {

struct EffectGroup {
  const char *text, *names;
};

constexpr EffectGroup silent[] = {
#include "effects/silent.inc"
};
constexpr EffectGroup missing[] = {
#include "effects/missing.inc"
};
constexpr EffectGroup legality[] = {
#include "effects/legality.inc"
};
constexpr EffectGroup aliases[] = {
#include "effects/aliases.inc"
};
constexpr Move moving[] = {
#include "effects/modelled.inc"
};

struct VariableRow {
  const char* name;  ///< a trailing * stands for any rest
  Effect effect;
  const char* text;
  const char* neutral;  ///< of a refused one: the value that changes nothing
};
constexpr VariableRow variables[] = {
#include "effects/variables.inc"
};
constexpr const char* tuning = "widens the interval: ";

void split_names(const EffectGroup& group, const std::function<void(std::string name, std::string neutral)>& use) {
  std::istringstream words(group.names);
  for (std::string word; words >> word;) {
    const auto equals = word.find('=');
    use(word.substr(0, equals), equals == std::string::npos ? "" : word.substr(equals + 1));
  }
}

std::map<std::string, EffectRow> index_effects() {
  std::map<std::string, EffectRow> index;
  const auto add = [&](const std::string& name, Effect effect, std::string text) {
    const auto [row, fresh] = index.emplace(name, EffectRow{name, effect, std::move(text)});
    if (!fresh) throw std::logic_error("two effects of " + row->first);
  };
  for (const Move& move : moving)
    if (!index.contains(move.name)) {
      std::string text;
      for (const Move& other : moving)
        if (std::string_view(other.name) == move.name) {
          const std::string part = fmt::format("{} {}", other.quantity, other.up ? "up" : "down");
          if (text.find(part) == std::string::npos)
            text += fmt::format("{}{} from {} to {}", text.empty() ? "" : ", ", part, other.from, other.to);
        }
      add(move.name, Effect::modelled, text);
    }
  for (const auto& group : aliases)
    split_names(group, [&](std::string name, const std::string&) {
      add(name, Effect::modelled, std::string("sets ") + group.text);
    });
  for (const auto& group : silent)
    split_names(group, [&](std::string name, const std::string&) { add(name, Effect::none, group.text); });
  for (const auto& group : legality)
    split_names(group, [&](std::string name, const std::string&) { add(name, Effect::legality, group.text); });
  for (const auto& group : missing)
    split_names(group, [&](std::string name, const std::string&) { add(name, Effect::refused, group.text); });
  for (const auto& row : refused_fields())
    add(index.contains(row.name) ? std::string(row.name) + "=..." : row.name, Effect::refused, row.missing);
  for (const auto& row : variables)
    if (row.effect != Effect::modelled || !index.contains(row.name)) add(row.name, row.effect, row.text);
  for (const auto& row : refused_values()) add(std::string(row.name) + "=...", Effect::refused, row.missing);
  return index;
}

const std::map<std::string, EffectRow>& effect_index() {
  static const auto index = index_effects();
  return index;
}

/// Of the fields that only `other` holds: the value that says nothing.
const std::map<std::string, std::string>& neutral_values() {
  static const auto values = [] {
    std::map<std::string, std::string> map;
    for (const auto& group : missing)
      split_names(group, [&](std::string name, std::string neutral) { map.emplace(name, std::move(neutral)); });
    return map;
  }();
  return values;
}

/// `neutral`: values that say nothing, a|b. Beside one that is a word, false and 0 say something.
bool says_nothing(const std::string& value, const std::string& neutral) {
  static constexpr std::array unsaid = {"", "none", "None", "null", "~"}, off = {"false", "False", "0", "0.0", "[]"};
  const bool word = !neutral.empty() && std::isdigit(static_cast<unsigned char>(neutral[0])) == 0 &&
                    std::ranges::find(unsaid, neutral) == unsaid.end();
  return std::ranges::find(unsaid, value) != unsaid.end() || (!word && std::ranges::find(off, value) != off.end()) ||
         ("|" + neutral + "|").find("|" + value + "|") != neutral.npos;
}

const VariableRow* variable_row(const std::string& name) {
  const VariableRow* longest = nullptr;
  for (const auto& row : variables) {
    const std::string_view pattern = row.name;
    if (pattern == name) return &row;
    if (pattern.ends_with('*') && name.starts_with(pattern.substr(0, pattern.size() - 1)) &&
        (longest == nullptr || pattern.size() > std::string_view(longest->name).size()))
      longest = &row;
  }
  return longest;
}

bool is_variable(std::string_view name) {
  return !name.empty() &&
         std::ranges::all_of(name, [](char c) { return c == '_' || std::isdigit(c) || std::isupper(c); });
}

}  // namespace

std::string_view name(Effect effect) {
  constexpr std::array names = {"modelled", "no effect", "only legality", "refused"};
  return names[static_cast<std::size_t>(effect)];
}

const std::vector<EffectRow>& effects() {
  static const auto rows = [] {
    std::vector<EffectRow> all;
    for (const auto& [key, row] : effect_index()) all.push_back(row);
    return all;
  }();
  return rows;
}

std::string effect_name(std::string_view text) {
  while (text.starts_with('-')) text.remove_prefix(1);
  std::string name(text);
  std::ranges::replace(name, '-', '_');
  return name;
}

const EffectRow* effect_of(std::string_view text) {
  const auto& index = effect_index();
  std::string name = effect_name(text);
  for (const std::string_view prefix : {"", "no_", "disable_"}) {
    if (!std::string_view(name).starts_with(prefix)) continue;
    if (const auto found = index.find(name.substr(prefix.size())); found != index.end()) return &found->second;
  }
  if (!is_variable(name)) return nullptr;
  const VariableRow* row = variable_row(name);
  return row == nullptr ? nullptr : &index.at(row->name);
}

bool may_act(const std::string& flag, const std::string& value) {
  const EffectRow* row = effect_of(flag);
  if (row == nullptr) return false;
  const auto values = std::ranges::find(refused_values(), row->name, &RefusedValue::name);
  if (values != refused_values().end()) return values->acts(value);
  const auto noted = std::ranges::find(noted_values(), row->name, &NotedValue::name);
  if (noted != noted_values().end()) return noted->acts(value);
  if (effect_index().contains(row->name + "=...")) return !says_nothing(value, "");
  if (row->effect == Effect::refused) return !is_neutral(row->name, value);
  return row->effect != Effect::none;
}

bool is_neutral(const std::string& name, const std::string& value) {
  const auto neutral = neutral_values().find(name);
  return says_nothing(value, neutral == neutral_values().end() ? "" : neutral->second);
}

std::span<const Move> moves() { return moving; }

std::string missing_of(const EffectRow& row, const std::string& value) {
  for (const NamedValue& named : named_values())
    if (row.name == named.name && value.starts_with(named.value)) return named.missing;
  return row.text;
}

std::vector<Unmodelled> unmodelled(const Scenario& s) {
  std::vector<Unmodelled> found;
  for (const auto& row : refused_fields()) {
    if (!row.in_use(s)) continue;
    const Field* field = find(row.name);
    const std::string key =
        field == nullptr ? fmt::format("settings.{}", row.name) : fmt::format("{}.{}", field->section, field->name);
    found.push_back(
        {row.name, field == nullptr ? "" : text(*field, s), key, row.now != nullptr ? row.now(s) : row.missing});
  }
  for (const auto& [section, other] : {std::pair("model", &s.model.other), std::pair("settings", &s.settings.other)}) {
    for (const auto& [name, value] : *other) {
      const EffectRow* row = effect_of(name);
      if (row == nullptr || row->effect != Effect::refused) continue;
      if (is_neutral(name, value)) continue;
      found.push_back({name, value, fmt::format("{}.{}", section, name), missing_of(*row, value)});
    }
  }
  for (const auto& row : refused_values()) {
    if (row.beside != nullptr && !row.beside(s)) continue;
    for (const auto& [section, values] : {std::pair("model", &s.model.other), std::pair("settings", &s.settings.other),
                                          std::pair("environment", &s.environment)})
      if (const auto at = values->find(row.name); at != values->end() && row.acts(at->second))
        found.push_back({row.name, at->second, fmt::format("{}.{}", section, row.name), row.missing});
  }
  for (const auto& [name, value] : s.environment) {
    const VariableRow* row = variable_row(name);
    if (row == nullptr || row->effect != Effect::refused) continue;
    if (std::string_view(row->neutral).empty() ? says_nothing(value, "") : value == row->neutral) continue;
    found.push_back({name, value, "environment." + name, row->text});
  }
  return found;
}

void refuse_unmodelled(const Scenario& s) {
  std::vector<Unmodelled> all = unmodelled(s);
  std::erase_if(all, [&](const Unmodelled& one) { return ignores(s, one.name); });
  if (all.empty()) return;
  const Unmodelled& first = all.front();
  std::string others, flags;
  for (const auto& one : all) {
    if (&one != &first)
      others += fmt::format("{} {} ({})", others.empty() ? ". Neither is" : ",", one.name, one.missing);
    flags += fmt::format(" --ignore {}", one.name);
  }
  throw UsageError(position(s, first.key), first.key,
                   fmt::format("{}is not modelled: {}. Without {}, and without an interval:{}{}",
                               first.value.empty() || first.value == "true" ? "" : first.value + " ", first.missing,
                               all.size() == 1 ? "it" : "them", flags, others));
}

Strings notes_of_values(const Scenario& s) {
  Strings notes;
  for (const auto& row : noted_values())
    if (const auto at = s.settings.other.find(row.name); at != s.settings.other.end() && row.acts(at->second))
      notes.push_back(row.note(at->second));
  return notes;
}

Strings let_through(const Scenario& s) {
  Strings names;
  if (s.ignore.empty()) return names;
  for (const auto& one : unmodelled(s))
    if (std::ranges::find(names, one.name) == names.end()) names.push_back(one.name);
  return names;
}

void ignore(Scenario& s, std::string_view text, const Position& where) {
  const std::string name = effect_name(text);
  const auto known = effect_index().find(name);
  const bool refused = (known != effect_index().end() && known->second.effect == Effect::refused) ||
                       effect_index().contains(name + "=...");
  const EffectRow* row = effect_of(name);
  if (!refused && (row == nullptr || row->effect != Effect::refused)) {
    Strings names;
    for (const auto& other : effects())
      if (other.effect == Effect::refused) names.push_back(other.name.substr(0, other.name.find('=')));
    if (row != nullptr)
      throw UsageError(where, std::string(text),
                       fmt::format("nothing to ignore: it is of the class \"{}\" ({})",
                                   pipewright::scenario::name(row->effect), row->text));
    throw UsageError(where, std::string(text), "unknown name", {}, nearest_name(name, names));
  }
  const std::string kept = refused || is_variable(name) ? name : row->name;
  if (!ignores(s, kept)) s.ignore.push_back(kept);
}

Strings tunings(const Scenario& s) {
  Strings names;
  for (const auto& [name, value] : s.environment)
    if (const VariableRow* row = variable_row(name); row != nullptr && std::string_view(row->text).starts_with(tuning))
      names.push_back(name);
  if (s.settings.nccl_ub) names.push_back("nccl_ub");  // zero-copy collectives on fewer multiprocessors
  return names;
}

}  // namespace pipewright::scenario
