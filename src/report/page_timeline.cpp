// A run's timeline as columns. Every stream's slices in order of their start; a slice names its kernel (an entry of a
// dictionary: name, shape, bytes, where its time comes from) and its op.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "facts.hpp"
#include "nodes.hpp"
#include "page_run.hpp"
#include "pipewright/reading.hpp"

namespace pipewright::report {
namespace {

using schedule::Kind;
using timeline::Label;
using timeline::Lane;
using timeline::NodeKind;

/// What a slice is coloured by; page/palette.js has the same order.
enum class Category : std::uint8_t {
  forward,
  backward,
  weight_gradient,
  recompute,
  finalisation,
  optimizer,
  tp,
  cp,
  ep,
  dp,
  offload,
  transfer,
  host,
  synchronisation
};

/// The op of a slice: kinds of ops as page/run.js has them.
enum class OpKind : std::uint8_t { forward, backward, both, finalisation, optimizer, none };
struct OpEntry {
  OpKind kind = OpKind::none;
  int microbatch = 0, chunk = 0, microbatch2 = 0, chunk2 = 0;
  friend auto operator<=>(const OpEntry&, const OpEntry&) = default;
};

struct Place {
  std::uint32_t lane = 0, slice = 0;  ///< lane 0: nothing that is drawn; else its number from 1
};

class TimelineColumns {
 public:
  TimelineColumns(const predict::Prediction& prediction, const predict::Run& run, std::string prefix, Pack& pack)
      : prediction_(prediction),
        run_(run),
        graph_(run.timeline.graph),
        times_(run.timeline.times),
        nodes_(run),
        prefix_(std::move(prefix)),
        pack_(pack),
        places_(graph_.size()) {}

  Json make() {
    Json lanes = Json::array(), ranks = Json::array();
    for (int rank = 0; rank < graph_.ranks; ++rank) {
      ops_.clear();
      op_index_.clear();
      host(rank, lanes);
      std::map<Lane, std::vector<std::uint32_t>> by_lane;
      for (const auto node : nodes_.of_rank(rank)) {
        const auto kind = graph_.labels[node].kind;
        if (kind == NodeKind::kernel || kind == NodeKind::transfer) by_lane[graph_.labels[node].lane].push_back(node);
      }
      for (auto& [lane, slices] : by_lane) {
        std::stable_sort(slices.begin(), slices.end(), [&](auto a, auto b) { return begin(a) < begin(b); });
        stream(rank, lane, slices, lanes);
      }
      blocks(rank);
      operations(rank);
      ranks.push_back(phases(rank));
    }
    peers();
    waits();
    path();
    Json kernels = Json::array();
    for (const auto& kernel : kernels_) kernels.push_back(kernel);
    return {{"prefix", prefix_},
            {"step_ns", prediction_.step_ns},
            {"forward_backward_ns", prediction_.forward_backward_ns},
            {"lanes", lanes},
            {"ranks", ranks},
            {"kernels", kernels}};
  }

 private:
  Column& column(const std::string& name) { return pack_.column(prefix_ + name); }

  std::int64_t begin(std::uint32_t node) const {
    return graph_.labels[node].kind == NodeKind::transfer ? nodes_.posted(node) : times_.start[node];
  }

  // ---- Kernels

  Category category(const Label& label, const model::Kernel& kernel) const {
    switch (label.purpose) {
      case model::Purpose::tp:
        return Category::tp;
      case model::Purpose::cp:
        return Category::cp;
      case model::Purpose::ep:
        return Category::ep;
      case model::Purpose::dp:
        return Category::dp;
      case model::Purpose::offload:
        return Category::offload;
      default:
        break;
    }
    if (label.phase != 0) return label.phase == 1 ? Category::finalisation : Category::optimizer;
    if (kernel.recompute) return Category::recompute;
    if (kernel.name.find("wgrad") != std::string::npos) return Category::weight_gradient;
    return nodes_.backward(label) ? Category::backward : Category::forward;
  }

