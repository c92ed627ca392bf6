// The scenarios in which scenario::moves() changes one name: their bases, and how a change is written.
#pragma once

#include <string>
#include <string_view>

#include "../plan/bases.hpp"
#include "pipewright/effects.hpp"
#include "pipewright/scenario/io.hpp"

namespace pipewright::test {

inline scenario::Scenario base_of(std::string_view name) {
  const bool latent = name == "mla", combined = name == "combined";
  auto s = test::scenario(latent || combined ? "moe" : name, "");
  change(s,
         "profile=h200-sxm; bias_activation_fusion=true; apply_rope_fusion=true; bias_dropout_fusion=true; "
         "moe_permute_fusion=true");
  if (latent) change(s, "multi_latent_attention=true; q_lora_rank=1536; num_query_groups=none");
  if (combined) change(s, "overlap_moe_expert_parallel_comm=true");
  return s;
}

inline void assign(scenario::Scenario& s, const std::string& name, const std::string& value) {
  const auto* row = scenario::effect_of(name);
  const bool variable = name.find_first_of("abcdefghijklmnopqrstuvwxyz") == std::string::npos && row != nullptr;
  change(s, (variable ? "$" : "") + name + "=" + value);
}

}  // namespace pipewright::test
