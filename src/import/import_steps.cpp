// Traces of all ranks into one profile: samples by key, transfers, host costs.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "host_factor.hpp"
#include "load.hpp"
#include "machine_share.hpp"
#include "match.hpp"
#include "pipewright/import.hpp"
#include "pipewright/scenario/derived.hpp"
#include "pipewright/timeline.hpp"
#include "plausible.hpp"
#include "robust_statistics.hpp"

namespace pipewright::traces {
namespace {

struct Samples {
  std::string op;
  std::vector<double> situ_ns, cool_ns;
  double total_us = 0;
};

class Importer {
 public:
  Importer(const scenario::Scenario& scenario, const profile::Device& gpu, const Options& options,
           const profile::Profiles* cool)
      : scenario_(scenario),
        options_(options),
        stages_(model::build(scenario, gpu)),
        topology_(model::topology(scenario)) {
    if (cool == nullptr) return;
    lone_ = cool;
    part_ = cool->first().device;
    part_of_ = cool->first().name;
    clocks_ = timeline::clock_law(scenario, *cool);
    contention_ = {{profile::Load::matrix, cool->find_scalar("contention.matrix").value_or(1)},
                   {profile::Load::attention, cool->find_scalar("contention.attention").value_or(1)},
                   {profile::Load::memory, cool->find_scalar("contention.memory").value_or(1)}};
    if (!clocks_) return;
    const auto group = scenario::lockstep_gpus(scenario);
    clocks_ = clocks_->among(group, group);  // a traced rank is any of its stage
    window_ = std::llround(ms_to_ns(cool->scalar("clocks.window_ms").value));
    law_ = cool->first().name;
  }

  void add(const Trace& trace) {
    const scenario::Int world = scenario_.cluster.num_gpus, stages = scenario_.settings.pipeline_model_parallel_size;
    if (trace.rank >= world) {
      throw UsageError({trace.file, 0}, {}, fmt::format("rank {} of a scenario of {} GPUs", trace.rank, world));
    }
    if (trace.world_size > 0 && trace.world_size != world) {
      throw UsageError({trace.file, 0}, "distributedInfo.world_size",
                       fmt::format("ran on {} GPUs; the scenario has {}", trace.world_size, world));
    }
    refuse_other_groups(trace, scenario_);
    if (const auto other = other_attention(scenario_, trace)) throw UsageError({trace.file, 0}, {}, *other);
    if (!part_.name.empty() && !trace.device.empty() && part_.name != trace.device) {
      throw UsageError({trace.file, 0}, {},
                       fmt::format("ran on {}; profile {} is of {}", trace.device, part_of_, part_.name));
    }
    RankReport report;
    report.file = trace.file;
    report.rank = trace.rank;
    report.pp_rank = static_cast<int>(trace.rank / (world / stages));  // order tp-cp-ep-dp-pp
    for (const auto& known : result_.ranks) {
      if (known.rank == trace.rank) throw UsageError({trace.file, 0}, {}, "rank given twice, also by " + known.file);
    }
    const auto exchanges = exchanges_of(scenario_);
    const auto kind = kinds(trace, exchanges);
    report.summary = summarise(trace, exchanges);
    const auto patterns = patterns_of(stages_, static_cast<std::size_t>(report.pp_rank));
    const Mapping mapping = match(trace, kind, patterns, order_of(stages_, static_cast<std::size_t>(report.pp_rank)));
    const Load load(trace, kind, power(trace, mapping));
    const Beside beside(trace, kind, mapping.compute_stream);
    report.duty = load.overall();

    gap_ns_ = usual_gap(trace, mapping);
    for (const auto& operation : mapping.operations) add(trace, operation, load, beside);
    add_transfers(trace, mapping, report);
    for (const auto& a : trace.activities) report.kernel_us += ns_to_us(a.duration);
    report.attributed_us = report.kernel_us;
    for (const auto i : mapping.unmapped) {
      const Activity& a = trace.activities[i];
      report.attributed_us -= ns_to_us(a.duration);
      auto& entry = unmapped_[trace.names[a.name] + inside(trace, a)];
      ++entry.count;
      entry.total_us += ns_to_us(a.duration);
    }
    check_passes(trace, mapping, report);
    check_schedule(trace, mapping, report);
    host_.add(trace, mapping);
    operators_ = operators_ || trace.operators;
    add_host_pace(trace, mapping);
    result_.kernel_us += report.kernel_us;
    result_.attributed_us += report.attributed_us;
    if (device_.empty()) device_ = trace.device, memory_ = trace.memory;
    for (const auto& version : trace.versions) versions_.insert(version);
    result_.ranks.push_back(std::move(report));
  }

