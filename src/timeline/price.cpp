// The time of every kernel from the profiles, and the host's time before its launch.
#include <algorithm>
#include <cmath>
#include <map>
#include <unordered_map>

#include "copies.hpp"
#include "pipewright/scenario/derived.hpp"
#include "pipewright/timeline.hpp"
#include "pipewright/versions.hpp"

namespace pipewright::timeline {
namespace {

// Attention of unlike sequences in one kernel against like ones of the same work: its blocks end at different times.
// For the same work, attention of half and of twice the length differs by 5 to 15 % (H200 profile, 8192 tokens, 32
// heads of 128: 620 TFLOP/s forward in one sequence, 592 in two, 533 in four; 529, 475, 402 backward); six
// kinds of unlike rows were -20 to +9 % off forward and -14 to +5 % backward (docs/packed-sequences.md).
constexpr double unlike_lengths = 0.1;
/// The figures of attention in FP8 and of deterministic attention are of one count of heads; which part of its time it
/// takes with another was not measured. From GPU to GPU the part of the same heads differs by 8 % forward and 6 %
/// backward (standard deviation of three, 4096 tokens, sdpa_figures.cpp): no better is claimed for other heads.
constexpr double other_heads = 0.1;

// Host costs are known by family and direction.
class HostCosts {
 public:
  HostCosts(const scenario::Scenario& scenario, const profile::Profiles& profiles)
      : profiles_(profiles),
        factor_(replayed_host_factor(scenario, profiles)),
        optimizer_factor_(host_time_factor(scenario, profiles)),
        fp8_(scenario::quantizes(scenario)),
        parameter_us_(profiles.find_scalar("host.backward.parameter_us").value_or(0)),
        launch_us_(profiles.scalar("host.cuda_launch_us").value) {}

  /// An operation's own cost, and where it was told apart ("host.<direction>.<family>_each_us") that of every launch.
  double us(const std::string& direction, const model::Kernel& kernel) {
    if (kernel.within_call) return factor_ * kernel.launches * launch_us_;
    const auto& family = kernel.host_family.empty() ? kernel.key.family : kernel.host_family;
    const std::string key = direction + family;
    auto known = cache_.find(key);
    if (known == cache_.end()) known = cache_.emplace(key, search(direction, family)).first;
    return (direction == "optimizer" ? optimizer_factor_ : factor_) *
           (known->second.once + kernel.launches * known->second.each + kernel.parameters * parameter_us_);
  }

 private:
  /// An operation of which nothing is known costs a bare launch for each kernel behind it.
  profile::HostCost search(const std::string& direction, const std::string& family) const {
    return profile::host_cost(profiles_, direction, family, fp8_).value_or(profile::HostCost{0, launch_us_});
  }

  const profile::Profiles& profiles_;
  const double factor_, optimizer_factor_;
  const bool fp8_;
  const double parameter_us_, launch_us_;
  std::map<std::string, profile::HostCost> cache_;
};

/// From it on cuDNN's attention takes what profiles hold, within some percent (docs/public-tables.md).
constexpr scenario::CudnnVersion with_todays_attention{9, 17};

class Pricer {
 public:
  Pricer(const scenario::Scenario& scenario, const profile::Profiles& profiles)
      : profiles_(profiles),
        network_(profile::network(model::topology(scenario), profiles)),
        host_(scenario, profiles),
        gpus_of_host_(std::min(scenario.cluster.gpus_per_node, scenario.cluster.num_gpus)),
        sinks_(scenario::has_sinks(scenario)) {
    if (const auto slowdown = profiles.find_scalar("machine.slowdown")) slowdown_ = *slowdown;
    if (const auto cudnn = scenario::cudnn_version(scenario.software); cudnn && *cudnn < with_todays_attention) {
      older_forward_ = profiles.find_scalar("attention.forward.before_cudnn_9_17").value_or(1);
      older_backward_ = profiles.find_scalar("attention.backward.before_cudnn_9_17").value_or(1);
    }
  }

