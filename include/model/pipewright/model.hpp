// A pipeline stage as Megatron Core with Transformer Engine runs it: for every layer the kernels it launches and the
// tensors it allocates and frees, in host order, forward and backward apart. One description serves both the timeline
// (it reads the launches) and the memory walk (it reads the allocations), so that they cannot disagree.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "pipewright/base.hpp"
#include "pipewright/network.hpp"
#include "pipewright/profile.hpp"
#include "pipewright/scenario/types.hpp"
#include "pipewright/schedule.hpp"

namespace pipewright::model {

/// The stream whose FIFO a kernel joins. Synchronous collectives run on `compute` (reference 8.15).
enum class Stream : std::uint8_t { compute, communication, gradient, parameter, d2h, h2d };

/// What a kernel's time is booked as; decides the `exposed_ms` key where nothing else computes.
enum class Purpose : std::uint8_t { compute, tp, cp, ep, dp, offload };

struct Kernel {
  std::string name;  ///< "mlp.fc1 forward"; what reports show
  profile::Key key;  ///< its time; empty family: takes no time on the GPU (a host cost only)
  Stream stream = Stream::compute;
  Purpose purpose = Purpose::compute;
  std::string link;  ///< of a collective: the link class that it crosses
  /// Of a collective that leaves its NVLink domain and of token dispatchers: what moves between whom.
  std::optional<profile::Exchange> exchange;
  bool recompute = false;   ///< runs in the backward pass only because activations were dropped
  bool graphed = false;     ///< replayed by a CUDA graph: the host launches the graph, not the kernel
  std::string host_family;  ///< whose host cost it has; empty: the key's
  int launches = 1;  ///< kernels that the host launches for it (a grouped GEMM, a router's elementwise operations)
  /// Launched from C++ inside the call of the kernel before it (loops of userbuffers): costs its bare launches.
  bool within_call = false;
  int parameters = 0;  ///< weights of a group whose gradients are then complete: autograd and DDP call hooks for each
  /// Of the key's time: attention of packed sequences has a part of its key's work, equal matrices of Muon several
  /// times.
  double share = 1;
  /// Laid out for packed sequences and found empty: blocks of the rotary embedding beyond the end of a sequence,
  /// sequences of attention beyond those of its key; the scalar FAMILY.empty_us each.
  std::int64_t empty = 0;
  /// What its key and share stand for where they are not its own: sequences of several lengths as ones of a single
  /// length; attention in FP8 as its part of the same attention in 16 bits.
  enum class TimedAs : std::uint8_t {
    itself,
    equal_lengths,
    attention_in_16_bits,
    usual_attention
  } timed_as = TimedAs::itself;
  double sm_share =
      1;  ///< share of the multiprocessors that it may use; less than 1: the others are left to what runs beside
  bool read_by_host = false;  ///< of gradient_sync, finalize: the host waits for its result
  /// Of coalesced collectives: bytes that c10d keeps until NCCL's watchdog has seen the work end.
  std::int64_t kept = 0;
  bool joins_pipeline = false;  ///< a collective over all pipeline ranks (gradient norm, tied embeddings)
};

/// A tensor that the caching allocator sees. `owner` indexes Stages::owners ("mlp.fc1_output").
struct Tensor {
  /// Where it lives: in the caching allocator; in the private pool of CUDA graphs (reserved for good, not allocated
  /// while the graph is replayed), there as the gradient that a graph returns (it stays until the next one returns
  /// its own); in a static buffer, made when there is none to spare and kept for good; in a cache of the process, made
  /// by the first that needs one of this size and shape; a view of another tensor.
  enum class Home : std::uint8_t { allocator, graph_pool, graph_gradient, static_buffer, cached, view };
  std::uint32_t owner = 0;
  Bytes bytes;
  Stream stream = Stream::compute;
  Home home = Home::allocator;
  std::uint8_t element_bytes = 2;
  std::uint32_t shape = 0;  ///< rows: tells cached tensors of one size apart
  bool gradient = false;    ///< a parameter's .grad until its hook has added it to the main gradient
  bool exchanged = false;   ///< c10d's stream sends or receives it: free when the GPU has come to where it is dropped
  bool varies = false;      ///< with the rows that routing sends here, Piece::row_spread; bytes are those of the mean
};

/// One line of host code: allocate or free a tensor of the piece, launch a kernel of it, let the compute stream wait.
/// A kernel on another stream starts not before what the compute stream holds at its launch (NCCL, copy streams); the
/// compute stream goes on without it until a `wait` for that stream.
struct Step {
  enum class Kind : std::uint8_t {
    allocate,
    free,
    launch,
    wait,         ///< the current stream waits for what a stream holds
    synchronize,  ///< the host waits for what a stream holds
    // Hooks of activation offload (reference 4.3, 4.4), each of a group; what happens there: offload.hpp.
    offload_begin,   ///< forward: the group's region, or a layer, begins
    offload_commit,  ///< forward: the region ends
    reload_wait,     ///< backward: the group's tensors are needed
    reload_hook      ///< backward: the group's region is done, or the layer's backward begins
  } kind;
  /// Into Piece::tensors, Piece::kernels or Piece::groups; wait, synchronize: the Stream.
  std::uint32_t index;
  /// It runs for these microbatches of a step only: the first (casts of weights to FP8), those whose weight gradients
  /// wait for the end of the step, those after them.
  std::int32_t from_microbatch = 0, before_microbatch = INT32_MAX;
  constexpr bool runs(int microbatch) const { return microbatch >= from_microbatch && microbatch < before_microbatch; }
};

/// Tensors that fine-grained offload moves together, or a layer of whole-layer offload. Too small ones are not listed.
struct OffloadGroup {
  struct Move {
    std::uint32_t tensor = 0;
    std::uint32_t back = 0;         ///< where the reload puts it: another tensor if others hold the first one
    std::uint32_t out = 0, in = 0;  ///< its copies, into Piece::kernels
    bool releases = true;           ///< nobody else holds the tensor then
    /// Whole layer: the kernel after which it can be copied (none: there from the start); fine-grained: not used.
    std::uint32_t after = none;
    Bytes packed;  ///< paged stash: of its rows that are tokens
  };
  /// Paged stash: rows that go to the pages of one kind, which hold rows of one type and width.
  struct Pages {
    enum class Type : std::uint8_t { bytes, e4m3, e8m0, bf16, fp32 } type;
    std::int64_t row_bytes = 0;
    std::uint32_t owner = 0;              ///< of the buffer
    std::int64_t expected = 0, rows = 0;  ///< with balanced routing; as routed, with what aligns experts
  };
  static constexpr std::uint32_t none = 0xffffffff;
  std::string name;  ///< the entry of offload_modules; "layer"; "paged stash"
  std::vector<Move> moves;
  std::vector<Pages> pages;
};

/// A piece under expert-parallel overlap: one of the nodes into which a layer, embedding or head is cut
/// (reference 2.3). Its kernels on Stream::compute mean the node's own stream.
struct NodeSteps {
  schedule::Node::Name name;
  std::vector<Step> forward, backward, weight_gradient;
};

/// A layer, an embedding or an output layer with its loss. Tensors 0..3 are its borders and shared with the neighbours:
/// the output of a piece IS the input of the next one (one tensor, freed by whoever is the last to hold it).
struct Piece {
  static constexpr std::uint32_t input = 0, output = 1, output_gradient = 2, input_gradient = 3;
  std::string name;             ///< "layer", "embedding", "head"
  std::vector<Tensor> tensors;  ///< [0..3] as above; zero bytes where there is none
  std::vector<Kernel> kernels;
  std::vector<Step> forward;  ///< allocates output; does not free input (the pipeline or the next piece does)
  /// Frees what forward left, its input and output_gradient; allocates input_gradient. A piece that does neither of the
  /// last two adds into its output gradient: that buffer becomes the input gradient (autograd accumulates in place).
  std::vector<Step> backward;
  /// With defer_embedding_wgrad_compute: what the head's deferred weight gradient frees after the last backward (its
  /// kernels are in Rank::finalize).
  std::vector<Step> weight_gradient;
  /// Only with overlap_moe_expert_parallel_comm, in forward order; forward and backward above are then empty.
  std::vector<NodeSteps> nodes;
  std::vector<OffloadGroup> groups;
  double row_spread = 0;  ///< standard deviation of those rows from microbatch to microbatch, over their mean
};

/// What one virtual stage (rank, chunk) runs: indices into Stages::pieces, in forward order.
struct Chunk {
  std::vector<std::uint32_t> pieces;
  std::vector<int> layers;            ///< global layer number of each piece that is a layer, -1 for embedding and head
  std::vector<Kernel> gradient_sync;  ///< buckets, reduced during the last backward (overlap_grad_reduce)
  /// For each of them: the layer (counted within the chunk; -1: the embedding) whose backward completes its bucket.
  std::vector<int> gradient_sync_layers;
  std::vector<int> parameter_gather_layers;  ///< of each gather: the first layer that needs it
  std::vector<Kernel> parameter_gather;      ///< launched at the start of the step, before the chunk's first forward
  /// Of a microbatch, from the data loader at the begin of its forward pass: what arrives, and what of it is kept until
  /// the end of the forward pass, or of the backward pass where checkpoints save it.
  Bytes batch, own_batch;
  bool keeps_batch = false;
  Bytes parameters_bytes;  ///< bf16 (or FP8) parameters of the chunk
  std::int64_t parameters = 0;
};

/// Launches that a stream takes before the next one blocks (forums.developer.nvidia.com/t/68937; one H200, driver
/// 580.159, torch 2.11: 1021 kernels behind one that runs, with an event recorded after each or without); recorded runs
/// free what another stream uses as many launches late.
inline constexpr std::int64_t launch_queue_depth = 1024;

/// A line of the optimizer's update.
struct UpdateStep {
  enum class Kind : std::uint8_t {
    make,            ///< of the optimizer's state, for good: the first update does
    allocate,        ///< in passing
    allocate_first,  ///< the same, in the first update only
    free             ///< what was allocated, if it was
  } kind;
  std::uint32_t index;  ///< into Rank::optimizer_state; else into Rank::in_update
};

struct Rank {
  std::vector<Chunk> chunks;
  Piece construction;  ///< its `forward` builds model and optimizer; what it does not free stays alive
  std::int64_t launches_ahead = launch_queue_depth;  ///< of its GPU its host is
  bool empties_cache = false;                        ///< after it what is cached goes back to the device
  std::vector<Tensor> until_first_step;              ///< alive then, dropped by the first forward pass
  /// Alive from the first step on: workspaces, FP8 weights; cached ones from where a piece makes them (dummy
  /// gradients).
  std::vector<Tensor> since_first_step;
  std::vector<UpdateStep> update;        ///< in host order
  std::vector<Tensor> optimizer_state;   ///< alive from the first update on: Adam moments
  std::vector<Tensor> during_optimizer;  ///< alive during the optimizer step only: fp32 gradients
  std::vector<Tensor> before_update;     ///< beside these until the parameters are updated: what counts zeros
  std::vector<Tensor> in_update;         ///< beside these and the optimizer's state, made and dropped by its update
  std::vector<Tensor> after_update;      ///< beside these once the parameters are updated: casts to FP8
  Bytes pinned, pageable;                ///< of host memory, for an optimizer there (optimizer_cpu_offload)
  std::vector<Kernel> finalize;          ///< gradient finalisation, inside forward-backward
  std::vector<Kernel> optimizer;         ///< gradient norm, clip, Adam, copies, parameter gather
};

/// The whole pipeline. Pieces and owner names are shared by all ranks.
struct Stages {
  std::vector<std::string> owners;
  std::vector<Piece> pieces;
  std::vector<Rank> ranks;  ///< by pipeline rank
  Bytes boundary_bytes;     ///< one hidden-state tensor between stages (reference 1.1)
  /// Gradients are added on a stream of their own, which the allocator waits for before it gives their memory again:
  /// megatron/training/training.py, get_model, makes DistributedDataParallel on one, and autograd accumulates there.
  bool gradients_elsewhere = false;
  /// One CUDA graph holds forward and backward of a step: what they allocate lives in its private pool.
  bool full_iteration_graph = false;
  /// What another stream used is given again within the capture, once that stream has joined (PyTorch 2.10's
  /// graph_capture_record_stream_reuse); else when the capture ends.
  bool capture_reuses = false;
  bool paged_stash = false;  ///< groups of the pieces are those of moe_paged_stash
  /// With CUDA graphs: the stages of the steps before the capture, which run without. Its owners are a part of these.
  std::shared_ptr<const Stages> eager;
  /// What passes between a chunk and the stage after or before it: a stage of its own for multi-token prediction sends
  /// the hidden states of every depth.
  Bytes carried(int rank, int chunk, bool to_next) const;
  std::vector<std::string> notes;  ///< what is approximated, for the report
};

/// On GPUs of this kind: workspaces, shares of the multiprocessors and FP8 layouts are its. Throws UsageError for what
/// Megatron refuses (splits that do not divide ...) and for what is not modelled yet.
Stages build(const scenario::Scenario& scenario, const profile::Device& gpu);
/// The same without what ranks hold for good and what runs outside of the pieces.
Stages build_pieces(const scenario::Scenario& scenario, const profile::Device& gpu);

/// What every rank holds for good at least for the layers (by number) and ends that it has: parameters, gradients, its
/// share of the optimizer's state. However they are split; nothing where that is not known.
struct LeastState {
  std::vector<Bytes> layers;
  Bytes embedding, head;
};
LeastState least_state(const scenario::Scenario& scenario, const profile::Device& gpu);

/// Multiprocessors that the kernels of a flex token dispatcher hold; 0: there is none.
std::int64_t dispatcher_multiprocessors(const scenario::Scenario& scenario, const profile::Device& gpu);

/// What a collective or a dispatcher's kernel moves, inside a domain, too; nullopt: computes, or userbuffers' pieces.
std::optional<profile::Exchange> exchange_of(const Kernel& kernel);

/// NVLink domains, cards and switches as the cluster states them.
profile::Topology topology(const scenario::Scenario& scenario);

/// Model FLOPs of one step over all GPUs, Megatron-LM num_floating_point_operations (megatron/training/training.py).
double step_flop(const scenario::Scenario& scenario);

/// What process start and communicators hold outside the caching allocator on a GPU of this pipeline rank.
Bytes outside_allocator(const scenario::Scenario& scenario, const profile::Profiles& profiles, int pp_rank);

}  // namespace pipewright::model
