// A step's least time, read off the kernels: what each rank has to do, and what its passes take in the order of the
// schedule (floor_schedule.hpp). Of a rank:
//
//   rank r   |- chunk 0 forward of ranks before -|- its own work -|- chunk 0 backward of ranks before -|
//
// Every schedule begins on rank r when chunk 0 has passed the ranks before it and ends with a backward of chunk 0 that
// must go back through them. In between, its compute stream with what it waits for inside a layer, its communication
// streams, the engine that copies for activation offload and its host, which may be ahead, each have at least their own
// work to do. Collectives of data parallelism count where nothing can hide them.
//
// Kernels slow with the load: the clock law rises with the duty faster than in proportion (a power limit), so the mean
// duty over the step, the least that the load allows, gives the least slowdown; a rank may be idle in the optimizer.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "floor_pieces.hpp"
#include "floor_schedule.hpp"
#include "lines.hpp"
#include "pipewright/scenario/derived.hpp"
#include "pipewright/timeline.hpp"
#include "transfers.hpp"

namespace pipewright::timeline {
namespace {

class Floor : FloorPieces {
 public:
  Floor(const scenario::Scenario& scenario, const model::Stages& stages, const schedule::Config& config,
        const profile::Profiles& profiles, const Prices& prices)
      : FloorPieces(scenario, stages, config, profiles, prices), own_(FloorPieces::works()) {
    const auto ranks = static_cast<double>(stages.ranks.size());
    const auto chunks = stages.ranks.back().chunks.size();
    mtp_layers_ = static_cast<int>(
        scenario::stage(scenario, config.stages - 1, static_cast<std::int64_t>(chunks) - 1).mtp_layers);
    for (std::size_t r = 0; r < stages.ranks.size(); ++r) {
      mean_optimizer_ += optimizer(r, joined_) / ranks;
      all_optimizers_ += whole_optimizer(r);
      if (stages.ranks.size() == 1) continue;
      Bytes least = stages.carried(static_cast<int>(r), 0, true);
      for (std::size_t c = 1; c < stages.ranks[r].chunks.size(); ++c)
        least = std::min(least, stages.carried(static_cast<int>(r), static_cast<int>(c), true));
      wires_.push_back(static_cast<double>(wire_after(scenario, profiles, static_cast<int>(r), least.value).ns));
    }
  }

  const LayerWorks& works() const { return own_; }

  Estimate find() const {
    double schedule = 0, most_after = 0, least_after = std::numeric_limits<double>::max();
    double forward_chain = 0, backward_chain = 0;  // chunk 0 of the ranks before
    bool joined = stages_.ranks.size() == 1;
    std::vector<RankPasses> passes;
    for (std::size_t r = 0; r < stages_.ranks.size(); ++r) {
      const model::Rank& rank = stages_.ranks[r];
      RankPasses& of_rank = passes.emplace_back();
      PassWork all;
      BothWork first;
      for (std::size_t c = 0; c < rank.chunks.size(); ++c) {
        auto& both = of_rank.chunks.emplace_back();
        for (const auto piece : rank.chunks[c].pieces) {
          const BothWork& work = pieces_[piece];
          all.add(work.forward, config_.microbatches);
          all.add(work.backward, config_.microbatches);
          both.forward.add(work.forward.alike), both.backward.add(work.backward.alike);
          if (c == 0) first.forward.add(work.forward), first.backward.add(work.backward);
        }
      }
      of_rank.load = all.compute, of_rank.calls = combined_calls(static_cast<int>(r));
      all.host += host_.calls(config_.microbatches * static_cast<double>(rank.chunks.size()));
      const double head = std::max(gathered(r), gathered(0) + forward_chain);
      const double tail = std::max(after_last(r), after_last(0) + backward_chain);
      schedule = std::max({schedule, slowed(all, head + tail, whole_optimizer(r), of_rank.calls), all.host + tail,
                           all.communication + head + tail, copies_.least(r) + head + tail});
      forward_chain += first.forward.chain;
      backward_chain += first.backward.chain;
      const double after = optimizer(r, joined);
      most_after = std::max(most_after, after);
      least_after = std::min(least_after, after);
    }
    schedule = std::max(schedule, in_order(schedule::order(config_), passes, schedule));
    return {static_cast<std::int64_t>(schedule), static_cast<std::int64_t>(joined ? most_after : least_after), 0};
  }

