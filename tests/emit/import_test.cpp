// Command lines and overrides as users type them, and the errors for what they mistype.
#include <doctest/doctest.h>

#include <algorithm>

#include "../../src/emit/table.hpp"
#include "pipewright/emit.hpp"

using namespace pipewright;

namespace {

constexpr const char* llama =
    "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention "
    "--num-query-groups 8 --seq-length 4096 --max-position-embeddings 4096 --vocab-size 128256 --swiglu "
    "--normalization RMSNorm --disable-bias-linear --untie-embeddings-and-output-weights "
    "--position-embedding-type rope --bf16 --micro-batch-size 1 ";

emit::Import import(const std::string& more, const char* version = "", std::int64_t gpus = 16) {
  return emit::from_megatron(llama + more, {gpus, 8, "h100-sxm", version});
}

std::string error_of(const std::string& flags) {
  try {
    emit::from_megatron(flags, {16, 8, "h100-sxm", ""});
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("the parser's defaults are those of the command line, not of the config classes") {
  const auto s = import("").scenario;
  CHECK(s.settings.gradient_accumulation_fusion);
  CHECK(s.settings.masked_softmax_fusion);
  CHECK(s.settings.bias_dropout_fusion);
  CHECK(s.settings.apply_rope_fusion);
  CHECK(s.settings.bias_activation_fusion);
  CHECK(s.settings.persist_layer_norm);
  CHECK(s.settings.grad_reduce_in_fp32);
  CHECK(s.settings.deallocate_pipeline_outputs);
  CHECK_FALSE(s.settings.overlap_p2p_comm);
  CHECK(s.model.gated_linear_unit);
  CHECK(scenario::activation_func(s) == "silu");
  CHECK(s.model.num_query_groups == 8);
  CHECK(s.settings.global_batch_size == 16);
}

TEST_CASE("pipeline flags") {
  const auto plain = import("--pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 2").scenario;
  CHECK(plain.settings.virtual_pipeline_model_parallel_size == 4);
  CHECK(plain.settings.overlap_p2p_comm);
  const auto none =
      import("--pipeline-model-parallel-size 4 --num-virtual-stages-per-pipeline-rank 2 --no-overlap-p2p-communication")
          .scenario;
  CHECK(none.settings.virtual_pipeline_model_parallel_size == 2);
  CHECK_FALSE(none.settings.overlap_p2p_comm);
  CHECK(scenario::batch_p2p_comm(none));
}

TEST_CASE("lists, Python patterns, equals signs and continued lines") {
  const auto s = import(
                     "--recompute-granularity selective --recompute-modules mlp core_attn --num-experts=8 \\\n"
                     " --moe-layer-freq '([0]*2+[1]*30)' --expert-model-parallel-size 8")
                     .scenario;
  CHECK(s.settings.recompute_modules == scenario::Strings{"mlp", "core_attn"});
  CHECK(s.model.num_moe_experts == 8);
  REQUIRE(s.model.moe_layer_freq.size() == 32);
  CHECK(s.model.moe_layer_freq[1] == 0);
  CHECK(s.model.moe_layer_freq[2] == 1);
}

TEST_CASE("what stands before the script belongs to the run") {
  const auto s = emit::from_megatron(std::string("CUDA_DEVICE_MAX_CONNECTIONS=1 torchrun --nproc_per_node 8 "
                                                 "pretrain_gpt.py ") +
                                         llama + "--tensor-model-parallel-size 2",
                                     {8, 8, "h100-sxm", ""})
                     .scenario;
  CHECK(s.environment.at("CUDA_DEVICE_MAX_CONNECTIONS") == "1");
  CHECK(s.settings.tensor_model_parallel_size == 2);
}

TEST_CASE("without a GPU count the fewest that the parallelism needs") {
  const auto s = import("--tensor-model-parallel-size 4 --pipeline-model-parallel-size 2", "", 0).scenario;
  CHECK(s.cluster.num_gpus == 8);
}

TEST_CASE("flags outside what is modelled are noted") {
  const auto result = import("--save /ckpt --num-workers 4 --log-interval 10 --tokenizer-type NullTokenizer");
  REQUIRE(result.notes.size() == 2);
  CHECK(result.notes[0] == "ignored, outside what is modelled: --log-interval --num-workers --save --tokenizer-type");
  CHECK(result.findings.empty());
}

TEST_CASE("flags that no version or not this version has") {
  const auto legend = import("--overlap-p2p-communication");
  REQUIRE(legend.findings.size() == 1);
  CHECK(legend.findings[0].rule == "flag.unknown");
  CHECK(legend.findings[0].fix.find("--no-overlap-p2p-communication") != std::string::npos);
  CHECK_THROWS_AS(emit::require_known_flags(legend), UsageError);
  const auto early = import("--activation-offload-fraction 0.5", "0.17.0");
  REQUIRE(early.findings.size() == 1);
  CHECK(early.findings[0].rule == "version.flag");
  CHECK(early.findings[0].message ==
        "--activation-offload-fraction does not exist in Megatron Core 0.17.0; versions with it: 0.19, dev, main, "
        "pr-4268");
  CHECK(import("--overlap-p2p-backward-on-comm-stream").findings.size() == 1);
  CHECK(import("--overlap-p2p-backward-on-comm-stream", "pr-4268").findings.empty());
}

TEST_CASE("errors") {
  CHECK(error_of(std::string(llama) + "--recompute-module mlp") ==
        "--megatron: --recompute-module: unknown flag; did you mean \"--recompute-modules\"?");
  CHECK(error_of(std::string(llama) + "--tensor-model-parallel-size four").find("--tensor-model-parallel-size") !=
        std::string::npos);
  CHECK(error_of(std::string(llama) + "--tensor-model-parallel-size").find("takes one value") != std::string::npos);
  CHECK(error_of(std::string(llama) + "--fp16 yes").find("takes no value") != std::string::npos);
  CHECK(error_of(std::string(llama) + "--recompute-granularity 'full").find("not closed") != std::string::npos);
  CHECK(error_of("--num-layers 2 --hidden-size 64 --num-attention-heads 2 --seq-length 64 --micro-batch-size 1")
            .find("the vocabulary is missing: add --vocab-size N") != std::string::npos);
  CHECK(error_of(std::string(llama) + "--moe-layer-freq ([1]*999999*999999)").find("--moe-layer-freq") !=
        std::string::npos);
}

TEST_CASE("Bridge: comments, quotes, recipes and what CommOverlapConfig makes of them") {
  const std::string text =
      "# a run\n"
      "cfg.model.num_layers = 32\ncfg.model.hidden_size = 4096\ncfg.model.num_attention_heads = 32\n"
      "cfg.model.seq_length = 4096\ncfg.model.vocab_size = 128256  # padded later\n"
      "cfg.model.activation_func = torch.nn.functional.silu\ncfg.model.gated_linear_unit = True\n"
      "cfg.model.pipeline_model_parallel_size = 4\ncfg.model.virtual_pipeline_model_parallel_size = 2\n"
      "cfg.model.recompute_granularity = \"selective\"\ncfg.model.recompute_modules = [\"mlp\"]\n"
      "cfg.train.micro_batch_size = 1\ncfg.train.global_batch_size = 32\n"
      "cfg.mixed_precision = \"bf16_with_fp8_current_scaling_mixed\"\n"
      "cfg.mixed_precision.grad_reduce_in_fp32 = False\n"
      "cfg.ddp.use_distributed_optimizer = True\ncfg.comm_overlap.tp_comm_overlap = False\n"
      "cfg.logger.log_interval = 10\ncfg.env_vars[\"NCCL_NVLS_ENABLE\"] = \"0\"\n";
  const auto result = emit::from_bridge_text(text, "run.py", {8, 8, "h100-sxm", ""});
  const auto& s = result.scenario;
  CHECK(s.settings.fp8 == "hybrid");
  CHECK(s.settings.fp8_param_gather);
  CHECK(s.settings.first_last_layers_bf16);
  CHECK_FALSE(s.settings.grad_reduce_in_fp32);
  CHECK(s.settings.overlap_p2p_comm);
  CHECK(s.settings.batch_p2p_comm == false);
  CHECK(s.settings.overlap_grad_reduce);
  CHECK(s.settings.bucket_size == 128 * 1024 * 1024);
  CHECK(s.settings.align_param_gather);
  CHECK(s.settings.cross_entropy_loss_fusion);
  CHECK(s.environment.at("NCCL_NVLS_ENABLE") == "0");
  CHECK(s.software.megatron_bridge.has_value());
  REQUIRE(result.notes.size() == 1);
  CHECK(result.notes[0].find("cfg.logger.log_interval") != std::string::npos);

  const auto lost = emit::from_bridge_text(text + "cfg.model.overlap_moe_expert_parallel_comm = True\n", "run.py",
                                           {8, 8, "h100-sxm", ""});
  CHECK_FALSE(lost.scenario.settings.overlap_moe_expert_parallel_comm);
  REQUIRE(lost.findings.size() == 1);
  CHECK(lost.findings[0].rule == "bridge.comm-overlap-resets");
  CHECK_THROWS_WITH(emit::from_bridge_text(text + "cfg.model.num_layer = 3\n", "run.py", {8, 8, "h100-sxm", ""}),
                    doctest::Contains("run.py:21: cfg.model.num_layer"));
}
