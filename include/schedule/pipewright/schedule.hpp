// Megatron's program for every pipeline rank: forward, backward, weight gradient, P2P calls and waits in the order in
// which the host issues them (Megatron-LM core_r0.19.0 megatron/core/pipeline_parallel/schedules.py, unless said).
// Times and tensors play no part here. The text form is the one of `pipewright schedule`, see src/schedule/SYNTAX.md.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

namespace pipewright::scenario {
struct Scenario;
}

namespace pipewright::schedule {

/// A layer as expert-parallel overlap cuts it: a dense one has no dispatch and combine, an MTP one a node more.
struct Layer {
  bool moe = true;
  bool mtp = false;
};

/// What decides the order. `chunks`: model chunks per rank (v), nullopt without interleaving.
struct Config {
  int stages = 1;                                              ///< p
  std::optional<int> chunks;                                   ///< v
  int microbatches = 1;                                        ///< m
  std::optional<int> group_size;                               ///< N, default p; only with chunks
  bool overlap_p2p = false;                                    ///< overlap_p2p_comm
  bool warmup_flush = false;                                   ///< overlap_p2p_comm_warmup_flush
  bool batched = true;                                         ///< batch_p2p_comm
  bool ep_overlap = false;                                     ///< overlap_moe_expert_parallel_comm
  bool deallocate_outputs = true;                              ///< deallocate_pipeline_outputs
  bool align_grad_reduce = false, align_param_gather = false;  ///< grad_sync_func, param_sync_func are set
  bool overlap_grad_reduce = false;                            ///< no_sync_func is set
  bool varied = false;           ///< microbatches differ in time: the schedule has no steady state
  int deferred_head_wgrads = 0;  ///< microbatches whose head weight gradient waits for the end of the step
  /// From 0.18 on a forward send is waited for at once (commit 260cba7133), a combined backward of chunk 0 runs its
  /// data-parallel hooks and mtp_post_process follows the backward of attention. False: 0.16, 0.17, PR 4268.
  bool from_0_18 = true;

  // Only with ep_overlap; the last three are pull request 4268's.
  bool delay_wgrad_compute = false;
  bool ep_overlap_early_attn_memory_release = false;
  bool overlap_p2p_backward_on_comm_stream = false;
  bool overlap_p2p_with_transformer_layer_wgrad = false;
  int overlap_p2p_wgrad_delayed_layer_number = 1;  ///< 1: as without the pull request
  /// [rank][chunk][layer]: combined calls are written out node by node. Empty: one instruction a call.
  std::vector<std::vector<std::vector<Layer>>> layers;
};

enum class Kind : std::uint8_t {
  forward,         ///< F m.c
  backward,        ///< B m.c
  combined,        ///< F m.c | B m2.c2, layer by layer (expert-parallel overlap)
  combined_begin,  ///< { : the same call written out, its nodes, waits and P2P calls follow; no microbatch: no such
                   ///< side
  combined_end,    ///< }
  node,            ///< f m.c:layer:name, b ..., w ...
  p2p_sync,        ///< S[...]: parts issued in order, all waited for
  p2p_async,       ///< A[...]
  wait,            ///< W part
  deallocate,      ///< D m.c: output of F m.c shrinks to one element
  no_sync_enter,   ///< gradient synchronisation disabled
  no_sync_exit,
  param_sync,  ///< PG c
  grad_sync,   ///< RS c
};

/// One transfer. `microbatch`, `chunk` name the compute op of the SAME rank that makes or consumes the tensor.
struct Part {
  enum class Type : std::uint8_t { send_next, recv_prev, send_prev, recv_next } type = Type::send_next;
  std::int16_t chunk = 0;
  std::int32_t microbatch = 0;

  constexpr Part() = default;
  constexpr Part(Type t, int m, int c) : type(t), chunk(static_cast<std::int16_t>(c)), microbatch(m) {}
  friend bool operator==(const Part&, const Part&) = default;
};

/// The at most four parts of a P2P call, in place.
class Parts {
 public:
  void push_back(Part part) { parts_[size_++] = part; }
  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  const Part& front() const { return parts_[0]; }
  const Part& operator[](std::size_t i) const { return parts_[i]; }
  const Part* begin() const { return parts_.data(); }
  const Part* end() const { return parts_.data() + size_; }