  Price price(const model::Kernel& kernel, const std::string& direction) {
    Price result;
    if (!kernel.graphed) result.host_us = host_.us(direction, kernel);
    if (kernel.exchange)
      result.time = time(*kernel.exchange);
    else if (!kernel.key.family.empty())
      result.time = time(kernel.key);
    result.load = load_of(kernel, network_.topology);
    result.time.ns *= kernel.share;
    if (sinks_ && kernel.key.family.starts_with("attention.thd.")) add_sinks(kernel.key, result.time);
    if (kernel.empty > 0) add_empty(static_cast<double>(kernel.empty), kernel.key.family, result.time);
    // Of an optimizer on the host: all GPUs of the host at once, with nothing beside.
    if (kernel.purpose == model::Purpose::offload && kernel.stream == model::Stream::compute)
      for (const bool outwards : {true, false})
        if (kernel.key.family == (outwards ? "copy.d2h" : "copy.h2d"))
          result.time.ns *= copies_at_once(profiles_, outwards, gpus_of_host_);
    using As = model::Kernel::TimedAs;
    if (kernel.timed_as != As::itself) {
      const bool lengths = kernel.timed_as == As::equal_lengths;
      result.time.spread = std::hypot(result.time.spread, lengths ? unlike_lengths : other_heads);
      result.time.origin = profile::Origin::derived;
      result.time.note =
          lengths ? "sequences of several lengths, timed as ones of a single length with the same work"
          : kernel.timed_as == As::attention_in_16_bits
              ? "attention in FP8: its part of the time in 16 bits in cuDNN's own benchmark"
              : "deterministic attention: its part of the usual kernel's time, as measured for other heads";
    }
    return result;
  }

  Prices::List prices(const std::vector<model::Kernel>& kernels, const std::string& direction) {
    Prices::List result;
    result.reserve(kernels.size());
    for (const model::Kernel& kernel : kernels)  // gradients are checked by the same code during and after backward
      result.push_back(price(kernel, kernel.read_by_host ? "backward" : direction));
    return result;
  }

 private:
  const profile::Timing& time(const profile::Key& key) {
    auto [entry, is_new] = times_.try_emplace(key);
    if (is_new) {
      entry->second = profiles_.time(key);
      const auto load = profile::family(key.family).load;
      if (computes(load)) entry->second.ns *= slowdown_;
      if (load == profile::Load::attention && !key.family.starts_with("attention.softcap."))  // that is FlexAttention
        entry->second.ns *= key.family.find(".backward") == std::string::npos ? older_forward_ : older_backward_;
    }
    return entry->second;
  }

  const profile::Timing& time(const profile::Exchange& exchange) {
    auto [entry, is_new] = exchanges_.try_emplace(exchange);
    if (is_new) entry->second = profile::time(profiles_, network_, exchange);
    return entry->second;
  }

  /// Sinks were measured with sequences that are not packed: what they add there, they add here.
  void add_sinks(const profile::Key& packed, profile::Timing& timing) {
    constexpr std::string_view of_window = "attention.thd.window.", of_all = "attention.thd.";
    const bool windows = packed.family.starts_with(of_window);
    const std::string pass = packed.family.substr((windows ? of_window : of_all).size());
    profile::Key sinks{"attention.sink." + pass, packed.dims}, without{"attention." + pass, packed.dims};
    const std::int64_t length = packed.dims[2], window = windows ? packed.dims.back() : length;
    if (!windows)
      sinks.dims.push_back(window);
    else if (window >= length)
      without.dims.pop_back();
    else
      without.family = "attention.window." + pass;
    const profile::Timing of_sinks = time(sinks), plain = time(without);
    timing.ns *= of_sinks.ns / plain.ns;
    timing.spread = std::hypot(timing.spread, of_sinks.spread);
  }

  void add_empty(double count, const std::string& family, profile::Timing& time) const {
    const auto each = profiles_.scalar(family + ".empty_us");
    const double own = time.ns, more = us_to_ns(count * each.value);
    time.ns += more;
    time.spread = (own * time.spread + more * each.spread) / time.ns;
    if (each.origin != profile::Origin::measured) time.origin = profile::Origin::derived;
  }

  static bool computes(profile::Load load) {
    return load == profile::Load::matrix || load == profile::Load::attention || load == profile::Load::memory;
  }