  /// However the layers are spread over these ranks and interleaved: the mean of all ranks, of which one takes as long.
  /// A rank's first forward comes after the embedding and a layer of every rank between, its last backward goes back
  /// through them.
  /// `any_size`: of other pipelines over as many GPUs, too; what they share is work. `other`: whose pieces these are,
  /// of each layer that part.
  Estimate find_for_any_split(bool any_size, const LayerWorks* other, const std::vector<double>& part) const {
    const auto ranks = static_cast<double>(stages_.ranks.size());
    AnyLayers layers;
    add_pieces(layers, other != nullptr, part);
    if (other != nullptr) add_other(layers, *other, part);
    const BothWork &embedding = layers.embedding, &layer = layers.least;
    double after = 0, whole = 0, finalize = 0;
    for (std::size_t r = 0; r < stages_.ranks.size(); ++r) {
      bool joined = false;
      after += optimizer(r, joined) / ranks;
      whole += whole_optimizer(r) / ranks;
      finalize += sum(stages_.ranks[r].finalize, prices_.finalize[r], 0) / ranks;
    }
    PassWork mean;
    mean.add(layers.all, 1 / ranks);
    mean.host += host_.calls(config_.microbatches);  // of a chunk at least
    double before = 0;                               // of the mean rank
    if (any_size) after = finalize = 0;
    if (ranks > 1 && !any_size)
      before = (ranks - 1) / ranks * (embedding.forward.chain + embedding.backward.chain) +
               (ranks - 1) * (ranks - 2) / 2 / ranks * (layer.forward.chain + layer.backward.chain);
    const double schedule =
        std::max({slowed(mean, before + finalize, whole,
                         [&](const Slower& factors) {
                           return layers.pairs == 0
                                      ? 0
                                      : layers.pairs / ranks * least_pair(factors, other == nullptr ? own_ : *other);
                         }),
                  mean.host + finalize, std::max(mean.communication, mean.experts) + before + finalize});
    return {static_cast<std::int64_t>(schedule), static_cast<std::int64_t>(after), 0};
  }

  /// Of one split: as find(), but what is gathered, reduced and finalised counts nothing, and beside the schedule's
  /// order kernels slow on the rank alone that has most to do. The order is followed where the step may take less than
  /// `enough` without it.
  Estimate find_for_split(const LayerSplit& split, const LayerWorks* other, const std::vector<double>& part,
                          double enough) const {
    struct {
      PassWork all;
      double least = -1, beside = 0;
      Calls calls;
    } most;
    double schedule = 0, forward_chain = 0, backward_chain = 0;
    std::vector<RankPasses> passes;
    for (std::size_t r = 0; r < split.ranks.size(); ++r) {
      const auto& rank = split.ranks[r];
      PassWork all;
      BothWork first;
      RankPasses& of_rank = passes.emplace_back();
      for (std::size_t c = 0; c < rank.chunks.size(); ++c) {
        const auto& chunk = rank.chunks[c];
        BothWork sum;
        const auto add = [&](const BothWork& work, double times) {
          sum.forward.add(work.forward, times), sum.backward.add(work.backward, times);
        };
        for (int layer = chunk.first; layer < chunk.first + chunk.layers; ++layer) {
          const auto n = static_cast<std::size_t>(layer);
          const double replaced = other == nullptr ? 0 : part.empty() ? 1 : part.at(n);
          if (replaced < 1) add(own_.kinds[own_.kind[n]], 1 - replaced);
          if (replaced > 0) add(other->kinds[other->kind[n]], replaced);
        }
        if (chunk.embedding) add(embedding_, 1);
        if (chunk.loss && chunk.mtp_layers == mtp_layers_) add(head_, 1);
        all.add(sum.forward, config_.microbatches), all.add(sum.backward, config_.microbatches);
        if (c == 0) first = sum;
        of_rank.chunks.push_back({sum.forward.alike, sum.backward.alike});
      }
      of_rank.load = all.compute;
      all.host += host_.calls(config_.microbatches * static_cast<double>(rank.chunks.size()));
      const double beside = forward_chain + backward_chain;
      schedule = std::max({schedule, all.host + backward_chain, all.communication + beside});
      const Calls& calls = of_rank.calls = combined_calls(split, r, other);
      const double least = std::max(all.on_stream(slower(0)), calls(slower(0))) + beside;
      if (least > most.least) most = {all, least, beside, calls};
      forward_chain += first.forward.chain;
      backward_chain += first.backward.chain;
    }
    schedule = std::max(schedule, slowed(most.all, most.beside, all_optimizers_, most.calls));
    const double after = joined_ ? mean_optimizer_ : 0;
    if (schedule + after < enough) schedule = std::max(schedule, in_order(split.schedule->order, passes, schedule));
    return {static_cast<std::int64_t>(schedule), static_cast<std::int64_t>(after), 0};
  }