 private:
  std::array<Part, 4> parts_;
  std::uint8_t size_ = 0;
};

/// A piece of a chunk under expert-parallel overlap (ScheduleNode).
struct Node {
  enum class Name : std::uint8_t {
    embed,
    pre_dispatch_computation,  ///< attention, router and shared experts ("attn" until 0.18)
    moe_dispatch,
    mlp,
    moe_combine,
    mtp_post_process,
    logits,
    loss
  } name = Name::embed;
  enum class Pass : std::uint8_t { forward, backward, weight_gradient } pass = Pass::forward;
  std::int16_t layer = -1;  ///< within the chunk; -1: embed, logits, loss
  /// Those that stand on the communication stream.
  static constexpr bool communicates(Name name) { return name == Name::moe_dispatch || name == Name::moe_combine; }
  friend bool operator==(const Node&, const Node&) = default;
};

constexpr int no_microbatch = -1;  ///< combined_begin: the call has no forward, or no backward

struct Instruction {
  Kind kind = Kind::forward;
  bool on_communication_stream = false;  ///< suffix @c
  Node node;                             ///< node
  int microbatch = 0, chunk = 0;         ///< forward, backward, deallocate, node, combined*'s forward, PG, RS
  int backward_microbatch = 0, backward_chunk = 0;  ///< combined, combined_begin
  Parts parts;                                      ///< p2p_sync, p2p_async; one for wait
};

struct RankProgram {
  int warmup = 0;  ///< as get_pp_rank_microbatches returns
  std::vector<Instruction> instructions;
};

struct Program {
  Config config;
  std::vector<RankProgram> ranks;
};

/// Throws UsageError with the text of Megatron's own exception where it refuses the configuration.
void check(const Config& config);

/// schedules.py:902-959, get_pp_rank_microbatches: forward passes before the first backward.
int warmup(const Config& config, int rank);

/// A rank's calls under expert-parallel overlap, each the forward of a chunk and the backward of one (-1: none), those
/// that are alike together: first forwards alone, then both, in the end backwards alone.
struct Calls {
  int forward = -1, backward = -1;  ///< chunks
  int times = 0;
};
std::vector<Calls> calls(const Config& config, int rank);

/// In which order ranks run their passes: the nth forward is of turn n, the nth backward of that microbatch and of the
/// chunk counted from the last one. `forwards` come before the first backward; after these each rank does one of both,
/// under expert-parallel overlap in one call.
struct Turn {
  int microbatch = 0, chunk = 0;
};
struct Order {
  int chunks = 1;
  bool combined = false;
  std::vector<Turn> turns;
  std::vector<int> forwards;  ///< by rank
};
Order order(const Config& config);

/// Nodes of a forward and a backward layer in one combined call, in host order: `visit(pass, name)`, also where a layer
/// has no such node (model_chunk_schedule_plan.py:236-303). Weight gradients that wait longer come later than here.
/// `early`: ep_overlap_early_attn_memory_release; `from_0_18`: as Config has it.
template <class Visit>
void in_turns(bool early, bool from_0_18, const Visit& visit) {
  using Name = Node::Name;
  using Pass = Node::Pass;
  visit(Pass::backward, Name::mtp_post_process);
  visit(Pass::backward, Name::moe_combine);
  visit(Pass::forward, Name::pre_dispatch_computation);
  visit(Pass::backward, Name::mlp);
  visit(Pass::forward, Name::moe_dispatch);
  visit(Pass::weight_gradient, Name::mlp);
  visit(Pass::backward, Name::moe_dispatch);
  if (early) visit(Pass::backward, Name::pre_dispatch_computation);
  visit(Pass::forward, Name::mlp);
  visit(Pass::forward, Name::moe_combine);
  if (!from_0_18) visit(Pass::forward, Name::mtp_post_process);
  if (!early) visit(Pass::backward, Name::pre_dispatch_computation);
  if (from_0_18) visit(Pass::forward, Name::mtp_post_process);
  visit(Pass::weight_gradient, Name::pre_dispatch_computation);
}

/// A moment of a rank's step at which a backward begins, or a combined call with one: forwards of each chunk that came
/// before it and whose backwards have not; of a combined call the chunks of its forward (-1: none) and backward.
struct Moment {
  std::vector<int> in_flight;  ///< by chunk
  int forward = -1, backward = -1;
  bool operator<(const Moment& other) const {
    return std::tie(in_flight, forward, backward) < std::tie(other.in_flight, other.forward, other.backward);
  }
};

/// N in force: microbatches that a chunk runs in a row before the rank goes on to the next one.
int group_size(const Config& config);
/// Microbatches after which every rank does the same again: N with interleaving, 1 without.
int period(const Config& config);

/// check(), then every rank's program.
Program build(const Config& config);

/// "F0.0", "S[sn0.0 rn0.0]", ... With `hooks` also no_sync/PG/RS, with `frees` also D.
std::vector<std::string> text(const RankProgram& rank, bool hooks = false, bool frees = false);

/// The configuration that a scenario's settings and software version mean. With `detail` also the layers of every
/// chunk.
Config config_of(const scenario::Scenario& scenario, bool detail = false);

}  // namespace pipewright::schedule
