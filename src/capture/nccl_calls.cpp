#include "nccl_calls.hpp"

#include <stdexcept>
#include <string>

namespace pipewright::capture {

void check(ncclResult_t status, const char* what) {
  if (status != ncclSuccess) throw std::runtime_error(std::string("NCCL: ") + what + ": " + ncclGetErrorString(status));
}

Rank make_rank(int device, int number) {
  Rank rank;
  rank.device = device;
  check(cudaSetDevice(device), "selecting the device");
  check(cudaStreamCreateWithFlags(&rank.stream, cudaStreamNonBlocking), "stream");
  check(cudaMalloc(reinterpret_cast<void**>(&rank.in), largest_transfer), "buffer");
  check(cudaMalloc(reinterpret_cast<void**>(&rank.out), largest_transfer), "buffer");
  check(cudaMalloc(reinterpret_cast<void**>(&rank.tiny), 256), "buffer");
  check(cudaMallocHost(reinterpret_cast<void**>(&rank.gate), 2 * sizeof(int)), "pinned memory");
  const auto seed = static_cast<std::uint64_t>(number);
  kernels::fill_normal(kernels::Format::bf16, rank.in, largest_transfer / 2, seed + 7, rank.stream);
  kernels::fill_normal(kernels::Format::bf16, rank.out, largest_transfer / 2, seed + 17, rank.stream);
  check(cudaStreamSynchronize(rank.stream), "random data");
  return rank;
}

void free_rank(const Rank& rank) {
  cudaSetDevice(rank.device);
  cudaFree(rank.in);
  cudaFree(rank.out);
  cudaFree(rank.tiny);
  cudaFreeHost(rank.gate);
  cudaStreamDestroy(rank.stream);
}

std::vector<Collective> collectives(int n) {
  const auto share = static_cast<std::size_t>(n);
  return {{"all_gather",
           [=](int, Rank& r, std::size_t bytes) {
             check(ncclAllGather(r.in, r.out, bytes / share / 2, ncclBfloat16, r.communicator, r.stream), "all-gather");
           }},
          {"reduce_scatter",
           [=](int, Rank& r, std::size_t bytes) {
             check(ncclReduceScatter(r.in, r.out, bytes / share / 2, ncclBfloat16, ncclSum, r.communicator, r.stream),
                   "reduce-scatter");
           }},
          {"all_reduce",
           [](int, Rank& r, std::size_t bytes) {
             check(ncclAllReduce(r.in, r.out, bytes / 2, ncclBfloat16, ncclSum, r.communicator, r.stream),
                   "all-reduce");
           }},
          {"all_to_all", [=](int, Rank& r, std::size_t bytes) {
             check(ncclGroupStart(), "group");
             for (std::size_t peer = 0; peer < share; ++peer) {
               const std::size_t piece = bytes / share;
               check(ncclSend(r.in + peer * piece, piece, ncclInt8, static_cast<int>(peer), r.communicator, r.stream),
                     "send");
               check(ncclRecv(r.out + peer * piece, piece, ncclInt8, static_cast<int>(peer), r.communicator, r.stream),
                     "receive");
             }
             check(ncclGroupEnd(), "group");
           }}};
}

void one_way(int r, Rank& rank, std::size_t bytes) {
  if (r == 0) check(ncclSend(rank.in, bytes, ncclInt8, 1, rank.communicator, rank.stream), "send");
  if (r == 1) check(ncclRecv(rank.out, bytes, ncclInt8, 0, rank.communicator, rank.stream), "receive");
}

int repetitions_of(std::size_t bytes) { return bytes >= (256u << 20) ? 6 : bytes >= (16u << 20) ? 10 : 16; }

}  // namespace pipewright::capture