  std::uint32_t kernel_entry(const Label& label) {
    const auto& kernel = *nodes_.kernel(label);
    const Category kind = category(label, kernel);
    const auto [known, is_new] = kernel_index_.try_emplace({&kernel, kind}, 0);
    if (!is_new) return known->second;
    const auto* price = price_of(run_, label);
    const auto bytes = bytes_of(kernel.key), flop = flop_of(kernel.key);
    Json entry = Json::array();
    entry.push_back(kernel.name);
    entry.push_back(static_cast<int>(kind));
    entry.push_back(kernel.key.family);
    entry.push_back(shape_text(kernel.key));
    entry.push_back(bytes ? Json(static_cast<std::int64_t>(*bytes)) : Json());
    entry.push_back(flop ? Json(*flop) : Json());
    entry.push_back(price != nullptr ? Json(std::string(profile::name(price->time.origin))) : Json());
    entry.push_back(price != nullptr ? Json(price->time.profile) : Json());
    entry.push_back(price != nullptr ? Json(price->time.note) : Json());
    entry.push_back(kernel.link);
    entry.push_back(price != nullptr ? Json(whole_ns(price->time.ns)) : Json());
    return known->second = enter(entry);
  }

  std::uint32_t transfer_entry(const Label& label) {
    const bool sends = timeline::sends(label.part().type), to_next = timeline::to_next(label.part().type);
    const Bytes bytes = label.shapes ? Bytes() : run_.stages.carried(label.rank, label.part().chunk, to_next);
    const std::string name = fmt::format("{} {} {} rank {}", sends ? "send" : "receive",
                                         label.shapes                                ? "shape"
                                         : timeline::goes_forward(label.part().type) ? "activations"
                                                                                     : "gradients",
                                         sends ? "to" : "from", nodes_.peer(label));
    return enter(Json::array({name, static_cast<int>(Category::transfer), "pipeline transfer", "",
                              label.shapes ? Json() : Json(bytes.value), Json(), Json(), Json(), Json(), ""}));
  }

  std::uint32_t enter(const Json& entry) {
    const auto [known, is_new] = entries_.try_emplace(entry.dump(), static_cast<std::uint32_t>(kernels_.size()));
    if (is_new) kernels_.push_back(entry);
    return known->second;
  }

  // ---- Ops

  std::uint32_t index_of(const OpEntry& op) {
    const auto [known, is_new] = op_index_.try_emplace(op, static_cast<std::uint32_t>(ops_.size()));
    if (is_new) ops_.push_back(op);
    return known->second;
  }

  std::uint32_t op_of(const Label& label) {
    OpEntry op;
    if (label.phase != 0) {
      op.kind = label.phase == 1 ? OpKind::finalisation : OpKind::optimizer;
    } else if (label.kind == NodeKind::transfer) {
      op = {timeline::goes_forward(label.part().type) ? OpKind::forward : OpKind::backward, label.part().microbatch,
            label.part().chunk};
    } else if (label.instruction != Label::none) {
      const auto& i = run_.program.ranks[label.rank].instructions[label.instruction];
      if (i.kind == Kind::combined)
        op = {OpKind::both, i.microbatch, i.chunk, i.backward_microbatch, i.backward_chunk};
      else if (i.kind == Kind::forward || i.kind == Kind::backward || i.kind == Kind::node)
        op = {nodes_.backward(label) ? OpKind::backward : OpKind::forward, i.microbatch, i.chunk};
    }
    return index_of(op);
  }

  void operations(int rank) {
    const std::string of = fmt::format("O{}.", rank);
    auto &kind = column(of + "kind"), &microbatch = column(of + "mb"), &chunk = column(of + "chunk"),
         &microbatch2 = column(of + "mb2"), &chunk2 = column(of + "chunk2");
    for (const OpEntry& op : ops_) {
      kind.put(static_cast<std::uint64_t>(op.kind));
      microbatch.put_delta(op.microbatch);
      chunk.put_delta(op.chunk);
      microbatch2.put_delta(op.microbatch2);
      chunk2.put_delta(op.chunk2);
    }
  }

  // ---- Streams

