// NCCL's calls that are timed, and a GPU that takes part in them.
#pragma once

#include <nccl.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "ops.hpp"

namespace pipewright::capture {

void check(ncclResult_t status, const char* what);

constexpr std::int64_t largest_transfer = 1ll << 30;  ///< bytes: of each buffer

/// A GPU of a group: its stream, its buffers, its communicator.
struct Rank {
  int device = 0;
  cudaStream_t stream = nullptr;
  char *in = nullptr, *out = nullptr, *tiny = nullptr;
  int* gate = nullptr;  ///< pinned: opened, timed out
  ncclComm_t communicator = nullptr;
};
/// Buffers with random numbers; the device is selected.
Rank make_rank(int device, int rank);
void free_rank(const Rank& rank);

using Call = std::function<void(int rank, Rank&, std::size_t bytes)>;
struct Collective {
  const char* name;
  Call call;
};
/// Those of profile::exchange_operations() but send_recv, among n ranks.
std::vector<Collective> collectives(int n);
/// From rank 0 to rank 1.
void one_way(int rank, Rank&, std::size_t bytes);

constexpr int warm_up_repetitions = 2;
int repetitions_of(std::size_t bytes);

}  // namespace pipewright::capture