  Import finish() {
    auto& p = result_.profile;
    p.name = options_.name;
    p.device = device_ == part_.name ? part_ : profile::device_named(device_);
    p.memory = memory_;
    p.versions = versions_;
    const auto& software = scenario_.software;
    p.versions["megatron_core"] = software.megatron_core;
    p.versions["transformer_engine"] = software.transformer_engine;
    if (software.torch) p.versions["torch"] = *software.torch;
    p.provenance.push_back(options_.command);

    refuse_other_runs(spans_us_);
    refuse_wild_clocks();
    for (auto& [key, samples] : samples_) add_sample(key, samples);
    refuse_impossible_products(result_, lone_);
    double duty = 0;
    for (const auto& rank : result_.ranks) duty += rank.duty / static_cast<double>(result_.ranks.size());
    if (lone_ != nullptr) {
      const double loaded = clocks_ ? clocks_->slowdown(profile::Load::matrix, duty) : 1;
      keep_machine_share(result_, scenario_, stages_, *lone_, {span_us_, loaded});
    }
    p.scalars["in_situ.duty"] = {duty, 0, profile::Origin::measured,
                                 "share of a traced step in which a compute kernel runs, mean over the ranks"};
    add_host_costs();
    note_host_pace();

    for (auto& [name, entry] : unmapped_) {
      entry.name = name;
      result_.unmapped.push_back(entry);
    }
    std::stable_sort(result_.unmapped.begin(), result_.unmapped.end(),
                     [](const Unmapped& a, const Unmapped& b) { return a.total_us > b.total_us; });
    p.prepare();
    return std::move(result_);
  }

 private:
  static constexpr std::int64_t most_gap = 20000;  // ns: longer pauses inside an operation are the host's

  /// " (in RANGE)": the innermost range around the launch.
  static std::string inside(const Trace& trace, const Activity& a) {
    const Range* inner = nullptr;
    for (const Range& range : trace.ranges) {
      if (!a.launch.known() || range.start > a.launch.start || range.end < a.launch.start) continue;
      if (inner == nullptr || range.end - range.start < inner->end - inner->start) inner = &range;
    }
    return inner == nullptr ? "" : " (in " + inner->name + ")";
  }

  /// Median pause between neighbours on the compute stream, of those that are not the host's.
  static std::int64_t usual_gap(const Trace& trace, const Mapping& mapping) {
    std::vector<double> gaps;
    std::int64_t end = 0;
    for (const auto& a : trace.activities) {
      if (a.stream != mapping.compute_stream) continue;
      if (a.start >= end && a.start - end < most_gap) gaps.push_back(static_cast<double>(a.start - end));
      end = a.end();
    }
    return std::llround(median(gaps));
  }

  /// What the simulation of this run makes a cool, lone kernel take (timeline/clockwork.cpp), so that dividing by it
  /// leaves nothing that would be charged again: contention with communication kernels, and the clock under load.
  double slowdown(profile::Load kind, std::int64_t start, std::int64_t end, const Load& load,
                  const Beside& beside) const {
    double factor = 1;
    if (const auto found = contention_.find(kind); found != contention_.end())
      factor += (found->second - 1) * beside.share(start, end);
    if (clocks_) factor *= clocks_->slowdown(kind, load.share(start, window_));
    return factor;
  }

  void add(const Trace& trace, const Mapped& operation, const Load& load, const Beside& beside) {
    const auto& kernel = *operation.expected->kernel;
    std::int64_t ns = 0, end = -1;
    double total_us = 0;
    for (const auto i : operation.activities) {
      const Activity& a = trace.activities[i];
      // A pause longer than usual between an operation's kernels is the host's, not the operation's.
      if (end >= 0) ns += std::clamp<std::int64_t>(a.start - end, 0, gap_ns_);
      ns += std::max<std::int64_t>(a.end() - std::max(a.start, end), 0);  // GEMMs of a group overlap
      end = std::max(end, a.end());
      total_us += ns_to_us(a.duration);
    }
    // Another operator's time stands for it, or several of them: it says nothing of that one.
    if (operation.expected->operation == eager_operation || kernel.share != 1) return;
    const double factor = slowdown(timeline::load_of(kernel, topology_),
                                   trace.activities[operation.activities.front()].start, end, load, beside);
    auto& samples = samples_[kernel.key];
    if (samples.op.empty()) samples.op = kernel.name;
    samples.total_us += total_us;
    // A kernel that does more: the others keep what they take alone, so that their sum is the kernel's time.
    double cool_ns = static_cast<double>(ns) / factor;
    for (const Expected* other : operation.joined) cool_ns -= alone_ns(other->kernel->key);
    if (cool_ns <= 0) return;
    samples.situ_ns.push_back(cool_ns * factor);
    samples.cool_ns.push_back(cool_ns);
  }

