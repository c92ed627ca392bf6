// What would shorten the step. The critical path says what a change can gain at most; then another path is the longest,
// so the step is found again with every change, under the clocks that it brings: by the chunk-level engine before and
// after, or where that does not express the scenario by the exact one, the same graph with other durations or lags.
#include <algorithm>
#include <map>
#include <unordered_map>

#include "account.hpp"
#include "clockwork.hpp"
#include "pipewright/reading.hpp"

namespace pipewright::timeline {
namespace {

std::int64_t end_of(const Times& times) { return times.end[last_node(times)]; }

/// Time of the critical path by kernel family, by link class, and the host's.
struct Path {
  std::map<std::string, std::int64_t> families, links;
  std::int64_t host = 0;
};

/// What a lever changes: kernels of a family, everything that crosses a link class, the host.
struct Change {
  std::string family, link;
  double factor = 1, host = 1;

  double of(const model::Kernel& kernel) const {
    return (!family.empty() && kernel.key.family == family) || (!link.empty() && kernel.link == link) ? factor : 1;
  }
};

class Levers {
 public:
  Levers(const Result& result, const scenario::Scenario& scenario, const model::Stages& stages,
         const schedule::Program& program, const profile::Profiles& profiles)
      : result_(result),
        scenario_(scenario),
        stages_(stages),
        program_(program),
        profiles_(profiles),
        clockwork_(scenario, profiles),
        step_(step_of(result.times)),
        quick_(estimated(program.config, result.prices, {})) {}

  std::vector<Lever> find() {
    const Path path = critical_path();
    for (const auto& [ns, family] : largest(path.families))
      if (worth(ns / 10)) add(family + " 10 % faster", ns / 10, gain({family, "", 0.9}));
    for (const auto& [link, ns] : path.links)
      if (worth(ns / 2)) add(link + " twice as fast", ns / 2, gain({"", link, 0.5}));
    if (worth(path.host / 2)) add("launches at half the host's cost", path.host / 2, gain({"", "", 1, 0.5}));
    without_immediate_waits();
    std::stable_sort(found_.begin(), found_.end(),
                     [](const Lever& a, const Lever& b) { return a.gain_ns > b.gain_ns; });
    return std::move(found_);
  }

 private:
  /// Only what takes most of the path is tried.
  static std::vector<std::pair<std::int64_t, std::string>> largest(const std::map<std::string, std::int64_t>& all) {
    constexpr std::size_t most = 4;
    std::vector<std::pair<std::int64_t, std::string>> out;
    for (const auto& [name, ns] : all) out.emplace_back(ns, name);
    std::sort(out.begin(), out.end(), [](const auto& a, const auto& b) {
      return a.first != b.first ? a.first > b.first : a.second < b.second;
    });
    if (out.size() > most) out.resize(most);
    return out;
  }
  bool worth(std::int64_t ns) const { return ns * 1000 > step_; }
  void add(const std::string& what, std::int64_t on_path, std::int64_t gain) {
    if (worth(gain)) found_.push_back({what, on_path, gain});
  }

  std::string link_of(const Label& label) const {
    if (label.kind == NodeKind::transfer)
      return link_between(scenario_, label.rank, other_end(result_.graph.ranks, label.rank, label.part()).rank);
    const model::Kernel* kernel = kernel_of(stages_, label);
    return kernel ? kernel->link : "";
  }

  Path critical_path() const {
    Path path;
    std::unordered_map<const model::Kernel*, std::int64_t> kernels;  // each has many nodes
    for (std::uint32_t node = last_node(result_.times); node != Label::none;) {
      const Label& label = result_.graph.labels[node];
      const std::int64_t ns = result_.graph.duration_ns[node];
      if (const model::Kernel* kernel = kernel_of(stages_, label))
        kernels[kernel] += ns;
      else if (const std::string link = link_of(label); !link.empty())
        path.links[link] += ns;
      const std::uint32_t cause = binding(result_.graph, result_.times, node);
      if (cause != Label::none) path.host += result_.times.start[node] - result_.times.end[cause];
      node = cause;
    }
    for (const auto& [kernel, ns] : kernels)
      (kernel->link.empty() ? path.families[kernel->key.family] : path.links[kernel->link]) += ns;
    return path;
  }

  /// By the chunk-level engine, before and after.
  std::optional<std::int64_t> estimated(const schedule::Config& config, const Prices& prices,
                                        const Changes& changes) const {
    // A glance: further rounds still move a little, which is more than a small change of times does.
    const auto found = estimate(scenario_, stages_, config, profiles_, prices, changes, true);
    if (!found) return std::nullopt;
    return found->forward_backward + found->optimizer;
  }

  std::int64_t gain(const Change& change) const {
    if (!quick_) return step_ - resimulated(change);
    return *quick_ - estimated(program_.config, changed(change), {change.link, change.factor, change.host}).value();
  }

