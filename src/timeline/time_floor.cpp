// A step's least time, read off the kernels without running a schedule:
//
//   rank r   |- chunk 0 forward of ranks before -|- its own work -|- chunk 0 backward of ranks before -|
//
// Every schedule begins on rank r when chunk 0 has passed the ranks before it and ends with a backward of chunk 0 that
// must go back through them. In between, its compute stream, its communication stream (expert-parallel overlap) and its
// host, which may be ahead, each have at least their own work to do. Collectives of data parallelism count where
// nothing can hide them.
//
// Kernels slow with the load: the clock law rises with the duty faster than in proportion (a power limit), so the mean
// duty over the step, the least that the load allows, gives the least slowdown; a rank may be idle in the optimizer.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "lines.hpp"
#include "pipewright/timeline.hpp"

namespace pipewright::timeline {
namespace {

constexpr std::size_t kinds = 3;  // matrix, attention, memory
constexpr std::array<profile::Load, kinds> loads = {profile::Load::matrix, profile::Load::attention,
                                                    profile::Load::memory};

/// What must pass one after the other: kernels by kind on a cool part, others that never slow.
struct Work {
  std::array<double, kinds> by_kind{};
  double fixed = 0;

  void add(const Work& other, double times = 1) {
    for (std::size_t k = 0; k < kinds; ++k) by_kind[k] += times * other.by_kind[k];
    fixed += times * other.fixed;
  }
  double cool() const { return by_kind[0] + by_kind[1] + by_kind[2] + fixed; }
};

struct Pass {
  Work compute;
  double communication = 0, host = 0;
  double chain = 0;  ///< kernels of one microbatch alone: nodes of expert-parallel overlap wait for each other
  void add(const Pass& other, double times = 1) {
    compute.add(other.compute, times);
    communication += times * other.communication;
    host += times * other.host;
    chain += times * other.chain;
  }
};

struct PiecePasses {
  Pass forward, backward;
};

/// Nodes of a layer of experts under expert-parallel overlap, each its own stream's kernels. In a combined call forward
/// and backward layers take turns (schedule/combined.cpp):
///
///   compute   [f attn][b mlp][w mlp]          [f mlp][b attn][w attn]        host order is FIFO order on a stream;
///   experts'  [b comb]       [f disp][b disp]        [f comb]                f and b are chains of events besides
///
/// A call starts when all of the one before is over, and as many pairs in one call take no longer than in several, so
/// none takes less a pair than ever more of them in one call.
struct LayerPair {
  enum Node : std::size_t { attention, dispatch, mlp, combine, nodes };
  std::array<Work, nodes> forward, backward, weight;

  /// `ns`: of a node's kernels.
  template <class Time>
  double least(bool early_attention, const Time& ns) const {
    std::array<double, nodes> f{}, b{}, w{};
    for (std::size_t n = 0; n < nodes; ++n) f[n] = ns(forward[n]), b[n] = ns(backward[n]), w[n] = ns(weight[n]);
    double compute = 0, experts = 0, f_chain = 0, b_chain = 0;
    const auto run = [](double& stream, double& chain, double time) {
      stream = chain = std::max(stream, chain) + time;
    };
    constexpr int settled = 8;
    double before = 0;
    for (int pair = 0; pair < 2 * settled; ++pair) {
      run(experts, b_chain, b[combine]);
      run(compute, f_chain, f[attention]);
      run(compute, b_chain, b[mlp]);
      run(experts, f_chain, f[dispatch]);
      compute += w[mlp];
      run(experts, b_chain, b[dispatch]);
      if (early_attention) run(compute, b_chain, b[attention]);
      run(compute, f_chain, f[mlp]);
      run(experts, f_chain, f[combine]);
      if (!early_attention) run(compute, b_chain, b[attention]);
      compute += w[attention];
      if (pair + 1 == settled) before = std::max(compute, experts);
    }
    return (std::max(compute, experts) - before) / settled;
  }
};

class Floor {
 public:
  Floor(const model::Stages& stages, const schedule::Config& config, const profile::Profiles& profiles,
        const Prices& prices, bool fp8)
      : stages_(stages),
        config_(config),
        prices_(prices),
        law_(profiles.clock_law(fp8 ? "fp8" : "bf16")),
        gap_(static_cast<double>(nanoseconds(profiles.scalar("host.kernel_gap_us").value))) {
    for (std::size_t i = 0; i < stages.pieces.size(); ++i) pieces_.push_back(passes(i));
    // What the pull request defers runs at another place.
    if (!config.ep_overlap || config.overlap_p2p_backward_on_comm_stream ||
        config.overlap_p2p_with_transformer_layer_wgrad || config.overlap_p2p_wgrad_delayed_layer_number != 1)
      return;
    for (std::size_t i = 0; i < stages.pieces.size(); ++i)
      if (of_experts(i)) pairs_.push_back(layer_pair(i));
  }

