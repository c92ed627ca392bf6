// What a step's least time is added up from (time_floor.cpp): kernels that must pass one after the other on a stream,
// the longest way through a straight line of steps, which also goes by what its own stream waits for, and pairs of
// layers under expert-parallel overlap.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>
#include <vector>

#include "collapse.hpp"
#include "lines.hpp"
#include "pace.hpp"
#include "pipewright/timeline.hpp"

namespace pipewright::timeline {

/// Kernels by kind (matrix, attention, memory) on a cool part, others that never slow.
struct Work {
  static constexpr std::size_t kinds = computing_kinds;
  std::array<double, kinds> by_kind{};
  double fixed = 0;

  void add(const Work& other, double times = 1) {
    for (std::size_t k = 0; k < kinds; ++k) by_kind[k] += times * other.by_kind[k];
    fixed += times * other.fixed;
  }
  double cool() const { return by_kind[0] + by_kind[1] + by_kind[2] + fixed; }
  /// With each kind slower by its factor.
  double slowed(const std::array<double, kinds>& factors) const {
    double ns = fixed;
    for (std::size_t k = 0; k < kinds; ++k) ns += by_kind[k] * factors[k];
    return ns;
  }
};
using Slower = std::array<double, Work::kinds>;

/// From the begin of some steps to their end on their own stream, the host and all other streams far ahead
/// (collapse.cpp has the same rules as maps between all queues):
///
///   own            [qkv].............[attention]       a kernel of another stream comes after what the own one holds,
///   communication       [all-gather]                   and counts where the own stream, or the host, waits for it
class LongestWay {
 public:
  void launch(model::Stream stream, const Work& kernel, double host_ns, bool on_gpu) {
    at_[host_queue].work.fixed += host_ns;
    at_[host_queue].ns += host_ns;
    if (!on_gpu) return;
    At& queue = at_[queue_of(stream)];
    raise(queue, at_[host_queue]);
    raise(queue, at_[compute_queue]);
    queue.work.add(kernel);
    queue.ns += kernel.cool();
  }
  void wait(model::Stream stream) {
    raise(at_[compute_queue], at_[host_queue]);
    raise(at_[compute_queue], at_[queue_of(stream)]);
  }
  void synchronize(model::Stream stream) { raise(at_[host_queue], at_[queue_of(stream)]); }
  const Work& own() const { return at_[compute_queue].work; }

 private:
  /// How far a queue is behind the begin of the own stream; where nothing has made it wait for that: not at all.
  struct At {
    bool after_begin = false;
    double ns = 0;
    Work work;
  };
  static void raise(At& queue, const At& other) {
    if (other.after_begin && (!queue.after_begin || other.ns > queue.ns)) queue = other;
  }
  std::array<At, line_queues> at_ = [] {
    std::array<At, line_queues> at{};
    at[compute_queue].after_begin = true;
    return at;
  }();
};

struct PassWork {
  Work compute;
  Work way;    ///< of the compute stream, with what it waits for inside a piece or node: the longest on a cool part
  Work alike;  ///< the same of what all microbatches run
  double communication = 0, experts = 0, host = 0;  ///< of those streams
  double chain = 0;  ///< kernels of one microbatch alone: nodes of expert-parallel overlap wait for each other
  void add(const PassWork& other, double times = 1) {
    compute.add(other.compute, times);
    way.add(other.way, times);
    alike.add(other.alike, times);
    communication += times * other.communication;
    experts += times * other.experts;
    host += times * other.host;
    chain += times * other.chain;
  }
  double on_stream(const Slower& factors) const { return std::max(compute.slowed(factors), way.slowed(factors)); }
};

struct BothWork {
  PassWork forward, backward;
};

/// The host's own time around a chunk's passes and to enter a node of expert-parallel overlap.
struct HostCalls {
  HostCalls(const scenario::Scenario& scenario, const profile::Profiles& profiles) {
    const double factor = replayed_host_factor(scenario, profiles);
    const auto ns = [&](double us) { return static_cast<double>(nanoseconds(factor * us)); };
    for (const char* name :
         {"host.forward_begin_us", "host.forward_end_us", "host.backward_begin_us", "host.backward_end_us"})
      pass += ns(profiles.scalar(name).value);
    backward_end = ns(profiles.scalar("host.backward_end_us").value);
    forward_node = ns(profiles.find_scalar("host.forward_node_us").value_or(0));
    backward_node = ns(profiles.find_scalar("host.backward_node_us").value_or(0));
  }
  /// Until the last backward has been launched.
  double calls(double passes) const { return passes * pass - backward_end; }
  double pass = 0, backward_end = 0, forward_node = 0, backward_node = 0;
};

/// Nodes of a layer under expert-parallel overlap, each its own stream's kernels; embedding, and output layer with its
/// loss: one node.
struct LayerNodes {
  enum Node : std::size_t { attention, dispatch, mlp, combine, post, nodes };
  std::array<PassWork, nodes> forward, backward, weight;
  static constexpr Node of(schedule::Node::Name name) {
    using Name = schedule::Node::Name;
    return name == Name::moe_dispatch       ? dispatch
           : name == Name::mlp              ? mlp
           : name == Name::moe_combine      ? combine
           : name == Name::mtp_post_process ? post
                                            : attention;
  }

