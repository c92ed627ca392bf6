// What the tests of emit share: the machine that flags do not name, and what a round trip lost without saying so.
#pragma once

#include <algorithm>
#include <string>

#include "../../src/emit/emitted.hpp"
#include "../../src/emit/field_table.hpp"
#include "pipewright/emit.hpp"
#include "pipewright/scenario/fields.hpp"

namespace pipewright {

inline emit::Machine machine_of(const scenario::Scenario& s) {
  return {s.cluster.num_gpus, s.cluster.gpus_per_node, s.cluster.profile, s.software.megatron_core};
}

/// Fields that differ and that no comment of `groups` names.
inline std::string unsaid_differences(const scenario::Scenario& a, const scenario::Scenario& b,
                                      const emit::Groups& groups) {
  std::string text;
  const auto remarks = emit::comments(groups);
  for (const auto& field : scenario::fields()) {
    if (field.section != "model" && field.section != "settings") continue;
    if (emit::same_value(a, b, field.name) || !emit::matters(field.name, a)) continue;
    if (std::ranges::any_of(remarks, [&](const std::string& r) { return r.starts_with(field.name + ":"); })) continue;
    text += field.name + ": " + scenario::get(a, field.name) + " -> " + scenario::get(b, field.name) + "\n";
  }
  return text;
}

}  // namespace pipewright