  Estimate find() const {
    double schedule = 0, most_after = 0, least_after = std::numeric_limits<double>::max();
    double forward_chain = 0, backward_chain = 0;  // chunk 0 of the ranks before
    bool joined = stages_.ranks.size() == 1;
    for (std::size_t r = 0; r < stages_.ranks.size(); ++r) {
      const model::Rank& rank = stages_.ranks[r];
      Pass all;
      PiecePasses first;
      for (std::size_t c = 0; c < rank.chunks.size(); ++c)
        for (const auto piece : rank.chunks[c].pieces) {
          all.add(pieces_[piece].forward, config_.microbatches);
          all.add(pieces_[piece].backward, config_.microbatches);
          if (c == 0) first.forward.add(pieces_[piece].forward), first.backward.add(pieces_[piece].backward);
        }
      const auto [communication, compute] = alone(static_cast<int>(r), rank);
      const double head = std::max(gathered(r), gathered(0) + forward_chain);
      const double tail = std::max(after_last(r), after_last(0) + backward_chain);
      schedule = std::max(
          {schedule, slowed(all.compute, head + communication + tail, whole_optimizer(r), pairs_on(rank), head + tail),
           all.host + tail, all.communication + head + compute + tail});
      forward_chain += first.forward.chain;
      backward_chain += first.backward.chain;
      const double after = optimizer(r, joined);
      most_after = std::max(most_after, after);
      least_after = std::min(least_after, after);
    }
    return {static_cast<std::int64_t>(schedule), static_cast<std::int64_t>(joined ? most_after : least_after), 0};
  }

  /// However the layers are spread over these ranks and interleaved: the mean of all ranks, of which one takes as long.
  /// A rank's first forward comes after the embedding and a layer of every rank between, its last backward goes back
  /// through them.
  /// `any_size`: of other pipelines over as many GPUs, too; what they share is work.
  Estimate find_for_any_split(bool any_size) const {
    const auto ranks = static_cast<double>(stages_.ranks.size());
    Pass all;
    PiecePasses embedding, layer;
    layer.forward.chain = layer.backward.chain = std::numeric_limits<double>::max();
    double after = 0, whole = 0, finalize = 0, pairs = 0;
    for (std::size_t r = 0; r < stages_.ranks.size(); ++r) {
      for (const auto& chunk : stages_.ranks[r].chunks)
        for (std::size_t n = 0; n < chunk.pieces.size(); ++n) {
          const PiecePasses& piece = pieces_[chunk.pieces[n]];
          all.add(piece.forward, config_.microbatches);
          all.add(piece.backward, config_.microbatches);
          if (chunk.layers[n] >= 0 &&
              piece.forward.chain + piece.backward.chain < layer.forward.chain + layer.backward.chain)
            layer = piece;
          else if (chunk.layers[n] < 0 && r == 0 && n == 0)
            embedding = piece;
        }
      pairs += pairs_on(stages_.ranks[r]) / ranks;
      bool joined = false;
      after += optimizer(r, joined) / ranks;
      whole += whole_optimizer(r) / ranks;
      finalize += sum(stages_.ranks[r].finalize, prices_.finalize[r], 0) / ranks;
    }
    Pass mean;
    mean.add(all, 1 / ranks);
    double before = 0;  // of the mean rank
    if (any_size) after = finalize = 0;
    if (ranks > 1 && !any_size)
      before = (ranks - 1) / ranks * (embedding.forward.chain + embedding.backward.chain) +
               (ranks - 1) * (ranks - 2) / 2 / ranks * (layer.forward.chain + layer.backward.chain);
    const double schedule = std::max({slowed(mean.compute, before + finalize, whole, pairs, before + finalize),
                                      mean.host + finalize, mean.communication + before + finalize});
    return {static_cast<std::int64_t>(schedule), static_cast<std::int64_t>(after), 0};
  }

 private:
  /// With expert-parallel overlap forwards of the warm-up and as many last backwards run alone: one of the two streams
  /// is idle while the other works, but for the last layer of a pass. Idle times of compute and of communication.
  std::pair<double, double> alone(int r, const model::Rank& rank) const {
    if (!config_.ep_overlap) return {0, 0};
    const int passes = config_.stages == 1 ? 1 : schedule::warmup(config_, r);
    double communication = std::numeric_limits<double>::max(), compute = communication;
    for (const auto& chunk : rank.chunks) {
      Pass both;
      double layers = 0;
      for (const auto piece : chunk.pieces) {
        if (stages_.pieces[piece].nodes.empty()) continue;
        both.add(pieces_[piece].forward);
        both.add(pieces_[piece].backward);
        ++layers;
      }
      const double but_one = layers > 0 ? (layers - 1) / layers : 0;
      communication = std::min(communication, but_one * both.communication);
      compute = std::min(compute, but_one * both.compute.cool());
    }
    return {passes * communication, passes * compute};
  }

