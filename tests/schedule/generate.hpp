// Random configurations that Megatron accepts, for property tests; and how a configuration prints.
#pragma once

#include <rapidcheck.h>

#include <ostream>

#include "pipewright/schedule.hpp"

namespace pipewright::schedule {

inline std::ostream& operator<<(std::ostream& out, const Config& c) {
  return out << "p " << c.stages << " v " << c.chunks.value_or(0) << " m " << c.microbatches << " N "
             << c.group_size.value_or(0) << " overlap_p2p " << c.overlap_p2p << " flush " << c.warmup_flush << " ep "
             << c.ep_overlap << " batched " << c.batched << " from_0_18 " << c.from_0_18 << " deallocate "
             << c.deallocate_outputs << " delay_wgrad " << c.delay_wgrad_compute << " detail " << !c.layers.empty();
}

inline int number(int least, int most) { return *rc::gen::inRange(least, most + 1); }
inline bool coin() { return *rc::gen::arbitrary<bool>(); }

inline Config any_config() {
  Config c;
  c.stages = number(1, 7);
  c.microbatches = number(1, 14);
  if (c.stages > 1 && coin()) {
    c.chunks = number(1, 4);
    c.group_size = number(c.stages, c.stages + 5);
    // Full groups and a last one of p to N microbatches, or none.
    c.microbatches = *c.group_size * number(1, 3) + (coin() ? 0 : number(c.stages, *c.group_size));
    c.ep_overlap = coin();
    // Two stages need overlapped P2P: a batch of both directions would pair the wrong tensors. One chunk cannot have
    // it.
    c.overlap_p2p = (c.chunks > 1 || c.ep_overlap) && ((c.stages == 2 && c.chunks > 1) || coin());
    c.warmup_flush = c.overlap_p2p && coin();
  } else {
    c.ep_overlap = c.stages == 1 && coin();
  }
  c.batched = !c.overlap_p2p;
  c.from_0_18 = coin();
  c.deallocate_outputs = coin();
  c.overlap_grad_reduce = coin();
  c.align_grad_reduce = coin();
  c.align_param_gather = c.chunks != 1 && coin();
  c.delay_wgrad_compute = c.ep_overlap && coin();
  c.ep_overlap_early_attn_memory_release = c.ep_overlap && coin();
  return c;
}

inline Config any_detailed_config() {
  Config c = any_config();
  while (!c.ep_overlap) c = any_config();
  // At least one layer a chunk: PR 4268 repeats an attention that it cannot pair.
  c.overlap_p2p_backward_on_comm_stream = coin();
  c.overlap_p2p_with_transformer_layer_wgrad = coin();
  c.overlap_p2p_wgrad_delayed_layer_number = number(0, 3);
  c.layers.resize(static_cast<std::size_t>(c.stages));
  for (auto& rank : c.layers)
    for (int chunk = 0; chunk < c.chunks.value_or(1); ++chunk) {
      auto& layers = rank.emplace_back(static_cast<std::size_t>(number(1, 3)));
      for (Layer& layer : layers) layer = {.moe = coin(), .mtp = coin()};
    }
  return c;
}

}  // namespace pipewright::schedule
