// Attention that a run has fused and its scenario has not, or the other way round: other kernels, and without fusion
// the scores in memory.
#include <fmt/format.h>

#include "pipewright/import.hpp"
#include "pipewright/regex.hpp"

namespace pipewright::traces {
namespace {

bool is_unfused(const scenario::Scenario& s) {
  return s.settings.transformer_impl == "local" || s.settings.attention_backend == "unfused";
}

std::optional<std::string> first_like(const Regex& expression, const Trace& trace) {
  for (const auto& name : trace.names)
    if (const auto found = expression.first_in(name); !found.empty()) return found.front();
  return std::nullopt;
}

}  // namespace

std::optional<std::string> told_unfused(const scenario::Scenario& scenario, const std::string& seen) {
  if (is_unfused(scenario)) return std::nullopt;
  return fmt::format(
      "attention ran unfused ({}), where the scenario has it fused: Transformer Engine was told to use no fused "
      "kernel, or found none that serves. Look at NVTE_FLASH_ATTN and NVTE_FUSED_ATTN (0 switches one off), at the "
      "cuDNN that it loads (LD_LIBRARY_PATH) and at what NVTE_DEBUG=1 NVTE_DEBUG_LEVEL=2 prints; attention_backend "
      "unfused says that it is meant",
      seen);
}

std::optional<std::string> other_attention(const scenario::Scenario& scenario, const Trace& trace) {
  static const Regex fused(R"(\w*(sdpa|flash_[fb]prop|flash_fwd|flash_bwd|FlashAttn|flex_attention)\w*)");
  // transformer_engine/common/fused_softmax/*.cu, which Megatron's FusedScaleMaskSoftmax calls too; without them ATen's
  // over rows that are longer than a warp holds.
  static const Regex softmax(R"(scaled_\w*softmax_warp_\w+|cunn_SoftMax\w+)");
  const auto ran = first_like(fused, trace);
  if (is_unfused(scenario)) {
    if (!ran) return std::nullopt;
    return fmt::format(
        "attention ran fused ({}), where the scenario has it unfused: its attention_backend or transformer_impl is "
        "another",
        *ran);
  }
  const auto scores = ran ? std::nullopt : first_like(softmax, trace);
  return scores ? told_unfused(scenario, *scores) : std::nullopt;
}

}  // namespace pipewright::traces