  double duration(const model::Kernel& kernel, const Price& price) const {
    return gap_ + price.time.ns / kernel.sm_share;
  }

  /// `part`: of the microbatches that run it; what not all run is in no chain.
  void add(Pass& pass, const model::Kernel& kernel, const Price& price, bool node, bool expert, double part = 1) const {
    pass.host += part * us_to_ns(price.host_us);
    if (kernel.key.family.empty()) return;
    const double ns = part * duration(kernel, price);
    const bool own = kernel.stream == model::Stream::compute;
    if (part == 1 && (own || (node && kernel.stream == model::Stream::communication))) pass.chain += ns;
    if (kernel.stream == model::Stream::communication || (own && expert)) pass.communication += ns;
    if (!own || expert) return;
    const auto kind = std::ranges::find(loads, profile::family(kernel.key.family).load);
    if (kernel.purpose == model::Purpose::compute && kind != loads.end())
      pass.compute.by_kind[static_cast<std::size_t>(kind - loads.begin())] += ns;
    else
      pass.compute.fixed += ns;
  }

  double part_of_microbatches(const model::Step& step) const {
    const int runs = std::min(step.before_microbatch, config_.microbatches) - std::max(step.from_microbatch, 0);
    return std::max(0, runs) / static_cast<double>(config_.microbatches);
  }
  bool runs_always(const model::Step& step) const { return part_of_microbatches(step) == 1; }

  PiecePasses passes(std::size_t index) const {
    const model::Piece& piece = stages_.pieces[index];
    PiecePasses result;
    const auto run = [&](Pass& pass, const std::vector<model::Step>& steps, bool expert) {
      for (const model::Step& step : steps)
        if (step.kind == model::Step::Kind::launch)
          add(pass, piece.kernels[step.index], prices_.pieces[index][step.index], !piece.nodes.empty(), expert,
              part_of_microbatches(step));
    };
    run(result.forward, piece.forward, false);
    run(result.backward, piece.backward, false);
    for (const auto& node : piece.nodes) {
      using Name = schedule::Node::Name;
      const bool expert = node.name == Name::moe_dispatch || node.name == Name::moe_combine;
      run(result.forward, node.forward, expert);
      run(result.backward, node.backward, expert);
      run(result.backward, node.weight_gradient, expert);
    }
    return result;
  }

  bool of_experts(std::size_t piece) const {
    return std::ranges::any_of(stages_.pieces[piece].nodes, [](const model::NodeSteps& node) {
      return node.name == schedule::Node::Name::moe_dispatch;
    });
  }

  LayerPair layer_pair(std::size_t index) const {
    using Name = schedule::Node::Name;
    const model::Piece& piece = stages_.pieces[index];
    LayerPair pair;
    for (const auto& node : piece.nodes) {
      const auto at = node.name == Name::moe_dispatch  ? LayerPair::dispatch
                      : node.name == Name::mlp         ? LayerPair::mlp
                      : node.name == Name::moe_combine ? LayerPair::combine
                                                       : LayerPair::attention;
      if (at == LayerPair::attention && node.name != Name::pre_dispatch_computation) continue;
      const auto sum_of = [&](const std::vector<model::Step>& steps) {
        Pass pass;
        for (const model::Step& step : steps)
          if (step.kind == model::Step::Kind::launch && runs_always(step) &&
              piece.kernels[step.index].stream == model::Stream::compute)
            add(pass, piece.kernels[step.index], prices_.pieces[index][step.index], true, false);
        return pass.compute;
      };
      pair.forward[at] = sum_of(node.forward);
      pair.backward[at] = sum_of(node.backward);
      pair.weight[at] = sum_of(node.weight_gradient);
    }
    return pair;
  }

  /// Of a forward and a backward of a layer of experts in a step, those that surely meet another such in their call.
  double pairs_on(const model::Rank& rank) const {
    if (pairs_.empty()) return 0;
    double pairs = 0;
    for (const auto& chunk : rank.chunks)
      for (std::size_t n = 0; n < chunk.pieces.size(); ++n)
        if (chunk.layers[n] >= 0) pairs += of_experts(chunk.pieces[n]) ? 1 : -1;
    return std::max(0.0, pairs) * config_.microbatches;
  }

