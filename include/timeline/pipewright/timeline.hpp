// The simulated machine: every rank is a host thread that issues work to FIFO streams; transfers join two ranks.
// A schedule and the kernels of its stages become an immutable graph whose edges mean "starts not before the end of,
// plus a lag"; a run fills arrays of times in one pass over the topological order. Same input, same times.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "pipewright/base.hpp"
#include "pipewright/model.hpp"
#include "pipewright/profile.hpp"
#include "pipewright/scenario/types.hpp"
#include "pipewright/schedule.hpp"

namespace pipewright::timeline {

/// The queues of a rank. `expert`: the communication stream of expert-parallel overlap (reference 2.2). P2P lanes: one
/// for each NCCL communicator that pipeline transfers use (reference 1.7); `p2p_group`: exchange of shapes by the
/// group's communicator where the transfers have their own.
enum class Lane : std::uint8_t {
  host,
  compute,
  communication,
  gradient,
  parameter,
  d2h,
  h2d,
  p2p,
  p2p_second,
  p2p_group,
  expert
};
constexpr std::size_t lanes = static_cast<std::size_t>(Lane::expert) + 1;

enum class NodeKind : std::uint8_t {
  kernel,          ///< a kernel of a piece, also a collective
  transfer_start,  ///< the P2P kernel of this rank reaches the head of its stream and begins to spin
  transfer,        ///< ... ends: both sides have started and the bytes are across
  wait,            ///< a stream waits for a transfer or for another stream (event wait)
  host,            ///< the host reaches this place (start of a step, return from a synchronising call)
};

/// What a node is, for reports; 16 bytes. `instruction` indexes the rank's program.
class Label {
 public:
  static constexpr std::uint32_t none = 0xffffffff;
  std::uint32_t instruction = none;
  std::uint16_t rank = 0;
  Lane lane : 4 = Lane::compute;
  NodeKind kind : 3 = NodeKind::kernel;
  bool partitioned : 1 = false;  ///< leaves multiprocessors free: an NCCL kernel beside it takes those first
  model::Purpose purpose : 3 = model::Purpose::compute;
  std::uint8_t phase : 2 = 0;  ///< 0 schedule, 1 finalisation of gradients, 2 optimizer
  bool shapes : 1 = false;     ///< transfer: carries the shape of a tensor, not the tensor
  bool recompute : 1 = false;
  bool joins_pipeline : 1 = false;  ///< a collective over several pipeline ranks

  /// Kernel: where it stands in model::Stages. Finalize, optimizer and collectives beside the schedule have no piece
  /// (none) and a kernel index of the rank or chunk.
  std::uint32_t piece() const { return first_; }
  std::uint32_t kernel() const { return second_ & 0xffffffU; }
  std::uint32_t chunk() const { return second_ >> 24U; }  ///< only of collectives beside the schedule
  void set_kernel(std::uint32_t piece, std::uint32_t kernel, std::uint32_t chunk = 0) {
    first_ = piece, second_ = chunk << 24U | kernel;
  }

  /// Transfer_start, transfer, wait for one.
  schedule::Part part() const {
    return {static_cast<schedule::Part::Type>(second_ >> 16U), static_cast<int>(first_),
            static_cast<std::int16_t>(second_ & 0xffffU)};
  }
  void set_part(const schedule::Part& part) {
    first_ = static_cast<std::uint32_t>(part.microbatch);
    second_ = static_cast<std::uint32_t>(part.type) << 16U | static_cast<std::uint16_t>(part.chunk);
  }

