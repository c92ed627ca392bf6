#include "pipewright/split_floor.hpp"

#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "pipewright/memory.hpp"
#include "pipewright/scenario/derived.hpp"
#include "quick_look.hpp"

namespace pipewright::predict {
namespace {

/// Layers that are alike but for where they stand.
auto likeness(const scenario::Scenario& s, std::int64_t layer) {
  return std::tuple(scenario::is_moe_layer(s, layer), scenario::attention_window(s, layer),
                    scenario::is_linear_attention_layer(s, layer), scenario::is_mamba_layer(s, layer),
                    scenario::has_mlp(s, layer), scenario::is_attention_layer(s, layer));
}

Bytes of_device(const scenario::Scenario& scenario, const profile::Profiles& profiles) {
  Prediction limits;
  set_limits(limits, scenario, profiles);
  return limits.memory_limit - limits.memory_margin;
}

/// Every kind beside every other, the least of those that are alike.
template <class PiecesAlike>
void add_turns(Layers& into, const scenario::Scenario& scenario, const model::Stages& stages,
               const PiecesAlike& pieces_alike) {
  const auto config = schedule::config_of(scenario);
  std::vector<std::vector<const model::Piece*>> kinds = {{nullptr}};
  std::map<typename PiecesAlike::key_type, std::uint32_t> number;
  for (const auto& [likeness, pieces] : pieces_alike) {
    number.emplace(likeness, static_cast<std::uint32_t>(kinds.size()));
    auto& of = kinds.emplace_back();
    for (const auto piece : pieces) of.push_back(&stages.pieces[piece]);
  }
  for (std::size_t layer = 0; layer < into.kept.size(); ++layer) {
    const auto at = number.find(likeness(scenario, static_cast<std::int64_t>(layer)));
    into.kind.push_back(at == number.end() ? 0 : at->second);
  }
  for (const auto& forwards : kinds)
    for (auto* of = &into.grown.emplace_back(); const auto& backwards : kinds) {
      std::optional<memory::Grown> least;
      for (const auto* forward : forwards)
        for (const auto* backward : backwards) {
          const auto grown = memory::grown_in_turns(forward, backward, config);
          if (!least) least = grown;
          least = {std::min(least->most, grown.most), std::min(least->least, grown.least)};
        }
      of->push_back(*least);
    }
}

}  // namespace

void LayersDraft::price() {
  layers_->works = timeline::layer_works(scenario_, stages_, schedule::config_of(scenario_), profiles_,
                                         timeline::price(scenario_, stages_, profiles_));
}

LayersDraft::LayersDraft(scenario::Scenario of, const profile::Profiles& profiles)
    : scenario_((scenario::check(of), std::move(of))),
      profiles_(profiles),
      stages_(model::build_pieces(scenario_, profiles.device())) {
  const auto& scenario = scenario_;
  const auto& stages = stages_;
  Layers& found = *layers_;
  const auto number = static_cast<std::size_t>(scenario.model.num_layers);
  constexpr auto unknown = std::numeric_limits<std::int64_t>::max();
  found.kept.assign(number, unknown);
  found.added_by_layer = unknown;
  std::vector<std::int64_t> kept, added;
  for (const auto& piece : stages.pieces) {
    kept.push_back(memory::kept_by(piece));
    added.push_back(memory::added_by_backward(piece));
  }
  // Some pieces differ by what is beside them in the chunk: the least of those that are alike.
  std::map<decltype(likeness(scenario, 0)), std::int64_t> alike;
  std::map<decltype(likeness(scenario, 0)), std::set<std::uint32_t>> pieces_alike;
  const auto last = stages.ranks.size() - 1;
  for (std::size_t r = 0; r <= last; ++r)
    for (std::size_t c = 0; c < stages.ranks[r].chunks.size(); ++c) {
      const auto& chunk = stages.ranks[r].chunks[c];
      for (std::size_t n = 0; n < chunk.pieces.size(); ++n) {
        const auto piece = chunk.pieces[n];
        if (const int layer = chunk.layers[n]; layer >= 0) {
          const auto [at, fresh] = alike.emplace(likeness(scenario, layer), kept[piece]);
          if (!fresh) at->second = std::min(at->second, kept[piece]);
          pieces_alike[likeness(scenario, layer)].insert(piece);
          found.added_by_layer = std::min(found.added_by_layer, added[piece]);
        } else if (r == 0 && c == 0 && n == 0) {
          found.embedding = kept[piece];
        } else if (r == last && c + 1 == stages.ranks[r].chunks.size() && n + 1 == chunk.pieces.size()) {
          found.head = kept[piece];
          found.added_by_head = added[piece];
        }
      }
    }
  for (std::size_t layer = 0; layer < number; ++layer)
    if (const auto at = alike.find(likeness(scenario, static_cast<std::int64_t>(layer))); at != alike.end())
      found.kept[layer] = std::max<std::int64_t>(0, at->second);
    else
      found.kept[layer] = 0;
  if (found.added_by_layer == unknown) found.added_by_layer = 0;
  if (scenario.settings.overlap_moe_expert_parallel_comm) add_turns(found, scenario, stages, pieces_alike);
}

Layers least_of(const Layers& one, const Layers& other) {
  Layers least;
  for (std::size_t i = 0; i < one.kept.size(); ++i) least.kept.push_back(std::min(one.kept[i], other.kept[i]));
  least.embedding = std::min(one.embedding, other.embedding);
  least.head = std::min(one.head, other.head);
  least.added_by_layer = std::min(one.added_by_layer, other.added_by_layer);
  least.added_by_head = std::min(one.added_by_head, other.added_by_head);
  if (one.kind != other.kind || one.grown.size() != other.grown.size()) return least;
  least.kind = one.kind, least.grown = one.grown;
  std::vector<std::int64_t> of_one(one.grown.size(), 0), of_other = of_one;  // by kind: what the backward's layer keeps
  for (std::size_t i = 0; i < one.kind.size(); ++i)
    of_one[one.kind[i]] = one.kept[i], of_other[one.kind[i]] = other.kept[i];
  for (std::size_t f = 0; f < least.grown.size(); ++f)
    for (std::size_t b = 0; b < least.grown.size(); ++b) {
      const auto &a = one.grown[f][b], &c = other.grown[f][b];
      const auto kept = std::min(of_one[b], of_other[b]);
      least.grown[f][b] = {std::min(of_one[b] - kept + a.most, of_other[b] - kept + c.most),
                           std::min(a.least, c.least)};
    }
  return least;
}

Layers nothing_kept(const scenario::Scenario& scenario) {
  Layers none;
  none.kept.assign(static_cast<std::size_t>(scenario.model.num_layers), 0);
  return none;
}

std::shared_ptr<const Split::Schedule> Splits::schedule_of(const schedule::Config& c) {
  const std::array<int, 5> key = {c.stages, c.chunks.value_or(0), c.microbatches, schedule::group_size(c),
                                  c.ep_overlap};
  {
    const std::scoped_lock lock(mutex_);
    if (const auto at = known_.find(key); at != known_.end()) return at->second;
  }
  auto made = std::make_shared<Split::Schedule>();
  made->order = schedule::order(c);
  for (int r = 0; r < c.stages; ++r) {
    made->calls.push_back(c.ep_overlap ? schedule::calls(c, r) : std::vector<schedule::Calls>());
    made->moments.push_back(memory::moments(c, r));
  }
  constexpr std::size_t most = 512;  // some 100 kB each
  const std::scoped_lock lock(mutex_);
  if (known_.size() >= most) known_.clear();
  return known_.emplace(key, std::move(made)).first->second;
}

Split Splits::of(const scenario::Scenario& structure) {
  scenario::check(structure);  // layers that do not divide
  const auto config = schedule::config_of(structure);
  const Outside outside(structure, profiles_);
  const Bytes for_ranks = of_device(structure, profiles_);
  Split split;
  split.ranks.resize(static_cast<std::size_t>(config.stages));
  split.schedule = schedule_of(config);
  for (int r = 0; r < config.stages; ++r) {
    auto& rank = split.ranks[static_cast<std::size_t>(r)];
    rank.available = for_ranks - outside.of(r);
    for (int c = 0; c < config.chunks.value_or(1); ++c) {
      const auto stage = scenario::stage(structure, r, c);
      auto& chunk = rank.chunks.emplace_back();
      chunk.first = stage.layers.empty() ? 0 : static_cast<int>(stage.layers.front());
      chunk.layers = static_cast<int>(stage.layers.size());
      chunk.embedding = stage.embedding;
      chunk.loss = stage.loss;
      chunk.mtp_layers = static_cast<int>(stage.mtp_layers);
    }
  }
  return split;
}

SpreadFloor::SpreadFloor(const scenario::Scenario& example, const profile::Profiles& profiles)
    : example_((scenario::check(example), example)),
      profiles_(profiles),
      stages_(model::build(example_, profiles.device())),
      config_(schedule::config_of(example_)),
      prices_(timeline::price(example_, stages_, profiles)),
      floor_(example_, stages_, config_, profiles, prices_),
      memory_(example_, profiles),
      copies_(example, profiles) {}

Prediction SpreadFloor::least(const Layers* other, const std::vector<double>& part) const {
  if (other == nullptr) {
    auto result = quick_look(example_, profiles_, floor_.any());
    add_mean_rank(result, example_, profiles_, stages_, config_);
    return result;
  }
  return quick_look(example_, profiles_, floor_.any(other->works.get(), part));
}

Prediction SpreadFloor::least(const Split& split, const Layers* layers, const std::vector<double>& part,
                              double enough) const {
  return quick_look(example_, profiles_,
                    floor_.of(split, layers == nullptr ? nullptr : layers->works.get(), part, enough));
}

namespace {

/// Of the layer in that place of a chunk. One checkpoint for a whole chunk is its first layer's.
std::int64_t layer_kept(const Split::Chunk& chunk, int place, const Replay& replay) {
  const auto layer = static_cast<std::size_t>(chunk.first + place);
  if (!replay.groups) return (place < replay.block ? replay.replayed : replay.layers)->kept[layer];
  if (place > 0) return 0;
  const auto first = replay.replayed->kept.begin() + chunk.first;
  return *std::min_element(first, first + chunk.layers);
}

std::int64_t ends_kept(const Split::Chunk& chunk, const Replay& replay) {
  return (chunk.embedding ? replay.layers->embedding : 0) + (chunk.loss ? replay.layers->head : 0);
}

/// What a rank has at most beside what its forwards left, in calls of two chunks; where that is not known: nothing.
class CombinedCalls {
 public:
  CombinedCalls(const Split::Rank& rank, const Replay& replay, const Replay& moved)
      : chunks_(rank.chunks),
        layers_(*replay.layers),
        moved_(*moved.layers),
        known_(replay.replayed == nullptr && !layers_.grown.empty()),
        calls_((chunks_.size() + 1) * chunks_.size(), unknown) {}