  Prices changed(const Change& change) const {
    Prices prices = result_.prices;
    const auto apply = [&](const std::vector<model::Kernel>& kernels, Prices::List& list) {
      for (std::size_t k = 0; k < list.size(); ++k) {
        list[k].time.ns *= change.of(kernels[k]);
        list[k].host_us *= change.host;
      }
    };
    for (std::size_t i = 0; i < stages_.pieces.size(); ++i) apply(stages_.pieces[i].kernels, prices.pieces[i]);
    for (std::size_t r = 0; r < stages_.ranks.size(); ++r) {
      const model::Rank& rank = stages_.ranks[r];
      for (std::size_t c = 0; c < rank.chunks.size(); ++c) {
        apply(rank.chunks[c].gradient_sync, prices.gradient_sync[r][c]);
        apply(rank.chunks[c].parameter_gather, prices.parameter_gather[r][c]);
      }
      apply(rank.finalize, prices.finalize[r]);
      apply(rank.optimizer, prices.optimizer[r]);
    }
    return prices;
  }

  /// The step by the exact engine: every node that is changed takes its time x factor; the launch gap stays.
  std::int64_t resimulated(const Change& change) const {
    const std::int64_t gap = clockwork_.gap();
    Graph graph = build(scenario_, stages_, program_, profiles_, result_.prices);  // durations on a cool part
    for (std::uint32_t node = 0; node < graph.size(); ++node) {
      const Label& label = graph.labels[node];
      const model::Kernel* kernel = kernel_of(stages_, label);
      const bool crosses = label.kind == NodeKind::transfer && !change.link.empty() && link_of(label) == change.link;
      const double f = kernel ? change.of(*kernel) : crosses ? change.factor : 1;
      if (f == 1) continue;
      std::int64_t& ns = graph.duration_ns[node];
      const std::int64_t fixed = kernel ? std::min(gap, ns) : 0;
      ns = fixed + whole_ns(static_cast<double>(ns - fixed) * f);
    }
    graph.edges.scale_lags(change.host);
    Times times;
    return clockwork_.settle(graph, times);
  }

  /// Megatron 0.18 and later wait for a forward send at once so that its buffer may be freed (schedules.py:1657,1784).
  void without_immediate_waits() {
    if (!program_.config.overlap_p2p || !program_.config.deallocate_outputs || !program_.config.from_0_18) return;
    schedule::Config config = program_.config;
    config.deallocate_outputs = false;
    std::int64_t exposed = 0;
    for (const Boundary& boundary : result_.boundaries)
      for (const auto& phase : boundary.by_phase) exposed += phase[static_cast<std::size_t>(TransferCause::send)];
    add("forward sends not waited for at once (deallocate_pipeline_outputs: false)", exposed, gain_with(config));
  }

  std::int64_t gain_with(const schedule::Config& config) const {
    if (quick_) return *quick_ - estimated(config, result_.prices, {}).value();
    const Graph graph = build(scenario_, stages_, schedule::build(config), profiles_, result_.prices);
    Times times;
    return step_ - clockwork_.settle(graph, times);
  }

  const Result& result_;
  const scenario::Scenario& scenario_;
  const model::Stages& stages_;
  const schedule::Program& program_;
  const profile::Profiles& profiles_;
  const Clockwork clockwork_;
  const std::int64_t step_;
  const std::optional<std::int64_t> quick_;
  std::vector<Lever> found_;
};

}  // namespace

const model::Kernel* kernel_of(const model::Stages& stages, const Label& label) {
  if (label.kind != NodeKind::kernel) return nullptr;
  if (label.piece() != Label::none) return &stages.pieces[label.piece()].kernels[label.kernel()];
  const model::Rank& rank = stages.ranks[label.rank];
  if (label.phase == 1) return &rank.finalize[label.kernel()];
  if (label.phase == 2) return &rank.optimizer[label.kernel()];
  const model::Chunk& chunk = rank.chunks[label.chunk()];
  return label.lane == Lane::parameter ? &chunk.parameter_gather[label.kernel()] : &chunk.gradient_sync[label.kernel()];
}

void slack(const Graph& graph, const Times& times,
           const std::function<void(std::uint32_t node, std::int64_t ns)>& tell) {
  // Edges mostly reach back a little: of millions of nodes few blocks are in use at a time.
  constexpr std::uint32_t block = 1U << 12U;
  std::vector<std::vector<std::int64_t>> latest(graph.size() / block + 1);
  const std::int64_t step = graph.size() > 0 ? end_of(times) : 0;
  const auto at = [&](std::uint32_t node) -> std::int64_t& {
    auto& own = latest[node / block];
    if (own.empty()) own.assign(block, step);
    return own[node % block];
  };
  for (auto node = static_cast<std::uint32_t>(graph.size()); node-- > 0;) {
    const std::int64_t end = at(node), start = end - graph.duration_ns[node];
    for (const Edge edge : graph.edges.of(node)) at(edge.from) = std::min(at(edge.from), start - edge.lag_ns);
    tell(node, end - times.end[node]);
    if (node % block == 0) latest[node / block] = std::vector<std::int64_t>();
  }
}

std::vector<Lever> levers(const Result& result, const scenario::Scenario& scenario, const model::Stages& stages,
                          const schedule::Program& program, const profile::Profiles& profiles) {
  return Levers(result, scenario, stages, program, profiles).find();
}

}  // namespace pipewright::timeline