  /// 0: no profile tells.
  double alone_ns(const profile::Key& key) const {
    const auto alone = lone_ != nullptr ? lone_time(key, *lone_) : std::nullopt;
    return alone ? alone->ns : 0;
  }

  /// Of every activity; what is not mapped counts as the layer does.
  std::vector<double> power(const Trace& trace, const Mapping& mapping) const {
    std::vector<double> weights(trace.activities.size(), 1);
    if (!clocks_) return weights;
    for (const auto& operation : mapping.operations) {
      const double weight = clocks_->weight(profile::family(operation.expected->kernel->key.family).load);
      for (const auto a : operation.activities) weights[a] = weight;
    }
    return weights;
  }

  void add_transfers(const Trace& trace, const Mapping& mapping, RankReport& report) {
    std::vector<double> ns;
    for (const auto i : mapping.pipeline) ns.push_back(static_cast<double>(trace.activities[i].duration));
    if (ns.empty()) return;
    report.p2p_us = ns_to_us(without_wait(ns));
    // Transfers to both neighbours are counted together, so they must go over the same link.
    const int stages = static_cast<int>(stages_.ranks.size()), rank = report.pp_rank;
    const auto link = timeline::link_between(scenario_, rank, (rank + 1) % stages);
    if (timeline::link_between(scenario_, rank, (rank + stages - 1) % stages) != link) {
      result_.notes.push_back(fmt::format(
          "rank {}: pipeline neighbours are reached over different links; transfer times not imported", trace.rank));
      return;
    }
    auto& samples = samples_[{"send_recv." + link, {stages_.boundary_bytes.value}}];
    samples.op = "pipeline transfer";
    for (const double each : ns) samples.total_us += ns_to_us(each);
    samples.situ_ns.insert(samples.situ_ns.end(), ns.begin(), ns.end());
    samples.cool_ns = samples.situ_ns;
  }

  std::size_t passes_of_a_step(const RankReport& report) const {
    std::size_t expected = 0;
    for (const auto& chunk : stages_.ranks[static_cast<std::size_t>(report.pp_rank)].chunks)
      expected += chunk.pieces.size() * static_cast<std::size_t>(scenario::num_microbatches(scenario_));
    return expected;
  }
  /// How many whole steps a trace holds; 0: a part of one, or none's optimizer.
  std::size_t steps_of(const Mapping& mapping, const RankReport& report) const {
    std::size_t forward = 0;
    bool whole = false;
    for (const auto* pattern : mapping.instances) {
      forward += pattern->pass == Pass::forward && pattern->enters;
      whole |= pattern->pass == Pass::step;
    }
    const std::size_t expected = passes_of_a_step(report);
    return whole && forward % expected == 0 ? forward / expected : 0;
  }

  void check_schedule(const Trace& trace, const Mapping& mapping, const RankReport& report) {
    const auto steps = steps_of(mapping, report);
    if (steps == 0) return;
    const double span_us = report.summary.span_us / static_cast<double>(steps);
    if (steps == 1) span_us_ = std::max(span_us_, span_us);
    spans_us_.emplace_back(trace.file, span_us);
    try {
      if (!program_) program_ = schedule::build(schedule::config_of(scenario_));
    } catch (const UsageError&) {  // Megatron as it is refuses this schedule; the run had another's
      return;
    }
    if (!program_->config.ep_overlap) refuse_another_schedule(trace, mapping, *program_, report.pp_rank, steps);
  }

