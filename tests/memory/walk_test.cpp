// The walk against real runs (tests/measured) and against itself. Runs in tests/memory.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <tuple>
#include <vector>

#include "../draws.hpp"
#include "../on_h200.hpp"
#include "../predict/drawn.hpp"
#include "pipewright/memory.hpp"
#include "pipewright/scenario/derived.hpp"
#include "pipewright/scenario/io.hpp"
#include "replayer.hpp"
#include "walker.hpp"

namespace walk_test {

using namespace pipewright;

namespace {

scenario::Scenario measured(const std::string& name) { return scenario::read("../measured/" + name + ".yaml"); }

memory::Walk walk(const scenario::Scenario& s, int rank, const memory::Listener& listener = {}) {
  return memory::walk(test::build(s),
                      schedule::build(schedule::config_of(s, s.settings.overlap_moe_expert_parallel_comm)), s, rank, {},
                      listener);
}

double relative(Bytes predicted, Bytes real) {
  return static_cast<double>(predicted.value) / static_cast<double>(real.value) - 1;
}

const std::vector<std::string> dense = {"a_mem_pp4v2_m8",
                                        "a_mem_pp4v2_m8_expandable",
                                        "a_mem_pp4_m8_full_block2",
                                        "a_pp4_m8_full_block2",
                                        "a_pp4_m8",
                                        "a_pp4v2_m8",
                                        "a_pp4v2_m8_nooverlap",
                                        "a_pp4v2_m8_shm",
                                        "a_pp4v2_m16_n8",
                                        "a_pp4v2_m8_r_core_attn",
                                        "a_pp4v2_m8_r_mlp",
                                        "a_pp4v2_m8_full_uniform1",
                                        "a_pp4v2_m8_fp8cs",
                                        "a_pp4v2_m8_fp8cs_r_mlp",
                                        "a_pp2dp2v2_m8_ogr",
                                        "a3_pp4v2_m8",
                                        "b_pp4v2_m8",
                                        "b_tp2pp2v2_m8",
                                        "b_tp2pp2v2_m8_fp8cs",
                                        "w_off0"};

/// A small model on many pipelines.
scenario::Scenario small(int stages, int chunks, int microbatches, const std::string& settings) {
  return scenario::parse(
      "scenario: 1\n"
      "model: {num_layers: " +
          std::to_string(2 * stages * chunks) +
          ", hidden_size: 512, ffn_hidden_size: 1024, "
          "num_attention_heads: 8, num_query_groups: 4, seq_length: 512, vocab_size: 4096, gated_linear_unit: true, "
          "normalization: RMSNorm, add_bias_linear: false, untie_embeddings_and_output_weights: true, "
          "position_embedding_type: rope}\n"
          "settings: {pipeline_model_parallel_size: " +
          std::to_string(stages) +
          (chunks > 1 ? ", virtual_pipeline_model_parallel_size: " + std::to_string(chunks) : "") +
          ", micro_batch_size: 1, global_batch_size: " + std::to_string(microbatches) +
          ", bf16: true, use_distributed_optimizer: true, gradient_accumulation_fusion: true, hidden_dropout: 0.0" +
          settings + "}\ncluster: {profile: h200-sxm, num_gpus: " + std::to_string(stages) + ", gpus_per_node: 8}\n",
      "small.yaml");
}

/// What a step has allocated and not freed: every block is freed once, after it was allocated.
struct Balance {
  std::map<std::uint32_t, std::int64_t> live, pool;
  std::int64_t bytes = 0;  ///< of `live`