  double least_pair(double duty) const {
    double least = pairs_.empty() ? 0 : std::numeric_limits<double>::max();
    for (const LayerPair& pair : pairs_)
      least = std::min(least, pair.least(config_.ep_overlap_early_attn_memory_release, [&](const Work& work) {
        double ns = work.fixed;
        for (std::size_t k = 0; k < kinds; ++k) ns += work.by_kind[k] * (law_ ? law_->slowdown(loads[k], duty) : 1);
        return ns;
      }));
    return least;
  }

  /// Chunk 0's first forward waits for the first bucket of its parameters at least.
  double gathered(std::size_t r) const {
    return least(stages_.ranks[r].chunks.front().parameter_gather, prices_.parameter_gather[r].front());
  }

  /// Chunk 0's last backward is followed by the reduction of a bucket at least, and by the finalisation of gradients.
  double after_last(std::size_t r) const {
    return least(stages_.ranks[r].chunks.front().gradient_sync, prices_.gradient_sync[r].front()) +
           sum(stages_.ranks[r].finalize, prices_.finalize[r], 0);
  }

  double least(const std::vector<model::Kernel>& kernels, const Prices::List& prices) const {
    constexpr double most = std::numeric_limits<double>::max();
    double ns = most;
    for (std::size_t k = 0; k < kernels.size(); ++k)
      if (!kernels[k].read_by_host) ns = std::min(ns, duration(kernels[k], prices[k]));
    return ns == most ? 0 : ns;
  }

  /// On the compute stream, from a kernel on.
  double sum(const std::vector<model::Kernel>& kernels, const Prices::List& prices, std::size_t from) const {
    double ns = 0;
    for (std::size_t k = from; k < kernels.size(); ++k)
      if (kernels[k].stream == model::Stream::compute) ns += duration(kernels[k], prices[k]);
    return ns;
  }

  /// What no rank begins before the last one has come: after the last collective over the pipeline.
  double optimizer(std::size_t r, bool& joined) const {
    const auto& kernels = stages_.ranks[r].optimizer;
    std::size_t from = 0;
    for (std::size_t k = 0; k < kernels.size(); ++k)
      if (kernels[k].joins_pipeline) from = k + 1, joined = true;
    return sum(kernels, prices_.optimizer[r], from);
  }

  double whole_optimizer(std::size_t r) const {
    double ns = 0;
    for (std::size_t k = 0; k < prices_.optimizer[r].size(); ++k)
      ns += duration(stages_.ranks[r].optimizer[k], prices_.optimizer[r][k]);
    return ns;
  }

  /// The least time in which a rank that is idle for `idle` does its work: clock and duty fit each other. `after`: of
  /// the step, in which it may be idle too. `pairs` of layers one after the other with that much beside bound it, too.
  double slowed(const Work& work, double idle, double after, double pairs = 0, double beside_pairs = 0) const {
    const double cool = std::max(work.cool() + idle, pairs > 0 ? pairs * least_pair(0) + beside_pairs : 0);
    if (!law_) return cool;
    const auto at = [&](double duty) {
      double time = work.fixed + idle, load = 0;
      for (std::size_t k = 0; k < kinds; ++k) {
        const double ns = work.by_kind[k] * law_->slowdown(loads[k], duty);
        time += ns;
        load += ns * law_->weight(loads[k]);
      }
      if (pairs > 0) time = std::max(time, pairs * least_pair(duty) + beside_pairs);
      return std::pair{time, time > 0 ? load / (time + after) : 0};
    };
    double low = 0, high = 2;  // duties: kinds may weigh more than the layer that the law was measured with
    constexpr int halvings = 20;
    for (int i = 0; i < halvings; ++i) {
      const double duty = (low + high) / 2;
      (at(duty).second > duty ? low : high) = duty;
    }
    return std::max(cool, at(low).first);
  }

  const model::Stages& stages_;
  const schedule::Config& config_;
  const Prices& prices_;
  std::optional<profile::ClockLaw> law_;
  double gap_;
  std::vector<PiecePasses> pieces_;
  std::vector<LayerPair> pairs_;  ///< of every kind of layer of experts
};

}  // namespace

Estimate floor(const scenario::Scenario& scenario, const model::Stages& stages, const schedule::Config& config,
               const profile::Profiles& profiles, const Prices& prices) {
  return Floor(stages, config, profiles, prices, scenario.settings.fp8 || scenario.settings.fp4).find();
}

Estimate floor_of_any_split(const scenario::Scenario& scenario, const model::Stages& stages,
                            const schedule::Config& config, const profile::Profiles& profiles, const Prices& prices,
                            bool any_size) {
  return Floor(stages, config, profiles, prices, scenario.settings.fp8 || scenario.settings.fp4)
      .find_for_any_split(any_size);
}

}  // namespace pipewright::timeline
