// Benchmarks of exchanges between GPUs, taken by whatever program, as a profile's families and links.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "pipewright/network.hpp"

namespace pipewright::profile {

/// One size of one exchange: `ranks` GPUs `stride` apart; all groups of that kind at once unless `alone`.
struct MeasuredExchange {
  std::string operation;  ///< "all_gather", "reduce_scatter", "all_reduce", "all_to_all", "send_recv"
  std::int64_t ranks = 2, stride = 1;
  bool alone = false;      ///< send_recv: of the GPUs of a host one sends to another host
  std::int64_t bytes = 0;  ///< as in the operation's family (FORMAT.md)
  double ns = 0;
  double spread = 0;  ///< relative
  int count = 1;
  std::string source;  ///< program and file
};
const std::vector<std::string>& exchange_operations();

/// What the measurements say of the network between domains; nothing of it is known where all ranks share a domain.
struct MeasuredNetwork {
  std::optional<double> gbytes_per_s;        ///< through the cards, of one GPU while all of its node send
  std::optional<double> alone_gbytes_per_s;  ///< of one GPU while the others of its node are silent
  std::optional<double> latency_us;          ///< of a network step, at most
  std::int64_t gpus_per_port = 1;            ///< alone over together
  std::size_t samples = 0;                   ///< that the profile got
  std::size_t without_family = 0;  ///< of groups that leave GPUs of their nodes out: only in the figures above
};

/// Adds families `<operation>.<link>` and entries of links to `to`, origin measured. Inside a domain all groups count,
/// between domains those of whole domains; several times of one shape become their median. The link between gets the
/// figures above: what the model of network.hpp takes for every other group.
MeasuredNetwork add_exchanges(Profile& to, const Topology& topology, const std::vector<MeasuredExchange>& measured);

}  // namespace pipewright::profile