 private:
  /// Of all layers, embedding and loss; the layer whose chain is the shortest.
  struct AnyLayers {
    PassWork all;
    BothWork embedding, least;
    double pairs = 0;
  };
  static double chain(const BothWork& work) { return work.forward.chain + work.backward.chain; }
  void add_layer(AnyLayers& sum, const BothWork& work, double share) const {
    sum.all.add(work.forward, share * config_.microbatches);
    sum.all.add(work.backward, share * config_.microbatches);
    if (share > 0 && (chain(sum.least) == 0 || chain(work) < chain(sum.least))) sum.least = work;
  }
  /// `part`: of each layer that others replace; empty: all of it, where there are others.
  void add_pieces(AnyLayers& sum, bool others, const std::vector<double>& part) const {
    for (std::size_t r = 0; r < stages_.ranks.size(); ++r) {
      for (const auto& chunk : stages_.ranks[r].chunks)
        for (std::size_t n = 0; n < chunk.pieces.size(); ++n) {
          const BothWork& piece = pieces_[chunk.pieces[n]];
          if (const int layer = chunk.layers[n]; layer >= 0) {
            const double replaced = !others ? 0 : part.empty() ? 1 : part.at(static_cast<std::size_t>(layer));
            add_layer(sum, piece, 1 - replaced);
            continue;
          }
          sum.all.add(piece.forward, config_.microbatches);
          sum.all.add(piece.backward, config_.microbatches);
          if (r == 0 && n == 0) sum.embedding = piece;
        }
    }
    if (!others) sum.pairs += pairs() * config_.microbatches;
  }
  void add_other(AnyLayers& sum, const LayerWorks& other, const std::vector<double>& part) const {
    for (std::size_t layer = 0; layer < other.kind.size(); ++layer)
      add_layer(sum, other.kinds[other.kind[layer]], part.empty() ? 1 : part.at(layer));
    if (part.empty()) sum.pairs += other.pairs * config_.microbatches;
  }

  /// What a rank's combined calls take one after the other; none: nothing.
  class Calls {
   public:
    /// A chunk's layers in order, embedding and output layer; null: it has none.
    struct Chunk {
      std::vector<const LayerNodes*> layers;
      const LayerNodes *embedding = nullptr, *head = nullptr;
      auto operator<=>(const Chunk&) const = default;
    };
    Calls() = default;
    Calls(const std::vector<Chunk>& chunks, const std::vector<schedule::Calls>& calls, const schedule::Config& config,
          bool weights)
        : early_attention_(config.ep_overlap_early_attn_memory_release),
          post_last_(config.from_0_18),
          weights_(weights) {
      std::map<Chunk, int> kinds;
      for (const Chunk& chunk : chunks) {
        const auto [at, fresh] = kinds.emplace(chunk, static_cast<int>(chunks_.size()));
        if (fresh) chunks_.push_back(chunk);
        kind_.push_back(at->second);
      }
      const auto kind_of = [&](int chunk) { return chunk < 0 ? -1 : kind_[static_cast<std::size_t>(chunk)]; };
      std::map<std::pair<int, int>, int> alike;
      for (const auto& call : calls) alike[{kind_of(call.forward), kind_of(call.backward)}] += call.times;
      for (const auto& [kind, times] : alike) calls_.push_back({kind.first, kind.second, times});
      exact_ = calls;
    }

    double operator()(const Slower& factors) const {
      const auto times = times_of(factors);
      double ns = 0;
      for (const auto& call : calls_) {
        const Chunk* f = call.forward < 0 ? nullptr : &chunks_[static_cast<std::size_t>(call.forward)];
        const Chunk* b = call.backward < 0 ? nullptr : &chunks_[static_cast<std::size_t>(call.backward)];
        const auto end_of = [&](const Chunk* forward, const Chunk* backward) {
          return one(forward, backward, times).end;
        };
        ns += call.times * (weights_ ? end_of(f, b) : std::max(end_of(f, nullptr), end_of(nullptr, b)));
      }
      return ns;
    }