 private:
  std::uint32_t first_ = none, second_ = none;
};
static_assert(sizeof(Label) == 16);

/// The other end of a transfer: its rank, and what it calls the same tensor.
struct OtherEnd {
  int rank;
  schedule::Part part;
};
/// Microbatches keep their number, chunks shift where the pipeline wraps around.
OtherEnd other_end(int ranks, int rank, const schedule::Part& part);
constexpr bool sends(schedule::Part::Type type) {
  return type == schedule::Part::Type::send_next || type == schedule::Part::Type::send_prev;
}
/// Between a rank and its next.
constexpr bool to_next(schedule::Part::Type type) {
  return type == schedule::Part::Type::send_next || type == schedule::Part::Type::recv_next;
}
/// Activations, not gradients.
constexpr bool goes_forward(schedule::Part::Type type) {
  return type == schedule::Part::Type::send_next || type == schedule::Part::Type::recv_prev;
}

struct Edge {
  std::uint32_t from;
  std::int32_t lag_ns;  ///< start >= end(from) + lag
};

/// Predecessors of nodes, row after row. Most edges have no lag: a word each, and one more where there is a lag.
class Edges {
 public:
  class Iterator {
   public:
    explicit Iterator(const std::uint32_t* at) : at_(at) {}
    Edge operator*() const {
      const bool lags = (at_[0] & lag_follows) != 0;
      return {at_[0] & ~lag_follows, lags ? static_cast<std::int32_t>(at_[1]) : 0};
    }
    Iterator& operator++() {
      at_ += 1 + (at_[0] >> 31U);
      return *this;
    }
    friend bool operator==(const Iterator&, const Iterator&) = default;

   private:
    const std::uint32_t* at_;
  };
  struct Row {
    Iterator first, behind;
    Iterator begin() const { return first; }
    Iterator end() const { return behind; }
  };

  Row of(std::uint32_t node) const {
    return {Iterator(words_.data() + first_[node]), Iterator(words_.data() + first_[node + 1])};
  }
  /// One more of the last row, the next node's.
  void add(const Edge& edge) {
    if (edge.lag_ns == 0) return words_.push_back(edge.from);
    words_.push_back(edge.from | lag_follows);
    words_.push_back(static_cast<std::uint32_t>(edge.lag_ns));
  }
  void end_row() { first_.push_back(static_cast<std::uint32_t>(words_.size())); }
  void drop_row() { words_.resize(first_.back()); }
  void reserve(std::size_t nodes, std::size_t words) {
    first_.reserve(nodes + 1);
    words_.reserve(words);
  }
  void scale_lags(double factor) {
    for (std::size_t i = 0; i < words_.size(); ++i) {
      if ((words_[i] & lag_follows) == 0) continue;
      auto& lag = words_[++i];
      lag = static_cast<std::uint32_t>(static_cast<std::int32_t>(static_cast<std::int32_t>(lag) * factor));
    }
  }

  static constexpr std::uint32_t most_nodes = 0x80000000;