  void stream(int rank, Lane lane, const std::vector<std::uint32_t>& slices, Json& lanes) {
    lanes.push_back(Json::array({rank, lane_name(lane), static_cast<int>(lane), slices.size()}));
    const auto number = static_cast<std::uint32_t>(lanes.size());
    const std::string of = fmt::format("L{}.", number - 1);
    auto &what = column(of + "what"), &op = column(of + "op"), &gap = column(of + "gap"), &length = column(of + "ns");
    Column* spin = lane >= Lane::p2p && lane <= Lane::p2p_group ? &column(of + "spin") : nullptr;
    std::int64_t last = 0;
    for (std::uint32_t i = 0; i < slices.size(); ++i) {
      const auto node = slices[i];
      const Label& label = graph_.labels[node];
      const std::int64_t from = begin(node), to = times_.end[node];
      places_[node] = {number, i};
      what.put(label.kind == NodeKind::transfer ? transfer_entry(label) : kernel_entry(label));
      op.put_delta(op_of(label));
      gap.put_signed(from - std::exchange(last, to));
      length.put(static_cast<std::uint64_t>(to - from));
      if (spin != nullptr) spin->put(static_cast<std::uint64_t>(times_.start[node] - from));
    }
  }

  void host(int rank, Json& lanes) {
    struct Moment {
      std::int64_t from, to;
      std::uint32_t op;
      bool synchronises;
    };
    std::vector<Moment> merged;  // the stays of one op in a row
    for (const auto& stay : host_stays(run_, nodes_, rank)) {
      const auto op = op_of(stay.label);
      if (!merged.empty() && !stay.synchronises && !merged.back().synchronises && merged.back().op == op)
        merged.back().to = stay.to;
      else
        merged.push_back({stay.from, stay.to, op, stay.synchronises});
    }
    lanes.push_back(Json::array({rank, lane_name(Lane::host), static_cast<int>(Lane::host), merged.size()}));
    const std::string of = fmt::format("L{}.", lanes.size() - 1);
    auto &what = column(of + "what"), &op = column(of + "op"), &gap = column(of + "gap"), &length = column(of + "ns");
    const auto entry = [&](const char* name, Category kind) {
      return enter(Json::array({name, static_cast<int>(kind), "host", "", Json(), Json(), Json(), Json(), Json(), ""}));
    };
    const auto issues = entry("issues", Category::host), waits = entry("synchronises", Category::synchronisation);
    std::int64_t last = 0;
    for (const Moment& moment : merged) {
      what.put(moment.synchronises ? waits : issues);
      op.put_delta(moment.op);
      gap.put_signed(moment.from - std::exchange(last, moment.to));
      length.put(static_cast<std::uint64_t>(moment.to - moment.from));
    }
  }

  /// Ops as the compute stream runs them: kernels of one op that follow each other, its own waits between them.
  void blocks(int rank) {
    const std::string of = fmt::format("B{}.", rank);
    auto &op = column(of + "op"), &gap = column(of + "gap"), &length = column(of + "ns");
    std::int64_t last = 0, from = 0, to = -1;
    std::uint32_t current = 0;
    const auto end_block = [&] {
      if (to < 0) return;
      op.put_delta(current);
      gap.put_signed(from - std::exchange(last, to));
      length.put(static_cast<std::uint64_t>(to - from));
    };
    for (const auto node : nodes_.of_rank(rank)) {
      const Label& label = graph_.labels[node];
      if (label.lane != Lane::compute || label.kind != NodeKind::kernel) continue;
      const auto next = op_of(label);
      if (to < 0 || next != current) {
        end_block();
        current = next;
        from = times_.start[node];
      }
      to = times_.end[node];
    }
    end_block();
  }

  Json phases(int rank) const {
    const auto bounds = timeline::phase_bounds(run_.program.ranks[static_cast<std::size_t>(rank)]);
    std::int64_t steady = -1, cooldown = -1, end = 0, optimizer = -1;
    for (const auto& block : nodes_.blocks(rank)) {
      if (block.phase == 0 && block.instruction != Label::none) {
        if (steady < 0 && block.instruction >= bounds.steady) steady = block.start;
        if (cooldown < 0 && block.instruction >= bounds.cooldown) cooldown = block.start;
        end = std::max(end, block.end);
      } else if (block.phase == 2 && optimizer < 0) {
        optimizer = block.start;
      }
    }
    if (cooldown < 0) cooldown = end;
    if (steady < 0) steady = cooldown;
    return {{"pp_rank", rank},
            {"steady_ns", steady},
            {"cooldown_ns", cooldown},
            {"end_ns", end},
            {"optimizer_ns", optimizer}};
  }

