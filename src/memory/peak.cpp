// What a rank holds: its program is walked to find the peak, again to see who holds it and what the allocator reserves,
// and under a limit once more.
#include <algorithm>

#include "walker.hpp"

namespace pipewright::memory {

std::int64_t block_bytes(std::int64_t requested) {
  constexpr std::int64_t smallest = 512;  // kMinBlockSize
  return requested < smallest ? smallest : (requested + smallest - 1) / smallest * smallest;
}

namespace {

/// Batched transfers end in torch.cuda.synchronize (reference 1.7).
bool transfers_are_asynchronous(const scenario::Scenario& scenario) {
  return !(scenario::batch_p2p_comm(scenario) && scenario.settings.batch_p2p_sync);
}

struct OutOfMemory {};

// The walk's events through an allocator; throws OutOfMemory.
class Replayer {
 public:
  Replayer(const AllocatorConfig& config, const Listener& also) : allocator_(config), also_(also) {}

  void operator()(const Event& event) {
    if (event.kind == Event::Kind::allocate) {
      if (handles_.size() <= event.block) handles_.resize(event.block + 1);
      const auto handle = allocator_.allocate(event.bytes.value, static_cast<std::int32_t>(event.stream));
      if (!handle) throw OutOfMemory();
      handles_[event.block] = *handle;
    } else if (event.kind == Event::Kind::retire) {
      allocator_.retire(handles_[event.block]);
    } else {
      allocator_.free(handles_[event.block]);
    }
    if (also_) also_(event);
  }
  Allocator& allocator() { return allocator_; }

 private:
  Allocator allocator_;
  const Listener& also_;
  std::vector<std::uint32_t> handles_;
};

}  // namespace

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
  return result;
}

Walk walk(const Stages& stages, const schedule::Program& program, const scenario::Scenario& scenario, int pp_rank,
          std::optional<Bytes> device, const Listener& listener) {
  const bool asynchronous = transfers_are_asynchronous(scenario);
  AllocatorConfig config = parse_allocator_config(scenario::variable(scenario, "PYTORCH_CUDA_ALLOC_CONF"),
                                                  scenario::position(scenario, "environment.PYTORCH_CUDA_ALLOC_CONF"));
  const offload::Plan plan = offload::resolve(scenario, stages, program, pp_rank);
  Walk result;
  result.offloaded = plan.moved;
  result.pinned = plan.pinned;
  const Listener silent;

  Walker scout(stages, program, plan, pp_rank, asynchronous, silent);  // where the peak is
  scout.start();
  result.static_bytes = Bytes(scout.heap().live());
  scout.first_step();
  scout.heap().begin_step();
  scout.step();
  result.after_step = Bytes(scout.heap().live());
  for (const std::int64_t live : scout.after_instruction) result.after_instruction.emplace_back(live);
  result.peak_allocated = Bytes(scout.heap().peak());
  result.events = scout.heap().events();
  const std::int64_t peak_event = scout.heap().peak_event();
  const std::int64_t graph_pool = scout.heap().graph_pool();
  result.graph_pool = Bytes(graph_pool);

  {
    Replayer replayer(config, listener);
    const Listener replay = [&](const Event& event) { replayer(event); };
    Walker walker(stages, program, plan, pp_rank, asynchronous, replay);  // who holds it, and what is reserved
    walker.watch(peak_event);
    walker.reach_second_step();
    replayer.allocator().reset_peaks();
    walker.step();
    result.peak_reserved = Bytes(replayer.allocator().peak_reserved() + graph_pool);
    result.peak_at = walker.place;
    result.peak_piece = walker.kernel;
    const auto& owners = walker.heap().peak_owners();
    for (std::size_t i = 0; i < owners.size(); ++i) {
      if (owners[i] == 0) continue;
      const auto model_owners = stages.owners.size();
      result.peak_owners.push_back(
          {i < model_owners ? stages.owners[i] : own_names[i - model_owners], Bytes(owners[i])});
    }
    std::stable_sort(result.peak_owners.begin(), result.peak_owners.end(),
                     [](const OwnerBytes& a, const OwnerBytes& b) { return a.bytes > b.bytes; });
  }

  if (device && result.peak_reserved > *device) {
    config.device_bytes = device->value - graph_pool;
    Replayer replayer(config, silent);
    const Listener replay = [&](const Event& event) { replayer(event); };
    Walker walker(stages, program, plan, pp_rank, asynchronous, replay);
    try {
      walker.reach_second_step();
      replayer.allocator().reset_peaks();
      walker.step();
      result.retried = true;
      result.peak_reserved = Bytes(replayer.allocator().peak_reserved() + graph_pool);
    } catch (const OutOfMemory&) {
      Walker where(stages, program, plan, pp_rank, asynchronous, silent);
      where.watch(walker.heap().events());
      where.reach_second_step();
      where.step();
      result.out_of_memory_at = where.place.empty() ? "the first step" : where.place;
    }
  }
  return result;
}

}  // namespace pipewright::memory