  std::int64_t most(const schedule::Moment& moment) {
    if (!knows(moment)) return 0;
    auto& known = calls_[static_cast<std::size_t>(moment.forward + 1) * chunks_.size() +
                         static_cast<std::size_t>(moment.backward)];
    if (known == unknown) known = call(chunk(moment.forward), chunk(moment.backward));
    return known;
  }
  /// ... whatever part of what may be moved is: when the first layers meet.
  std::int64_t least(const schedule::Moment& moment) const {
    if (!knows(moment) || moved_.grown.empty() || chunk(moment.backward).loss) return 0;
    return std::max<std::int64_t>(0, of(moved_.grown, chunk(moment.forward), chunk(moment.backward), 0).least);
  }

 private:
  static constexpr std::int64_t unknown = -1;
  /// Depths of multi-token prediction go back first: which layers meet then is not known.
  bool knows(const schedule::Moment& moment) const {
    return known_ && moment.backward >= 0 && chunk(moment.backward).mtp_layers == 0;
  }
  const Split::Chunk& chunk(int number) const {
    static const Split::Chunk none;
    return number < 0 ? none : chunks_[static_cast<std::size_t>(number)];
  }
  static int forward(const Split::Chunk& f, int i) { return i < f.layers ? f.first + i : -1; }
  static int backward(const Split::Chunk& b, int i) { return i < b.layers ? b.first + b.layers - 1 - i : -1; }
  const memory::Grown& of(const std::vector<std::vector<memory::Grown>>& grown, const Split::Chunk& f,
                          const Split::Chunk& b, int i) const {
    const auto kind = [&](int layer) { return layer < 0 ? 0U : layers_.kind[static_cast<std::size_t>(layer)]; };
    return grown[kind(forward(f, i))][kind(backward(b, i))];
  }
  std::int64_t call(const Split::Chunk& f, const Split::Chunk& b) const {
    const auto kept = [&](int layer) { return layer < 0 ? 0 : layers_.kept[static_cast<std::size_t>(layer)]; };
    return memory::grown_in_call(
        std::max(f.layers, b.layers), (f.embedding ? layers_.embedding : 0) - (b.loss ? layers_.head : 0),
        [&](int i) { return of(layers_.grown, f, b, i).most; },
        [&](int i) { return kept(forward(f, i)) - kept(backward(b, i)); });
  }

