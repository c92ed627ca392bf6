// Megatron's program for every pipeline rank: forward, backward, weight gradient, P2P calls and waits in the order in
// which the host issues them (Megatron-LM core_r0.19.0 megatron/core/pipeline_parallel/schedules.py, unless said).
// Times and tensors play no part here. The text form is the one of `pipewright schedule`, see src/schedule/SYNTAX.md.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace pipewright::schedule {

/// What decides the order. `chunks`: model chunks per rank (v), nullopt without interleaving.
struct Config {
  int stages = 1;                       ///< p
  std::optional<int> chunks;            ///< v
  int microbatches = 1;                 ///< m
  std::optional<int> group_size;        ///< N, default p; only with chunks
  bool overlap_p2p = false;             ///< overlap_p2p_comm
  bool warmup_flush = false;            ///< overlap_p2p_comm_warmup_flush
  bool batched = true;                  ///< batch_p2p_comm
  bool ep_overlap = false;              ///< overlap_moe_expert_parallel_comm
  bool forward_send_waited = true;      ///< from 0.18: the forward send is waited at once (commit 260cba7133)
  bool deallocate_outputs = true;       ///< deallocate_pipeline_outputs
  bool align_grad_reduce = false, align_param_gather = false;  ///< grad_sync_func, param_sync_func are set
  bool overlap_grad_reduce = false;     ///< no_sync_func is set
};

enum class Kind : std::uint8_t {
  forward,        ///< F m.c
  backward,       ///< B m.c
  combined,       ///< F m.c | B m2.c2, layer by layer (expert-parallel overlap)
  p2p_sync,       ///< S[...]: parts issued in order, all waited for
  p2p_async,      ///< A[...]
  wait,           ///< W part
  deallocate,     ///< D m.c: output of F m.c shrinks to one element
  no_sync_enter,  ///< gradient synchronisation disabled
  no_sync_exit,
  param_sync,     ///< PG c
  grad_sync,      ///< RS c
};

/// One transfer. `microbatch`, `chunk` name the compute op of the SAME rank that makes or consumes the tensor.
struct Part {
  enum class Type : std::uint8_t { send_next, recv_prev, send_prev, recv_next } type;
  int microbatch = 0, chunk = 0;
  friend bool operator==(const Part&, const Part&) = default;
};

struct Instruction {
  Kind kind;
  int microbatch = 0, chunk = 0;                    ///< forward, backward, deallocate, combined (its forward), PG, RS
  int backward_microbatch = 0, backward_chunk = 0;  ///< combined
  bool on_communication_stream = false;             ///< suffix @c
  std::vector<Part> parts;                          ///< p2p_sync, p2p_async; one for wait
};

struct RankProgram {
  int warmup = 0;  ///< as get_pp_rank_microbatches returns
  std::vector<Instruction> instructions;
};

struct Program {
  Config config;
  std::vector<RankProgram> ranks;
};

/// Throws UsageError with the text of Megatron's own exception where the schedule functions refuse the configuration.
Program build(const Config& config);

/// "F0.0", "S[sn0.0,rn0.0]", ... With `hooks` also no_sync/PG/RS, with `frees` also D.
std::vector<std::string> text(const RankProgram& rank, bool hooks = false, bool frees = false);

}  // namespace pipewright::schedule
