// A step's least time, read off the kernels without running a schedule:
//
//   rank r   |- chunk 0 forward of ranks before -|- its own work -|- chunk 0 backward of ranks before -|
//
// Every schedule begins on rank r when chunk 0 has passed the ranks before it and ends with a backward of chunk 0 that
// must go back through them. In between, its compute stream with what it waits for inside a layer, its communication
// streams and its host, which may be ahead, each have at least their own work to do. Collectives of data parallelism
// count where nothing can hide them.
//
// Kernels slow with the load: the clock law rises with the duty faster than in proportion (a power limit), so the mean
// duty over the step, the least that the load allows, gives the least slowdown; a rank may be idle in the optimizer.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "floor_work.hpp"
#include "lines.hpp"
#include "pipewright/timeline.hpp"

namespace pipewright::timeline {
namespace {

constexpr std::array<profile::Load, Work::kinds> loads = {profile::Load::matrix, profile::Load::attention,
                                                          profile::Load::memory};

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

class Floor {
 public:
  Floor(const scenario::Scenario& scenario, const model::Stages& stages, const schedule::Config& config,
        const profile::Profiles& profiles, const Prices& prices)
      : stages_(stages),
        config_(config),
        prices_(prices),
        law_(profiles.clock_law(scenario.settings.fp8 || scenario.settings.fp4 ? "fp8" : "bf16")),
        gap_(static_cast<double>(nanoseconds(profiles.scalar("host.kernel_gap_us").value))),
        host_(scenario, profiles) {
    for (std::size_t i = 0; i < stages.pieces.size(); ++i) pieces_.push_back(passes(i));
    if (!config.ep_overlap || of_pull_request()) return;
    for (std::size_t i = 0; i < stages.pieces.size(); ++i)
      if (of_experts(i)) pairs_.push_back(layer_pair(i));
  }