    /// Of two chunks, -1: none, by turn[forward + 1][backward + 1] of as many as there are and one.
    std::vector<LeastPass> by_chunk(const Slower& factors) const {
      const auto times = times_of(factors);
      std::map<std::pair<int, int>, LeastPass> of_kinds;
      const auto kinds = kind_.size() + 1;
      std::vector<LeastPass> all(kinds * kinds);
      for (const auto& call : exact_) {
        const auto f = call.forward < 0 ? -1 : kind_[static_cast<std::size_t>(call.forward)];
        const auto b = call.backward < 0 ? -1 : kind_[static_cast<std::size_t>(call.backward)];
        const auto [at, fresh] = of_kinds.try_emplace({f, b});
        if (fresh)
          at->second = one(f < 0 ? nullptr : &chunks_[static_cast<std::size_t>(f)],
                           b < 0 ? nullptr : &chunks_[static_cast<std::size_t>(b)], times);
        all[static_cast<std::size_t>(call.forward + 1) * kinds + static_cast<std::size_t>(call.backward + 1)] =
            at->second;
      }
      return all;
    }

   private:
    using Times = std::map<const LayerNodes*, LayerNodes::Times>;
    Times times_of(const Slower& factors) const {
      Times times;
      for (const Chunk& chunk : chunks_) {
        for (const auto* layer : chunk.layers)
          if (!times.contains(layer)) times[layer] = layer->times(factors);
        for (const auto* end : {chunk.embedding, chunk.head})
          if (end != nullptr) times[end] = end->times(factors);
      }
      if (!weights_)
        for (auto& [nodes, of] : times) of.weight = {};
      return times;
    }
    LeastPass one(const Chunk* f, const Chunk* b, const Times& times) const {
      constexpr auto end = LayerNodes::attention;
      CombinedCall call(early_attention_, post_last_);
      if (f != nullptr && f->embedding != nullptr) call.forward(times.at(f->embedding).forward[end]);
      if (b != nullptr && b->head != nullptr) call.backward(times.at(b->head).backward[end]);
      const std::size_t forwards = f == nullptr ? 0 : f->layers.size(), backwards = b == nullptr ? 0 : b->layers.size();
      for (std::size_t i = 0; i < std::max(forwards, backwards); ++i)
        call.layers(i < forwards ? &times.at(f->layers[i]) : nullptr,
                    i < backwards ? &times.at(b->layers[backwards - 1 - i]) : nullptr);
      LeastPass pass{0, call.output(), call.gradient()};
      if (f != nullptr && f->head != nullptr) call.forward(times.at(f->head).forward[end]);
      if (b != nullptr && b->embedding != nullptr) call.backward(times.at(b->embedding).backward[end]);
      pass.end = call.end();
      return pass;
    }
    bool early_attention_ = false, post_last_ = false;
    bool weights_ = true;  ///< false: their gradients come at another place
    std::vector<Chunk> chunks_;
    std::vector<int> kind_;                       ///< of each chunk
    std::vector<schedule::Calls> calls_, exact_;  ///< of kinds of chunks; of chunks
  };

