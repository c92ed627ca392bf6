// cluster, software, search: where the scenario runs and what may be changed.
#include "field_rows.hpp"

namespace pipewright::scenario {

#define CLUSTER(name, doc) PIPEWRIGHT_FIELD(cluster, name, doc)
#define NETWORK(name, doc)                                                                          \
  Field {                                                                                           \
    "cluster", "network." #name, [](Scenario& s) -> Member { return &s.cluster.network.name; }, doc \
  }
#define SOFTWARE(name, doc) PIPEWRIGHT_FIELD(software, name, doc)
#define SEARCH(name, doc) PIPEWRIGHT_FIELD(search, name, doc).in({"auto", "keep"})

std::vector<Field> machine_fields() {
  constexpr double most_gpus = 1e7;
  const Strings links = {"nvlink", "shared host memory", "infiniband"};
  return {
      CLUSTER(profile, "name of a measured profile, or its path"),
      CLUSTER(more_profiles, "profiles asked after it for what it lacks, as --profile names them"),
      CLUSTER(num_gpus, "GPUs of the run").between(1, most_gpus),
      CLUSTER(gpus_per_node, "GPUs of a node; the last node may be partial").between(1, most_gpus),
      CLUSTER(memory_bytes, "usable memory of a GPU; default: the profile's").from(1),
      CLUSTER(host_time_factor,
              "time of host code over that on the reference host, 1.4: slower; default: the profile's")
          .between(0.1, 10),
      CLUSTER(link, "link class inside a node").in(links),
      CLUSTER(inter_node_link, "link class between nodes").in(links),
      CLUSTER(nics_per_node, "network cards of a node; default: the link class's (one a GPU)").between(1, most_gpus),
      CLUSTER(nic_gbits, "line rate of a network card (Gb/s); default: the link class's").between(0.1, 1e5),
      CLUSTER(nvlink_domain, "GPUs joined by NVLink; default gpus_per_node").between(1, most_gpus),
      NETWORK(levels, "GPUs below a switch of each height, ascending; none: one switch for all").between(1, most_gpus),
      NETWORK(oversubscription, "by how much less a switch carries upwards than its GPUs can send, level by level")
          .between(1, 1e4)
          .or_scalar(),
      NETWORK(latency_us, "of a network step, measured; default: the link class's").between(0, 1e6),
      NETWORK(bandwidth_gbytes_per_s, "what one network card moves one way, measured; default 0.94 of its line")
          .between(0.001, 1e5),

      SOFTWARE(megatron_core, "version of Megatron Core"),
      SOFTWARE(megatron_bridge, "version of Megatron Bridge"),
      SOFTWARE(transformer_engine, "version of Transformer Engine"),
      SOFTWARE(torch, "version of PyTorch"),
      SOFTWARE(cuda, "version of CUDA"),
      SOFTWARE(cudnn, "version of cuDNN; default: that of the NeMo container of megatron_bridge"),
      SOFTWARE(nccl, "version of NCCL"),
      SOFTWARE(process_group_device_id, "init_process_group was given a device: one NCCL communicator a group"),

      SEARCH(recompute, "which modules or layers are recomputed"),
      SEARCH(offload, "which activations move to the host"),
      SEARCH(wgrad_delay, "delayed weight gradients and EP overlap"),
      SEARCH(pipeline, "interleaving and microbatch groups"),
      SEARCH(layout, "layers of each virtual stage"),
      SEARCH(allocator, "PYTORCH_CUDA_ALLOC_CONF"),
      SEARCH(parallelism, "TP, PP, CP, EP and DP"),
      SEARCH(microbatch, "microbatch size"),
      PIPEWRIGHT_FIELD(search, memory_limit, "memory of a GPU that may be used; default device").from(1),
      PIPEWRIGHT_FIELD(search, objective, "what is best").in({"step_time", "tokens_per_s"}),
  };
}

#undef CLUSTER
#undef NETWORK
#undef SOFTWARE
#undef SEARCH

}  // namespace pipewright::scenario
