// A machine and a model that fit on a napkin: one kernel forward, one backward, times given by the test.
#pragma once

#include <string>

#include "pipewright/timeline.hpp"

namespace pipewright::timeline::test {

struct Napkin {
  int stages = 4, microbatches = 8;
  std::optional<int> chunks;
  double forward_us = 1000, backward_us = 2000, transfer_us = 0;
  std::int64_t eager_bytes = 0;
  bool overlap = false;
  double host_us = 0;
  std::string connections = "1";
  bool reads = false;  ///< the host waits for every loss, and for a kernel over the gradients of every chunk

  profile::Profiles profiles() const {
    profile::Profile p;
    p.name = "napkin";
    p.samples["gemm.bf16.tn"] = {{{1, 1, 1}, forward_us * 1e3, 0, 10, profile::Origin::measured, ""}};
    p.samples["gemm.bf16.nn"] = {{{1, 1, 1}, backward_us * 1e3, 0, 10, profile::Origin::measured, ""}};
    p.samples["send_recv.nvlink"] = {{{1000}, transfer_us * 1e3, 0, 10, profile::Origin::measured, ""}};
    p.links.push_back({"nvlink", 0, 100, eager_bytes, profile::Origin::measured, "test"});
    for (const char* name :
         {"host.kernel_gap_us", "host.p2p_call_us", "host.launch_and_synchronize_us", "host.forward_begin_us",
          "host.forward_end_us", "host.backward_begin_us", "host.backward_end_us"})
      p.scalars[name] = {0, 0, profile::Origin::measured, "test"};
    for (const char* name : {"contention.matrix", "contention.attention", "contention.memory"})
      p.scalars[name] = {1, 0, profile::Origin::measured, "test"};
    p.scalars["host.cuda_launch_us"] = {host_us, 0, profile::Origin::measured, "test"};
    return profile::Profiles({p});
  }

  scenario::Scenario scenario() const {
    scenario::Scenario s;
    s.settings.pipeline_model_parallel_size = stages;
    if (chunks) s.settings.virtual_pipeline_model_parallel_size = *chunks;
    s.settings.overlap_p2p_comm = overlap;
    s.settings.batch_p2p_comm = !overlap;
    s.cluster.num_gpus = stages;
    s.cluster.gpus_per_node = stages;
    s.environment["CUDA_DEVICE_MAX_CONNECTIONS"] = connections;
    return s;
  }

  schedule::Program program() const {
    schedule::Config config;
    config.stages = stages;
    config.microbatches = microbatches;
    config.chunks = chunks;
    config.overlap_p2p = overlap;
    config.batched = !overlap;
    return schedule::build(config);
  }

  model::Stages model() const {
    model::Stages result;
    result.owners = {"nothing"};
    model::Piece piece;
    piece.name = "layer";
    piece.tensors.resize(4);
    model::Kernel forward, backward;
    forward.name = "forward";
    forward.key = {"gemm.bf16.tn", {1, 1, 1}};
    backward.name = "backward";
    backward.key = {"gemm.bf16.nn", {1, 1, 1}};
    piece.kernels = {forward, backward};
    piece.forward = {{model::Step::Kind::launch, 0}};
    piece.backward = {{model::Step::Kind::launch, 1}};
    result.pieces = {piece};
    if (reads) {
      piece.forward.push_back({model::Step::Kind::synchronize, static_cast<std::uint32_t>(model::Stream::compute)});
      result.pieces.push_back(piece);
    }
    result.boundary_bytes = Bytes(1000);
    for (int r = 0; r < stages; ++r) {
      model::Rank rank;
      for (int c = 0; c < chunks.value_or(1); ++c) {
        model::Chunk chunk;
        chunk.pieces = {0};
        chunk.layers = {r + c * stages};
        if (reads && r + 1 == stages && c + 1 == chunks.value_or(1)) chunk.pieces = {1};
        if (reads) {
          chunk.gradient_sync = {forward};
          chunk.gradient_sync.front().read_by_host = true;
          chunk.gradient_sync_layers = {0};
        }
        rank.chunks.push_back(chunk);
      }
      result.ranks.push_back(rank);
    }
    return result;
  }

  Result simulate() const { return timeline::simulate(scenario(), model(), program(), profiles()); }
};

inline double ms(std::int64_t ns) { return static_cast<double>(ns) / 1e6; }

}  // namespace pipewright::timeline::test