  const profile::Profiles& profiles_;
  const profile::Network network_;
  HostCosts host_;
  const std::int64_t gpus_of_host_;
  const bool sinks_;
  double slowdown_ = 1;                            ///< of this machine's kernels against the profiled one's
  double older_forward_ = 1, older_backward_ = 1;  ///< attention of the run's cuDNN over that of the profile's
  std::unordered_map<profile::Key, profile::Timing, profile::Key::Hash> times_;
  std::map<profile::Exchange, profile::Timing> exchanges_;
};

}  // namespace

profile::Load load_of(const model::Kernel& kernel, const profile::Topology& topology) {
  if (kernel.key.family.empty()) return profile::Load::none;
  const auto load = profile::family(kernel.key.family).load;
  if (load != profile::Load::network || !kernel.key.family.ends_with(".nvlink")) return load;
  using Kind = profile::Exchange::Kind;
  const auto& exchange = kernel.exchange;
  if (exchange && (exchange->library != profile::Exchange::Library::nccl || domains(topology, *exchange) > 1))
    return load;
  if (kernel.key.family.starts_with(profile::name(Kind::send_recv))) return load;  // not measured
  return kernel.key.family.starts_with(profile::name(Kind::all_to_all)) ? profile::Load::peers : profile::Load::ring;
}

double host_time_factor(const scenario::Scenario& scenario, const profile::Profiles& profiles) {
  if (scenario.cluster.host_time_factor) return *scenario.cluster.host_time_factor;
  return profiles.find_scalar("host.time_factor").value_or(1);
}

std::optional<profile::ClockLaw> clock_law(const scenario::Scenario& scenario, const profile::Profiles& profiles) {
  return profiles.clock_law(scenario::quantizes(scenario) ? "fp8" : "bf16");
}

double host_pace(const scenario::Scenario& scenario, const profile::Profiles& profiles) {
  const double factor = host_time_factor(scenario, profiles);
  const std::int64_t gpus = scenario::lockstep_gpus(scenario);
  const bool meets = scenario.model.num_moe_experts && !scenario.settings.moe_pad_expert_input_to_capacity;
  if (!meets)
    return factor * (1 + profiles.find_scalar("host.rank_spread").value_or(0) * profile::expected_largest(gpus));
  // A host's mean holds its own slow stretches; a layer is slow as soon as one host of the group is in one.
  const double share = profiles.find_scalar("host.slow_share").value_or(0);
  const double longer = profiles.find_scalar("host.slow_factor").value_or(1) - 1;
  const double some = 1 - std::pow(1 - share, static_cast<double>(gpus));
  return factor * (1 + some * longer) / (1 + share * longer);
}

double replayed_host_factor(const scenario::Scenario& scenario, const profile::Profiles& profiles) {
  return scenario.settings.cuda_graph_impl == "full_iteration" ? 0 : host_pace(scenario, profiles);
}

Prices price(const scenario::Scenario& scenario, const model::Stages& stages, const profile::Profiles& profiles) {
  Pricer pricer(scenario, profiles);
  Prices prices;
  for (const model::Piece& piece : stages.pieces) {
    // A kernel belongs to the pass that launches it; recomputed forward kernels are issued by the backward pass, but by
    // the same Python code as in the forward pass.
    std::vector<const char*> direction(piece.kernels.size(), "backward");
    const auto launches_forward = [&](const std::vector<model::Step>& steps) {
      for (const model::Step& step : steps)
        if (step.kind == model::Step::Kind::launch) direction[step.index] = "forward";
    };
    launches_forward(piece.forward);
    for (const auto& node : piece.nodes) launches_forward(node.forward);
    Prices::List list;
    list.reserve(piece.kernels.size());
    for (std::size_t k = 0; k < piece.kernels.size(); ++k)
      list.push_back(pricer.price(piece.kernels[k], piece.kernels[k].recompute ? "forward" : direction[k]));
    prices.pieces.push_back(std::move(list));
  }
  for (const model::Rank& rank : stages.ranks) {
    auto& gradient = prices.gradient_sync.emplace_back();
    auto& parameter = prices.parameter_gather.emplace_back();
    for (const model::Chunk& chunk : rank.chunks) {
      gradient.push_back(pricer.prices(chunk.gradient_sync, "backward"));
      parameter.push_back(pricer.prices(chunk.parameter_gather, "forward"));
    }
    prices.finalize.push_back(pricer.prices(rank.finalize, "finalize"));
    prices.optimizer.push_back(pricer.prices(rank.optimizer, "optimizer"));
  }
  return prices;
}

}  // namespace pipewright::timeline
