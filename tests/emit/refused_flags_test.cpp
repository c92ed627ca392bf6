// What is refused is refused however it is said: as a field (--set), as a flag, in overrides of Megatron Bridge.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <set>

#include "../../src/emit/field_table.hpp"
#include "../../src/emit/programs.hpp"
#include "../../src/emit/said_flags.hpp"
#include "pipewright/effects.hpp"
#include "pipewright/emit.hpp"
#include "pipewright/scenario/derived.hpp"
#include "pipewright/scenario/io.hpp"

namespace refused_flags_test {

using namespace pipewright;

namespace {

const std::string plain =
    "--num-layers 8 --hidden-size 1024 --num-attention-heads 8 --seq-length 1024 --max-position-embeddings 1024 "
    "--vocab-size 32000 --normalization RMSNorm --disable-bias-linear --untie-embeddings-and-output-weights "
    "--position-embedding-type rope --bf16 --micro-batch-size 1 --use-distributed-optimizer ";

emit::Import import(const std::string& flags, const char* version = "0.19.0") {
  return emit::from_megatron(flags, {16, 8, "h100-sxm", version});
}

std::set<std::string> refused(const scenario::Scenario& s) {
  std::set<std::string> names;
  for (const auto& one : scenario::unmodelled(s)) names.insert(one.name);
  return names;
}

/// By its name, or because another program's.
bool flag_refuses(const std::string& flags, const std::string& name) {
  try {
    return refused(import(flags).scenario).contains(name);
  } catch (const UsageError& error) {
    return std::string(error.what()).find("is read where") != std::string::npos;
  }
}

/// Whether Megatron's parser takes `value` ("true": the flag alone).
bool is_taken(const emit::OtherFlag& flag, const std::string& value) {
  try {
    emit::refuse_values({std::string(flag.name), value == "true" ? std::vector<std::string>{} : std::vector{value}, {}},
                        flag.takes);
    return true;
  } catch (const UsageError&) {
    return false;
  }
}

std::string rules_of(const std::string& flags, const char* version = "0.19.0") {
  std::string rules;
  for (const auto& finding : import(plain + flags, version).findings) rules += finding.rule + " " + finding.message;
  return rules;
}

bool is_refused(const std::string& name, const std::string& value, const std::string& base = plain) {
  auto s = import(base).scenario;
  scenario::set(s, name + "=" + value);
  return refused(s).contains(name);
}

bool is_refused_variable(const std::string& name, const std::string& value, std::int64_t gpus = 16) {
  auto s = import(plain).scenario;
  s.cluster.num_gpus = gpus;
  scenario::set_env(s, name + "=" + value);
  return refused(s).contains(name);
}

}  // namespace

TEST_CASE("a flag that only has to be named refuses a value, and one dash is none of Megatron's") {
  int named = 0;
  for (const auto& flag : emit::flags()) {
    if (flag.kind != emit::Kind::on && flag.kind != emit::Kind::off && flag.kind != emit::Kind::mark) continue;
    if (!emit::has(flag, import(plain).scenario.software)) continue;
    ++named;
    for (const char* value : {" foo", "=foo", " true"}) {
      CAPTURE(std::string(flag.name) + value);
      CHECK_THROWS_WITH_AS(import(plain + std::string(flag.name) + value), doctest::Contains("takes no value, found "),
                           UsageError);
    }
  }
  CHECK(named > 80);
  CHECK_THROWS_WITH_AS(import(plain + "-num-layers 4"),
                       "--megatron: -num-layers: a flag begins with two dashes; did you mean \"--num-layers\"?",
                       UsageError);
  CHECK_NOTHROW(import(plain + "--loss-scale -1 --lr -1e-4 --data-path -"));  // numbers, and a dash alone
}

TEST_CASE("a flag that is carried is one of the parser's, and sets the field of which it is the flag") {
  for (const auto& row : emit::carried()) {
    CAPTURE(std::string(row.field));
    if (row.flag.empty()) {
      std::string name = "--" + std::string(row.field);
      std::ranges::replace(name, '_', '-');
      CHECK(emit::find_flag(name) == nullptr);
      CHECK(emit::find_other_flag(name) == nullptr);
      continue;
    }
    REQUIRE(emit::find_other_flag(row.flag) != nullptr);
    const std::string value = row.field == "rope_scaling" ? "" : " 4";
    const bool newer = !emit::has(emit::find_other_flag(row.flag)->versions, import(plain).scenario.software);
    const auto s = import(plain + std::string(row.flag) + value, newer ? "dev" : "0.19.0").scenario;
    CHECK(s.model.other.contains(std::string(row.field)));
    const auto words = emit::words(emit::megatron(s));
    CHECK(std::ranges::find(words, row.flag) != words.end());
  }
}

TEST_CASE("flags without effect are read as argparse reads them") {
  const auto error_of = [](const std::string& words) -> std::string {
    try {
      import(plain + "--mock-data " + words);
      return {};
    } catch (const UsageError& error) {
      return error.what();
    }
  };
  std::map<std::string, int> seen;
  for (const auto& flag : emit::other_flags()) {
    if (!emit::has(flag.versions, import(plain).scenario.software) || !emit::other_model_of_flag(flag.name).empty() ||
        flag.name == "--vocab-file")  // says which model
      continue;
    const std::string name(flag.name), takes(flag.takes);
    const std::set<std::string> kinds = {"", "str", "int", "float", "str*", "int*", "float*", "?"};
    const std::string kind = kinds.contains(takes) ? takes : "|";  // one of several words
    CAPTURE(name);
    ++seen[kind];
    const std::string one = takes.substr(takes.rfind('|') + 1);
    if (takes.empty()) {
      CHECK(error_of(name + " 1") == "--megatron: " + name + ": takes no value, found 1");
      continue;
    }
    if (!takes.ends_with('*') && takes != "?") {
      CHECK(error_of(name).ends_with("takes one value, found none"));
      CHECK(error_of(name + " 1 1").ends_with("takes one value, found 2"));
    }
    const bool number = kind.starts_with("int") || kind.starts_with("float");
    CHECK(error_of(name + " abc").empty() == !(number || kind == "|"));
    CHECK(error_of(name + " ${OF_THE_USER}").find("found") == std::string::npos);
    if (kind == "|") {
      CHECK(error_of(name + " " + one).find("unknown value") == std::string::npos);
      if (one.size() > 4)
        CHECK(error_of(name + " " + one + "s").find("did you mean \"" + one + "\"") != std::string::npos);
    }
    if (!number) continue;
    for (const char* good : {"3", "+3", "-3", "017", "1_000"})
      CHECK(error_of(name + " " + good).find("expected") == std::string::npos);
    for (const char* bad : {"3x", "0x10", "1__0", "++3", "none"})
      CHECK(error_of(name + " " + bad).find("expected a") != std::string::npos);
    CHECK((error_of(name + " 1e-4").find("expected") == std::string::npos) == kind.starts_with("float"));
  }
  for (const char* kind : {"", "str", "int", "float", "|", "int*", "str*"}) CHECK_MESSAGE(seen[kind] > 0, kind);
  CHECK(seen["float"] > 30);
  CHECK(error_of("--num_layers 4").ends_with("did you mean \"--num-layers\"?"));
  CHECK(error_of("--override-opt_param-scheduler").empty());
  CHECK(error_of("--log-progress ${OF_THE_USER}").empty());
}

TEST_CASE("what --set has refused the command line has, too") {
  const std::string fsdp = plain + "--use-megatron-fsdp --ckpt-format fsdp_dtensor --no-gradient-accumulation-fusion ",
                    hybrid = plain + "--is-hybrid-model --hybrid-layer-pattern M*M-M*M- ";
  std::set<std::string> seen;
  for (const auto& base : {plain, fsdp, hybrid, plain + "--optimizer muon "}) {
    const auto start = import(base).scenario;
    const auto before = refused(start);
    for (const auto& flag : emit::other_flags()) {
      if (!emit::has(flag.versions, start.software) || emit::carried_of_flag(flag.name) != nullptr) continue;
      const auto name = scenario::effect_name(flag.name);
      if (scenario::effect_of(flag.name)->name != name) continue;             // --no-x
      if (base == hybrid && name == "mtp_hybrid_override_pattern") continue;  // joins the pattern
      for (const char* value : {"true", "0", "1", "4", "bf16", "cubic5", "file"}) {
        auto stated = start;
        try {
          scenario::set(stated, "settings." + name + "=" + value);
        } catch (const UsageError&) {
          continue;  // of another type
        }
        if (!refused(stated).contains(name) || !is_taken(flag, value)) continue;
        CAPTURE(std::string(flag.name));
        CAPTURE(value);
        const std::string switched = std::string(flag.name);
        CHECK(flag_refuses(base + (std::string_view(value) == "true" ? switched : switched + " " + value), name));
        auto ignored = stated;
        scenario::ignore(ignored, name, {"--ignore", 0});
        CHECK(scenario::let_through(ignored).size() == before.size() + 1);
        seen.insert(name);
      }
    }
  }
  for (const char* name : {"megatron_fsdp_main_params_dtype", "megatron_fsdp_max_pool_double_buffer", "num_workers",
                           "create_all_gather_group", "reset_position_ids", "muon_coefficient_type", "skip_train"})
    CHECK_MESSAGE(seen.contains(name), name);
  CHECK(seen.size() > 60);
}

TEST_CASE("what --set has refused overrides of Megatron Bridge have, too") {
  const auto names = [](const std::string& more) {
    return refused(emit::from_bridge_text("cfg.model.num_layers = 8\ncfg.model.hidden_size = 1024\n"
                                          "cfg.model.num_attention_heads = 8\ncfg.model.seq_length = 1024\n"
                                          "cfg.model.vocab_size = 32000\ncfg.ddp.use_megatron_fsdp = True\n" +
                                              more + "\n",
                                          "bridge.py", {16, 8, "h100-sxm", ""})
                       .scenario);
  };
  for (const auto& [line, name] : std::initializer_list<std::pair<const char*, const char*>>{
           {"cfg.ddp.megatron_fsdp_main_params_dtype = \"bf16\"", "megatron_fsdp_main_params_dtype"},
           {"cfg.dist.create_all_gather_group = True", "create_all_gather_group"},
           {"cfg.dataset.num_workers = 0", "num_workers"},
           {"cfg.validation.skip_train = True", "skip_train"},
           {"cfg.model.use_mamba_mem_eff_path = False", "use_mamba_mem_eff_path"},
           {"cfg.tensor_inspect.enabled = True", "tensor_inspect"}}) {
    CAPTURE(line);
    CHECK(names(line).contains(name));
    CHECK_FALSE(names("").contains(name));
  }
  for (const char* line : {"cfg.dataset.num_workers = 8", "cfg.train.manual_gc_interval = 5",
                           "cfg.ddp.megatron_fsdp_main_params_dtype = None", "cfg.tensor_inspect.enabled = False",
                           "cfg.tokenizer.vocab_size = 9"}) {
    CAPTURE(line);
    CHECK(names(line) == names(""));
  }
}

TEST_CASE("flags that turn something off are not taken for what they turn off") {
  const auto s = import(plain).scenario;
  for (const auto& flag : emit::other_flags()) {
    const auto* row = scenario::effect_of(flag.name);
    if (row->name == scenario::effect_name(flag.name)) continue;
    CAPTURE(std::string(flag.name));
    CHECK(row->effect == scenario::Effect::none);
    CHECK_FALSE(scenario::may_act(std::string(flag.name), "true"));
  }
}

TEST_CASE("false and 0 say something where the usual value is a word") {
  CHECK(is_refused("use_mamba_mem_eff_path", "false"));
  CHECK(is_refused("preserve_fp32_weights", "false"));
  CHECK(is_refused("soap_use_kl_shampoo", "false"));
  CHECK_FALSE(is_refused("dsa_indexer_rotate_activation", "false"));  // of attention that is refused
  CHECK_FALSE(is_refused("use_mamba_mem_eff_path", "true"));
  CHECK_FALSE(is_refused("timing_log_level", "0"));
  CHECK_FALSE(is_refused("gtp_weight_remat_size", "1"));
  CHECK_FALSE(is_refused("deterministic_mode", "false"));
}

TEST_CASE("values that are refused for what is beside them") {
  CHECK(is_refused("num_workers", "0"));
  CHECK_FALSE(is_refused("num_workers", "2"));
  const std::string no_mask = plain + "--no-create-attention-mask-in-dataloader ";
  for (const char* name : {"eod_mask_loss", "reset_position_ids", "reset_attention_mask"}) {
    CHECK(is_refused(name, "true"));
    CHECK_FALSE(is_refused(name, "true", no_mask));
    CHECK_FALSE(is_refused(name, "false"));
  }
  const std::string moe = plain + "--num-experts 8 --moe-grouped-gemm --moe-router-load-balancing-type ";
  for (const char* type : {"sinkhorn", "quantile_balancing"})
    CHECK(refused(import(moe + type, "main").scenario).contains("moe_router_load_balancing_type"));
  CHECK_FALSE(refused(import(moe + "none").scenario).contains("moe_router_load_balancing_type"));
}

TEST_CASE("variables that slow a run by more than an interval's width") {
  CHECK(is_refused_variable("NCCL_P2P_DISABLE", "1"));
  CHECK_FALSE(is_refused_variable("NCCL_P2P_DISABLE", "0"));
  CHECK(is_refused_variable("NCCL_P2P_LEVEL", "LOC"));
  CHECK_FALSE(is_refused_variable("NCCL_P2P_LEVEL", "NVL"));
  CHECK(is_refused_variable("NCCL_NET", "Socket"));
  CHECK_FALSE(is_refused_variable("NCCL_NET", "Socket", 8));
  CHECK_FALSE(is_refused_variable("NCCL_NET", "IB"));
  CHECK(is_refused_variable("NCCL_IB_DISABLE", "1"));
  CHECK_FALSE(is_refused_variable("NCCL_IB_DISABLE", "1", 8));
  for (const char* name : {"NCCL_MAX_NCHANNELS", "NCCL_MAX_CTAS"}) {
    CHECK(is_refused_variable(name, "4"));
    CHECK_FALSE(is_refused_variable(name, "16"));
  }
  CHECK(is_refused_variable("NCCL_PROTO", "ll"));
  CHECK_FALSE(is_refused_variable("NCCL_PROTO", "LL,LL128,Simple"));
  CHECK(is_refused_variable("TORCH_DISTRIBUTED_DEBUG", "DETAIL"));
  CHECK_FALSE(is_refused_variable("TORCH_DISTRIBUTED_DEBUG", "INFO"));
  CHECK(is_refused_variable("TORCH_NCCL_NAN_CHECK", "1"));
  CHECK_FALSE(is_refused_variable("TORCH_NCCL_NAN_CHECK", "0"));
  CHECK_FALSE(is_refused_variable("MAMBA_DETERMINISTIC", "1"));
  for (const char* name : {"PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"}) {
    CHECK(is_refused_variable(name, "backend:cudaMallocAsync"));
    CHECK_FALSE(is_refused_variable(name, "expandable_segments:True"));
  }
  auto s = import(plain).scenario;
  scenario::set_env(s, "NCCL_P2P_DISABLE=1");
  auto through_host = s;
  scenario::set(through_host, "cluster.link=shared host memory");
  CHECK_FALSE(refused(through_host).contains("NCCL_P2P_DISABLE"));
  scenario::ignore(s, "NCCL_P2P_DISABLE", {"--ignore", 0});
  CHECK(scenario::let_through(s) == scenario::Strings{"NCCL_P2P_DISABLE"});
}

TEST_CASE("flags that validate_args takes one at a time, and formats of checkpoints") {
  CHECK(rules_of("--train-iters 10 --save x --save-interval 5 --mock-data").empty());
  CHECK(rules_of("--train-iters 10 --train-samples 10").find("iteration-based") != std::string::npos);
  CHECK(rules_of("--train-iters 10 --lr-warmup-samples 0").empty());
  CHECK(rules_of("--data-path x --mock-data").find("single data source") != std::string::npos);
  CHECK(rules_of("--save x").find("--save-interval") != std::string::npos);
  const std::string fsdp = "--use-megatron-fsdp --no-gradient-accumulation-fusion ";
  for (const char* version : {"0.16.0", "0.19.0"}) {
    CHECK(rules_of(fsdp, version).find("fsdp_dtensor") != std::string::npos);
    CHECK(rules_of(fsdp + "--ckpt-format fsdp_dtensor", version).empty());
  }
  CHECK(rules_of("--ckpt-format fsdp_dtensor").find("only tested with") != std::string::npos);
  const std::string with_step =
      "--overlap-param-gather-with-optimizer-step --overlap-param-gather --overlap-grad-reduce "
      "--pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 2 ";
  CHECK(rules_of(with_step).find("distributed checkpointing") != std::string::npos);
  CHECK(rules_of(with_step + "--ckpt-format torch").empty());
}

TEST_CASE("a schedule of batches: its last is the full batch") {
  const auto batch = [](const std::string& schedule) {
    return import(plain + "--step-batch-size-schedule " + schedule).scenario.settings.global_batch_size;
  };
  CHECK(batch("'0:16 1000B:2048'") == 2048);
  CHECK(batch("0:16,1.5T:1K,10M:64") == 1000);
  CHECK_THROWS_AS(batch("16"), UsageError);
  CHECK_THROWS_AS(batch("'0:16 many:32'"), UsageError);
  CHECK(rules_of("--step-batch-size-schedule 0:16 --global-batch-size 16").find("Cannot specify both") !=
        std::string::npos);
  CHECK(rules_of("--step-batch-size-schedule 0:16", "0.17.0").find("does not exist") != std::string::npos);
}

TEST_CASE("batches before the full one run, too") {
  // DP 4: a batch of 8 is two microbatches, too few for an interleaved schedule of four stages.
  const std::string four = "--pipeline-model-parallel-size 4 --num-virtual-stages-per-pipeline-rank 2 ";
  const auto rules = [&](const std::string& more, const char* version) { return rules_of(four + more, version); };
  for (const char* version : {"0.16.0", "0.17.0"}) {
    CHECK(rules("--global-batch-size 64 --rampup-batch-size 16 16 1000", version).empty());
    CHECK(rules("--global-batch-size 64 --rampup-batch-size 8 8 1000", version).find("a batch of 8 comes before") !=
          std::string::npos);
  }
  CHECK(rules("--global-batch-size 64 --rampup-batch-size 8 8 1000", "0.19.0").empty());  // nothing reads it
  CHECK(rules("--step-batch-size-schedule '0:16 1M:64'", "0.19.0").empty());
  CHECK(rules("--step-batch-size-schedule '0:16 1M:24 2M:64'", "0.19.0").find("a batch of 24 comes before") !=
        std::string::npos);
}

TEST_CASE("a constant loss scale, and what else the host looks for in gradients and losses") {
  const auto of = [](const std::string& more) { return import(more).scenario; };
  CHECK(scenario::scales_loss(of(plain + "--loss-scale 1024")));
  CHECK_FALSE(scenario::scales_loss(of(plain + "--loss-scale 0")));
  CHECK_FALSE(scenario::scales_loss(of(plain)));
  std::string half = plain;
  half.replace(half.find("--bf16"), 6, "--fp16");
  CHECK(scenario::scales_loss(of(half)));
  CHECK_FALSE(scenario::checks_for_nan(of(half)));
  CHECK(scenario::checks_for_nan(of(half + "--loss-scale 1024")));
  const std::string unchecked = plain + "--no-check-for-nan-in-loss-and-grad ";
  CHECK_FALSE(scenario::checks_for_nan(of(unchecked)));
  CHECK(scenario::checks_for_nan(of(unchecked + "--check-for-large-grads")));
  CHECK(scenario::checks_for_nan(of(unchecked + "--check-for-spiky-loss")));
}

}  // namespace refused_flags_test