  /// A step runs every layer as often as there are microbatches, and every operation of it.
  void check_passes(const Trace& trace, const Mapping& mapping, RankReport& report) {
    std::size_t forward = 0;
    const std::size_t expected = passes_of_a_step(report);
    bool whole_step = false;
    for (const auto* pattern : mapping.instances) {
      report.passes += pattern->pass != Pass::step;
      forward += pattern->pass == Pass::forward && pattern->enters;
      whole_step |= pattern->pass == Pass::step;
    }
    report.steps = static_cast<double>(forward) / static_cast<double>(expected);
    if (forward % expected != 0) {
      const auto found =
          fmt::format("{} layers run forward in the trace, {} in a step of the scenario", forward, expected);
      if (whole_step) throw UsageError({trace.file, 0}, {}, found + ": the trace is of another scenario");
      result_.notes.push_back(fmt::format("rank {}: {}: part of a step", trace.rank, found));
    }
    std::size_t missing = 0;
    const std::pair<const std::string, std::size_t>* most = nullptr;
    for (const auto& entry : mapping.missing) {
      missing += entry.second;
      if (most == nullptr || entry.second > most->second) most = &entry;
    }
    if (missing == 0) return;
    auto found = fmt::format("{} operations of the model are not in the trace where they should be, {} of them {}",
                             missing, most->second, most->first);
    if (!mapping.first_unplaced.empty()) found += "; the first kernel without a place is " + mapping.first_unplaced;
    // Which kernels take strided tensors differs most between versions of libraries.
    if ((missing - mapping.missing_copies) * most_missing > mapping.operations.size()) {
      throw UsageError({trace.file, 0}, {}, found + ": the trace is of another scenario");
    }
    result_.notes.push_back(fmt::format("rank {}: {}", trace.rank, found));
  }

  /// Matrix products take their time from the SM clock alone. Within a step the power limit moves it by a quarter;
  /// times that differ by more say that the part was shared, overheating, or that its clock was changed.
  void refuse_wild_clocks() const {
    std::vector<double> spreads;
    for (const auto& [key, samples] : samples_) {
      if (profile::family(key.family).load != profile::Load::matrix || samples.situ_ns.size() < 8) continue;
      spreads.push_back(deviation(samples.situ_ns) / median(samples.situ_ns));
    }
    if (spreads.empty() || median(spreads) <= most_spread) return;
    throw UsageError(
        {result_.ranks.front().file, 0}, {},
        fmt::format("matrix products of one shape differ by {:.0f} % in time: the SM clock varied wildly, or "
                    "something else ran on the GPU; nothing is imported",
                    100 * median(spreads)));
  }

  void add_sample(const profile::Key& key, const Samples& samples) {
    const bool waits = profile::family(key.family).load == profile::Load::network;
    KeyTime time;
    time.key = key;
    time.op = samples.op;
    time.total_us = samples.total_us;
    time.situ_ns = waits ? without_wait(samples.situ_ns) : median(samples.situ_ns);
    auto& sample = time.sample;
    sample.dims = key.dims;
    sample.ns = waits ? without_wait(samples.cool_ns) : median(samples.cool_ns);
    const double one_sigma = waits ? sample.ns - quantile(samples.cool_ns, 0) : deviation(samples.cool_ns);
    sample.spread = sample.ns > 0 ? one_sigma / sample.ns : 0;
    sample.count = static_cast<int>(samples.cool_ns.size());
    sample.source =
        waits ? "in situ: lower decile of a training step's kernels, which may wait for their peers"
        : clocks_
            ? "in situ: median over a training step, brought to a cool part by the clock law and contention of " + law_
            : "in situ: median over a training step, at the clocks and with the contention of the run";
    const bool tells = sample.ns > 0 && (!waits || sample.count >= fewest_exchanges);
    if (tells) result_.profile.samples[key.family].push_back(sample);
    result_.keys.push_back(std::move(time));
  }

  void add_host_pace(const Trace& trace, const Mapping& mapping) {
    if (lone_ == nullptr) return;
    HostCosts own;
    own.add(trace, mapping);
    if (const auto pace = own.pace(*lone_, {options_.host_overhead, trace.operators})) host_pace_[trace.rank] = *pace;
  }

  /// Of the traced ranks; nullopt: nothing tells it.
  std::optional<double> mean_host_pace() const {
    if (host_pace_.empty()) return std::nullopt;
    double sum = 0;
    for (const auto& [rank, pace] : host_pace_) sum += pace;
    return sum / static_cast<double>(host_pace_.size());
  }

  /// What the profiles have of the reference host stays: how much longer this run's hosts took is one number, for
  /// cluster.host_time_factor to say. What they lack is brought to the reference host by it.
  void add_host_costs() {
    const double pace = mean_host_pace().value_or(1);
    for (auto& [name, scalar] : host_.scalars(profiler(), host_source())) {
      if (lone_ != nullptr && (lone_->find_scalar(name) || knows_kind(name))) continue;
      if (name != "host.kernel_gap_us") scalar.value /= pace;  // the GPU's
      result_.profile.scalars[name] = scalar;
    }
  }

