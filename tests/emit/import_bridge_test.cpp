// Megatron Bridge's configurations: Python, overrides, recipes, adapters.
#include <doctest/doctest.h>

#include <algorithm>

#include "pipewright/effects.hpp"
#include "pipewright/emit.hpp"
#include "pipewright/scenario/derived.hpp"
#include "pipewright/scenario/fields.hpp"
#include "pipewright/scenario/io.hpp"

namespace import_bridge_test {

using namespace pipewright;

TEST_CASE("Bridge: Python's lists, several lines, calls, Hydra's spelling, and lengths that must agree") {
  const std::string head =
      "from megatron.bridge import x\ncfg.model.num_layers = 32\ncfg.model.hidden_size = 4096\n"
      "cfg.model.num_attention_heads = 32\ncfg.model.seq_length = 4096\ncfg.model.vocab_size = 128256\n";
  const auto s =
      emit::from_bridge_text(head +
                                 "cfg.model.num_moe_experts = 8\n"
                                 "cfg.model.moe_layer_freq = [0]*3+[1]*29\n"
                                 "cfg.model.recompute_modules = [  # which\n    \"mlp\",\n    'core_attn',\n]\n"
                                 "cfg.comm_overlap = CommOverlapConfig(tp_comm_overlap=False,\n"
                                 "    overlap_grad_reduce=False)\n"
                                 "model.recompute_granularity=selective\n++model.mtp_num_layers=null\n",
                             "run.py", {8, 8, "h100-sxm", ""})
          .scenario;
  REQUIRE(s.model.moe_layer_freq.size() == 32);
  CHECK(s.model.moe_layer_freq[2] == 0);
  CHECK(s.model.moe_layer_freq[3] == 1);
  CHECK(s.settings.recompute_modules == scenario::Strings{"mlp", "core_attn"});
  CHECK_FALSE(s.settings.overlap_grad_reduce);
  CHECK_THROWS_WITH_AS(
      emit::from_bridge_text(head + "cfg.dataset.seq_length = 8192\n", "run.py", {8, 8, "h100-sxm", ""}),
      "run.py:7: cfg.dataset.seq_length: is 8192, cfg.model.seq_length 4096: Megatron Bridge insists on one length",
      UsageError);
  CHECK_THROWS_WITH_AS(emit::from_bridge_text(head + "cfg.model.moe_layer_freq = [0]*\n", "run.py", {}),
                       doctest::Contains("run.py:7: cfg.model.moe_layer_freq: expected a number"), UsageError);
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
  REQUIRE(result.notes.size() == 2);
  CHECK(result.notes[0].find("checks for NaN") != std::string::npos);
  CHECK(s.settings.check_for_nan_in_loss_and_grad == true);
  CHECK(result.notes[1].find("cfg.logger.log_interval") != std::string::npos);
  const auto checks = [&](const std::string& more) {
    return *emit::from_bridge_text(text + more, "run.py", {8, 8, "h100-sxm", ""})
                .scenario.settings.check_for_nan_in_loss_and_grad;
  };
  CHECK(checks("cfg.ddp.check_for_nan_in_grad = False\n"));  // of losses still
  CHECK_FALSE(
      checks("cfg.ddp.check_for_nan_in_grad = False\n"
             "cfg.rerun_state_machine.check_for_nan_in_loss = False\n"));

  // Without the distributed optimizer setup() leaves cfg.ddp alone.
  const auto kept = emit::from_bridge_text(
      text +
          "cfg.ddp.use_distributed_optimizer = False\ncfg.comm_overlap.overlap_grad_reduce = True\n"
          "cfg.comm_overlap.bucket_size = 1000\n",
      "run.py", {8, 8, "h100-sxm", ""});
  CHECK_FALSE(kept.scenario.settings.overlap_grad_reduce);
  CHECK_FALSE(kept.scenario.settings.bucket_size.has_value());
  const auto own =
      emit::from_bridge_text(text +
                                 "cfg.ddp.use_distributed_optimizer = False\ncfg.ddp.overlap_grad_reduce = True\n"
                                 "cfg.ddp.bucket_size = 1000\n",
                             "run.py", {8, 8, "h100-sxm", ""});
  CHECK(own.scenario.settings.overlap_grad_reduce);
  CHECK(own.scenario.settings.bucket_size == 1000);

  const auto lost = emit::from_bridge_text(text + "cfg.model.overlap_moe_expert_parallel_comm = True\n", "run.py",
                                           {8, 8, "h100-sxm", ""});
  CHECK_FALSE(lost.scenario.settings.overlap_moe_expert_parallel_comm);
  REQUIRE(lost.findings.size() == 1);
  CHECK(lost.findings[0].rule == "bridge.comm-overlap-resets");
  CHECK_THROWS_WITH(emit::from_bridge_text(text + "cfg.model.num_layer = 3\n", "run.py", {8, 8, "h100-sxm", ""}),
                    doctest::Contains("run.py:21: cfg.model.num_layer"));
}

TEST_CASE("Bridge's LoRA is read, what it trains otherwise is refused") {
  const std::string text =
      "cfg.model.num_layers = 4\ncfg.model.hidden_size = 4096\ncfg.model.num_attention_heads = 32\n"
      "cfg.model.seq_length = 4096\ncfg.model.vocab_size = 32000\ncfg.train.micro_batch_size = 1\n"
      "cfg.train.global_batch_size = 8\n";
  const auto read = [&](const std::string& more) {
    return emit::from_bridge_text(text + more, "run.py", {8, 8, "h100-sxm", ""}).scenario.settings;
  };
  const auto all = read("cfg.peft = LoRA()\n");
  CHECK(all.lora_target_modules.size() == 4);
  CHECK(all.lora_dim == 32);
  const auto some = read("cfg.peft = LoRA(target_modules=[\"linear_qkv\"], dim=16, alpha=32)\n");
  CHECK(some.lora_target_modules == scenario::Strings{"linear_qkv"});
  CHECK(some.lora_dim == 16);
  CHECK_FALSE(some.other.contains("peft"));
  const auto changed = read("cfg.peft = LoRA()\ncfg.peft.target_modules = [\"linear_qkv\"]\ncfg.peft.dim = 8\n");
  CHECK(changed.lora_target_modules == scenario::Strings{"linear_qkv"});
  CHECK(changed.lora_dim == 8);
  CHECK(read("cfg.peft = LoRA()\ncfg.peft = None\n").lora_target_modules.empty());
  const auto mixers = read("cfg.peft = LoRA(target_modules=[\"linear_qkv\", \"in_proj\", \"out_proj\"])\n");
  CHECK(mixers.lora_target_modules == scenario::Strings{"linear_qkv", "in_proj", "out_proj"});
  const auto every = read("cfg.peft = LoRA(target_modules=[\"*.linear_qkv\", \"*linear_fc1\"])\n");
  CHECK(every.lora_target_modules == scenario::Strings{"linear_qkv", "linear_fc1"});
  CHECK_FALSE(every.other.contains("peft"));
  // By what each adapter is, and not by the class of what is refused.
  const auto general = scenario::effect_of("peft")->text;
  for (const auto& [peft, value] : std::initializer_list<std::pair<const char*, const char*>>{
           {"DoRA()", "DoRA"},
           {"CanonicalLoRA(dim=8)", "CanonicalLoRA"},
           {"LoRA(a2a_experimental=True)", "a2a_experimental"},
           {"LoRA(share_expert_adapters=False)", "share_expert_adapters"},
           {"LoRA(normalize_moe_lora=True)", "normalize_moe_lora"},
           {"LoRA(exclude_modules=[\"linear_qkv\"])", "exclude_modules"},
           {"LoRA(target_modules=[])", "exclude_modules"},
           {"LoRA(lora_dtype=torch.float32)", "lora_dtype"},
           {"LoRA(target_modules=[\"linear_q\"])", "linear_q"},
           {"LoRA(target_modules=[\"*.layers.0.*.linear_qkv\"])", "*"},
           {"LoRA(target_modules=[\"*.mlp.linear_fc1\"])", "*"}}) {
    CAPTURE(peft);
    const auto s =
        emit::from_bridge_text(text + "cfg.peft = " + peft + "\n", "run.py", {8, 8, "h100-sxm", ""}).scenario;
    CHECK(s.settings.other.at("peft") == value);
    const auto refused = scenario::unmodelled(s);
    const auto found = std::ranges::find(refused, "peft", &scenario::Unmodelled::name);
    REQUIRE(found != refused.end());
    CHECK(found->missing != general);
  }
  const auto usual = read(
      "cfg.peft = LoRA(dim=8, dropout_position=\"pre\", a2a_experimental=False, lora_dtype=None, exclude_modules=[], "
      "share_expert_adapters=True, normalize_moe_lora=False)\n");
  CHECK_FALSE(usual.other.contains("peft"));
  CHECK(usual.lora_dim == 8);
}

TEST_CASE("a recipe's body: objects made by calls, its own variables, None for what the class decides") {
  const std::string model =
      "cfg.model.num_layers = 8\ncfg.model.hidden_size = 1024\ncfg.model.num_attention_heads = 16\n"
      "cfg.model.seq_length = 4096\ncfg.model.vocab_size = 32000\ncfg.train.micro_batch_size = 1\n"
      "cfg.train.global_batch_size = 64\n";
  const auto read = [&](const std::string& text, std::vector<std::string> ignore = {}) {
    emit::Machine machine{8, 8, "h100-sxm", ""};
    machine.ignore = std::move(ignore);
    return emit::from_bridge_text(text, "recipe.py", machine);
  };
  const auto plain = read(model);
  for (const char* more : {
           "cfg = _pretrain_common()\ncfg.model = AutoBridge.from_hf_pretrained(\"meta-llama/Meta-Llama-3-8B\")"
           ".to_megatron_provider(load_weights=False)\n",
           "cfg.model = provider\n",
           "cfg.dataset = HFDatasetConfig(path=\"x\", seed=1)\ncfg.tokenizer = TokenizerConfig(a=1)\n",
           "cfg.env_vars = {**COMMON, }\n",
           "cfg.model.attention_backend = None\ncfg.model.vocab_size = None\n",
           "cfg.scheduler.lr_decay_iters = float(3)\n",
       }) {
    CAPTURE(std::string(more));
    auto both = read(more + model);
    CHECK(both.scenario == plain.scenario);
  }
  CHECK_NOTHROW(read(model + "cfg.train.manual_gc_eval = 3\n"));
  // Newer names, and values that Megatron compares with none of its own.
  CHECK(read(model + "cfg.model.cp_comm_type = \"allgather\"\n").scenario ==
        read(model + "cfg.model.cp_comm_type = \"all_gather\"\n").scenario);
  CHECK(read(model + "cfg.model.experimental_attention_variant = \"gdn\"\n").scenario ==
        read(model + "cfg.model.experimental_attention_variant = \"gated_delta_net\"\n").scenario);
  const auto mixture = [&](const std::string& more) {
    return read(model + "cfg.model.num_moe_experts = 8\n" + more).scenario;
  };
  CHECK(mixture("cfg.model.moe_router_load_balancing_type = \"noaux_tc\"\n") ==
        mixture("cfg.model.moe_router_load_balancing_type = \"none\"\n"));
  CHECK(mixture("cfg.model.moe_router_dtype = \"bf16\"\n") == mixture("cfg.model.moe_router_dtype = None\n"));
  CHECK(read(model + "cfg.model.window_attn_skip_freq = [True, False]\n").scenario.model.window_attn_skip_freq ==
        read(model + "cfg.model.window_attn_skip_freq = [1, 0]\n").scenario.model.window_attn_skip_freq);
  CHECK(read(model + "length = 8192\ncfg.model.seq_length = length\n").scenario.model.seq_length == 8192);
  CHECK(read("cfg.model = GPTModelProvider(num_layers=8, hidden_size=1024, num_attention_heads=16, seq_length=4096, "
             "vocab_size=32000)\ncfg.train = TrainingConfig(micro_batch_size=1, global_batch_size=64)\n")
            .scenario == plain.scenario);
  CHECK(read(model + "cfg.env_vars = {**COMMON, \"NCCL_DEBUG\": \"WARN\"}\n")
            .scenario.environment.contains("NCCL_DEBUG"));
  CHECK_THROWS_WITH_AS(read(model + "cfg.model.frobnicate = 3\n"), doctest::Contains("--ignore frobnicate"),
                       UsageError);
  CHECK(read(model + "cfg.model.frobnicate = 3\n", {"frobnicate"}).scenario == plain.scenario);
  CHECK_THROWS_WITH_AS(read(model + "cfg.model.seq_length = LENGTH\n"), doctest::Contains("recipe.py:8"), UsageError);
  CHECK_THROWS_AS(read(model + "cfg.model.pipeline_model_parallel_layout = _layout(4, 1)\n"), UsageError);
}

}  // namespace import_bridge_test
