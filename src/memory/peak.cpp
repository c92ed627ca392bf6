// What a rank holds: its program is walked to find the peak, who holds it and what the allocator reserves, and under a
// limit once more.
#include <algorithm>
#include <deque>
#include <numeric>
#include <vector>

#include "blocks.hpp"
#include "fragmentation.hpp"
#include "limits.hpp"
#include "replayer.hpp"

namespace pipewright::memory {

std::int64_t block_bytes(std::int64_t requested) {
  return requested < smallest ? smallest : (requested + smallest - 1) / smallest * smallest;
}

std::string owner_name(const Stages& stages, std::uint32_t owner) {
  return owner < stages.owners.size() ? stages.owners[owner] : own_names[owner - stages.owners.size()];
}

AllocatorConfig without_limit(AllocatorConfig config) {
  config.per_process_memory_fraction = 1;
  return config;
}

std::vector<OwnerBytes> by_size(const Stages& stages, const std::vector<std::int64_t>& bytes) {
  std::vector<OwnerBytes> result;
  for (std::uint32_t i = 0; i < bytes.size(); ++i) {
    if (bytes[i] > 0) result.push_back({owner_name(stages, i), Bytes(bytes[i])});
  }
  std::stable_sort(result.begin(), result.end(),
                   [](const OwnerBytes& a, const OwnerBytes& b) { return a.bytes > b.bytes; });
  return result;
}

namespace {

Bytes sum(const std::vector<std::int64_t>& bytes) {
  return Bytes(std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0}));
}

/// What the allocator may take from the device.
AllocatorConfig with_limit(AllocatorConfig config, std::int64_t device) {
  config.device_bytes = device;
  return config;
}

/// Of these replayers, which outlive the walk.
void leave_out_repeats(Walker& walker, const std::vector<const Replayer*>& replayers) {
  walker.leave_out_repeats({[=](Likeness& state) {
                              for (const Replayer* each : replayers) each->describe(state);
                            },
                            [=](const Heap& heap, Likeness& state) {
                              for (const Replayer* each : replayers) each->describe(heap, state);
                            }});
}

/// The allocator of one process as configured; where it is asked why it reserves what it does, with expandable
/// segments, too.
class Watched {
 public:
  Watched(AllocatorConfig config, bool why, bool drawn) : why_(why) {
    replayers_.reserve(2), growths_.reserve(2);  // they stay where they are
    replayers_.emplace_back(config, drawn);
    if (why && !std::exchange(config.expandable_segments, true)) replayers_.emplace_back(config, drawn);
  }
  void follow(Walker& walker) {
    if (!why_) return;
    for (const Replayer& each : replayers_) growths_.emplace_back(each, walker);
  }
  void operator()(const Event& event) {
    for (Growth& growth : growths_) growth.before(event);
    for (Replayer& each : replayers_) each(event);
    for (Growth& growth : growths_) growth.after();
  }
  Replayer& replayer() { return replayers_.front(); }
  void add_to(std::vector<const Replayer*>& all) const {
    for (const Replayer& each : replayers_) all.push_back(&each);
  }
  Fragmentations found(const Stages& stages, Bytes device) {
    return {growths_.front().found(stages, device), growths_.back().found(stages, device)};
  }

 private:
  bool why_;
  std::vector<Replayer> replayers_;
  std::vector<Growth> growths_;
};

Rows in_one_walk(const std::vector<Rows>& processes) { return processes.size() > 1 ? Rows::both : Rows::mean; }

