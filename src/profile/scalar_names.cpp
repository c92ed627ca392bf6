// The names that a profile's scalars may have (FORMAT.md): a figure that nobody asks for would count without a word.
#include "scalar_names.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "pipewright/profile.hpp"

namespace pipewright::profile {
namespace {

constexpr std::array whole_names = {
    "attention.backward.before_cudnn_9_17",
    "attention.forward.before_cudnn_9_17",
    "attention.thd.backward.bf16.empty_us",
    "attention.thd.forward.bf16.empty_us",
    "attention.thd.padded.backward.bf16.empty_us",
    "attention.thd.padded.forward.bf16.empty_us",
    "attention.thd.window.backward.bf16.empty_us",
    "attention.thd.window.forward.bf16.empty_us",
    "clocks.chips",
    "clocks.exchange_watts",
    "clocks.fluctuation",
    "clocks.law_spread",
    "clocks.peers",
    "clocks.ring",
    "clocks.window_ms",
    "host.backward_begin_us",
    "host.backward_end_us",
    "host.backward_node_us",
    "host.cuda_launch_us",
    "host.cuda_synchronize_us",
    "host.event_synchronize_us",
    "host.event_us",
    "host.event_wait_us",
    "host.forward_begin_us",
    "host.forward_end_us",
    "host.forward_node_us",
    "host.kernel_gap_us",
    "host.launch_and_synchronize_us",
    "host.p2p_call_us",
    "host.pinned_allocation_us_per_mib",
    "host.rank_spread",
    "host.run_spread",
    "host.slow_factor",
    "host.slow_share",
    "host.slowest_factor",
    "host.spread",
    "host.stream_synchronize_us",
    "host.time_factor",
    "in_situ.duty",
    "machine.slowdown",
    "machine.spread",
    "memory.error.outside_bytes",
    "memory.error.reserved",
    "memory.outside.context_bytes",
    "memory.outside.cublas_handle_bytes",
    "memory.outside.framework_bytes",
    "memory.outside.nccl_collective_bytes",
    "memory.outside.nccl_communicator_bytes",
    "memory.outside.nccl_group_1_bytes",
    "memory.outside.nccl_group_bytes",
    "memory.outside.nccl_library_1_bytes",
    "memory.outside.nccl_library_bytes",
    "memory.outside.nccl_transfer_library_bytes",
    "rope.backward.empty_us",
    "rope.forward.empty_us",
};

constexpr std::array directions = {"forward", "backward", "finalize", "optimizer"};
constexpr std::array kinds = {"attention", "matrix", "memory"};
constexpr std::array copies = {"copy_d2h", "copy_h2d"};
constexpr std::array exchanges = {"all_gather", "all_reduce", "all_to_all", "reduce_scatter", "send_recv"};
constexpr std::array link_classes = {"infiniband", "nvlink", "shared host memory"};

/// What costs the host time and is no kernel's family (model::Kernel::host_family).
constexpr std::array host_work = {
    "batch",
    "check",
    "cuda_graph",
    "fsdp.gather",
    "fsdp.gradients",
    "fsdp.reduce",
    "fsdp.reset",
    "fsdp.root",
    "fsdp.step",
    "fsdp.unit",
    "gated_delta.norm",
    "graph_clone",
    "graph_input",
    "mamba.decay",
    "moe.quick_geglu",
    "muon.matrix",
    "muon.part",
    "muon.step",
    "parameter",
    "quantize.delayed",
    "quantize.grouped",
    "roll",
    "rotation",
};

bool take(std::string_view& name, std::string_view prefix) {
  if (!name.starts_with(prefix)) return false;
  name.remove_prefix(prefix.size());
  return true;
}
bool cut(std::string_view& name, std::string_view suffix) {
  if (!name.ends_with(suffix)) return false;
  name.remove_suffix(suffix.size());
  return true;
}
template <class Names>
bool is_one_of(std::string_view name, const Names& names) {
  return std::ranges::find(names, name) != names.end();
}
bool is_count(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

/// gemm.bf16.tn, or what several families begin with: gemm, gemm.bf16; a collective also without its link.
bool is_operation(std::string_view name) {
  return is_one_of(name, host_work) || find_family(std::string(name)) != nullptr ||
         std::ranges::any_of(families(), [&](const Family& f) {
           return f.name.starts_with(name) && f.name.size() > name.size() && f.name[name.size()] == '.';
         });
}

bool is_host_cost(std::string_view name) {
  if (!take(name, "host.") || !cut(name, "_us")) return false;
  const auto dot = name.find('.');
  if (dot == std::string_view::npos || !is_one_of(name.substr(0, dot), directions)) return false;
  name.remove_prefix(dot + 1);
  if (is_operation(name)) return true;
  take(name, "fp8.");
  cut(name, "_each");
  return is_operation(name);
}

bool is_contention(std::string_view name) {
  if (!take(name, "contention.")) return false;
  if (is_one_of(name, kinds)) return true;
  const auto dot = name.find('.');
  if (dot == std::string_view::npos) return false;
  std::string_view beside = name.substr(0, dot);
  const std::string_view what = name.substr(dot + 1);
  if (beside == "four_way") return is_one_of(what, link_classes);
  if (beside == "two_way") return is_one_of(what, link_classes) || is_one_of(what, copies);
  if (take(beside, "beside_"))
    return is_one_of(beside, kinds) && (is_one_of(what, exchanges) || is_one_of(what, copies));
  if (take(beside, "gpus_")) {
    cut(beside, "_two_way");
    return is_count(beside) && is_one_of(what, copies);
  }
  return is_one_of(what, kinds) && (is_one_of(beside, exchanges) || is_one_of(beside, copies));
}

bool is_of_ranks(std::string_view name) {
  return (take(name, "memory.outside.nccl_communicator_") || take(name, "memory.outside.nccl_peers_")) &&
         cut(name, "_bytes") && is_count(name);
}

}  // namespace

bool is_scalar(std::string_view name) {
  return std::ranges::binary_search(whole_names, name) || is_host_cost(name) || is_contention(name) ||
         is_of_ranks(name);
}

std::string nearest_scalar(std::string_view name) {
  std::vector<std::string> known(whole_names.begin(), whole_names.end());
  for (const char* ranks : {"2", "4", "8"})
    for (const char* what : {"communicator", "peers"})
      known.push_back(fmt::format("memory.outside.nccl_{}_{}_bytes", what, ranks));
  for (const char* kind : kinds) known.push_back(fmt::format("contention.{}", kind));
  std::vector<std::string> beside(exchanges.begin(), exchanges.end());
  beside.insert(beside.end(), copies.begin(), copies.end());
  for (const auto& what : beside)
    for (const char* kind : kinds)
      known.push_back(fmt::format("contention.{}.{}", what, kind)),
          known.push_back(fmt::format("contention.beside_{}.{}", kind, what));
  for (const char* copy : copies)
    for (const char* how : {"two_way", "gpus_2", "gpus_4", "gpus_8", "gpus_2_two_way", "gpus_4_two_way"})
      known.push_back(fmt::format("contention.{}.{}", how, copy));
  for (const char* link : link_classes)
    for (const char* how : {"two_way", "four_way"}) known.push_back(fmt::format("contention.{}.{}", how, link));
  std::vector<std::string> operations(host_work.begin(), host_work.end());
  for (const auto& f : families())
    for (std::string operation = f.name; !operation.empty();) {
      operations.push_back(operation);
      const auto dot = operation.rfind('.');
      operation.resize(dot == std::string::npos ? 0 : dot);
    }
  for (const char* direction : directions)
    for (const auto& operation : operations)
      for (const char* times : {"", "_each"})
        known.push_back(fmt::format("host.{}.{}{}_us", direction, operation, times));
  std::erase_if(known, [&](const auto& one) {  // neither a slip of the fingers nor a word left out
    return one.size() > 2 * name.size() + 8 || 2 * one.size() + 8 < name.size();
  });
  return nearest_name(name, known);
}

}  // namespace pipewright::profile