  struct Times {
    std::array<double, nodes> forward{}, backward{}, weight{};
  };
  Times times(const Slower& factors) const {
    Times times;
    for (std::size_t n = 0; n < nodes; ++n) {
      times.forward[n] = forward[n].on_stream(factors);
      times.backward[n] = backward[n].on_stream(factors);
      times.weight[n] = weight[n].on_stream(factors);
    }
    return times;
  }
};

/// A combined call, in which forward and backward layers take turns (schedule/combined.cpp):
///
///   compute   [f attn][b mlp][w mlp]          [f mlp][b attn][w attn]        host order is FIFO order on a stream;
///   experts'  [b comb]       [f disp][b disp]        [f comb]                f and b are chains of events besides
///
/// A call starts when all of the one before is over (Host::end_combined).
class CombinedCall {
 public:
  CombinedCall(bool early_attention, bool from_0_18) : early_attention_(early_attention), from_0_18_(from_0_18) {}

  /// What is no layer.
  void forward(double ns) { run(compute_, forward_, ns); }
  void backward(double ns) { run(compute_, backward_, ns); }
  /// Null: there is none of that pass.
  void layers(const LayerNodes::Times* f, const LayerNodes::Times* b) {
    using Pass = schedule::Node::Pass;
    schedule::in_turns(early_attention_, from_0_18_, [&](Pass pass, schedule::Node::Name name) {
      const auto node = LayerNodes::of(name);
      if (pass == Pass::forward) {
        if (f != nullptr) run(stream(node), forward_, f->forward[node]);
      } else if (b == nullptr) {
        return;
      } else if (pass == Pass::backward) {
        run(stream(node), backward_, b->backward[node]);
      } else {
        compute_ += b->weight[node];
      }
    });
  }
  double end() const { return std::max(streams(), std::max(forward_.ns, backward_.ns)); }
  /// When the forward's output, and what comes behind the backward on its stream, may leave.
  double output() const { return forward_.ns; }
  double gradient() const { return std::max(compute_, backward_.ns); }
  double streams() const { return std::max(compute_, experts_); }

 private:
  struct Chain {
    bool begun = false;
    double ns = 0;
  };
  double& stream(std::size_t node) {
    return node == LayerNodes::dispatch || node == LayerNodes::combine ? experts_ : compute_;
  }
  void run(double& stream, Chain& chain, double ns) {
    if (ns == 0) return;  // there is no such node
    if (!std::exchange(chain.begun, true)) chain.ns = compute_;
    stream = chain.ns = std::max(stream, chain.ns) + ns;
  }
  bool early_attention_, from_0_18_;
  double compute_ = 0, experts_ = 0;
  Chain forward_, backward_;
};

/// Layers under a choice of recompute, whatever the pipeline that they are spread over.
struct LayerWorks {
  std::vector<BothWork> kinds;
  std::vector<LayerNodes> nodes;    ///< of each kind, under expert-parallel overlap
  std::vector<bool> of_experts;     ///< of each kind: a layer of experts there
  std::vector<std::uint32_t> kind;  ///< of each layer, by its number
  double pairs = 0;                 ///< FloorPieces::pairs()
};

}  // namespace pipewright::timeline