/// Replays a process under a limit; what happened is the failure, if there is one.
std::optional<Failure> survive(const Stages& stages, const schedule::Program& program, const offload::Plan& plan,
                               int rank, bool asynchronous, Rows rows, Replayer& replayer, bool leaves_out) {
  const Listener replay = [&](const Event& event) { replayer(event); };
  const Listener silent;
  Walker walker(stages, program, plan, rank, asynchronous, replay, rows);
  if (leaves_out) leave_out_repeats(walker, {&replayer});
  bool built = false;
  try {
    walker.reach_second_step([&] { built = true; }, [&] { replayer.reset_peaks(); });
    walker.step();
    return std::nullopt;
  } catch (const OutOfMemory& out) {
    const bool eager = walker.in_eager();
    Walker where(stages, program, plan, rank, asynchronous, silent, rows);
    Walker& there = where.part(eager);
    const auto& moment = there.watch(walker.part(eager).heap().events());
    where.reach_second_step();
    where.step();
    Failure failure;
    failure.at = !built ? "the construction of the model" : moment.place.empty() ? "the first step" : moment.place;
    if (eager) failure.at += ", before the graphs are captured";
    if (out.event.graph) failure.at = "the capture of CUDA graphs";
    failure.piece = moment.kernel;
    failure.owner = owner_name(stages, out.event.owner);
    failure.requested = out.event.bytes;
    failure.segment = Bytes(replayer.allocator().segment_bytes(out.event.bytes.value));
    failure.allocated = Bytes(replayer.allocator().allocated());
    failure.reserved = Bytes(replayer.allocator().reserved());
    failure.graph_pool = Bytes(replayer.graph_pool());
    failure.owners = by_size(stages, there.heap().owners_then());
    return failure;
  }
}

}  // namespace

std::vector<Rows> processes(const Stages& stages, int pp_rank) {
  const auto varies = [&](const model::Chunk& chunk) {
    return std::ranges::any_of(chunk.pieces, [&](auto piece) { return stages.pieces[piece].row_spread > 0; });
  };
  if (!std::ranges::any_of(stages.ranks.at(static_cast<std::size_t>(pp_rank)).chunks, varies)) return {Rows::mean};
  return {Rows::mean, Rows::drawn};
}

Scout scout(const Stages& stages, const schedule::Program& program, const scenario::Scenario& scenario, int pp_rank,
            bool with_step) {
  const bool asynchronous = transfers_are_asynchronous(scenario);
  const Listener silent;
  const auto plan = offload::resolve(scenario, stages, program, pp_rank);
  Walker walker(stages, program, plan, pp_rank, asynchronous, silent);
  walker.start();
  Scout result;
  result.static_bytes = Bytes(walker.heap().live());
  result.state_bytes = result.static_bytes;
  const auto& rank = stages.ranks.at(static_cast<std::size_t>(pp_rank));
  for (const auto* tensors : {&rank.since_first_step, &rank.optimizer_state})
    for (const auto& tensor : *tensors) result.state_bytes += Bytes(block_bytes(tensor.bytes.value));
  if (!with_step) return result;
  walker.first_step();
  walker.heap().begin_step();
  walker.step();
  result.peak_allocated = Bytes(walker.heap().peak());
  result.graph_pool = Bytes(walker.heap().graph_pool());
  return result;
}