  /// Of host.D.FAMILY_us and host.D.FAMILY_each_us: whether the profiles tell it from an operation of the same kind.
  bool knows_kind(const std::string& scalar) const {
    for (const std::string direction : {"forward", "backward", "finalize", "optimizer"}) {
      const std::string begin = "host." + direction + ".";
      if (!scalar.starts_with(begin)) continue;
      auto family = scalar.substr(begin.size());
      for (const std::string end : {"_each_us", "_us"})
        if (family.ends_with(end)) {
          family.resize(family.size() - end.size());
          break;
        }
      return profile::host_cost(*lone_, direction, family, false).has_value();
    }
    return false;
  }

  void note_host_pace() {
    const auto mean = mean_host_pace();
    if (!mean) return;
    std::string each;
    for (const auto& [rank, pace] : host_pace_) {
      each += fmt::format("{}{} {:.2f}", each.empty() ? "rank " : ", ", rank, pace);
    }
    result_.notes.push_back(
        fmt::format("hosts take {:.2f} times as long as the reference host for a dense layer's operations ({}): "
                    "cluster.host_time_factor of other runs on this machine",
                    *mean, each));
  }

  ProfilerCost profiler() const { return {options_.host_overhead, operators_}; }

  std::string host_source() const {
    const auto& software = scenario_.software;
    std::string text = "launch records of a traced training step (";
    for (std::size_t i = 0; i < result_.ranks.size(); ++i) text += (i ? ", " : "") + stem(result_.ranks[i].file);
    text += fmt::format("): torch {}, TE {}, Megatron Core {}", software.torch.value_or("of unknown version"),
                        software.transformer_engine, software.megatron_core);
    const auto cost = profiler();
    return text + fmt::format("; divided by {:.3g} forward and {:.3g} backward for the profiler's own cost",
                              cost.of("forward"), cost.of("backward"));
  }
  static std::string stem(const std::string& file) { return file.substr(file.rfind('/') + 1); }

  /// Kernels that wait for a peer are long by their wait; the tenth of them that waits least shows the exchange itself.
  static double without_wait(std::vector<double> samples) {
    if (samples.empty()) return 0;
    const auto nth = samples.begin() + static_cast<std::ptrdiff_t>(samples.size() / 10);
    std::nth_element(samples.begin(), nth, samples.end());
    return *nth;
  }
  static constexpr double most_spread = 0.4;       ///< of matrix products of one shape, half their central 68 %
  static constexpr std::size_t most_missing = 20;  ///< one in so many; versions of libraries differ in some
  static constexpr int fewest_exchanges = 4;       ///< of fewer, all may have waited: reported, not imported

  const scenario::Scenario& scenario_;
  const Options& options_;
  const model::Stages stages_;
  const profile::Topology topology_;
  std::optional<profile::ClockLaw> clocks_;
  const profile::Profiles* lone_ = nullptr;
  double span_us_ = 0;                                    ///< of a traced step, the longest over the ranks
  std::vector<std::pair<std::string, double>> spans_us_;  ///< of whole steps, one of them, by file
  std::optional<schedule::Program> program_;
  std::map<profile::Load, double> contention_;  ///< beside a communication kernel, over alone
  std::int64_t window_ = 0, gap_ns_ = 0;
  std::string law_, device_, part_of_;
  profile::Device part_;  ///< of the profile that cool times come from
  Bytes memory_;
  std::map<std::string, std::string> versions_;
  std::map<profile::Key, Samples> samples_;
  std::map<std::string, Unmapped> unmapped_;
  HostCosts host_;
  bool operators_ = false;                    ///< of any trace
  std::map<std::int64_t, double> host_pace_;  ///< by rank
  Import result_;
};

}  // namespace

Import import_traces(const scenario::Scenario& scenario, const std::vector<Trace>& traces, const Options& options,
                     const profile::Profiles* cool) {
  const auto traced = profile::device_named(traces.empty() ? std::string() : traces.front().device);
  const auto& gpu = traced.known() ? traced : cool != nullptr ? cool->device() : profile::assumed_device();
  refuse_mixed_runs(traces);
  Importer importer(scenario, gpu, options, cool);
  for (const auto& trace : traces) importer.add(trace);
  return importer.finish();
}

}  // namespace pipewright::traces