  /// A rank's passes: each chunk's forward and backward, or its calls; the work that all of them do.
  struct RankPasses {
    struct Both {
      Work forward, backward;
    };
    std::vector<Both> chunks;
    Calls calls;
    Work load;
  };
  /// As long as it takes the ranks to run their passes in the order of the schedule. Clocks: kernels run the slower the
  /// higher the mean duty, which falls with the time that the step takes. So what the passes take, slowed as in a step
  /// of `known`, which none undercuts, is at least as long as the least; slowed as in a step of that it is no longer.
  double in_order(const schedule::Order& order, const std::vector<RankPasses>& ranks, double known) const {
    if (ranks.size() == 1 || of_pull_request() || config_.deferred_head_wgrads > 0) return 0;
    const double longest = in_order(order, ranks, slower_ranks(ranks, known));
    return law_ ? std::min(longest, in_order(order, ranks, slower_ranks(ranks, longest))) : longest;
  }
  /// By how much the kernels of each rank slow at least in a step whose passes take so long.
  std::vector<Slower> slower_ranks(const std::vector<RankPasses>& ranks, double ns) const {
    std::vector<Slower> all;
    for (const auto& rank : ranks) {
      constexpr int rounds = 4;  // from below
      double duty = 0;
      for (int i = 0; law_ && i < rounds; ++i) duty = load(rank.load, slower(duty)) / (ns + all_optimizers_);
      all.push_back(slower(duty));
    }
    return all;
  }
  double in_order(const schedule::Order& order, const std::vector<RankPasses>& ranks,
                  const std::vector<Slower>& factors) const {
    const auto chunks = static_cast<std::size_t>(order.chunks) + 1;
    std::vector<std::vector<LeastPass>> passes;
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      if (order.combined) {
        passes.push_back(ranks[r].calls.by_chunk(factors[r]));
        continue;
      }
      auto& of_rank = passes.emplace_back(chunks * chunks);
      for (std::size_t c = 1; c < chunks; ++c) {
        const double forward = ranks[r].chunks[c - 1].forward.slowed(factors[r]),
                     backward = ranks[r].chunks[c - 1].backward.slowed(factors[r]);
        of_rank[c * chunks] = {forward, forward, 0};
        of_rank[c] = {backward, 0, backward};
      }
    }
    return longest_schedule(order, wires_, [&](int rank, int forward, int backward) -> const LeastPass& {
      return passes[static_cast<std::size_t>(rank)]
                   [static_cast<std::size_t>(forward + 1) * chunks + static_cast<std::size_t>(backward + 1)];
    });
  }

  void add(Calls::Chunk& chunk, std::size_t piece) const {
    using Name = schedule::Node::Name;
    const auto& nodes = stages_.pieces[piece].nodes;
    if (nodes.empty()) return;
    if (nodes.front().name == Name::embed)
      chunk.embedding = &nodes_[piece];
    else if (nodes.front().name == Name::logits)
      chunk.head = &nodes_[piece];
    else
      chunk.layers.push_back(&nodes_[piece]);
  }
  Calls combined_calls(int rank) const {
    if (!config_.ep_overlap) return {};
    std::vector<Calls::Chunk> chunks;
    for (const auto& chunk : stages_.ranks[static_cast<std::size_t>(rank)].chunks) {
      chunks.emplace_back();
      for (const auto piece : chunk.pieces) add(chunks.back(), piece);
    }
    return {chunks, schedule::calls(config_, rank), config_, !of_pull_request()};
  }
  Calls combined_calls(const LayerSplit& split, std::size_t rank, const LayerWorks* other) const {
    if (!config_.ep_overlap) return {};
    const LayerWorks& works = other == nullptr ? own_ : *other;
    std::vector<Calls::Chunk> chunks;
    for (const auto& chunk : split.ranks[rank].chunks) {
      auto& at = chunks.emplace_back();
      for (int layer = chunk.first; layer < chunk.first + chunk.layers; ++layer)
        at.layers.push_back(&works.nodes[works.kind[static_cast<std::size_t>(layer)]]);
      const auto& first = stages_.ranks.front().chunks.front();
      if (chunk.embedding) add(at, first.pieces.front());
      const auto& last = stages_.ranks.back().chunks.back();
      if (!chunk.loss || chunk.mtp_layers != mtp_layers_) continue;
      for (std::size_t n = 0; n < last.pieces.size(); ++n)
        if (last.layers[n] < 0 && (&last != &first || n > 0)) add(at, last.pieces[n]);
    }
    return {chunks, split.schedule->calls[rank], config_, !of_pull_request()};
  }