namespace {

/// `why`: of the process that reserves most.
Walk walk(const Stages& stages, const schedule::Program& program, const scenario::Scenario& scenario, int pp_rank,
          std::optional<Bytes> device, const Listener& listener, std::optional<Bytes> whole, Fragmentations* why) {
  const bool asynchronous = transfers_are_asynchronous(scenario);
  const AllocatorConfig config = allocator_config(scenario);
  const Limits limits(config, device);
  const offload::Plan plan = offload::resolve(scenario, stages, program, pp_rank);
  Walk result;
  result.offloaded = plan.moved;
  const auto all = processes(stages, pp_rank);
  const auto& held = stages.ranks.at(static_cast<std::size_t>(pp_rank));
  result.pinned = plan.pinned + held.pinned;
  result.pageable = held.pageable;
  {
    // Both processes hear of one walk.
    std::deque<Watched> each;
    for (const Rows rows : all) each.emplace_back(without_limit(config), why != nullptr, rows == Rows::drawn);
    Replayer& replayer = each.front().replayer();
    Walker* walking = nullptr;
    // Five recorded runs on one GPU peak in the capture, on top of the last step's fp32 gradients, and one pipeline
    // without such gradients, by its allocations. Of two pipelines with them neither did, and why is not known: there
    // the pool is counted in reserved memory alone.
    const bool counts_capture = stages.ranks.size() == 1 || held.during_optimizer.empty();
    struct {
      std::int64_t allocated = 0;
      bool eager = false, capture = false;
    } most;  // a block whose rest is not worth splitting off counts as a whole: by the allocator's bytes
    const Listener replay = [&](const Event& event) {
      for (Watched& watched : each) watched(event);
      const bool capture = walking->captures(), eager = walking->in_eager() || capture;
      const auto allocated = capture && counts_capture ? replayer.captured() : replayer.allocator().allocated();
      if (allocated > most.allocated || (most.eager && !eager && allocated == most.allocated)) {
        most = {allocated, eager, capture};
        walking->part(eager).remember();
      }
      if (listener) listener(event);
    };
    Walker walker(stages, program, plan, pp_rank, asynchronous, replay, in_one_walk(all));
    walking = &walker;
    std::vector<const Replayer*> replayers;
    for (Watched& watched : each) watched.follow(walker), watched.add_to(replayers);
    if (!listener) leave_out_repeats(walker, replayers);
    walker.reach_second_step([&] { result.static_bytes = Bytes(replayer.allocator().allocated()); },
                             [&] {
                               for (Watched& watched : each) {
                                 result.built = std::max(result.built, Bytes(watched.replayer().peak_reserved()));
                                 watched.replayer().reset_peaks();
                               }
                               most = {};
                             });
    walker.step();
    for (Watched& watched : each) {
      const Bytes reserved(watched.replayer().peak_reserved());
      if (&watched != &each.front() && reserved <= result.peak_reserved) continue;
      result.peak_reserved = reserved;
      if (why != nullptr) *why = watched.found(stages, *whole);
    }
    // Graphs replay in their pool: their capture, or the steps before it, allocate more.
    const Walker& highest = walker.part(most.eager);
    const auto moment = highest.remembered();
    const auto& owners = highest.heap().remembered_owners();
    result.peak_at = most.capture ? "the capture of CUDA graphs" : moment.place;
    result.peak_piece = most.capture ? "" : moment.kernel;
    result.events = walker.heap().events();
    result.left_out = walker.heap().skipped();
    result.graph_pool = Bytes(replayer.graph_pool());
    result.peak_allocated = Bytes(std::max(replayer.peak_allocated(), most.allocated));
    result.peak_owners = by_size(stages, owners);
    const char* rest = most.capture ? "CUDA graphs' inputs and private pool" : "left unsplit by the allocator";
    result.peak_owners.push_back({rest, result.peak_allocated - sum(owners)});
    if (result.peak_owners.back().bytes == Bytes()) result.peak_owners.pop_back();
    result.after_step = Bytes(replayer.allocator().allocated());
  }
  if (result.most_reserved().value <= limits.untouched) return result;
  Bytes within;
  for (const Rows rows : all) {
    if (result.failure) break;
    Replayer replayer(with_limit(config, limits.device));
    result.failure = survive(stages, program, plan, pp_rank, asynchronous, rows, replayer, !listener);
    within = std::max(within, Bytes(replayer.peak_reserved()));
  }
  if (!result.failure) {
    result.retried = true;
    result.peak_reserved = within;
  }
  return result;
}

}  // namespace

Walk walk(const Stages& stages, const schedule::Program& program, const scenario::Scenario& scenario, int pp_rank,
          std::optional<Bytes> device, const Listener& listener) {
  return walk(stages, program, scenario, pp_rank, device, listener, {}, nullptr);
}

Explained explain(const Stages& stages, const schedule::Program& program, const scenario::Scenario& scenario,
                  int pp_rank, Bytes allowed, Bytes device, const Listener& listener) {
  Explained result;
  result.walk = walk(stages, program, scenario, pp_rank, allowed, listener, device, &result.why);
  return result;
}

bool runs_within(const Stages& stages, const schedule::Program& program, const scenario::Scenario& scenario,
                 int pp_rank, Bytes device) {
  const AllocatorConfig config = allocator_config(scenario);
  const auto plan = offload::resolve(scenario, stages, program, pp_rank);
  const auto all = processes(stages, pp_rank);
  std::deque<Replayer> each;
  for (const Rows rows : all) each.emplace_back(with_limit(config, Limits(config, device).device), rows == Rows::drawn);
  const Listener replay = [&](const Event& event) {
    for (Replayer& replayer : each) replayer(event);
  };
  Walker walker(stages, program, plan, pp_rank, transfers_are_asynchronous(scenario), replay, in_one_walk(all));
  std::vector<const Replayer*> replayers;
  for (const Replayer& replayer : each) replayers.push_back(&replayer);
  leave_out_repeats(walker, replayers);
  try {
    walker.reach_second_step();
    walker.step();
  } catch (const OutOfMemory&) {
    return false;
  }
  return true;
}

}  // namespace pipewright::memory
