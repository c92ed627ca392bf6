// The schedule table, warm-up counts and the configurations that Megatron refuses.
#include "order.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "pipewright/base.hpp"

namespace pipewright::schedule {

Table::Table(int microbatches, int chunks, int group_size) : chunks_(chunks) {
  rows_.reserve(static_cast<std::size_t>(microbatches) * static_cast<std::size_t>(chunks));
  for (int first = 0; first < microbatches; first += group_size) {
    const int end = std::min(first + group_size, microbatches);
    for (int chunk = 0; chunk < chunks; ++chunk)
      for (int microbatch = first; microbatch < end; ++microbatch) rows_.push_back({microbatch, chunk});
  }
}

Op Table::at(int virtual_microbatch, Pass pass) const {
  Op op = rows_[static_cast<std::size_t>(virtual_microbatch % total())];
  if (pass == Pass::backward) op.chunk = chunks_ - 1 - op.chunk;
  return op;
}

int group_size(const Config& config) { return config.group_size.value_or(config.stages); }
int period(const Config& config) { return config.chunks ? group_size(config) : 1; }

int warmup(const Config& config, int rank) {
  if (config.stages == 1) return 0;
  const int behind = config.stages - rank - 1;  // stages after this one
  if (!config.chunks) return std::min(behind, config.microbatches);
  // One more with expert-parallel overlap, so that forward and backward of a combined call are independent.
  const int filling = 2 * behind + (*config.chunks - 1) * group_size(config) + (config.ep_overlap ? 1 : 0);
  return std::min(filling, config.microbatches * *config.chunks);
}

std::vector<Calls> calls(const Config& config, int rank) {
  const int chunks = config.chunks.value_or(1);
  const Table table(config.microbatches, chunks, group_size(config));
  const int alone = config.stages == 1 ? 1 : warmup(config, rank), total = table.total();
  // [forward + 1][backward + 1]
  std::vector<int> times(static_cast<std::size_t>((chunks + 1) * (chunks + 1)));
  for (int k = 0; k < total + alone; ++k) {
    const int f = k < total ? table.at(k, Pass::forward).chunk : -1;
    const int b = k < alone ? -1 : table.at(k - alone, Pass::backward).chunk;
    ++times[static_cast<std::size_t>((f + 1) * (chunks + 1) + b + 1)];
  }
  std::vector<Calls> found;
  for (int f = -1; f < chunks; ++f)
    for (int b = -1; b < chunks; ++b)
      if (const int n = times[static_cast<std::size_t>((f + 1) * (chunks + 1) + b + 1)]; n > 0)
        found.push_back({f, b, n});
  return found;
}

Order order(const Config& config) {
  Order found{config.chunks.value_or(1), config.ep_overlap, {}, {}};
  const Table table(config.microbatches, found.chunks, config.chunks ? group_size(config) : config.microbatches);
  for (int k = 0; k < table.total(); ++k) {
    const Op op = table.at(k, Pass::forward);
    found.turns.push_back({op.microbatch, op.chunk});
  }
  for (int rank = 0; rank < config.stages; ++rank) found.forwards.push_back(warmup(config, rank));
  return found;
}

namespace {

[[noreturn]] void refuse(const char* key, std::string text) { throw UsageError({}, key, std::move(text)); }

void check_interleaved(const Config& c) {
  // parallel_state.py:828
  if (c.stages == 1)
    refuse("virtual_pipeline_model_parallel_size",
           "RuntimeError: pipeline-model-parallel size should be greater than 1 with interleaved schedule");
  // schedules.py:1059
  if (c.overlap_p2p && c.batched)
    refuse("overlap_p2p_comm", "ValueError: Can not use both overlap_p2p_comm and batch_p2p_comm");
  // With one chunk the last rank has no warm-up: pp_pre_forward (schedules.py:1741) frees an output that is not there.
  if (*c.chunks == 1 && c.overlap_p2p && !c.ep_overlap)
    refuse(
        "virtual_pipeline_model_parallel_size",
        "NameError: cannot access free variable 'output_tensor' where it is not associated with a value in enclosing "
        "scope: overlap_p2p_comm needs two chunks");
  // schedules.py:1194 gathers the parameters of chunks 0 and 1
  if (*c.chunks == 1 && c.align_param_gather)
    refuse("virtual_pipeline_model_parallel_size",
           "IndexError: list index out of range: align_param_gather needs two chunks");
  // schedules.py:1133
  const int group = group_size(c);
  if (group > c.microbatches || group < c.stages)
    refuse("microbatch_group_size_per_vp_stage",
           fmt::format("ValueError: The number of contiguous micro-batches in a virtual pipeline stage"
                       "should range in [PP={} , M={}]",
                       c.stages, c.microbatches));
  // schedules.py:1146
  const int rest = c.microbatches % group;
  if (0 < rest && rest < c.stages)
    refuse("microbatch_group_size_per_vp_stage",
           fmt::format("RuntimeError: The remainder of M (the total micro-batches) divided by N (number of contiguous "
                       "micro-batches in a virtual pipeline stage) should be 0, or larger than or equal to the "
                       "pipeline-parallel size, but it is {}. Otherwise, it introduces dependency bubbles in the "
                       "pipeline and reduces throughput.",
                       rest));
}

void check_layers(const Config& c) {
  const auto chunks = static_cast<std::size_t>(c.chunks.value_or(1));
  bool fits = c.layers.size() == static_cast<std::size_t>(c.stages);
  for (const auto& rank : c.layers) fits = fits && rank.size() == chunks;
  if (!fits) throw InternalError("schedule: layers are not given for every rank and chunk");
}

}  // namespace

void check(const Config& c) {
  const auto at_least_one = [](const char* key, int value) {
    if (value < 1) refuse(key, fmt::format("must be at least 1, is {}", value));
  };
  at_least_one("pipeline_model_parallel_size", c.stages);
  at_least_one("number of microbatches", c.microbatches);
  if (c.chunks) at_least_one("virtual_pipeline_model_parallel_size", *c.chunks);
  // Every op is written out with its transfers, about 300 bytes; this keeps a program below 4 GB.
  constexpr std::int64_t most = 12'000'000;
  const std::int64_t ops = std::int64_t{c.stages} * c.microbatches;
  if (ops > most || ops * c.chunks.value_or(1) > most)
    refuse("number of microbatches", fmt::format("ranks x microbatches x chunks must be at most {}", most));

  // model_parallel_config.py:570
  if (c.warmup_flush && (!c.overlap_p2p || c.batched))
    refuse("overlap_p2p_comm_warmup_flush",
           "ValueError: Pipeline parallel communication overlapping in warmup and flush is only compatible with "
           "overlap_p2p_comm but not batch_p2p_comm.");
  // transformer_config.py:2674
  if (c.ep_overlap && c.stages > 1 && !c.chunks)
    refuse("overlap_moe_expert_parallel_comm",
           "AssertionError: If enabling EP A2A overlap, virtual_pipeline_model_parallel_size must be specified when "
           "pipeline_model_parallel_size > 1");
  if (c.chunks)
    check_interleaved(c);
  else if (c.overlap_p2p && c.stages > 1)  // schedules.py:2154
    refuse("overlap_p2p_comm",
           "ValueError: Non-interleaved pipeline parallelism does not support overlapping p2p communication");
  if (!c.layers.empty()) check_layers(c);
}

}  // namespace pipewright::schedule