 private:
  static constexpr std::uint32_t lag_follows = 0x80000000;
  std::vector<std::uint32_t> first_{0}, words_;
};

/// Nodes are numbered in topological order.
struct Graph {
  std::vector<std::int64_t> duration_ns;  ///< as built: on a cool part with nothing beside
  Edges edges;                            ///< from the predecessors of each node
  std::vector<profile::Load> loads;       ///< how a node slows when the clock falls
  std::vector<Label> labels;
  int ranks = 0;
  std::size_t size() const { return duration_ns.size(); }
};

struct Times {
  std::vector<std::int64_t> start, end;
};

/// One pass: start = max over predecessors of end + lag. No allocation besides growing the two arrays once.
void run(const Graph& graph, Times& times);

/// What a kernel costs: the GPU's time on a cool part and the host's time before its launch.
struct Price {
  profile::Timing time;
  double host_us = 0;
  profile::Load load = profile::Load::none;  ///< how it slows when the clock falls
};
struct Prices {
  using List = std::vector<Price>;
  std::vector<List> pieces;                                        ///< [piece][kernel]
  std::vector<std::vector<List>> gradient_sync, parameter_gather;  ///< [pipeline rank][chunk][kernel]
  std::vector<List> finalize, optimizer;                           ///< [pipeline rank][kernel]
};
/// How a kernel slows when the clock falls: as its family, or as NCCL's over NVLink where it stays in one domain.
profile::Load load_of(const model::Kernel& kernel, const profile::Topology& topology);
/// How much longer this scenario's hosts take for the same code than the reference host, on which the profile's host.*
/// costs are stated: cluster.host_time_factor, else the profile's host.time_factor, else 1.
double host_time_factor(const scenario::Scenario& scenario, const profile::Profiles& profiles);
/// How load slows the clock, by the precision of the layers' products: FP8's for NVFP4, too; nullopt without clocks.
std::optional<profile::ClockLaw> clock_law(const scenario::Scenario& scenario, const profile::Profiles& profiles);
/// The same of forward, backward and gradient finalisation: 0 where one CUDA graph replays them (Megatron
/// core/full_cuda_graph.py), for the host then launches no kernel of theirs.
double replayed_host_factor(const scenario::Scenario& scenario, const profile::Profiles& profiles);

/// The same of the host that decides: GPUs that wait for each other inside every layer go at the pace of their slowest
/// host. A rank's host runs at 1 / host.slow_factor of its speed for host.slow_share of the time, in stretches longer
/// than a layer (cores shared with others; docs/hosts.md). Where the hosts of n GPUs meet in every layer (mixtures that
/// wait for the counts of tokens) a layer takes (1 + (1 - (1 - share)^n) (factor - 1)) / (1 + share (factor - 1)) times
/// the mean host's time; where only the GPUs meet, the slowest of n means decides: 1 + host.rank_spread x the expected
/// largest of n deviates.
double host_pace(const scenario::Scenario& scenario, const profile::Profiles& profiles);

/// Host costs are profile::host_cost's, else "host.cuda_launch_us" for each kernel. A weight whose gradient is complete
/// costs "host.backward.parameter_us" more. All times host_pace.
Prices price(const scenario::Scenario& scenario, const model::Stages& stages, const profile::Profiles& profiles);

/// The link class between two pipeline ranks: ranks are laid out tp-cp-dp-pp (Megatron's default order), so a stage
/// holds consecutive GPUs; `inter_node_link` as soon as one of its GPUs meets its peer in another NVLink domain.
std::string link_between(const scenario::Scenario& scenario, int pp_rank, int peer);

/// Builds the graph. Throws UsageError with the cycle of waits if the schedule deadlocks.
Graph build(const scenario::Scenario& scenario, const model::Stages& stages, const schedule::Program& program,
            const profile::Profiles& profiles, const Prices& prices);

/// Where time goes: busy + exposed (by cause) + bubble + idle, exactly.
/// exposed.p2p: the compute stream waits for a transfer that both sides have posted or that is in flight; bubble: it
/// waits for the peer to come to the transfer; host: it waits for its host; idle: done, others are not.
struct Split {
  std::int64_t busy = 0, bubble = 0, idle = 0;
  std::int64_t p2p = 0, tp = 0, cp = 0, ep = 0, dp = 0, offload = 0, host = 0;
};
Split& operator+=(Split& a, const Split& b);

/// Of the rank whose stream waits. `end`: gradient finalisation and optimizer.
enum class Phase : std::uint8_t { warmup, steady, cooldown, end };
constexpr std::size_t phases = 4;

/// An exchange inside layers or beside them, all its executions in a step: what it takes, and for how much of that the
/// compute stream waits, by phase. Over all rows of a rank `exposed` adds up to the account's tp + cp + ep + dp.
struct Communication {
  std::string what;  ///< "experts dispatch forward"
  model::Purpose purpose = model::Purpose::ep;
  int times = 0;
  std::int64_t busy = 0;
  std::array<std::int64_t, phases> exposed{};
  /// What one GPU sends in all of them, by level of the network (profile::Traffic), over NVLink with what is relayed
  /// there; empty: not an exchange of the network's model.
  std::vector<double> bytes;
  std::int64_t exposed_in_all() const;
  Communication& operator+=(const Communication& other);  ///< keeps its name
};

/// A rank's step.
struct Account : Split {
  std::array<Split, phases> by_phase;
  std::int64_t recompute = 0;  ///< part of busy
  std::int64_t forward_backward_end = 0, end = 0;
  std::vector<Communication> communication;  ///< most exposed first
  std::map<std::string, std::int64_t> traced_busy,
      traced_exposed;  ///< as a profiler shows it (comp, p2p, ep, coll, ...)
};

/// Why a transfer is exposed: the stream waits for its receive or its send; for one that this one queued behind in the
/// communicator's FIFO; or the host synchronised the device.
enum class TransferCause : std::uint8_t { receive, send, queue, synchronization };
constexpr std::size_t transfer_causes = 4;

struct Boundary {
  int from = 0, to = 0;
  bool forward = true;
  Bytes bytes;
  int transfers = 0;
  std::int64_t exposed = 0, longest = 0;
  std::string longest_wait;  ///< the compute op that waited longest: "F 4.1"
  std::array<std::array<std::int64_t, transfer_causes>, phases> by_phase{};  ///< [phase][cause]
};

/// What a step of the critical path does or waits for.
enum class Why : std::uint8_t { compute, tp, cp, ep, dp, offload, transfer, host, wait };
constexpr std::size_t whys = static_cast<std::size_t>(Why::wait) + 1;
const char* name(Why why);  ///< "tensor-parallel communication"

struct CriticalStep {
  std::string what;
  std::int64_t ns = 0;
  Why why = Why::compute;
};

struct Result {
  Graph graph;  ///< durations as they run
  Prices prices;
  Times times;
  std::vector<Account> ranks;
  std::vector<Boundary> boundaries;
  std::vector<CriticalStep> critical_path;  ///< in time order; an op is split by reason
  std::vector<double> duty;                 ///< share of forward-backward in which each rank computes
  std::vector<double> slowdown;             ///< of each rank's compute: time taken over time on a cool part
  std::int64_t forward_backward = 0, optimizer = 0;
  int last_rank = 0;  ///< the rank that finishes forward-backward last
};

/// The profiles' scalars of how copies of several GPUs of a host slow each other (activation offload), to the host and
/// from it; none where no profile knows.
std::vector<std::string> copy_contention(const profile::Profiles& profiles);
/// GPUs of a host whose copies run at the same moment: those of one stage, which do the same.
std::int64_t copying_at_once(const scenario::Scenario& scenario);
/// The least that copies to the host and back take which each GPU of a stage makes at the same moment. Beside copies
/// the other way a copy takes longer: with all of one way done beside the other or apart, whichever is shorter.
class LeastCopies {
 public:
  LeastCopies(const scenario::Scenario& scenario, const profile::Profiles& profiles);
  /// From the times that they take alone; `apart`: on one stream.
  double ns(double out, double in, bool apart = false) const;
  double ns_of_bytes(double bytes) const;  ///< so many out and back, in copies of the best size