  void book(const memory::Event& event) {
    auto& blocks = event.graph ? pool : live;
    if (event.kind == memory::Event::Kind::allocate) {
      CHECK(blocks.emplace(event.block, event.bytes.value).second);
      if (!event.graph) bytes += memory::block_bytes(event.bytes.value);
    } else if (event.kind == memory::Event::Kind::free) {
      if (!event.graph) bytes -= memory::block_bytes(blocks[event.block]);
      CHECK(blocks.erase(event.block) == 1);
    }
  }
};

}  // namespace

TEST_CASE("peak allocated of every dense measured run, every rank, within 0.3 %") {
  for (const auto& name : dense) {
    CAPTURE(name);
    const auto s = measured(name);
    for (const auto& real : s.measured->ranks) {
      CAPTURE(real.rank);
      CHECK(std::abs(relative(walk(s, static_cast<int>(real.pp_rank)).peak_allocated, real.peak_allocated_bytes)) <
            0.003);
    }
  }
}

TEST_CASE("runs that the model was not made for: peak allocated of every rank") {
  // data/: real runs on two and four GPUs, made in the same way as ../measured. Bounds: what is left today, rounded up.
  // (t_b_tp2_fp8block is missing: its ranks differ by 1.4 GB after the step, held by coalesced gathers.)
  struct Bound {
    const char* run;
    double peak;
  };
  for (const auto& bound : {Bound{"gpt_bias_dropout", 1e-5},
                            Bound{"local_spec_half_softmax", 1e-4},
                            Bound{"tp4_sp", 1e-4},
                            Bound{"tp2_pp2_v2", 3e-4},
                            Bound{"tp2_pp2_v2_fp8", 1e-3},
                            Bound{"whole_layer_unfused_gradients", 2e-3},
                            Bound{"tp2_sp_gpt_dropout", 1e-4},
                            Bound{"tp2_fp8_delayed_recompute_core_attn", 1e-3},
                            Bound{"cp2_bf16_gradients", 1e-4},
                            Bound{"fp8_blockwise_full_block", 1e-3},
                            Bound{"moe_allgather_recompute_norm_act", 2.5e-3},
                            Bound{"mla_moe_capacity_recompute_up_shared", 1e-4},
                            Bound{"moe_offload_six_modules", 1e-3},
                            Bound{"fp8_parameters_tp2_recompute_mlp", 1e-4},
                            Bound{"../../measured/t_mla", 1e-3},
                            Bound{"../../measured/t_qwen30", 1e-3},
                            Bound{"../../measured/t_gpt64", 1e-3},
                            Bound{"../../measured/t_mixtral_fp8", 3e-3},
                            Bound{"../../measured/t_v128k_full", 1e-3},
                            Bound{"../../measured/t_mbs4_r_mlp", 1e-3},
                            Bound{"../../measured/t_tp2", 1e-3},
                            Bound{"../../measured/t_cp2", 1e-3},
                            Bound{"../../measured/t_s16k", 1e-3},
                            Bound{"../../measured/t_off_attn", 1e-4}}) {
    CAPTURE(bound.run);
    const auto s = scenario::read("data/" + std::string(bound.run) + ".yaml");
    for (const auto& real : s.measured->ranks) {
      CAPTURE(real.rank);
      CHECK(std::abs(relative(walk(s, static_cast<int>(real.pp_rank)).peak_allocated, real.peak_allocated_bytes)) <
            bound.peak);
    }
  }
}

TEST_CASE("stock pretrain_gpt.py from its start: eager steps, the cache given back, graphs in pools of their own") {
  struct Recorded {
    const char* run;
    Bytes reserved, graph_pool;  ///< reserved_bytes.all.peak; segment_pool_id (0, 1) of torch.cuda.memory._snapshot()
    double reserved_bound, pool_bound;
  };
  for (const auto& recorded :
       {Recorded{"stock_one_gpu", Bytes(72318189568), Bytes(0), 0.003, 0},
        Recorded{"stock_one_gpu_graphed_mlp", Bytes(72746008576), Bytes(7484735488), 0.001, 1e-9},
        Recorded{"stock_one_gpu_graphed_attention", Bytes(72255275008), Bytes(2864709632), 0.003, 0.008},
        Recorded{"stock_one_gpu_graphed_router", Bytes(69912756224), Bytes(2998927360), 0.004, 0.02},
        Recorded{"stock_one_gpu_full_iteration_graph", Bytes(84116766720), Bytes(24014487552), 0.025, 2e-4}}) {
    CAPTURE(recorded.run);
    const auto s = scenario::read("data/" + std::string(recorded.run) + ".yaml");
    const auto w = walk(s, 0);
    CHECK(std::abs(relative(w.peak_allocated, s.measured->peak_allocated_bytes_by_rank.at(0))) < 1.1e-3);
    CHECK(std::abs(relative(w.peak_reserved, recorded.reserved)) < recorded.reserved_bound);
    const auto off = static_cast<double>(std::abs(w.graph_pool.value - recorded.graph_pool.value));
    CHECK(off <= recorded.pool_bound * static_cast<double>(recorded.graph_pool.value));
    // What does not fit is told so, whichever step it is in.
    CHECK(memory::runs_within(test::build(s), schedule::build(schedule::config_of(s)), s, 0, w.peak_reserved));
    CHECK_FALSE(memory::runs_within(test::build(s), schedule::build(schedule::config_of(s)), s, 0,
                                    w.peak_allocated - Bytes(1 << 30)));
  }
}

TEST_CASE("one GPU peaks while its graphs are captured: their pool on top of the last step's fp32 gradients") {
  struct Recorded {
    const char* run;
    Bytes reserved;
    bool in_capture;
  };
  for (const auto& recorded :
       {Recorded{"x_graph8", Bytes(68251811840), true}, Recorded{"x_graph70", Bytes(70881640448), true},
        Recorded{"x_qwen3moe", Bytes(87390420992), true}, Recorded{"p_graph", Bytes(63262687232), true},
        Recorded{"x_iter", Bytes(70061654016), false}}) {
    CAPTURE(recorded.run);
    const auto s = scenario::read("../real/" + std::string(recorded.run) + ".yaml");
    const auto w = walk(s, 0);
    CHECK(std::abs(relative(w.peak_allocated, s.measured->peak_allocated_bytes_by_rank.at(0))) < 1.3e-3);
    CHECK(std::abs(relative(w.peak_reserved, recorded.reserved)) < 0.03);
    CHECK((w.peak_at == "the capture of CUDA graphs") == recorded.in_capture);
    std::int64_t owned = 0;
    for (const auto& owner : w.peak_owners) owned += owner.bytes.value;
    CHECK(owned == w.peak_allocated.value);
  }
}

TEST_CASE("a pipeline without fp32 copies of gradients peaks while its graphs are captured, one with them before") {
  for (const auto& [run, in_capture, bound] :
       {std::tuple("s_8b_graph_pp2", true, 5e-3), std::tuple("l_pp2v2_graph", false, 2e-4),
        std::tuple("h_pp2v3_graph", false, 2e-4)}) {
    CAPTURE(std::string(run));
    const auto s = scenario::read("../real/" + std::string(run) + ".yaml");
    for (int rank = 0; rank < 2; ++rank) {
      const auto w = walk(s, rank);
      CHECK(std::abs(relative(w.peak_allocated, s.measured->peak_allocated_bytes_by_rank.at(rank))) < bound);
      CHECK((w.peak_at == "the capture of CUDA graphs") == in_capture);
    }
  }
}

TEST_CASE(
    "kernels of a replayed graph fill the launch queue: gradients that wait for DDP's stream pile up no further") {
  auto s = scenario::read("../real/l_pp2v2_graph.yaml");  // recorded: 76.16 and 67.73 GiB
  CHECK(std::abs(relative(walk(s, 0).peak_reserved, Bytes(81774247936))) < 0.025);
  CHECK(std::abs(relative(walk(s, 1).peak_reserved, Bytes(72720842752))) < 0.03);
  const auto other = scenario::read("data/stock_pp2v3_graphed_layer.yaml");  // recorded: 66.81 and 63.99 GiB
  for (const auto& [rank, bytes, bound] :
       {std::tuple(0, Bytes(71737278464), 0.01), std::tuple(1, Bytes(68713185280), 0.02)}) {
    const auto w = walk(other, rank);
    CHECK(std::abs(relative(w.peak_reserved, bytes)) < bound);
    CHECK(std::abs(relative(w.peak_allocated, other.measured->peak_allocated_bytes_by_rank.at(rank))) < 2e-4);
  }
  const auto reserved = [&](int microbatches) {
    s.settings.global_batch_size = microbatches;
    return walk(s, 0).peak_reserved.value;
  };
  constexpr std::int64_t layer = 2 * (6144 * 4096 + 4096 * 4096 + 3 * 14336 * 4096);  // its gradients in bf16
  CHECK(std::abs(reserved(48) - reserved(24)) < 2 * layer);
}

TEST_CASE("the data loader's mask is there while a microbatch runs forward, with checkpoints until its backward") {
  auto s = scenario::read("data/stock_one_gpu.yaml");
  const auto without = walk(s, 0).peak_allocated;
  s.settings.create_attention_mask_in_dataloader = true;
  const auto with = walk(s, 0).peak_allocated;
  // Recorded: 66098023936 without (stock_one_gpu), 66165134848 with it (../real/p_llama.yaml, the same model and
  // batch).
  CHECK(with - without == Bytes(std::int64_t{8192} * 8192));
  s.settings.pipeline_model_parallel_size = 4, s.cluster.num_gpus = 4;
  const auto added = [&](int rank) {
    auto plain = s;
    plain.settings.create_attention_mask_in_dataloader = false;
    return walk(s, rank).peak_allocated - walk(plain, rank).peak_allocated;
  };
  CHECK(added(1) == Bytes());  // neither first nor last
  CHECK(added(0) <= Bytes(std::int64_t{8192} * 8192));
  s.settings.recompute_granularity = "full", s.settings.recompute_method = "uniform",
  s.settings.recompute_num_layers = 1;
  s.settings.micro_batch_size = 4, s.settings.global_batch_size = 16;
  CHECK(added(0).value == 4 * 4 * std::int64_t{8192} * 8192);  // of four microbatches in flight
}

TEST_CASE("a gradient's memory is given again when DDP's stream has passed, unless DDP has none") {
  auto s = scenario::read("data/stock_one_gpu.yaml");
  const auto stock = walk(s, 0);
  s.software.process_group_device_id = true;
  const auto own = walk(s, 0);
  CHECK(stock.peak_allocated == own.peak_allocated);
  CHECK(stock.peak_reserved > own.peak_reserved + Bytes(1 << 30));  // the embedding's gradient, twice in flight
}

TEST_CASE("allocated bytes count what is left unsplit: 11 MiB in a segment of 12 MiB are 12 MiB") {
  const auto s = measured("t_mla");  // 32 experts' fc2: main parameters of 11 MiB each
  const auto w = walk(s, 0);
  const auto slack = std::find_if(w.peak_owners.begin(), w.peak_owners.end(),
                                  [](const auto& owner) { return owner.owner == "left unsplit by the allocator"; });
  REQUIRE(slack != w.peak_owners.end());
  CHECK(slack->bytes > Bytes(300 << 20));
  CHECK(slack->bytes < Bytes(480 << 20));  // one MiB for each of 160 experts' main parameters and two moments
}

TEST_CASE("a fresh process: static bytes exactly, peak and remainder to some scalars") {
  for (const auto& name : {"a_mem_pp4v2_m8", "a_mem_pp4v2_m8_expandable", "a_pp4_m8_full_block2"}) {
    CAPTURE(name);
    const auto s = measured(name);
    for (const auto& real : s.measured->ranks) {
      CAPTURE(real.rank);
      const auto w = walk(s, static_cast<int>(real.pp_rank));
      CHECK(w.static_bytes == real.static_bytes);
      CHECK(std::abs(w.peak_allocated.value - real.peak_allocated_bytes.value) < 32 * 1024);
      CHECK(std::abs(w.after_step.value - real.after_step_bytes.value) < 8 * 1024);
    }
  }
}

TEST_CASE("a later configuration of a process had Transformer Engine's workspace already") {
  for (const auto& name : {"a_pp4_m8", "a_pp4v2_m8", "a3_pp4v2_m8", "b_tp2pp2v2_m8", "a_pp4v2_m8_fp8cs"}) {
    CAPTURE(name);
    const auto s = measured(name);
    for (const auto& real : s.measured->ranks) {
      CHECK(walk(s, static_cast<int>(real.pp_rank)).static_bytes.value - real.static_bytes.value == (32 << 20) + 1024);
    }
  }
}

TEST_CASE("reserved bytes of the runs that began with an empty allocator within 2 %") {
  for (const auto& name : {"a_mem_pp4v2_m8", "a_mem_pp4v2_m8_expandable"}) {
    CAPTURE(name);
    const auto s = measured(name);
    for (const auto& real : s.measured->ranks) {
      CAPTURE(real.rank);
      CHECK(std::abs(relative(walk(s, static_cast<int>(real.pp_rank)).peak_reserved, real.peak_reserved_bytes)) < 0.02);
    }
  }
}

TEST_CASE("owners add up to the peak, and the place is named") {
  const auto w = walk(measured("a_pp4v2_m8"), 0);
  std::int64_t sum = 0;
  for (const auto& owner : w.peak_owners) sum += owner.bytes.value;
  CHECK(sum == w.peak_allocated.value);
  CHECK(w.peak_at == "B 1.1");
  CHECK(w.peak_piece == "layer 9, mlp.activation backward");
  CHECK(w.peak_owners.front().bytes >= w.peak_owners.back().bytes);
}

TEST_CASE("every schedule frees what it allocates") {
  const std::vector<std::string> settings = {
      "",
      ", overlap_p2p_comm: true, batch_p2p_comm: false",
      ", overlap_p2p_comm: true, batch_p2p_comm: false, overlap_p2p_comm_warmup_flush: true",
      ", deallocate_pipeline_outputs: false",
      ", recompute_granularity: full, recompute_method: uniform, recompute_num_layers: 2",
      ", recompute_granularity: selective, recompute_modules: [core_attn, mlp]",
      ", cuda_graph_impl: transformer_engine, cuda_graph_modules: [mlp]",
      ", cuda_graph_impl: transformer_engine, cuda_graph_modules: [attn]",
      ", cuda_graph_impl: transformer_engine, cuda_graph_modules: [attn, mlp]",
      ", cuda_graph_impl: local",
      ", defer_embedding_wgrad_compute: true",
      ", defer_embedding_wgrad_compute: true, wgrad_deferral_limit: 3",
  };
  unsigned runs = 0;
  std::size_t nth = 0;
  for (const int stages : {1, 2, 4}) {
    for (const int chunks : {1, 2, 3}) {
      for (const int microbatches : {4, 8, 12}) {
        for (const auto& setting : settings) {
          if (chunks > 1 && stages == 1) continue;
          const bool overlaps = setting.find("overlap_p2p_comm") != std::string::npos;
          if (overlaps && chunks == 1) continue;
          if (!test::taken(nth++)) continue;
          const auto s = small(stages, chunks, microbatches, setting);
          CAPTURE(stages);
          CAPTURE(chunks);
          CAPTURE(microbatches);
          CAPTURE(setting);
          for (int rank = 0; rank < stages; ++rank) {
            std::map<std::uint32_t, std::int64_t> live;
            std::int64_t bytes = 0;
            const auto w = walk(s, rank, [&](const memory::Event& event) {
              if (event.graph) return;  // the pool keeps what it has
              if (event.kind == memory::Event::Kind::allocate) {
                CHECK(live.emplace(event.block, event.bytes.value).second);
                bytes += memory::block_bytes(event.bytes.value);
              } else if (event.kind == memory::Event::Kind::free) {
                bytes -= memory::block_bytes(live[event.block]);
                CHECK(live.erase(event.block) == 1);
              }
            });
            // Parameters, optimizer state and each chunk's last input with its gradient remain, nothing else.
            CHECK(bytes <= w.after_step.value);
            CHECK(w.after_step.value - bytes <= static_cast<std::int64_t>(live.size()) << 20);  // unsplit rests
            CHECK(w.peak_allocated >= w.after_step);
            CHECK(w.after_step > w.static_bytes);
            CHECK(w.peak_reserved >= w.peak_allocated);
            ++runs;
          }
        }
      }
    }
  }
  CHECK(runs > test::draws(300));
}

TEST_CASE("graphs of a mixture, whatever they hold: what a step allocates it frees, but for static buffers") {
  for (const char* stages : {"1", "2"})
    for (const char* modules :
         {"[moe_router]", "[moe_router, moe_preprocess]", "[attn]", "[attn, moe_router, moe_preprocess]"})
      for (const char* more : {"recompute_granularity=none", "moe_shared_expert_intermediate_size=768",
                               "gradient_accumulation_fusion=false", "moe_token_dispatcher_type=allgather"}) {
        auto s = scenario::read("data/stock_one_gpu_graphed_router.yaml");
        for (const auto& setting : {std::string("num_gpus=2"), "pipeline_model_parallel_size=" + std::string(stages),
                                    "cuda_graph_modules=" + std::string(modules), std::string(more)})
          if (setting != "recompute_granularity=none") scenario::set(s, setting);
        CAPTURE(stages);
        CAPTURE(modules);
        CAPTURE(more);
        const int last = *stages - '1';
        Balance left;
        const auto w = walk(s, last, [&](const memory::Event& event) { left.book(event); });
        CHECK(left.bytes <= w.after_step.value);
        CHECK(w.after_step.value - left.bytes <= static_cast<std::int64_t>(left.live.size()) << 20);  // unsplit rests
        CHECK(left.pool.size() <= 2);  // the last gradient that a graph has returned
        CHECK(w.graph_pool.value > 0);
        for (const char* setting : {"cuda_graph_impl=none", "cuda_graph_modules=[]"}) scenario::set(s, setting);
        const auto eager = walk(s, last);
        CHECK(w.after_step > eager.after_step);  // static buffers
        CHECK(w.after_step.value - eager.after_step.value < eager.peak_allocated.value / 4);
      }
}

TEST_CASE("graphs beside expert-parallel overlap: what a step allocates it frees, but for static buffers") {
  for (const char* modules :
       {"[moe_router]", "[moe_router, moe_preprocess]", "[attn]", "[attn, moe_router, moe_preprocess]"})
    for (const char* more : {"delay_wgrad_compute=false", "delay_wgrad_compute=true", "mtp_num_layers=1",
                             "moe_shared_expert_intermediate_size=768"}) {
      auto s = scenario::read("data/stock_one_gpu_graphed_router.yaml");
      for (const auto& setting :
           {std::string("num_gpus=4"), std::string("expert_model_parallel_size=2"),
            std::string("pipeline_model_parallel_size=2"), std::string("virtual_pipeline_model_parallel_size=2"),
            std::string("overlap_moe_expert_parallel_comm=true"), "cuda_graph_modules=" + std::string(modules),
            std::string(more)})
        scenario::set(s, setting);
      CAPTURE(modules);
      CAPTURE(more);
      for (const int rank : {0, 1}) {
        Balance left;
        const auto w = walk(s, rank, [&](const memory::Event& event) { left.book(event); });
        CHECK(left.bytes <= w.after_step.value);
        CHECK(w.after_step.value - left.bytes <= static_cast<std::int64_t>(left.live.size()) << 20);  // unsplit rests
        CHECK(left.pool.size() <= 3);  // the last gradient that a graph has returned, and each chunk's on its way
        CHECK(w.graph_pool.value > 0);
        auto eager = s;
        for (const char* setting : {"cuda_graph_impl=none", "cuda_graph_modules=[]"}) scenario::set(eager, setting);
        CHECK(w.after_step > walk(eager, rank).after_step);  // static buffers
      }
    }
}

// pipeline_parallel/utils.py, ScheduleNode: `with torch.cuda.stream(self.stream)`, record_stream of what comes and
// goes.
TEST_CASE("expert-parallel overlap: each node's tensors are its stream's, what crosses streams comes back late") {
  for (const std::string more :
       {"delay_wgrad_compute=false", "delay_wgrad_compute=true", "mtp_num_layers=1",
        "moe_shared_expert_intermediate_size=768", "fp8=hybrid", "pipeline_model_parallel_size=1"}) {
    CAPTURE(more);
    auto s = scenario::read("data/stock_one_gpu_graphed_router.yaml");
    for (const char* setting : {"cuda_graph_impl=none", "cuda_graph_modules=[]", "num_gpus=4",
                                "expert_model_parallel_size=2", "pipeline_model_parallel_size=2",
                                "virtual_pipeline_model_parallel_size=2", "overlap_moe_expert_parallel_comm=true"})
      scenario::set(s, setting);
    if (more.starts_with("pipeline")) s.settings.virtual_pipeline_model_parallel_size.reset();
    scenario::set(s, more);
    const auto stages = test::build(s);
    for (int rank = 0; rank < s.settings.pipeline_model_parallel_size; ++rank) {
      std::map<std::string, std::set<model::Stream>> streams;
      std::set<std::uint32_t> retired;
      std::map<std::string, int> late;
      walk(s, rank, [&](const memory::Event& event) {
        const auto owner = memory::owner_name(stages, event.owner);
        if (event.kind == memory::Event::Kind::allocate) streams[owner].insert(event.stream);
        if (event.kind == memory::Event::Kind::retire) retired.insert(event.block), ++late[owner];
        if (event.kind == memory::Event::Kind::free) retired.erase(event.block);
      });
      using model::Stream;
      CHECK(streams["moe.dispatched_tokens"] == std::set{Stream::communication});
      CHECK(streams["layer input"].contains(Stream::communication));  // what moe_combine adds up
      for (const std::string computed : {"attention.core_output", "attention.residual", "moe.sorted_tokens"}) {
        CAPTURE(computed);
        CHECK(streams[computed] == std::set{Stream::compute});
      }
      for (const std::string crosses : {"moe.dispatched_tokens", "moe.permuted_tokens", "attention.residual"}) {
        CAPTURE(crosses);
        CHECK(late[crosses] > 0);
      }
      CHECK(late["attention.core_output"] == 0);
      CHECK(retired.empty());
    }
  }
}

TEST_CASE("graphs of a hybrid, whatever they hold: what a step allocates it frees, but for static buffers") {
  for (const char* pattern : {"MEM*EME-M|EM*EM-M", "MEM*E-|M*EM-E|MEM|*E"})
    for (const char* modules : {"[mamba]", "[attn]", "[mlp]", "[mamba, attn]", "[moe_router]",
                                "[mamba, attn, moe_router, moe_preprocess]", "[mamba, mlp, moe_router]"}) {
      auto s = scenario::read("../real/n_nano_pp2.yaml");
      scenario::set(s, std::string("hybrid_layer_pattern=") + pattern);
      scenario::set(s, "num_layers=" + std::to_string(scenario::hybrid_layers(s).size()));
      const auto eager = walk(s, 1);
      for (const std::string& setting :
           {std::string("use_te_rng_tracker=true"), std::string("cuda_graph_impl=transformer_engine"),
            "cuda_graph_modules=" + std::string(modules)})
        scenario::set(s, setting);
      CAPTURE(pattern);
      CAPTURE(modules);
      Balance left;
      const auto w = walk(s, 1, [&](const memory::Event& event) { left.book(event); });
      CHECK(w.after_step.value - left.bytes <= static_cast<std::int64_t>(left.live.size()) << 20);  // unsplit rests
      CHECK(left.pool.size() <= 3);  // the last gradient that a graph has returned, and each chunk's on its way
      CHECK(w.graph_pool.value > 0);
      CHECK(w.after_step > eager.after_step);  // static buffers
    }
}

TEST_CASE(
    "rows that routing draws: about the mean, which tells the peak; what is reserved is no less than the mean's") {
  using Sizes = std::map<std::uint32_t, std::set<std::int64_t>>;
  int fewer = 0, more = 0, reserves_more = 0;
  for (unsigned seed = 0; seed < test::draws(120); ++seed) {
    const auto s = test::accepted(test::drawn(seed));
    if (!s) continue;
    auto stages = test::build(*s);
    double most = 0;
    for (const auto& piece : stages.pieces) most = std::max(most, piece.row_spread);
    if (most == 0) continue;
    CAPTURE(seed);
    const auto program = schedule::build(schedule::config_of(*s, true));
    const auto plan = offload::resolve(*s, stages, program, 0);
    const auto sizes = [&](memory::Rows rows) {
      Sizes result;
      const memory::Listener listener = [&](const memory::Event& event) {
        if (event.kind == memory::Event::Kind::allocate) result[event.owner].insert(event.bytes.value);
      };
      memory::Walker walker(stages, program, plan, 0, memory::transfers_are_asynchronous(*s), listener, rows);
      walker.reach_second_step();
      walker.step();
      return result;
    };
    const Sizes mean = sizes(memory::Rows::mean), drawn = sizes(memory::Rows::drawn);
    REQUIRE(mean.size() == drawn.size());
    // Four uniform numbers reach no further than 2 sqrt(3) deviations.
    const double widest = 2 * std::sqrt(3) * most;
    for (const auto& [owner, bytes] : drawn) {
      const auto& of_mean = mean.at(owner);
      const auto least = static_cast<double>(*of_mean.begin()), largest = static_cast<double>(*of_mean.rbegin());
      CHECK(static_cast<double>(*bytes.begin()) >= least * (1 - widest) - 1);
      CHECK(static_cast<double>(*bytes.rbegin()) <= largest * (1 + widest));
      fewer += *bytes.begin()<*of_mean.begin(), more += *bytes.rbegin()> * of_mean.rbegin();
    }
    // One walk tells what both ask for.
    const auto requests = [&](memory::Rows rows, Bytes memory::Event::*bytes) {
      std::vector<std::tuple<memory::Event::Kind, std::uint32_t, std::int64_t>> result;
      const memory::Listener listener = [&](const memory::Event& event) {
        const bool asks = event.kind == memory::Event::Kind::allocate;
        result.emplace_back(event.kind, event.block, asks ? (event.*bytes).value : 0);
      };
      memory::Walker walker(stages, program, plan, 0, memory::transfers_are_asynchronous(*s), listener, rows);
      walker.reach_second_step();
      walker.step();
      return result;
    };
    CHECK((requests(memory::Rows::both, &memory::Event::bytes) == requests(memory::Rows::mean, &memory::Event::bytes)));
    CHECK(
        (requests(memory::Rows::both, &memory::Event::drawn) == requests(memory::Rows::drawn, &memory::Event::bytes)));
    const auto told = memory::walk(stages, program, *s, 0);
    const auto asked = memory::scout(stages, program, *s, 0).peak_allocated;
    for (auto& piece : stages.pieces) piece.row_spread = 0;
    const auto even = memory::walk(stages, program, *s, 0);
    CHECK(told.static_bytes == even.static_bytes);
    CHECK(told.peak_allocated == even.peak_allocated);
    CHECK(asked == memory::scout(stages, program, *s, 0).peak_allocated);
    CHECK(told.peak_reserved >= even.peak_reserved);
    reserves_more += told.peak_reserved > even.peak_reserved;
  }
  CHECK(fewer > 20);
  CHECK(more > 20);
  CHECK(reserves_more > 3);
}

TEST_CASE("recompute never raises the peak, except core attention") {
  const auto peak = [](const std::string& settings) { return walk(small(4, 2, 8, settings), 0).peak_allocated; };
  const auto none = peak("");
  CHECK(peak(", recompute_granularity: selective, recompute_modules: [mlp]") < none);
  CHECK(peak(", recompute_granularity: full, recompute_method: uniform, recompute_num_layers: 1") < none);
  CHECK(peak(", recompute_granularity: selective, recompute_modules: [core_attn]") > none);
}

TEST_CASE("under a limit: cached blocks are given back first, then it runs out, and says where") {
  const auto s = measured("a_pp4v2_m8");
  const auto stages = test::build(s);
  const auto program = schedule::build(schedule::config_of(s));
  const auto free = memory::walk(stages, program, s, 0);
  CHECK(free.peak_reserved > free.peak_allocated);
  const auto tight = memory::walk(stages, program, s, 0, free.peak_reserved - Bytes(64 << 20));
  CHECK(!tight.failure);
  CHECK(tight.retried);
  CHECK(tight.peak_reserved <= free.peak_reserved - Bytes(64 << 20));
  const auto too_tight = memory::walk(stages, program, s, 0, free.peak_allocated - Bytes(1 << 20));
  REQUIRE(too_tight.failure);
  CHECK(too_tight.failure->reserved <= free.peak_allocated - Bytes(1 << 20));
  CHECK(too_tight.failure->owners.size() > 3);
  CHECK(too_tight.failure->requested > Bytes());
  CHECK(!memory::walk(stages, program, s, 0, free.peak_reserved).retried);
}

TEST_CASE("weight gradients of the head: so many wait as wgrad_deferral_limit says, and no more") {
  constexpr int microbatches = 12, stages = 2;
  const auto peak = [&](const std::string& settings) {
    return walk(small(stages, 1, microbatches, settings), stages - 1).peak_allocated.value;
  };
  const std::string defer = ", defer_embedding_wgrad_compute: true, wgrad_deferral_limit: ";
  constexpr std::int64_t kept = 2 * 512 * (4096 + 512);  // of each: the gradient of its logits and its normed input
  const auto all = peak(defer + "0");
  CHECK(peak(defer + "12") == all);
  CHECK(peak(defer + "40") == all);
  for (int limit = 3; limit + 1 < microbatches; ++limit)  // the last one is there at its backward in any case
    CHECK(peak(defer + std::to_string(limit + 1)) - peak(defer + std::to_string(limit)) == kept);
  CHECK(peak(defer + "3") - peak("") <= 3 * kept);
}

}  // namespace walk_test
