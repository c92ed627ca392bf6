// A table of userbuffers as it stands in a scenario: tp_comm_overlap_cfg, the contents of Megatron's YAML file.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace pipewright::scenario {

/// By product ("qkv_dgrad", "fc1_wgrad", "proj_fprop", ...): multiprocessors (num_sm) of the collective beside it, all
/// the while; 1 for a ring exchange, which copies. Nothing where the text is no such table, or where a product overlaps
/// otherwise than by Transformer Engine's own choice (pytorch/module/base.py:375-395): bulk beside dgrad and wgrad of
/// column-parallel layers, a ring exchange of what is gathered, a ring exchange or a pipeline of what is scattered.
std::optional<std::map<std::string, std::int64_t>> overlap_products(const std::string& text);

}  // namespace pipewright::scenario
