// The walk once more, watched from instruction to instruction. Within one, events are kept until it is done: only where
// the most is allocated and what is left at its end become samples.
#include "pipewright/history.hpp"

#include <algorithm>
#include <set>

#include "replayer.hpp"

namespace pipewright::memory {
namespace {

class Historian {
 public:
  Historian(const Stages& stages, const schedule::Program& program, const scenario::Scenario& scenario, int rank,
            const AllocatorConfig& config)
      : stages_(stages),
        program_(program),
        plan_(offload::resolve(scenario, stages, program, rank)),
        rank_(rank),
        asynchronous_(transfers_are_asynchronous(scenario)),
        config_(config) {}

  History tell() {
    const auto peak_event = watch_step();
    look_at(peak_event);
    return std::move(result_);
  }

 private:
  struct Change {
    std::uint32_t owner;
    std::int64_t bytes, launches, allocated, reserved, event;
  };

  /// Fills the samples; the event at which most is allocated.
  std::int64_t watch_step() {
    Replayer replayer(config_);
    held_.assign(owner_count(stages_), 0);
    const Heap* heap = nullptr;
    const Listener listener = [&](const Event& e) {
      replayer(e);
      if (e.graph || e.kind == Event::Kind::empty_cache) return;
      // A block that waits for a transfer is nobody's any more.
      if (e.kind == Event::Kind::free && waiting_.erase(e.block) > 0) return;
      if (e.kind == Event::Kind::retire) waiting_.insert(e.block);
      const std::int64_t bytes = block_bytes(e.bytes.value);
      changes_.push_back({e.owner, e.kind == Event::Kind::allocate ? bytes : -bytes, heap->launches(),
                          replayer.allocator().allocated(), replayer.reserved(), heap->events()});
    };
    Walker walker(stages_, program_, plan_, rank_, asynchronous_, listener);
    heap = &walker.heap();
    walker.reach_second_step();
    walker.on_instruction = [&](std::uint32_t instruction) { settle(instruction, replayer, heap->launches()); };
    settle(History::start, replayer, heap->launches());
    walker.step();
    settle(History::optimizer, replayer, heap->launches());
    name_owners();
    return peak_event_;
  }

  /// What an instruction did, in at most two samples.
  void settle(std::uint32_t instruction, const Replayer& now, std::int64_t launches) {
    const std::int64_t allocated = now.allocator().allocated();
    const bool begins = instruction == History::start;
    if (begins) {
      for (const Change& c : changes_) held_[c.owner] += c.bytes;
      most_ = allocated;
      peak_event_ = changes_.empty() ? 0 : changes_.back().event;
      add(instruction, 0, allocated, now.reserved());
    } else if (!changes_.empty()) {
      const auto most = std::max_element(changes_.begin(), changes_.end(),
                                         [](const Change& a, const Change& b) { return a.allocated < b.allocated; });
      const bool within = most->allocated > allocated && most->allocated > result_.samples.back().allocated.value;
      for (auto c = changes_.begin(); c != changes_.end(); ++c) {
        held_[c->owner] += c->bytes;
        if (c != most) continue;
        const auto all = static_cast<double>(std::max<std::int64_t>(1, launches - launches_));
        const double place = std::clamp(static_cast<double>(c->launches - launches_) / all, 0.0, 1.0);
        if (within) add(instruction, place, c->allocated, c->reserved);
        if (c->allocated > most_) most_ = c->allocated, peak_event_ = c->event;
      }
      if (!within || instruction != History::optimizer || allocated != most->allocated)
        add(instruction, 1, allocated, now.reserved());
    }
    launches_ = launches;
    changes_.clear();
  }

  void add(std::uint32_t instruction, double place, std::int64_t allocated, std::int64_t reserved) {
    std::int64_t unsplit = allocated;
    for (const auto bytes : held_) unsplit -= bytes;
    rows_.push_back(held_);
    rows_.back().push_back(unsplit);
    result_.samples.push_back({instruction, place, Bytes(allocated), Bytes(reserved)});
    if (allocated > result_.samples[result_.peak].allocated.value) result_.peak = result_.samples.size() - 1;
  }

  /// Owners that ever hold something, largest first.
  void name_owners() {
    const std::size_t all = rows_.front().size();
    std::vector<std::int64_t> largest(all);
    for (const auto& row : rows_)
      for (std::size_t i = 0; i < all; ++i) largest[i] = std::max(largest[i], row[i]);
    std::vector<std::uint32_t> order;
    for (std::uint32_t i = 0; i < all; ++i)
      if (largest[i] > 0) order.push_back(i);
    std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return largest[a] > largest[b]; });
    index_.assign(all, -1);
    for (const auto owner : order) {
      index_[owner] = static_cast<std::int32_t>(result_.owners.size());
      result_.owners.push_back(owner + 1 == all ? "left unsplit by the allocator" : owner_name(stages_, owner));
      auto& held = result_.held.emplace_back();
      for (const auto& row : rows_) held.emplace_back(row[owner]);
    }
  }

  /// The allocator as it is right after an event.
  void look_at(std::int64_t event) {
    Replayer replayer(config_);
    const Heap* heap = nullptr;
    bool seen = false;
    const Listener listener = [&](const Event& e) {
      replayer(e);
      if (seen || heap->events() < event) return;
      seen = true;
      result_.segments = replayer.allocator().snapshot();
      for (const auto& segment : result_.segments) {
        auto& owners = result_.segment_owners.emplace_back();
        for (const auto& block : segment.blocks)
          owners.push_back(block.used ? index_[replayer.owner_of(block.handle)] : -1);
      }
    };
    Walker walker(stages_, program_, plan_, rank_, asynchronous_, listener);
    heap = &walker.heap();
    walker.reach_second_step();
    walker.step();
  }

  const Stages& stages_;
  const schedule::Program& program_;
  const offload::Plan plan_;
  const int rank_;
  const bool asynchronous_;
  const AllocatorConfig config_;
  History result_;
  std::vector<std::int64_t> held_;
  std::vector<std::vector<std::int64_t>> rows_;  ///< [sample][owner], the unsplit rest last
  std::vector<std::int32_t> index_;
  std::set<std::uint32_t> waiting_;
  std::vector<Change> changes_;
  std::int64_t launches_ = 0, most_ = 0, peak_event_ = 0;
};

}  // namespace

History history(const model::Stages& stages, const schedule::Program& program, const scenario::Scenario& scenario,
                int pp_rank, std::optional<Bytes> device) {
  AllocatorConfig config = allocator_config(scenario);
  if (device) {
    config.device_bytes = device->value;
  } else {
    config = without_limit(config);
  }
  return Historian(stages, program, scenario, pp_rank, config).tell();
}

}  // namespace pipewright::memory