  // ---- Between streams

  Place place_of(std::uint32_t node) const {
    for (int steps = 0; node != Label::none && steps < 64; ++steps) {
      if (places_[node].lane != 0) return places_[node];
      const auto before = nodes_.binding(node);
      if (!before) break;
      node = *before;
    }
    return {};
  }

  void put(const Place& place, Column& lane, Column& slice, std::vector<std::uint32_t>& last) const {
    lane.put(place.lane);
    if (last.size() <= place.lane) last.resize(place.lane + 1);
    slice.put_signed(static_cast<std::int64_t>(place.slice) - last[place.lane]);
    last[place.lane] = place.slice;
  }

  /// Of every send, the receive at the other end.
  void peers() {
    auto &lane = column("F.lane"), &slice = column("F.slice"), &to_lane = column("F.to_lane"),
         &to_slice = column("F.to_slice");
    std::vector<std::uint32_t> last, last_to;
    for (int rank = 0; rank < graph_.ranks; ++rank)
      for (const auto node : nodes_.of_rank(rank)) {
        const Label& label = graph_.labels[node];
        if (label.kind != NodeKind::transfer || label.shapes || !timeline::sends(label.part().type)) continue;
        const auto other = nodes_.other_side(node);
        if (!other) continue;
        put(places_[node], lane, slice, last);
        put(places_[*other], to_lane, to_slice, last_to);
      }
  }

  void waits() {
    const auto gaps = timeline::gaps(run_.timeline, run_.stages, run_.program);
    auto at = gaps.begin();
    for (int rank = 0; rank < graph_.ranks; ++rank) {
      const std::string of = fmt::format("W{}.", rank);
      auto &gap = column(of + "gap"), &length = column(of + "ns"), &cause = column(of + "cause"),
           &lane = column(of + "lane"), &slice = column(of + "slice");
      std::vector<std::uint32_t> last_slice;
      std::int64_t last = 0;
      for (; at != gaps.end() && at->rank == rank; ++at) {
        gap.put_signed(at->start - std::exchange(last, at->end));
        length.put(static_cast<std::uint64_t>(at->end - at->start));
        cause.put(static_cast<std::uint64_t>(at->cause));
        put(at->cause == timeline::Cause::host ? Place{} : place_of(at->by), lane, slice, last_slice);
      }
    }
  }

  /// From the end of the step back to its begin, a stay on a rank each.
  void path() {
    std::vector<std::pair<int, std::int64_t>> stays;  ///< rank, from; last first
    const auto& end = times_.end;
    auto node = static_cast<std::uint32_t>(std::max_element(end.begin(), end.end()) - end.begin());
    for (std::optional<std::uint32_t> at = node; at; at = nodes_.binding(*at)) {
      const int rank = graph_.labels[*at].rank;
      const auto before = nodes_.binding(*at);
      const std::int64_t from = before ? std::min(times_.start[*at], end[*before]) : 0;
      if (!stays.empty() && stays.back().first == rank)
        stays.back().second = from;
      else
        stays.emplace_back(rank, from);
    }
    auto &rank = column("P.rank"), &from = column("P.from");
    for (auto stay = stays.rbegin(); stay != stays.rend(); ++stay) {
      rank.put(static_cast<std::uint64_t>(stay->first));
      from.put_delta(stay->second);
    }
  }

  const predict::Prediction& prediction_;
  const predict::Run& run_;
  const timeline::Graph& graph_;
  const timeline::Times& times_;
  const Nodes nodes_;
  const std::string prefix_;
  Pack& pack_;
  std::vector<Place> places_;  ///< by node
  std::vector<Json> kernels_;
  std::map<std::string, std::uint32_t> entries_;
  std::map<std::pair<const model::Kernel*, Category>, std::uint32_t> kernel_index_;
  std::vector<OpEntry> ops_;  ///< of the rank
  std::map<OpEntry, std::uint32_t> op_index_;
};

}  // namespace

Json timeline_columns(const predict::Prediction& prediction, const predict::Run& run, const std::string& prefix,
                      Pack& pack) {
  return TimelineColumns(prediction, run, prefix, pack).make();
}

}  // namespace pipewright::report
