// The machine between GPUs, in levels, and what a collective sends over each:
//
//   level 0   NVLink, inside a domain (a node, or several of them)
//   level 1   a GPU's share of its node's network cards
//   level 2+  up from the switches: [0] those that the cards are plugged into, [1] those above ...
//
// A time is the longest level's, for all levels work at once, and what its steps wait.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "pipewright/profile.hpp"

namespace pipewright::profile {

/// Switches of one height: how many GPUs hang below one, and by how much less than these can send it carries upwards.
struct Switches {
  std::int64_t gpus = 0;
  double oversubscription = 1;
  friend bool operator==(const Switches&, const Switches&) = default;
};

/// What a cluster says of itself; the rest is the profile's.
struct Topology {
  std::int64_t gpus_per_node = 8;
  std::int64_t domain = 8;             ///< GPUs joined by NVLink, neighbours in rank order
  std::string inside = "nvlink";       ///< link class inside a domain
  std::string between = "infiniband";  ///< ... between domains
  std::optional<std::int64_t> nics_per_node;
  std::optional<double> nic_gbits;     ///< of a network card's line
  std::optional<double> latency_us;    ///< of a network step
  std::optional<double> gbytes_per_s;  ///< what one card moves one way, measured
  std::vector<Switches> switches;      ///< ascending
  friend bool operator==(const Topology&, const Topology&) = default;
};

/// Rates of a topology. GB/s one way, of one GPU while all GPUs of the node send.
struct Network {
  Topology topology;
  double nic_gbytes_per_s = 0;   ///< a GPU's share of the cards
  double card_gbytes_per_s = 0;  ///< one card
  double latency_us = 0;
};
Network network(const Topology& topology, const Profiles& profiles);

/// An exchange among `ranks` GPUs that stand `stride` apart.
struct Exchange {
  /// send_recv: a step of a ring, every rank to the next (context parallelism).
  enum class Kind : std::uint8_t { all_gather, reduce_scatter, all_reduce, all_to_all, dispatch, combine, send_recv };
  enum class Library : std::uint8_t { nccl, deepep, hybridep };
  Kind kind = Kind::all_gather;
  std::int64_t ranks = 1, stride = 1;
  /// Of groups that do not divide a domain: the fewest ranks of one that share a domain. 0: as many as there is room
  /// for.
  std::int64_t fewest_together = 0;
  std::vector<std::int64_t> fewest_below;  ///< the same of each height of switches; none: as many as there is room for
  /// The buffer as in the collective's family; dispatch, combine: a copy of each of the rank's tokens.
  double bytes = 0;
  Library library = Library::nccl;
  // Dispatch and combine only: to how many domains and GPUs a token goes on the average, its own counted.
  double domains_a_token = 1, gpus_a_token = 1;
  double busiest = 1;                ///< of the copies, those that the busiest rank receives, over the mean
  std::int64_t multiprocessors = 0;  ///< that the kernel holds
  friend auto operator<=>(const Exchange&, const Exchange&) = default;
};
std::string_view name(Exchange::Kind kind);

/// Of a group: how many of its ranks share a domain, and how many domains it has.
std::int64_t ranks_in_domain(const Topology& topology, const Exchange& exchange);
std::int64_t domains(const Topology& topology, const Exchange& exchange);

/// What one GPU sends, on the average, by level. Levels 0 and 1 together are what leaves the GPU.
struct Traffic {
  std::vector<double> bytes;
  double relayed = 0;  ///< over NVLink too, on the way to the card of another GPU (NCCL's PXN)
};
Traffic traffic(const Topology& topology, const Exchange& exchange);

/// The exchange's time. Inside a domain NCCL's collectives are the profile's families (one node: what capture
/// measured), and between whole domains those of the link between, where a profile has them; other numbers of ranks
/// follow the model by what it was off at the nearest measured one. Else NCCL's own model, or the dispatcher's
/// published rates (network.cpp).
Timing time(const Profiles& profiles, const Network& network, const Exchange& exchange);

/// The latency of a network step at which NCCL's model takes `ns` for so short a message of this collective between
/// domains that its bytes do not count; nullopt: the time is less than what the model takes without any.
std::optional<double> step_latency_us(const Topology& topology, const Exchange& exchange, double ns);

/// A pipeline transfer from every GPU of a stage of `gpus` to its peer, `distance` GPUs on.
Timing transfer_time(const Profiles& profiles, const Network& network, std::int64_t first_gpu, std::int64_t gpus,
                     std::int64_t distance, std::int64_t bytes);

}  // namespace pipewright::profile
