// A scenario as YAML: what differs from the stated version's defaults, in the table's order.
#include <fmt/format.h>

#include <map>

#include "field_rows.hpp"
#include "pipewright/scenario/fields.hpp"
#include "pipewright/scenario/io.hpp"
#include "read_measured.hpp"

namespace pipewright::scenario {
namespace {

bool is_required(const Field& field) {
  for (const auto& [section, name] : required_fields) {
    if (section == std::string_view(field.section) && name == std::string_view(field.name)) return true;
  }
  return false;
}

struct WrittenField {
  const Field& field;
  bool always;  ///< also where it has its default
};

/// A search writes every candidate to know it again.
const std::vector<WrittenField>& fields_of(const std::string& section) {
  static const std::map<std::string, std::vector<WrittenField>> by_section = [] {
    std::map<std::string, std::vector<WrittenField>> all;
    for (const Field& field : table())
      all[field.section].push_back({field, is_required(field) || std::string_view(field.name) == "megatron_core"});
    return all;
  }();
  return by_section.at(section);
}

std::string section_text(const Scenario& scenario, const Scenario& empty, const std::string& section) {
  std::string out, map;  // map: the nested map being written ("te_op_offload")
  for (const auto& [field, always] : fields_of(section)) {
    if (!always && same(field, scenario, empty)) continue;
    std::string name = field.name;
    std::string indent = "  ";
    if (const std::size_t dot = name.find('.'); dot != std::string::npos) {
      if (map != name.substr(0, dot)) out += fmt::format("  {}:\n", map = name.substr(0, dot));
      name.erase(0, dot + 1);
      indent = "    ";
    }
    out += fmt::format("{}{}: {}\n", indent, name, text(field, scenario));
  }
  return out;
}

std::string lines(const std::map<std::string, std::string>& values, bool quote) {
  std::string out;
  for (const auto& [name, value] : values) {
    out += fmt::format("  {}: {}\n", yaml_scalar(name), quote ? yaml_scalar(value) : value);
  }
  return out;
}

std::string search_text(const Scenario& scenario, const Scenario& empty) {
  std::string out = section_text(scenario, empty, "search");
  if (const auto& margin = scenario.search.memory_margin) {
    const std::string percent = yaml_number(margin->percent) + "%";
    out += "  memory_margin: " + (margin->bytes.value > 0 ? fmt::format("{}", margin->bytes.value) : percent) + "\n";
  }
  for (const auto& [name, values] : scenario.search.values)
    out += fmt::format("  {}: [{}]\n", name, fmt::join(values, ", "));
  return out;
}

}  // namespace

std::string write(const Scenario& scenario) {
  const Scenario empty = defaults(scenario.software);
  Scenario unstated;  // software has no defaults of its own to compare with but the structure's
  std::string out = "scenario: 1\n";
  const auto section = [&](const char* name, const std::string& body) {
    if (!body.empty()) out += fmt::format("{}:\n{}", name, body);
  };
  section("model", section_text(scenario, empty, "model") + lines(scenario.model.other, false));
  section("settings", section_text(scenario, empty, "settings") + lines(scenario.settings.other, false));
  section("environment", lines(scenario.environment, true));
  std::string cluster = section_text(scenario, empty, "cluster");
  if (!scenario.cluster.overrides.empty()) {
    cluster += "  overrides:\n";
    for (const auto& [name, value] : scenario.cluster.overrides) {
      cluster += fmt::format("    {}: {}\n", yaml_scalar(name), yaml_number(value));
    }
  }
  section("cluster", cluster);
  section("software", section_text(scenario, unstated, "software"));
  section("search", search_text(scenario, empty));
  if (!scenario.ignore.empty()) out += fmt::format("ignore: [{}]\n", fmt::join(scenario.ignore, ", "));
  if (scenario.measured) out += write_measured(*scenario.measured);
  return out;
}

std::string get(const Scenario& scenario, const std::string& name) {
  const std::size_t dot = name.find('.');
  const Field* field = find(name);
  if (field == nullptr && dot != std::string::npos) field = find(name.substr(0, dot), name.substr(dot + 1));
  if (field != nullptr) return text(*field, scenario);
  for (const auto* other : {&scenario.settings.other, &scenario.model.other}) {
    if (const auto found = other->find(name); found != other->end()) return found->second;
  }
  throw UsageError({}, name, "no such setting", {}, nearest_name(name, names_of("settings")));
}

}  // namespace pipewright::scenario
