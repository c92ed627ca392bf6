#include "bridge_overlap.hpp"

#include <algorithm>
#include <utility>

#include "pipewright/userbuffers.hpp"

namespace pipewright::emit {

bool is_known_overlap(const scenario::Scenario& scenario, const Python& table, const Position& where) {
  const auto entry = [](const Python& of, const char* name) -> const Python* {
    for (const auto& [key, value] : of.entries)
      if (key == name) return &value;
    return nullptr;
  };
  using Multiprocessors = model::OverlapMultiprocessors;
  const auto known = model::possible_overlaps(scenario);
  if (table.entries.empty())
    return std::ranges::any_of(known, [&](const auto& one) { return one.name != nullptr && table.text == one.name; });
  Multiprocessors said = known.front().multiprocessors;
  for (const auto& [name, member] : {std::pair("qkv_dgrad", &Multiprocessors::qkv_dgrad),
                                     {"qkv_wgrad", &Multiprocessors::qkv_wgrad},
                                     {"fc1_dgrad", &Multiprocessors::fc1_dgrad},
                                     {"fc1_wgrad", &Multiprocessors::fc1_wgrad},
                                     {"proj_fprop", &Multiprocessors::proj_forward},
                                     {"fc2_fprop", &Multiprocessors::fc2_forward}})
    if (const auto* product = entry(table, name)) {
      if (const auto* multiprocessors = entry(*product, "num_sm"))
        said.*member = integer_of(*multiprocessors, where, std::string(name) + ".num_sm");
      else if (product->text.ends_with("RingExchangeOverlapCfg"))
        said.*member = 1;  // its class' default
    }
  return std::ranges::find(known, said, &model::OverlapTable::multiprocessors) != known.end();
}

}  // namespace pipewright::emit
