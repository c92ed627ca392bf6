#include "bridge_precision.hpp"

namespace pipewright::emit {

const std::map<std::string, std::vector<Assignment>>& precision_recipes() {
  static const std::map<std::string, std::vector<Assignment>> table = [] {
    const std::vector<Assignment> plain = {{"fp8", "none"},
                                           {"fp8_recipe", "tensorwise"},
                                           {"first_last_layers_bf16", "false"},
                                           {"fp8_margin", "0"},
                                           {"fp8_amax_history_len", "1"},
                                           {"fp8_amax_compute_algo", "most_recent"},
                                           {"fp8_wgrad", "true"},
                                           {"fp8_param", "false"},
                                           {"fp8_param_gather", "false"},
                                           {"fp4", "none"},
                                           {"fp4_param", "false"},
                                           {"fp4_param_gather", "false"},
                                           {"num_layers_at_start_in_bf16", "0"},
                                           {"num_layers_at_end_in_bf16", "0"},
                                           {"reuse_grad_buf_for_mxfp8_param_ag", "false"}};
    const auto with = [](std::vector<Assignment> base, const std::vector<Assignment>& more) {
      base.insert(base.end(), more.begin(), more.end());
      return base;
    };
    const std::vector<Assignment> gather = {{"fp8_param", "true"}, {"fp8_param_gather", "true"}};
    const auto delayed = with({{"fp8", "hybrid"},
                               {"fp8_recipe", "delayed"},
                               {"fp8_amax_history_len", "1024"},
                               {"fp8_amax_compute_algo", "max"}},
                              gather);
    const auto current = with({{"fp8", "hybrid"},
                               {"fp8_recipe", "tensorwise"},
                               {"first_last_layers_bf16", "true"},
                               {"num_layers_at_start_in_bf16", "1"},
                               {"num_layers_at_end_in_bf16", "1"}},
                              gather);
    const auto mxfp8 =
        with({{"fp8", "e4m3"}, {"fp8_recipe", "mxfp8"}, {"reuse_grad_buf_for_mxfp8_param_ag", "true"}}, gather);
    const std::vector<Assignment> subchannel = {{"fp8", "hybrid"}, {"fp8_recipe", "blockwise"}};
    const auto bf16 = with(plain, {{"bf16", "true"}, {"fp16", "false"}, {"grad_reduce_in_fp32", "true"}});
    const auto fp16 = with(plain, {{"bf16", "false"}, {"fp16", "true"}, {"grad_reduce_in_fp32", "false"}});
    std::map<std::string, std::vector<Assignment>> map;
    for (const auto& [prefix, base] : {std::pair{std::string("bf16"), bf16}, std::pair{std::string("fp16"), fp16}}) {
      map[prefix + "_mixed"] = base;
      map[prefix + "_with_fp8_delayed_scaling_mixed"] = with(base, delayed);
      map[prefix + "_with_fp8_current_scaling_mixed"] = with(base, current);
      map[prefix + "_with_mxfp8_mixed"] = with(base, mxfp8);
      map[prefix + "_with_fp8_subchannel_scaling_mixed"] = with(base, subchannel);
    }
    return map;
  }();
  return table;
}

}  // namespace pipewright::emit
