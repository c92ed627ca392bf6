// Where the ranks of a group stand: which of their bytes stay in an NVLink domain, which go beyond a switch.
#include <algorithm>

#include "dimensions.hpp"
#include "pipewright/scenario/derived.hpp"

namespace pipewright::model {

using scenario::Scenario;

namespace {

/// Groups of `size` ranks `stride` apart fill the GPUs one after the other: of those that share `unit` neighbouring
/// GPUs (a domain, what hangs below a switch), the fewest, for the slowest rank decides. 0: as many as there is room
/// for.
Int fewest_together(Int gpus, Int stride, Int size, Int unit) {
  const Int block = stride * size;
  if (unit % block == 0 || block % unit == 0 || stride >= unit) return 0;
  Int fewest = size;
  // Where a group begins with a unit, what follows is like the start.
  for (Int first = 0; first + block <= gpus && (first == 0 || first % unit != 0); first += block)
    for (Int lane = 0; lane < stride; ++lane)
      for (Int rank = 0, together = 0; rank < size; ++rank) {
        ++together;
        const Int gpu = first + lane + rank * stride;
        if (rank + 1 < size && (gpu + stride) / unit == gpu / unit) continue;
        fewest = std::min(fewest, together);
        together = 0;
      }
  return fewest;
}

}  // namespace

/// They stay inside an NVLink domain where they divide it, or there is one; else some lie across its end.
Way way_of(const Scenario& s, Int stride, Int size) {
  const Int gpus = s.cluster.num_gpus, domain = scenario::nvlink_domain(s), block = stride * size;
  Way way{s.cluster.link, stride, false, 0, {}};
  if (size <= 1 || gpus <= domain || (block <= domain && domain % block == 0)) return way;
  way.link = s.cluster.inter_node_link;
  way.leaves = true;
  way.fewest_together = fewest_together(gpus, stride, size, domain);
  for (const Int below : s.cluster.network.levels)
    way.fewest_below.push_back(fewest_together(gpus, stride, size, below));
  return way;
}

profile::Topology topology(const Scenario& s) {
  const auto& c = s.cluster;
  profile::Topology t;
  t.gpus_per_node = c.gpus_per_node;
  t.domain = scenario::nvlink_domain(s);
  t.inside = c.link;
  t.between = c.inter_node_link;
  t.nics_per_node = c.nics_per_node;
  t.nic_gbits = c.nic_gbits;
  t.latency_us = c.network.latency_us;
  t.gbytes_per_s = c.network.bandwidth_gbytes_per_s;
  for (std::size_t i = 0; i < c.network.levels.size(); ++i) {
    const auto& less = c.network.oversubscription;
    t.switches.push_back({c.network.levels[i], i < less.size() ? less[i] : 1});
  }
  return t;
}

}  // namespace pipewright::model
