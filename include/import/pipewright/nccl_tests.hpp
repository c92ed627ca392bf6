// Output of NVIDIA/nccl-tests (all_gather_perf, reduce_scatter_perf, all_reduce_perf, alltoall_perf, sendrecv_perf) as
// a profile's links: the table that the programs print, or the JSON of their option -J.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "pipewright/measured_links.hpp"

namespace pipewright::nccl_tests {

struct Options {
  std::string name;                           ///< of the profile
  std::string command;                        ///< for its provenance
  std::optional<std::int64_t> nvlink_domain;  ///< GPUs joined by NVLink; without it those of one host
};

/// One program's table.
struct Table {
  std::string file;
  int line = 0;  ///< of its first row; 0 in JSON
  std::string operation;
  std::int64_t ranks = 0, stride = 1, groups = 1, hosts = 1;
  std::vector<profile::MeasuredExchange> rows;  ///< by size, as they stand
  double busbw = 0;                             ///< the best of them, GB/s, in nccl-tests' sense
};

struct Result {
  profile::Profile profile;
  profile::Topology topology;
  profile::MeasuredNetwork network;
  std::vector<Table> tables;
};

/// Does this file look like output of nccl-tests? False for files that cannot be read.
bool recognise(const std::string& path);

/// Throws UsageError naming file and line (of JSON the key): not a table of these programs, wrong data, times of the
/// CPU, GPUs that do not stand evenly.
Result import_files(const std::vector<std::string>& files, const Options& options);

std::string text(const Result& result);
std::string json(const Result& result);

}  // namespace pipewright::nccl_tests
