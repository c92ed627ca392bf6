#include "pipewright/scenario/overlap_table.hpp"

#include <algorithm>
#include <array>
#include <string_view>

#include "pipewright/base.hpp"
#include "pipewright/scenario/yaml_value.hpp"

namespace pipewright::scenario {
namespace {

struct Product {
  std::string_view name;
  bool bulk, scatters;
};
constexpr std::array products = {
    Product{"qkv_dgrad", true, false},   Product{"qkv_wgrad", true, false},  Product{"fc1_dgrad", true, false},
    Product{"fc1_wgrad", true, false},   Product{"qkv_fprop", false, false}, Product{"fc1_fprop", false, false},
    Product{"proj_dgrad", false, false}, Product{"fc2_dgrad", false, false}, Product{"proj_fprop", false, true},
    Product{"fc2_fprop", false, true},
};

/// What Transformer Engine takes of a product (pytorch/module/base.py, add_ub); others end its start.
constexpr std::array<std::string_view, 13> options = {"method",
                                                      "is_reduce_scatter",
                                                      "num_sm",
                                                      "cga_size",
                                                      "set_sm_margin",
                                                      "num_splits",
                                                      "aggregate",
                                                      "atomic_gemm",
                                                      "use_ce",
                                                      "fp8_buf",
                                                      "comm_priority",
                                                      "gemm_priority",
                                                      "pipeline_rs_overlap_first_gemm"};

const Value* entry(const Value& map, std::string_view key) {
  const auto found = std::ranges::find(map.entries, key, &Value::Entry::key);
  return found == map.entries.end() ? nullptr : &found->value;
}

Value table_of(const std::string& text) {
  try {
    return parse_yaml("table: " + text, "tp_comm_overlap_cfg");
  } catch (const UsageError&) {
    return {};
  }
}

}  // namespace

std::optional<std::map<std::string, std::int64_t>> overlap_products(const std::string& text) {
  const Value document = table_of(text);
  const Value* table = entry(document, "table");
  if (table == nullptr || table->kind != Value::Kind::map) return {};
  std::map<std::string, std::int64_t> held;
  for (const auto& [key, line, value] : table->entries) {
    const auto product = std::ranges::find(products, key, &Product::name);
    const Value* method = entry(value, "method");
    if (product == products.end() || method == nullptr) return {};
    for (const auto& option : value.entries)
      if (std::ranges::find(options, option.key) == options.end()) return {};
    if (const Value* atomic = entry(value, "atomic_gemm");
        atomic != nullptr && as_bool(*atomic).value_or(true) && as_int(*atomic).value_or(1) != 0)
      return {};
    const bool ring = method->text == "ring_exchange", bulk = method->text == "bulk";
    if (bulk != product->bulk || (!bulk && !ring && !(product->scatters && method->text == "pipeline"))) return {};
    const Value* count = entry(value, "num_sm");
    const auto multiprocessors = count == nullptr ? std::nullopt : as_int(*count);
    if (!ring && (!multiprocessors || *multiprocessors < 1)) return {};
    held[key] = ring ? 1 : *multiprocessors;
  }
  return held;
}

}  // namespace pipewright::scenario
