// pipewright list: what can be named in a scenario or on the command line.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "commands.hpp"
#include "describe.hpp"
#include "pipewright/effects.hpp"
#include "pipewright/modules.hpp"
#include "pipewright/plan.hpp"
#include "pipewright/profile.hpp"
#include "pipewright/report.hpp"
#include "pipewright/scenario/fields.hpp"

namespace pipewright::cli {
namespace {

using Json = nlohmann::ordered_json;

/// A list as text and as JSON.
struct Listing {
  std::string text;
  Json json;
};

Listing profiles() {
  Table table({"profile", "device", "memory", "origin"});
  Json rows = Json::array();
  for (const auto& name : profile::known_profiles()) {
    const auto p = profile::load(name, {"list", 0});
    table.add({name, p.device.name, format_bytes(p.memory), std::string(profile::name(p.origin))});
    rows.push_back({{"name", name},
                    {"device", p.device.name},
                    {"memory_bytes", p.memory.value},
                    {"origin", profile::name(p.origin)}});
  }
  return {table.text(), {{"profiles", rows}}};
}

Listing settings() {
  std::string text, section;
  Json rows = Json::array();
  for (const auto& field : scenario::fields()) {
    if (field.section != section) text += fmt::format("{}{}:\n", section.empty() ? "" : "\n", field.section);
    section = field.section;
    text += fmt::format("  {} ({}, default {})", field.name, field.type, field.default_value);
    if (!field.allowed.empty()) text += fmt::format(" [{}]", fmt::join(field.allowed, ", "));
    text += field.doc.empty() ? "\n" : fmt::format("\n      {}\n", field.doc);
    rows.push_back({{"section", field.section},
                    {"name", field.name},
                    {"type", field.type},
                    {"default", field.default_value},
                    {"allowed", field.allowed},
                    {"doc", field.doc},
                    {"versions", scenario::stated_names(field.versions)}});
  }
  return {text, {{"settings", rows}}};
}

Listing versions() {
  const std::string standard = scenario::Software{}.megatron_core;
  Json rows = Json::array();
  std::string text = "megatron_core:\n";
  for (const auto& version : scenario::stated_names(scenario::all_versions)) {
    text += fmt::format("  {}{}\n", version, version == standard ? " (default)" : "");
    rows.push_back({{"software", "megatron_core"}, {"version", version}, {"default", version == standard}});
  }
  return {text, {{"versions", rows}}};
}

Listing modules() {
  Listing all{{}, {{"modules", Json::array()}}};
  const auto add = [&](const char* setting, const char* does, const auto& catalogue) {
    all.text += fmt::format("{}:\n", setting);
    for (const auto& row : catalogue) {
      const std::string what = row.what.empty() ? "not modelled" : fmt::format("{} {}", does, row.what);
      all.text += fmt::format("  {} ({})\n      {}\n", row.name, scenario::in_words(row.versions, true), what);
      all.json["modules"].push_back({{"setting", setting},
                                     {"module", row.name},
                                     {"versions", scenario::stated_names(row.versions)},
                                     {"modelled", !row.what.empty()},
                                     {"what", what}});
    }
  };
  add("recompute_modules", "replays", scenario::recompute_catalogue());
  add("offload_modules", "moves", scenario::offload_catalogue());
  return all;
}

Listing rules() {
  std::string text;
  Json rows = Json::array();
  for (const auto& rule : plan::rules()) {
    text += fmt::format("{} ({}, {})\n  {}\n", rule.id, plan::name(rule.severity), rule.versions, rule.message);
    if (!rule.fix.empty()) text += fmt::format("  fix: {}\n", rule.fix);
    if (!rule.source.empty()) text += fmt::format("  source: {}\n", rule.source);
    rows.push_back({{"rule", rule.id},
                    {"versions", rule.versions},
                    {"severity", plan::name(rule.severity)},
                    {"settings", rule.settings},
                    {"message", rule.message},
                    {"fix", rule.fix},
                    {"source", rule.source}});
  }
  return {text, {{"rules", rows}}};
}

Listing effects() {
  std::string text;
  Json rows = Json::array();
  for (const auto& row : scenario::effects()) {
    text += fmt::format("{} ({})\n  {}\n", row.name, scenario::name(row.effect), row.text);
    rows.push_back({{"name", row.name}, {"effect", scenario::name(row.effect)}, {"text", row.text}});
  }
  return {text, {{"effects", rows}}};
}

std::string lowered(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

bool has_all(const std::string& text, const std::vector<std::string>& words) {
  const std::string low = lowered(text);
  return std::all_of(words.begin(), words.end(),
                     [&](const auto& word) { return low.find(lowered(word)) != std::string::npos; });
}

/// Entries that contain all words: an entry is a line and what is indented below it; titles of sections stay with their
/// entries, so does a table's head.
std::string filtered(const std::string& text, const std::vector<std::string>& words) {
  std::vector<std::string> lines;
  for (std::size_t from = 0; from < text.size();) {
    const auto to = std::min(text.find('\n', from), text.size());
    lines.push_back(text.substr(from, to - from));
    from = to + 1;
  }
  const auto indent = [](const std::string& line) { return std::min(line.find_first_not_of(' '), line.size()); };
  const bool sections = !lines.empty() && lines.front().ends_with(':');  // "settings:" and entries below
  const std::size_t level = sections ? 2 : 0;
  std::string out, title;
  for (std::size_t i = 0; i < lines.size();) {
    if (i == 0 && lines.size() > 1 && lines[1].starts_with("---")) {
      out += lines[0] + "\n" + lines[1] + "\n";
      i = 2;
      continue;
    }
    if (sections && (lines[i].empty() || indent(lines[i]) < level)) {
      if (!lines[i].empty())
        title = lines[i++] + "\n";
      else
        ++i;
      continue;
    }
    std::string entry = lines[i++] + "\n";
    while (i < lines.size() && !lines[i].empty() && indent(lines[i]) > level) entry += lines[i++] + "\n";
    if (has_all(entry, words)) out += std::exchange(title, {}) + entry;
  }
  return out;
}

/// The same of the JSON's only array.
Json filtered(Json json, const std::vector<std::string>& words) {
  for (auto& [name, rows] : json.items()) {
    Json kept = Json::array();
    for (const auto& row : rows)
      if (has_all(row.dump(-1, ' ', false, Json::error_handler_t::replace), words)) kept.push_back(row);
    rows = kept;
  }
  return json;
}

}  // namespace

void add_list(Command& app, Outcome& outcome) {
  auto& command = app.add_subcommand(
      "list", "List what can be named: profiles, settings, versions, modules, rules, effects, commands");
  const auto json = std::make_shared<std::string>();
  const auto words = std::make_shared<std::vector<std::string>>();
  command.footer(
      "Exit status 1: nothing contains the words.\n\nExamples:\n  pipewright list rules recompute mla\n  pipewright "
      "list settings overlap --json -");
  const auto add = [&](const char* name, const char* what, std::function<Listing()> listing) {
    auto& list = command.add_subcommand(name, what);
    add_json_option(list, *json);
    list.add_option("FILTER", *words, "only entries that contain all of these words");
    list.callback([json, words, listing, &outcome] {
      Listing result = listing();
      if (!words->empty()) {
        result.json = filtered(result.json, *words);
        result.text = filtered(result.text, *words);
        if (std::all_of(result.json.begin(), result.json.end(), [](const auto& rows) { return rows.empty(); })) {
          outcome.status = 1;
          std::fputs("note: nothing contains these words\n", stderr);
        }
      }
      if (!json->empty()) {
        write_result(*json, report::stamped(result.json.dump(1, ' ', false, Json::error_handler_t::replace)));
      }
      if (*json != "-") write_result("-", result.text);
    });
  };
  add("profiles", "Profiles beside the program and in $PIPEWRIGHT_PROFILES", profiles);
  add("settings", "Every key of a scenario: type, default, allowed values", settings);
  add("versions", "Software versions whose behaviour is known", versions);
  add("modules", "What recompute can replay and offload can move, with the versions that know it", modules);
  add("rules", "Legality rules with their sources", rules);
  add("effects", "What every flag, field and variable does to a prediction", effects);
  add("commands", "Every command with its options, as manual pages and completions are made of", [&app] {
    return Listing{commands_text(app), {{"commands", commands_json(app)}}};
  });
}

}  // namespace pipewright::cli