  const std::vector<Split::Chunk>& chunks_;
  const Layers &layers_, &moved_;
  bool known_;
  std::vector<std::int64_t> calls_;
};

/// What a rank lacks at each of its moments; `unless`: no more than with whatever part of that moved.
std::vector<std::int64_t> lacking_of(const model::LeastState& state, const Split& split, std::size_t number,
                                     Bytes available, const Replay& replay, const Replay* unless = nullptr) {
  const auto& rank = split.ranks[number];
  std::int64_t held = 0;
  std::vector<std::int64_t> kept;  // by chunk
  for (const auto& chunk : rank.chunks) {
    kept.push_back(ends_kept(chunk, replay));
    for (int i = 0; i < chunk.layers; ++i) {
      held += state.layers[static_cast<std::size_t>(chunk.first + i)].value;
      kept.back() += layer_kept(chunk, i, replay);
    }
    held += (chunk.embedding ? state.embedding.value : 0) + (chunk.loss && !chunk.embedding ? state.head.value : 0);
  }
  const bool loss = rank.chunks.back().loss;
  const auto added = [&](const Replay& by, bool first) {
    std::int64_t by_layer = by.layers->added_by_layer;
    if (by.replayed != nullptr) by_layer = std::min(by_layer, by.replayed->added_by_layer);
    // The first backward is the last chunk's, later ones any chunk's.
    const std::int64_t by_head = by.layers->added_by_head;
    return first && loss ? by_head : loss ? std::min(by_head, by_layer) : by_layer;
  };
  CombinedCalls calls(rank, replay, unless == nullptr ? replay : *unless);
  std::vector<std::int64_t> lacking;
  for (const auto& moment : split.schedule->moments[number]) {
    const bool first = lacking.empty();
    std::int64_t beside = added(replay, first);
    if (unless == nullptr) {
      beside = std::max(beside, calls.most(moment));
    } else {
      beside = std::min(beside, added(*unless, first));
      beside = std::max(beside, calls.least(moment));
    }
    std::int64_t bytes = held + beside - available.value;
    for (std::size_t c = 0; c < kept.size(); ++c) bytes += moment.in_flight[c] * kept[c];
    lacking.push_back(bytes);
  }
  return lacking;
}

}  // namespace

LeastMemory::LeastMemory(const scenario::Scenario& example, const profile::Profiles& profiles)
    : state_((scenario::check(example), model::least_state(example, profiles.device()))),
      ranks_(static_cast<int>(example.settings.pipeline_model_parallel_size)) {
  const Outside outside(example, profiles);
  Bytes least = outside.of(0);
  for (int r = 1; r < ranks_; ++r) least = std::min(least, outside.of(r));
  available_ = of_device(example, profiles) - least;
}

Bytes LeastMemory::lacking() const {
  Bytes all = state_.embedding;
  for (const Bytes layer : state_.layers) all = all + layer;
  if (ranks_ > 1) all = all + state_.head;  // on one rank it may share the embedding's
  return Bytes(all.value / ranks_) - available_;
}

Bytes LeastMemory::lacking(const Split& split, const Replay& replay) const {
  Bytes most(INT64_MIN);
  for (std::size_t r = 0; r < split.ranks.size() && most <= Bytes(0); ++r)
    most = std::max(most, Bytes(std::ranges::max(lacking_of(state_, split, r, available_, replay))));
  return most;
}

Bytes SpreadFloor::lacking(const Split& split, const Replay& replay) const {
  auto most = std::numeric_limits<std::int64_t>::min();
  for (std::size_t r = 0; r < split.ranks.size(); ++r)
    most = std::max(most, std::ranges::max(lacking_of(memory_.state(), split, r, split.ranks[r].available, replay)));
  return Bytes(most);
}

std::optional<double> SpreadFloor::moving(const Split::Rank& rank, const std::vector<int>& in_flight, std::int64_t left,
                                          const Replay& kept, const Replay& moved) const {
  struct Alike {
    std::int64_t layers = 0, flights = 0;  ///< of these layers, in every chunk of the rank
  };
  std::map<std::int64_t, Alike> by_bytes;  // that a layer may move
  for (std::size_t c = 0; c < rank.chunks.size(); ++c) {
    const auto& chunk = rank.chunks[c];
    const auto add = [&](std::int64_t bytes) {
      if (bytes > 0) ++by_bytes[bytes].layers, by_bytes[bytes].flights += in_flight[c];
    };
    for (int i = 0; i < chunk.layers; ++i) add(layer_kept(chunk, i, kept) - layer_kept(chunk, i, moved));
    add(ends_kept(chunk, kept) - ends_kept(chunk, moved));
  }
  const auto most_free = [](const auto& a, const auto& b) {
    return a.second.flights * b.second.layers > b.second.flights * a.second.layers;
  };
  std::vector<std::pair<std::int64_t, Alike>> alike(by_bytes.begin(), by_bytes.end());
  std::ranges::sort(alike, most_free);
  double leaves = 0;
  for (const auto& [bytes, of] : alike) {
    if (left <= 0 || of.flights == 0) break;
    const auto frees = bytes * of.flights;
    const double part = std::min(1.0, static_cast<double>(left) / static_cast<double>(frees));
    leaves += part * static_cast<double>(bytes * of.layers);
    left -= frees;
  }
  return left > 0 ? std::nullopt : std::optional(leaves);
}

std::optional<Prediction> SpreadFloor::moving(const Split& split, const Replay& kept, const Replay& moved) const {
  double most = 0;
  for (std::size_t r = 0; r < split.ranks.size(); ++r) {
    const auto& rank = split.ranks[r];
    const auto lacks = lacking_of(memory_.state(), split, r, rank.available, kept, &moved);
    for (std::size_t moment = 0; moment < lacks.size(); ++moment) {
      if (lacks[moment] <= 0) continue;
      const auto leaves = moving(rank, split.schedule->moments[r][moment].in_flight, lacks[moment], kept, moved);
      if (!leaves) return std::nullopt;
      most = std::max(most, *leaves);
    }
  }
  // Blocks are rounded up to 512 B; what is moved has a megabyte and more.
  constexpr double unrounded = 1 - 1e-3;
  // In one microbatch more may stay on the device: some groups of the first backward pass.
  const double microbatches = config_.microbatches - (example_.settings.cpu_offloading ? 0 : 1);
  const double ns = copies_.ns_of_bytes(microbatches * most * unrounded);
  return quick_look(example_, profiles_, {static_cast<std::int64_t>(ns), 0, 0});
}

}  // namespace pipewright::predict
