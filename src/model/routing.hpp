// To how many units (GPUs, nodes) the experts of one token belong.
#pragma once

#include "pipewright/scenario/types.hpp"

namespace pipewright::model {

struct Routing {
  scenario::Int experts = 1, topk = 1;
  scenario::Int groups = 1, group_topk = 0;  ///< group-limited routing: moe_router_num_groups, moe_router_group_topk
  friend auto operator<=>(const Routing&, const Routing&) = default;
};

/// Expected number of units of `units` to which a token goes, experts in equal consecutive parts, all equally likely.
double units_of_a_token(const Routing& routing, scenario::Int units);

}  // namespace pipewright::model
