// Command lines and overrides as users type them, and the errors for what they mistype.
#include <doctest/doctest.h>

#include <algorithm>
#include <sstream>

#include "../../src/emit/field_table.hpp"
#include "pipewright/effects.hpp"
#include "pipewright/emit.hpp"
#include "pipewright/scenario/derived.hpp"
#include "pipewright/scenario/fields.hpp"
#include "pipewright/scenario/io.hpp"

namespace import_test {

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

/// Overrides beside those of a small model.
scenario::Scenario of_overrides(const std::string& overrides) {
  return emit::from_bridge_text(
             "cfg.model.hidden_size = 1024\ncfg.model.num_attention_heads = 8\n"
             "cfg.model.seq_length = 1024\ncfg.model.vocab_size = 1024\n" +
                 overrides,
             "run.py", {8, 8, "h100-sxm", ""})
      .scenario;
}

/// The flags that are written for it, as a shell reads them.
std::string emitted_line(const scenario::Scenario& s) {
  std::string line;
  for (const auto& word : emit::words(emit::megatron(s))) line += "'" + word + "' ";
  return line;
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

TEST_CASE("what validate_args makes of flags does not depend on their order, and follows the flag that it reads") {
  const auto grads = [](const std::string& more) { return import(more).scenario.settings.grad_reduce_in_fp32; };
  CHECK(grads("--use-precision-aware-optimizer"));
  CHECK_FALSE(grads("--use-precision-aware-optimizer --main-grads-dtype bf16"));
  CHECK_FALSE(grads("--grad-reduce-in-bf16"));
  for (const auto* flags :
       {"--recompute-activations --recompute-granularity full", "--recompute-granularity full --recompute-activations"})
    CHECK(import(flags).scenario.settings.recompute_granularity == "selective");
  CHECK_FALSE(import("--position-embedding-type yarn").scenario.settings.apply_rope_fusion);
  // --swiglu has a flag of its own; all other activations follow the other one, which is off without biases.
  std::string quick = llama;
  quick.replace(quick.find("--swiglu"), 8, "--quick-geglu --num-experts 8 --moe-grouped-gemm");
  const auto fused = [&](std::string flags, const std::string& more) {
    return emit::from_megatron(flags + more, {16, 8, "h100-sxm", ""}).scenario.settings.bias_activation_fusion;
  };
  CHECK_FALSE(fused(quick, ""));
  quick.erase(quick.find("--disable-bias-linear "), 22);
  CHECK(fused(quick, "--no-bias-swiglu-fusion"));
  CHECK_FALSE(fused(quick, "--no-bias-gelu-fusion"));
  CHECK(fused(llama, "--no-bias-gelu-fusion"));
}

TEST_CASE("a graph of the whole iteration, as each version spells it, and back") {
  const std::string none = " --no-check-for-nan-in-loss-and-grad";
  const auto spelled = [&](const std::string& flags, const char* version) {
    return import(flags + none, version).scenario.settings;
  };
  for (const auto* version : {"0.16.0", "0.17.0", "0.18.0", "0.19.0"}) {
    CAPTURE(version);
    const auto s = spelled("--cuda-graph-scope full_iteration --cuda-graph-impl local", version);
    CHECK(s.cuda_graph_impl == "full_iteration");
    CHECK(s.cuda_graph_modules.empty());
    CHECK(spelled("--cuda-graph-scope full_iteration", version).cuda_graph_impl == "none");
    CHECK(spelled("--cuda-graph-scope full_iteration --cuda-graph-impl transformer_engine", version).cuda_graph_impl ==
          "transformer_engine");
  }
  CHECK(import("--cuda-graph-impl full_iteration" + none, "0.18.0").findings.empty());
  CHECK(import("--cuda-graph-impl full_iteration" + none, "0.17.0").findings.at(0).rule == "version.value");
  CHECK(import("--cuda-graph-impl full_iteration", "0.19.0").findings.at(0).rule == "flag.missing");
  const auto old = import("--cuda-graph-impl local --cuda-graph-scope full_iteration" + none, "0.17.0").scenario;
  std::string line;
  for (const auto& word : emit::words(emit::megatron(old))) line += word + " ";
  CHECK(line.find("--cuda-graph-impl local --cuda-graph-scope full_iteration") != std::string::npos);
}

TEST_CASE("flags that exclude each other") {
  const auto rules = [](const std::string& more) {
    std::vector<std::string> found;
    for (const auto& finding : import(more).findings) found.push_back(finding.rule);
    return found;
  };
  using Rules = std::vector<std::string>;
  const std::string four = "--pipeline-model-parallel-size 4 ";
  CHECK(rules(four + "--num-layers-per-virtual-pipeline-stage 2").empty());
  CHECK(rules(four + "--num-layers-per-virtual-pipeline-stage 2 --num-virtual-stages-per-pipeline-rank 4") ==
        Rules{"flag.beside"});
  CHECK(rules(four + "--num-layers-per-virtual-pipeline-stage 2 --decoder-first-pipeline-num-layers 8") ==
        Rules{"flag.beside"});
  CHECK(rules("--multi-latent-attention") == Rules{"flag.beside"});
  CHECK(rules("--accumulate-allreduce-grads-in-fp32 --main-grads-dtype bf16") == Rules{"flag.beside"});
}

TEST_CASE("one chunk a rank: none in Megatron-LM, the interleaved schedule in Bridge") {
  CHECK_FALSE(scenario::interleaved(
      import("--pipeline-model-parallel-size 4 --num-virtual-stages-per-pipeline-rank 1").scenario));
  const std::string text =
      "cfg.model.num_layers = 32\ncfg.model.hidden_size = 4096\ncfg.model.num_attention_heads = 32\n"
      "cfg.model.seq_length = 4096\ncfg.model.vocab_size = 128256\ncfg.model.pipeline_model_parallel_size = 4\n"
      "cfg.train.micro_batch_size = 1\ncfg.train.global_batch_size = 32\n";
  for (const auto& [size, interleaved] : {std::pair("1", true), {"2", true}, {"None", false}}) {
    const auto s = emit::from_bridge_text(text + "cfg.model.virtual_pipeline_model_parallel_size = " + size + "\n",
                                          "run.py", {8, 8, "h100-sxm", ""})
                       .scenario;
    CHECK(scenario::interleaved(s) == interleaved);
  }
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

TEST_CASE("the launcher says how many GPUs there are") {
  const auto gpus = [](const std::string& launcher, std::int64_t said = 0) {
    const auto s = emit::from_megatron(launcher + " pretrain_gpt.py " + llama, {said, 8, "h100-sxm", ""}).scenario;
    return std::pair(s.cluster.num_gpus, s.cluster.gpus_per_node);
  };
  using Pair = std::pair<std::int64_t, std::int64_t>;
  CHECK(gpus("torchrun --nproc_per_node 8 --nnodes 1") == Pair{8, 8});
  CHECK(gpus("torchrun --nproc-per-node=4 --nnodes=2") == Pair{8, 4});
  CHECK(gpus("python -m torch.distributed.run --nproc_per_node 8") == Pair{8, 8});
  CHECK(gpus("python -m torch.distributed.launch --nproc_per_node 8 --nnodes 4:4") == Pair{32, 8});
  CHECK(gpus("srun -N 16 --ntasks-per-node=8 python") == Pair{128, 8});
  CHECK(gpus("srun --nodes 2 torchrun --nproc_per_node 4") == Pair{8, 4});
  CHECK(gpus("mpirun -np 16 python") == Pair{16, 8});
  CHECK(gpus("torchrun --nproc_per_node 8", 64) == Pair{64, 8});  // --gpus wins
  CHECK(gpus("torchrun --nproc_per_node gpu") == Pair{1, 8});
}

TEST_CASE("lists in the spellings of NVIDIA's files") {
  for (const auto* list : {"mlp core_attn", "'[mlp core_attn]'", "\"[mlp, core_attn]\"", "[mlp core_attn]",
                           "mlp,core_attn", "\"['mlp', 'core_attn']\""}) {
    CAPTURE(std::string(list));
    const auto s = import(std::string("--recompute-granularity selective --recompute-modules ") + list).scenario;
    CHECK(s.settings.recompute_modules == scenario::Strings{"mlp", "core_attn"});
  }
  // As argparse does, the last of two counts.
  CHECK(import("--micro-batch-size 4").scenario.settings.micro_batch_size == 4);
}

TEST_CASE("the vocabulary: stated, GPT-2's where its tokenizer is meant, or said beside the flags") {
  const std::string flags =
      "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 64 --micro-batch-size 1 ";
  emit::Machine machine{8, 8, "h100-sxm", ""};
  const auto vocabulary = [&](const std::string& more) {
    return emit::from_megatron(flags + more, machine).scenario.model.vocab_size;
  };
  CHECK_THROWS_WITH_AS(vocabulary(""), doctest::Contains("--set vocab_size=N"), UsageError);
  CHECK_THROWS_AS(vocabulary("--tokenizer-type HuggingFaceTokenizer --merge-file m"), UsageError);
  CHECK_THROWS_AS(vocabulary("--vocab-file vocab.txt"), UsageError);  // BERT's has no merges
  CHECK(vocabulary("--tokenizer-type GPT2BPETokenizer") == 50257);
  CHECK(vocabulary("--vocab-file v --merge-file m") == 50257);
  CHECK(emit::from_megatron(flags + "--merge-file m", machine).scenario.assumed.size() == 1);
  CHECK(vocabulary("--tokenizer-type GPT2BPETokenizer --vocab-size 100") == 100);
  CHECK(vocabulary("--tokenizer-type NullTokenizer --vocab-size 131072") == 131072);
  machine.megatron_core = "0.17.0";  // NullTokenizer added an entry for the end of a document
  CHECK(vocabulary("--tokenizer-type NullTokenizer --vocab-size 131072") == 131073);
  CHECK(vocabulary("--tokenizer-type NullTokenizer --padded-vocab-size 131072") == 131072);
  machine.vocab_size = 777;
  CHECK(vocabulary("") == 777);
  CHECK(vocabulary("--tokenizer-type GPT2BPETokenizer") == 777);
}

TEST_CASE("programs that train other models are refused by name, unknown ones are named") {
  const auto run = [](const std::string& program) {
    return emit::from_megatron("torchrun --nproc_per_node 8 " + program +
                                   " --num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 64 "
                                   "--micro-batch-size 1 --vocab-size 64",
                               {0, 8, "h100-sxm", ""})
        .notes;
  };
  CHECK_THROWS_WITH_AS(run("/opt/megatron/pretrain_t5.py"), doctest::Contains("pretrain_t5.py"), UsageError);
  CHECK_THROWS_AS(run("pretrain_vlm.py"), UsageError);
  const std::string note = "mine.py is taken to train as pretrain_gpt.py does";
  const auto mine = run("mine.py"), gpt = run("./pretrain_gpt.py");
  CHECK(std::ranges::find(mine, note) != mine.end());
  CHECK(std::ranges::none_of(gpt, [](const auto& n) { return n.find("taken to train") != std::string::npos; }));
}

TEST_CASE("without a GPU count the fewest that the parallelism needs") {
  const auto s = import("--tensor-model-parallel-size 4 --pipeline-model-parallel-size 2", "", 0).scenario;
  CHECK(s.cluster.num_gpus == 8);
}

TEST_CASE("flags outside what is modelled are noted") {
  const auto result =
      import("--save /ckpt --save-interval 9 --num-workers 4 --log-interval 10 --tokenizer-type NullTokenizer");
  REQUIRE(result.notes.size() == 2);
  CHECK(result.notes[0] ==
        "without effect on time and memory: --log-interval --num-workers --save --save-interval --tokenizer-type");
  CHECK(result.findings.empty());
}

TEST_CASE("every flag of every version sets a field or has an effect") {
  for (const auto& flag : emit::flags()) {
    CAPTURE(flag.name);
    CHECK(scenario::effect_of(flag.field.empty() ? flag.name : flag.field) != nullptr);
  }
  for (const auto& flag : emit::other_flags()) {
    CAPTURE(flag.name);
    CHECK(scenario::effect_of(flag.name) != nullptr);
    CHECK(emit::find_flag(flag.name) == nullptr);
  }
  CHECK(emit::flags().size() + emit::other_flags().size() > 950);
}

TEST_CASE("flags that are not modelled stay in the scenario, to be refused or ignored") {
  const auto result = import("--use-torch-fsdp2 --spec local --mtp-hybrid-override-pattern MM", "0.19.0");
  CHECK(result.findings.empty());
  const auto& other = result.scenario.settings.other;
  CHECK(other.at("use_torch_fsdp2") == "true");
  CHECK(other.at("spec") == "local");
  const auto found = scenario::unmodelled(result.scenario);
  CHECK(found.size() == 3);
}

TEST_CASE("dist_muon is muon with the distributed optimizer from 0.18 on, unless nothing is laid out for it") {
  const auto read = [](const char* flags, const char* version) { return import(flags, version).scenario.settings; };
  for (const char* version : {"0.16.0", "0.17.0"})
    CHECK(read("--optimizer dist_muon", version).optimizer == "dist_muon");
  for (const char* flags : {"--optimizer dist_muon", "--optimizer muon --use-distributed-optimizer"}) {
    CAPTURE(flags);
    CHECK(read(flags, "0.18.0").optimizer == "muon");
    CHECK(read(flags, "0.18.0").use_distributed_optimizer);
    const std::string none = std::string(flags) + " --no-use-layer-wise-param-layout";
    // 0.19 builds models where no layout is made; alone there is nothing to deal.
    for (const auto& dealt : {read(none.c_str(), "0.18.0"), read(none.c_str(), "0.19.0"), read(flags, "0.19.0")}) {
      CHECK(dealt.optimizer == "dist_muon");
      CHECK_FALSE(dealt.use_distributed_optimizer);
    }
    CHECK(import(flags, "0.19.0", 1).scenario.settings.optimizer == "muon");
  }
  CHECK(read("--optimizer muon", "0.19.0").optimizer == "muon");
  CHECK_FALSE(read("--optimizer muon", "0.19.0").use_distributed_optimizer);
}

TEST_CASE("a hybrid's pattern, its older names and its ratios") {
  const auto of = [](const std::string& flags, const char* version) { return import(flags, version).scenario.model; };
  const auto now = of("--hybrid-layer-pattern 'M-M*|M-M-' --mamba-num-heads 64 --mamba-state-dim 64", "0.19.0");
  CHECK(now.hybrid_layer_pattern == "M-M*|M-M-");
  CHECK(now.num_layers == 8);
  CHECK((now.mamba_num_heads == 64 && now.mamba_state_dim == 64 && now.mamba_head_dim == 64));
  for (const char* version : {"0.17.0", "0.19.0"}) {  // arguments.py: the pattern counts, --num-layers does not
    CHECK(of("--hybrid-override-pattern 'M-*M'", version).num_layers == 4);
    CHECK(of("--hybrid-override-pattern 'M-*M'", version).hybrid_layer_pattern == "M-*M");
  }
  CHECK_THROWS_WITH_AS(of("--hybrid-override-pattern MM --hybrid-layer-pattern MM", "0.19.0"),
                       doctest::Contains("deprecated name"), UsageError);
  // ssm/mamba_hybrid_layer_allocation.py of core_r0.16.0, run as Python.
  for (const auto& [ratios, pattern] : std::initializer_list<std::pair<const char*, const char*>>{
           {"--num-layers 48 --hybrid-attention-ratio 0.08 --hybrid-mlp-ratio 0.5",
            "M-M-M--M-*M-M-M-M--*M-M-M-M-*M--M-M-M-*M-M--M-M-"},
           {"--num-layers 10 --hybrid-attention-ratio 0.2", "MMM*MM*MMM"},
           {"--num-layers 7 --hybrid-mlp-ratio 0.5", "M-M--M-"},
           {"--num-layers 4 --is-hybrid-model", "MMMM"}}) {
    CAPTURE(ratios);
    CHECK(of(ratios, "0.16.0").hybrid_layer_pattern == pattern);
  }
  // What is emitted comes back, by the name that the version has.
  for (const auto& [version, flag] :
       std::initializer_list<std::pair<const char*, const char*>>{{"0.16.0", "--hybrid-override-pattern"},
                                                                  {"0.17.0", "--hybrid-layer-pattern"},
                                                                  {"0.19.0", "--hybrid-layer-pattern"}}) {
    auto s = import("--hybrid-override-pattern 'M-M-M-M*' --num-layers 8", version).scenario;
    const std::string line = emitted_line(s);
    CAPTURE(line);
    CHECK(line.find(flag) != std::string::npos);
    CHECK(line.find("--spec") != std::string::npos);
    CHECK(import(line, version).scenario.model == s.model);
  }
}

TEST_CASE("layers of multi-token prediction in a hybrid's pattern, and apart from it") {
  const auto of = [](const std::string& flags) { return import(flags, "0.19.0").scenario.model; };
  const auto joined = of("--hybrid-layer-pattern 'M-M*/*-/*-' --position-embedding-type none");
  CHECK(joined.hybrid_layer_pattern == "M-M*/*-/*-");
  CHECK((joined.num_layers == 4 && joined.mtp_num_layers == 2));
  // arguments.py: the pattern's number of depths wins, and its layers do.
  CHECK(of("--hybrid-layer-pattern 'M-M*/*-/*-' --mtp-num-layers 1 --position-embedding-type none") == joined);
  CHECK(of("--hybrid-layer-pattern 'M-M*/*-/*-' --mtp-num-layers 1 --mtp-hybrid-override-pattern M "
           "--position-embedding-type none") == joined);
  CHECK(of("--hybrid-override-pattern 'M-M*' --mtp-num-layers 2 --mtp-hybrid-override-pattern '*-' "
           "--position-embedding-type none") == joined);
  const auto stated = import("--hybrid-layer-pattern 'M-M*/*-/*-' --position-embedding-type none", "0.19.0").scenario;
  CHECK(import(emitted_line(stated), "0.19.0").scenario.model == joined);
  // models/hybrid/hybrid_provider.py, finalize: what is stated apart wins.
  const auto bridge = [](const std::string& more) {
    return of_overrides(
               "cfg.model.hybrid_layer_pattern = \"M-M*\"\n"
               "cfg.train.micro_batch_size = 1\ncfg.train.global_batch_size = 8\n" +
               more)
        .model;
  };
  const auto apart = bridge("cfg.model.mtp_hybrid_override_pattern = \"*-\"\ncfg.model.mtp_num_layers = 2\n");
  CHECK(apart.hybrid_layer_pattern == "M-M*/*-/*-");
  CHECK((apart.num_layers == 4 && apart.mtp_num_layers == 2));
  CHECK(bridge("cfg.model.mtp_hybrid_override_pattern = \"*-\"\n").hybrid_layer_pattern == "M-M*");
}

TEST_CASE("a batch that the ranks do not divide is lowered where that is asked for, as Megatron does") {
  const std::string uneven = "--global-batch-size 30 ";
  const auto lowered = import(uneven + "--decrease-batch-size-if-needed", "", 8);
  CHECK(lowered.scenario.settings.global_batch_size == 24);
  CHECK_NOTHROW(scenario::check(lowered.scenario));
  CHECK(std::ranges::any_of(lowered.notes,
                            [](const auto& note) { return note.find("steps of 24") != std::string::npos; }));
  CHECK(import(uneven, "", 8).scenario.settings.global_batch_size == 30);
  CHECK(import(uneven + "--decrease-batch-size-if-needed", "", 5).scenario.settings.global_batch_size == 30);
  CHECK(import("--global-batch-size 3 --decrease-batch-size-if-needed", "", 8).scenario.settings.global_batch_size ==
        3);
  const auto bridge = [](const std::string& more) {
    return of_overrides("cfg.model.num_layers = 4\ncfg.train.micro_batch_size = 2\ncfg.train.global_batch_size = 30\n" +
                        more)
        .settings.global_batch_size;
  };
  CHECK(bridge("cfg.train.decrease_batch_size_if_needed = True\n") == 16);
  CHECK(bridge("cfg.train.decrease_batch_size_if_needed = False\n") == 30);
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
  CHECK(early.findings[0].fix == "remove it, or say the version that runs: --megatron-core 0.19.0");
  CHECK(import("--activation-offload-fraction 0.5", "0.19.0").findings.empty());
  CHECK(import("--overlap-p2p-backward-on-comm-stream").findings[0].fix.ends_with("--megatron-core pr-4268"));
  CHECK(import("--overlap-p2p-backward-on-comm-stream").findings.size() == 1);
  CHECK(import("--overlap-p2p-backward-on-comm-stream", "pr-4268").findings.empty());
}

TEST_CASE("errors") {
  CHECK(error_of(std::string(llama) + "--recompute-module mlp") ==
        "--megatron: --recompute-module: unknown flag; without it: --ignore --recompute-module; did you mean "
        "\"--recompute-modules\"?");
  CHECK(error_of(std::string(llama) + "--tensor-model-parallel-size four").find("--tensor-model-parallel-size") !=
        std::string::npos);
  CHECK(error_of(std::string(llama) + "--tensor-model-parallel-size").find("takes one value") != std::string::npos);
  CHECK(error_of(std::string(llama) + "--fp16 yes").find("takes no value") != std::string::npos);
  CHECK(error_of(std::string(llama) + "--recompute-granularity 'full").find("not closed") != std::string::npos);
  CHECK(error_of("--num-layers 2 --hidden-size 64 --num-attention-heads 2 --seq-length 64 --micro-batch-size 1")
            .find("the vocabulary is missing: add --vocab-size N") != std::string::npos);
  CHECK(error_of("--num-layers 2 --num-attention-heads 2 --seq-length 64")
            .starts_with("--megatron: --hidden-size, --micro-batch-size: are missing; the vocabulary is missing: add"));
  CHECK(error_of(std::string(llama) + "--moe-layer-freq ([1]*999999*999999)").find("--moe-layer-freq") !=
        std::string::npos);
}

TEST_CASE("packed sequences: --sft, Bridge's specifications in its older and newer spelling, and back") {
  const auto flags = import("--sft").scenario;
  CHECK(flags.settings.sft);
  CHECK(scenario::unmodelled(flags).size() == 1);  // no lengths yet
  const std::string text =
      "cfg.model.num_layers = 4\ncfg.model.hidden_size = 4096\ncfg.model.num_attention_heads = 32\n"
      "cfg.model.seq_length = 4096\ncfg.model.vocab_size = 32000\ncfg.train.micro_batch_size = 1\n"
      "cfg.train.global_batch_size = 8\n";
  const auto read = [&](const std::string& more) {
    return emit::from_bridge_text(text + more, "run.py", {8, 8, "h100-sxm", ""}).scenario;
  };
  CHECK_FALSE(read("").settings.sft);
  for (const char* more : {"cfg.dataset.enable_offline_packing = True\n",
                           "cfg.dataset.offline_packing_specs.packed_sequence_size = 4096\n",
                           "cfg.dataset.packed_sequence_specs = PackedSequenceSpecs(packed_sequence_size=4096)\n"}) {
    CAPTURE(more);
    CHECK(read(more).settings.sft);
  }
  CHECK_FALSE(read("cfg.dataset.offline_packing_specs = None\n").settings.sft);
  CHECK_THROWS_AS(read("cfg.dataset.offline_packing_specs.packed_sequence_size = 2048\n"), UsageError);

  auto packed = read("cfg.dataset.enable_offline_packing = True\n");
  packed.settings.sequence_lengths = {"512*40"};
  std::string printed;
  for (const auto& word : emit::words(emit::bridge(packed))) printed += word + "\n";
  CHECK(printed.find("PackedSequenceSpecs(packed_sequence_size=4096, pad_seq_to_mult=1)") != std::string::npos);
  const auto back = emit::from_bridge_text(printed, "back.py", {8, 8, "h100-sxm", ""}).scenario;
  CHECK(back.settings.sft);
  CHECK_FALSE(back.settings.pad_cu_seqlens);
  packed.settings.pad_cu_seqlens = true;
  printed.clear();
  for (const auto& word : emit::words(emit::bridge(packed))) printed += word + "\n";
  CHECK(emit::from_bridge_text(printed, "back.py", {8, 8, "h100-sxm", ""}).scenario.settings.pad_cu_seqlens);
  CHECK(read("cfg.dataset.offline_packing_specs.pad_cu_seqlens = True\n").settings.pad_cu_seqlens);
  const auto words = emit::words(emit::megatron(packed));
  CHECK(std::ranges::find(words, "--sft") != words.end());
}

}  // namespace import_test