  Estimate find() const {
    double schedule = 0, most_after = 0, least_after = std::numeric_limits<double>::max();
    double forward_chain = 0, backward_chain = 0;  // chunk 0 of the ranks before
    bool joined = stages_.ranks.size() == 1;
    for (std::size_t r = 0; r < stages_.ranks.size(); ++r) {
      const model::Rank& rank = stages_.ranks[r];
      PassWork all;
      BothWork first;
      for (std::size_t c = 0; c < rank.chunks.size(); ++c)
        for (const auto piece : rank.chunks[c].pieces) {
          all.add(pieces_[piece].forward, config_.microbatches);
          all.add(pieces_[piece].backward, config_.microbatches);
          if (c == 0) first.forward.add(pieces_[piece].forward), first.backward.add(pieces_[piece].backward);
        }
      all.host += host_.calls(config_.microbatches * static_cast<double>(rank.chunks.size()));
      const auto [communication, compute] = alone(static_cast<int>(r), rank);
      const double head = std::max(gathered(r), gathered(0) + forward_chain);
      const double tail = std::max(after_last(r), after_last(0) + backward_chain);
      schedule =
          std::max({schedule, slowed(all, head + communication + tail, whole_optimizer(r), pairs_on(rank), head + tail),
                    all.host + tail, all.communication + head + tail, all.experts + head + compute + tail});
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
    PassWork all;
    BothWork embedding, layer;
    layer.forward.chain = layer.backward.chain = std::numeric_limits<double>::max();
    double after = 0, whole = 0, finalize = 0, pairs = 0;
    for (std::size_t r = 0; r < stages_.ranks.size(); ++r) {
      for (const auto& chunk : stages_.ranks[r].chunks)
        for (std::size_t n = 0; n < chunk.pieces.size(); ++n) {
          const BothWork& piece = pieces_[chunk.pieces[n]];
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
    PassWork mean;
    mean.add(all, 1 / ranks);
    mean.host += host_.calls(config_.microbatches);  // of a chunk at least
    double before = 0;                               // of the mean rank
    if (any_size) after = finalize = 0;
    if (ranks > 1 && !any_size)
      before = (ranks - 1) / ranks * (embedding.forward.chain + embedding.backward.chain) +
               (ranks - 1) * (ranks - 2) / 2 / ranks * (layer.forward.chain + layer.backward.chain);
    const double schedule =
        std::max({slowed(mean, before + finalize, whole, pairs, before + finalize), mean.host + finalize,
                  std::max(mean.communication, mean.experts) + before + finalize});
    return {static_cast<std::int64_t>(schedule), static_cast<std::int64_t>(after), 0};
  }

 private:
  /// With expert-parallel overlap forwards of the warm-up and as many last backwards run alone: one of the two streams
  /// is idle while the other works, but for the last layer of a pass. Idle times of compute and of the experts' stream.
  std::pair<double, double> alone(int r, const model::Rank& rank) const {
    if (!config_.ep_overlap) return {0, 0};
    const int passes = config_.stages == 1 ? 1 : schedule::warmup(config_, r);
    double communication = std::numeric_limits<double>::max(), compute = communication;
    for (const auto& chunk : rank.chunks) {
      PassWork both;
      double layers = 0;
      for (const auto piece : chunk.pieces) {
        if (stages_.pieces[piece].nodes.empty()) continue;
        both.add(pieces_[piece].forward);
        both.add(pieces_[piece].backward);
        ++layers;
      }
      const double but_one = layers > 0 ? (layers - 1) / layers : 0;
      communication = std::min(communication, but_one * both.experts);
      compute = std::min(compute, but_one * both.compute.cool());
    }
    return {passes * communication, passes * compute};
  }

  /// What pull request 4268 defers runs at another place.
  bool of_pull_request() const {
    return config_.overlap_p2p_backward_on_comm_stream || config_.overlap_p2p_with_transformer_layer_wgrad ||
           config_.overlap_p2p_wgrad_delayed_layer_number != 1;
  }

  double duration(const model::Kernel& kernel, const Price& price) const {
    return gap_ + price.time.ns / kernel.sm_share;
  }

  /// `part`: of the microbatches that run it; what not all run is in no chain.
  void add(PassWork& pass, const model::Kernel& kernel, const Price& price, bool node, bool expert,
           double part = 1) const {
    pass.host += part * us_to_ns(price.host_us);
    if (kernel.key.family.empty()) return;
    const double ns = part * duration(kernel, price);
    const bool own = kernel.stream == model::Stream::compute;
    if (part == 1 && (own || (node && kernel.stream == model::Stream::communication))) pass.chain += ns;
    if (kernel.stream == model::Stream::communication) pass.communication += ns;
    if (own && expert) pass.experts += ns;
    if (own && !expert) pass.compute.add(work(kernel, ns));
  }

  static Work work(const model::Kernel& kernel, double ns) {
    Work work;
    const auto kind = std::ranges::find(loads, profile::family(kernel.key.family).load);
    if (kernel.stream == model::Stream::compute && kernel.purpose == model::Purpose::compute && kind != loads.end())
      work.by_kind[static_cast<std::size_t>(kind - loads.begin())] = ns;
    else
      work.fixed = ns;
    return work;
  }

  /// Of steps on a stream of their own; what not all microbatches run is left out, or all that is waited for.
  Work way(std::size_t piece, const std::vector<model::Step>& steps, const Work& one_after_the_other) const {
    using Does = model::Step::Kind;
    LongestWay way;
    for (const model::Step& step : steps) {
      if (!runs_always(step)) continue;
      if (step.kind == Does::launch) {
        const model::Kernel& kernel = stages_.pieces[piece].kernels[step.index];
        const Price& price = prices_.pieces[piece][step.index];
        const bool on_gpu = !kernel.key.family.empty();
        way.launch(kernel.stream, on_gpu ? work(kernel, duration(kernel, price)) : Work{}, us_to_ns(price.host_us),
                   on_gpu);
      } else if (step.kind == Does::wait) {
        way.wait(static_cast<model::Stream>(step.index));
      } else if (step.kind == Does::synchronize) {
        way.synchronize(static_cast<model::Stream>(step.index));
      }
    }
    return way.own().cool() > one_after_the_other.cool() ? way.own() : one_after_the_other;
  }

  double part_of_microbatches(const model::Step& step) const {
    const int runs = std::min(step.before_microbatch, config_.microbatches) - std::max(step.from_microbatch, 0);
    return std::max(0, runs) / static_cast<double>(config_.microbatches);
  }
  bool runs_always(const model::Step& step) const { return part_of_microbatches(step) == 1; }

  BothWork passes(std::size_t index) const {
    const model::Piece& piece = stages_.pieces[index];
    BothWork result;
    const auto run = [&](PassWork& pass, const std::vector<model::Step>& steps, bool expert) {
      PassWork one;
      for (const model::Step& step : steps)
        if (step.kind == model::Step::Kind::launch)
          add(one, piece.kernels[step.index], prices_.pieces[index][step.index], !piece.nodes.empty(), expert,
              part_of_microbatches(step));
      if (!expert) one.way = way(index, steps, one.compute);
      pass.add(one);
    };
    run(result.forward, piece.forward, false);
    run(result.backward, piece.backward, false);
    for (const auto& node : piece.nodes) {
      using Name = schedule::Node::Name;
      const bool expert = node.name == Name::moe_dispatch || node.name == Name::moe_combine;
      run(result.forward, node.forward, expert);
      run(result.backward, node.backward, expert);
      run(result.backward, node.weight_gradient, expert);
      if (node.name == Name::loss) continue;
      result.forward.host += host_.forward_node;
      result.backward.host += host_.backward_node;
      // What the pull request defers comes after all else.
      if (config_.delay_wgrad_compute && !node.weight_gradient.empty() && !of_pull_request())
        result.backward.host += host_.backward_node;
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
        PassWork pass;
        for (const model::Step& step : steps)
          if (step.kind == model::Step::Kind::launch && runs_always(step) &&
              piece.kernels[step.index].stream == model::Stream::compute)
            add(pass, piece.kernels[step.index], prices_.pieces[index][step.index], true, false);
        pass.way = way(index, steps, pass.compute);
        return pass;
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

  double least_pair(const Slower& factors) const {
    double least = pairs_.empty() ? 0 : std::numeric_limits<double>::max();
    for (const LayerPair& pair : pairs_)
      least = std::min(least, pair.least(config_.ep_overlap_early_attn_memory_release,
                                         [&](const PassWork& node) { return node.on_stream(factors); }));
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

  Slower slower(double duty) const {
    Slower factors{1, 1, 1};
    for (std::size_t kind = 0; law_ && kind < loads.size(); ++kind) factors[kind] = law_->slowdown(loads[kind], duty);
    return factors;
  }

  /// The least time in which a rank that is idle for `idle` does its work: clock and duty fit each other. `after`: of
  /// the step, in which it may be idle too. `pairs` of layers one after the other with that much beside bound it, too.
  double slowed(const PassWork& all, double idle, double after, double pairs = 0, double beside_pairs = 0) const {
    const double cool = std::max(std::max(all.compute.cool(), all.way.cool()) + idle,
                                 pairs > 0 ? pairs * least_pair(slower(0)) + beside_pairs : 0);
    if (!law_) return cool;
    const auto at = [&](double duty) {
      const Slower factors = slower(duty);
      double time = all.on_stream(factors) + idle, load = 0;
      for (std::size_t k = 0; k < Work::kinds; ++k)
        load += all.compute.by_kind[k] * factors[k] * law_->weight(loads[k]);
      if (pairs > 0) time = std::max(time, pairs * least_pair(factors) + beside_pairs);
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
  HostCalls host_;
  std::vector<BothWork> pieces_;
  std::vector<LayerPair> pairs_;  ///< of every kind of layer of experts
};

}  // namespace

Estimate floor(const scenario::Scenario& scenario, const model::Stages& stages, const schedule::Config& config,
               const profile::Profiles& profiles, const Prices& prices) {
  return Floor(scenario, stages, config, profiles, prices).find();
}

Estimate floor_of_any_split(const scenario::Scenario& scenario, const model::Stages& stages,
                            const schedule::Config& config, const profile::Profiles& profiles, const Prices& prices,
                            bool any_size) {
  return Floor(scenario, stages, config, profiles, prices).find_for_any_split(any_size);
}

}  // namespace pipewright::timeline