 private:
  struct Way {
    double apart = 1, beside = 1;  ///< times as long as alone, without and with copies the other way
    double ns_per_byte = 0;
  };
  Way out_, in_;
};

/// build + run, repeated until the clocks that each rank's load implies are those it was run with.
Result simulate(const scenario::Scenario& scenario, const model::Stages& stages, const schedule::Program& program,
                const profile::Profiles& profiles);

/// The kernel behind a node; null for transfers, waits and the host.
const model::Kernel* kernel_of(const model::Stages& stages, const Label& label);

/// A change that would shorten the step.
struct Lever {
  std::string what;             ///< "gemm.bf16.tn 10 % faster"
  std::int64_t on_path_ns = 0;  ///< the most that it can gain: its share of the critical path
  std::int64_t gain_ns = 0;     ///< what it gains: the step by the chunk-level engine (estimate) before and after
};
/// Kernel families 10 % faster, links twice as fast, the host's launches at half their cost, forward sends not waited
/// for at once: those worth more than a thousandth of the step, largest first.
std::vector<Lever> levers(const Result& result, const scenario::Scenario& scenario, const model::Stages& stages,
                          const schedule::Program& program, const profile::Profiles& profiles);

/// A step by the chunk-level engine: no graph, no accounts, a few hundred times faster than simulate. Without clocks
/// and contention it gives simulate's times to the nanosecond; with them it takes one factor a piece where simulate
/// takes one a kernel (within 0.5 %). Its cost does not grow with the number of microbatches. nullopt: what it does not
/// express (combined calls not written out, shapes sent ahead) and schedules that deadlock.
struct Estimate {
  std::int64_t forward_backward = 0, optimizer = 0;
  std::int64_t operations = 0;  ///< pieces run in the last round
};
/// What if: for levers. Kernels and the host's launches change in Prices.
struct Changes {
  std::string link;  ///< pipeline transfers over this link class take `wires` times as long
  double wires = 1;
  double host = 1;  ///< so do the host's own calls
};
/// The same schedule with as few microbatches as show its steady state; a rank's peak memory is that of the whole, but
/// for what deferred weight gradients pile up.
schedule::Config shortened(schedule::Config config);
/// `glance`: the first of its rounds, in which nothing slows what runs beside it; several times faster, and no more.
std::optional<Estimate> estimate(const scenario::Scenario& scenario, const model::Stages& stages,
                                 const schedule::Config& config, const profile::Profiles& profiles,
                                 const Prices& prices, const Changes& changes = {}, bool glance = false);
/// For what that cannot express: simulate() on the shortened schedule; its last group of microbatches stands for every
/// further one.
Estimate extrapolate(const scenario::Scenario& scenario, const model::Stages& stages, const schedule::Config& config,
                     const profile::Profiles& profiles);
/// No run of this takes less (time_floor.cpp): what its streams have to do one after the other, on the busiest rank.
Estimate floor(const scenario::Scenario& scenario, const model::Stages& stages, const schedule::Config& config,
               const profile::Profiles& profiles, const Prices& prices);
/// The same for any split of these layers over as many ranks, in any number of chunks; `any_size`: or over more ranks,
/// of as many GPUs in all.
Estimate floor_of_any_split(const scenario::Scenario& scenario, const model::Stages& stages,
                            const schedule::Config& config, const profile::Profiles& profiles, const Prices& prices,
                            bool any_size);
/// How a structure splits the layers over ranks and chunks.
struct LayerSplit {
  struct Chunk {
    int first = 0, layers = 0;
    bool embedding = false, loss = false;
    int mtp_layers = 0;
  };
  struct Rank {
    std::vector<Chunk> chunks;
    Bytes available;  ///< of the device to the allocator
  };
  /// The same for all splits over as many ranks and chunks of as many microbatches.
  struct Schedule {
    schedule::Order order;
    // By rank.
    std::vector<std::vector<schedule::Calls>> calls;     ///< under expert-parallel overlap
    std::vector<std::vector<schedule::Moment>> moments;  ///< at which its memory may peak
  };
  std::vector<Rank> ranks;
  std::shared_ptr<const Schedule> schedule;
};
struct LayerWorks;
/// Floors of many splits of the same layers over as many ranks. `other`: the same layers under another choice of
/// recompute, of each (by its number) that part; no parts: all.
class SplitFloor {
 public:
  /// Of any structure that has them; refers to all that it is made of.
  SplitFloor(const scenario::Scenario& scenario, const model::Stages& stages, const schedule::Config& config,
             const profile::Profiles& profiles, const Prices& prices);
  Estimate any(const LayerWorks* other = nullptr, const std::vector<double>& part = {}) const;
  /// `enough`, ns: nothing is looked for beyond.
  Estimate of(const LayerSplit& split, const LayerWorks* other = nullptr, const std::vector<double>& part = {},
              double enough = std::numeric_limits<double>::max()) const;

 private:
  class Sums;
  std::shared_ptr<const Sums> sums_;
};
/// What layers have to do at least in every microbatch, for that: the same for all pipeline sizes.
std::shared_ptr<const LayerWorks> layer_works(const scenario::Scenario& scenario, const model::Stages& stages,
                                              schedule::Config config, const profile::Profiles& profiles,
                                              const Prices& prices);

}  // namespace pipewright::timeline
