#include "bridge_values.hpp"

#include <fmt/format.h>

#include <cstring>
#include <utility>

#include "bridge_config.hpp"
#include "emitted.hpp"

namespace pipewright::emit {

std::string value_in_megatron(const std::string& field, const Python& literal, const Position& where,
                              const std::string& key) {
  if (field == "pipeline_model_parallel_layout" && literal.kind == Python::Kind::list)
    return layout_of(literal, where, key);
  if (field == "window_size" && literal.kind == Python::Kind::number)  // Gemma 3's: it counts the query itself
    return fmt::format("[{}, 0]", integer_of(literal, where, key) - 1);
  if (field == "rotary_base" && literal.kind == Python::Kind::list && literal.items.size() == 2)
    return literal.items.back().text;  // Gemma 3's: of windowed layers, of the others
  std::string value = yaml_of(literal, where, key);
  const std::string word = unquoted(value);
  // Newer names of the same.
  if (field == "experimental_attention_variant" && word == "gdn") return "gated_delta_net";
  if (field == "cp_comm_type" && word == "allgather") return "all_gather";
  if (field == "moe_router_dtype" && word.starts_with("float")) return "fp" + word.substr(5);
  // Values that Megatron's router knows none of (core_r0.19.0 router.py:104-109, 387-396): its input's type, no loss.
  if (field == "moe_router_dtype" && (word == "bf16" || word == "fp16")) return "none";
  if (field == "moe_router_load_balancing_type" && word == "noaux_tc") return "\"none\"";
  if (field == "window_attn_skip_freq")  // Gemma 4's list of truths
    for (const auto& [truth, number] : {std::pair("true", "1"), std::pair("false", "0")})
      for (auto at = value.find(truth); at != std::string::npos; at = value.find(truth))
        value.replace(at, std::strlen(truth), number);
  return value;
}

}  // namespace pipewright::emit
