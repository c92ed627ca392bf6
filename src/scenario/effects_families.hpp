// Parts of a run that were measured alone (gated delta nets, hybrids, Megatron-FSDP, the optimizer on the host): what
// else of a run each is modelled beside. One table; what it does not name is refused by name.
#pragma once

#include <span>
#include <string>

#include "pipewright/scenario/types.hpp"

namespace pipewright::scenario {

struct Feature {
  const char* name;
  bool (*in_use)(const Scenario&);
  const char* example;  ///< settings that put it into use, for tests: "a=1; b=2"
};
std::span<const Feature> features();

enum class Family : unsigned char { delta_nets, hybrids, fsdp, host_optimizer };
constexpr Family families_with_limits[] = {Family::delta_nets, Family::hybrids, Family::fsdp, Family::host_optimizer};

bool modelled_beside(Family family, const Feature& feature);
/// Is something in use that the family is not modelled beside?
bool beside_unmodelled(Family family, const Scenario& s);
/// What of that is in use: "pipeline parallelism, adapters".
std::string unmodelled_beside(Family family, const Scenario& s);
/// The names of what it is not modelled beside: "context parallelism, activation offload, ...".
std::string not_beside(Family family);

}  // namespace pipewright::scenario