  /// Of a pair of layers of experts, with ever more of them in one call: as many take no longer than in several.
  double least_pair(const Slower& factors, const LayerWorks& works) const {
    double least = std::numeric_limits<double>::max();
    for (std::size_t kind = 0; kind < works.nodes.size(); ++kind) {
      if (!works.of_experts[kind]) continue;
      const auto times = works.nodes[kind].times(factors);
      CombinedCall call(config_.ep_overlap_early_attn_memory_release, config_.from_0_18);
      constexpr int settled = 8;
      double before = 0;
      for (int pair = 0; pair < 2 * settled; ++pair) {
        call.layers(&times, &times);
        if (pair + 1 == settled) before = call.streams();
      }
      least = std::min(least, (call.streams() - before) / settled);
    }
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

  /// Pieces of the first and of the last chunk that are no layers.
  BothWork end(bool last) const {
    BothWork sum;
    const auto& chunk = last ? stages_.ranks.back().chunks.back() : stages_.ranks.front().chunks.front();
    for (std::size_t n = 0; n < chunk.pieces.size(); ++n) {
      const bool embedding = &chunk == &stages_.ranks.front().chunks.front() && n == 0;
      if (chunk.layers[n] >= 0 || embedding == last) continue;
      sum.forward.add(pieces_[chunk.pieces[n]].forward), sum.backward.add(pieces_[chunk.pieces[n]].backward);
      if (!last) break;
    }
    return sum;
  }

  Slower slower(double duty) const {
    Slower factors{1, 1, 1};
    for (std::size_t kind = 0; law_ && kind < Work::kinds; ++kind)
      factors[kind] = law_->slowdown(slowing_loads[kind], duty);
    return factors;
  }

  /// Precondition: there is a law.
  double load(const Work& work, const Slower& factors) const {
    double ns = 0;
    for (std::size_t k = 0; k < Work::kinds; ++k) ns += work.by_kind[k] * factors[k] * law_->weight(slowing_loads[k]);
    return ns;
  }

  /// The least time in which a rank does its work, and its calls, if besides it is idle for `idle`: clock and duty fit
  /// each other. `after`: of the step, in which it may be idle too.
  template <class OfCalls>
  double slowed(const PassWork& all, double idle, double after, const OfCalls& calls) const {
    const double cool = std::max({all.compute.cool(), all.way.cool(), calls(slower(0))}) + idle;
    if (!law_) return cool;
    const auto at = [&](double duty) {
      const Slower factors = slower(duty);
      const double time = std::max(all.on_stream(factors), calls(factors)) + idle;
      return std::pair{time, time > 0 ? load(all.compute, factors) / (time + after) : 0};
    };
    double low = 0, high = 2;  // duties: kinds may weigh more than the layer that the law was measured with
    constexpr int halvings = 20;
    for (int i = 0; i < halvings; ++i) {
      const double duty = (low + high) / 2;
      (at(duty).second > duty ? low : high) = duty;
    }
    return std::max(cool, at(low).first);
  }

  LayerWorks own_;
  BothWork embedding_ = end(false), head_ = end(true);
  int mtp_layers_ = 0;  ///< beside the loss
  bool joined_ = stages_.ranks.size() == 1;
  double mean_optimizer_ = 0, all_optimizers_ = 0;
  std::vector<double> wires_;  ///< to the next rank
};

}  // namespace

Estimate floor(const scenario::Scenario& scenario, const model::Stages& stages, const schedule::Config& config,
               const profile::Profiles& profiles, const Prices& prices) {
  return Floor(scenario, stages, config, profiles, prices).find();
}

class SplitFloor::Sums {
 public:
  Floor floor;
};

SplitFloor::SplitFloor(const scenario::Scenario& scenario, const model::Stages& stages, const schedule::Config& config,
                       const profile::Profiles& profiles, const Prices& prices)
    : sums_(new Sums{Floor(scenario, stages, config, profiles, prices)}) {}

Estimate SplitFloor::any(const LayerWorks* other, const std::vector<double>& part) const {
  return sums_->floor.find_for_any_split(false, other, part);
}

Estimate SplitFloor::of(const LayerSplit& split, const LayerWorks* other, const std::vector<double>& part,
                        double enough) const {
  return sums_->floor.find_for_split(split, other, part, enough);
}

std::shared_ptr<const LayerWorks> layer_works(const scenario::Scenario& scenario, const model::Stages& stages,
                                              schedule::Config config, const profile::Profiles& profiles,
                                              const Prices& prices) {
  constexpr int many = 1 << 30;
  config.microbatches = many;
  return std::make_shared<const LayerWorks>(Floor(scenario, stages, config, profiles, prices).works());
}

Estimate floor_of_any_split(const scenario::Scenario& scenario, const model::Stages& stages,
                            const schedule::Config& config, const profile::Profiles& profiles, const Prices& prices,
                            bool any_size) {
  return Floor(scenario, stages, config, profiles, prices).find_for_any_split(any_size, nullptr, {});
}

}  // namespace pipewright::timeline
