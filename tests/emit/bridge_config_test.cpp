// Whole configurations as Megatron Bridge writes them (run_config.yaml, a log's "Task Configuration"): read as the
// overrides that they come from, whatever else they hold.
#include <doctest/doctest.h>

#include <random>
#include <sstream>

#include "../../src/emit/bridge_precision.hpp"
#include "../draws.hpp"
#include "../predict/moves.hpp"
#include "pipewright/effects.hpp"
#include "pipewright/emit.hpp"
#include "pipewright/plan.hpp"
#include "pipewright/scenario/derived.hpp"
#include "pipewright/scenario/io.hpp"
#include "pipewright/scenario/overlap_table.hpp"
#include "pipewright/scenario/quant_recipe.hpp"
#include "pipewright/userbuffers.hpp"
#include "support.hpp"

namespace bridge_config_test {

using namespace pipewright;

namespace {

constexpr std::string_view head = "_target_: megatron.bridge.training.config.ConfigContainer\n";

std::string indented(const std::string& name, const std::string& value) { return "  " + name + ": " + value + "\n"; }

/// RecipeConfig as an object; null without entries.
std::string recipe_config(const scenario::Scenario& s) {
  std::string matchers;
  std::map<std::string, std::string> configurations;
  for (const auto& [pattern, recipe] : scenario::quant_recipe(s)) {
    matchers += "\n    - _target_: quant_config.GlobMatcher\n      config_key: " + recipe + "\n      pattern: '" +
                pattern + "'";
    configurations[recipe] = "\n      " + recipe + ":\n        training_recipe:" +
                             (recipe == "bf16" ? " {}"
                                               : "\n          " + std::string(recipe == "nvfp4" ? "fp4" : "fp8") +
                                                     "_quantization_recipe: " + recipe) +
                             "\n        transformer_engine_config_type: TEQuantizationParams";
  }
  if (matchers.empty()) return "null";
  std::string text = "\n    _target_: quant_config.RecipeConfig\n    config_dict:";
  for (const auto& [recipe, configuration] : configurations) text += configuration;
  return text + "\n    matchers:" + matchers;
}

/// As yaml_utils.py of Megatron-LM writes it: every field of every class, functions and enumerators as maps.
std::string dumped(const scenario::Scenario& s) {
  std::map<std::string, std::string> sections;
  for (const auto& field : scenario::fields()) {
    if (field.section != "model" && field.section != "settings") continue;
    if (emit::is_ours(field.name) || field.name == "sft" || field.name == "untie_embeddings_and_output_weights" ||
        field.name == "check_for_nan_in_loss_and_grad" || field.name == "create_attention_mask_in_dataloader" ||
        field.name == "align_grad_reduce")
      continue;
    std::string value = scenario::get(s, field.name);
    if (value == "none") value = "null";
    if (field.name == "activation_func")
      value = "\n    _call_: false\n    _target_: torch.nn.functional." + scenario::activation_func(s);
    if (field.name == "attention_backend" && value != "null")
      value = "\n    _args_:\n    - 2\n    _call_: true\n    _name_: " + value + "\n    _target_: enums.AttnBackend";
    if (field.name == "quant_recipe") value = recipe_config(s);
    const bool batch = field.name == "micro_batch_size" || field.name == "global_batch_size";
    sections[batch ? "train" : "model"] += indented(field.name, value);
  }
  auto& model = sections["model"];
  model +=
      indented("share_embeddings_and_output_weights", s.model.untie_embeddings_and_output_weights ? "false" : "true");
  model += indented("timers", "\n    _call_: true\n    _target_: megatron.core.timers.Timers");
  model += indented("init_method",
                    "\n    _args_: []\n    _partial_: true\n    _target_: torch.nn.init.normal_\n    std: 0.02");
  model += indented("autocast_dtype", "\n    _call_: false\n    _target_: torch.bfloat16");
  for (const auto& effect : scenario::effects())  // what most configurations leave as their class has it
    if (effect.effect == scenario::Effect::refused && effect.name.find('=') == std::string::npos &&
        model.find("  " + effect.name + ":") == std::string::npos &&
        std::islower(static_cast<unsigned char>(effect.name[0])))
      model += indented(effect.name, "null");
  sections["ddp"] = indented("check_for_nan_in_grad", scenario::checks_for_nan(s) ? "true" : "false");
  sections["rerun_state_machine"] = indented("check_for_nan_in_loss", scenario::checks_for_nan(s) ? "true" : "false");
  sections["dataset"] =
      indented("seq_length", std::to_string(s.model.seq_length)) +
      indented("skip_getting_attention_mask_from_dataset", scenario::creates_attention_mask(s) ? "false" : "true") +
      indented("split_matrix", "\n  - - 0\n    - 1.0");
  std::string text(head);
  text += "comm_overlap: null\npeft: null\nmixed_precision: null\n";
  for (const auto& [name, value] : s.environment) sections["env_vars"] += indented(name, scenario::yaml_scalar(value));
  for (const auto& [name, fields] : sections) text += name + ":\n" + fields;
  return text;
}

emit::Import read(const std::string& text, int gpus = 8, std::vector<std::string> stated = {},
                  std::vector<std::string> ignore = {}) {
  emit::Machine machine;
  machine.num_gpus = gpus;
  machine.profile = "h100-sxm";
  machine.stated = std::move(stated);
  machine.ignore = std::move(ignore);
  return emit::from_bridge_text(text, "run_config.yaml", machine);
}

std::string small(const std::string& model) {
  return std::string(head) +
         "model:\n  num_layers: 8\n  hidden_size: 1024\n  num_attention_heads: 8\n  seq_length: 2048\n" +
         "  vocab_size: 32000\n" + model + "train:\n  micro_batch_size: 1\n  global_batch_size: 64\n";
}

}  // namespace

TEST_CASE("random scenarios come back from the whole configuration, with what is in force") {
  std::mt19937 random(11);
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  const std::vector<std::string> bases = {"dense", "tensor", "single", "moe", "mla", "combined"};
  unsigned tried = 0;
  for (int round = 0; round < 1200 && tried < test::draws(120); ++round) {
    const std::string base = bases[below(bases.size())];
    auto s = test::base_of(base);
    std::string changes = base;
    try {
      for (int left = 3; left > 0; --left) {
        const auto& move = scenario::moves()[below(scenario::moves().size())];
        if (base != move.base || std::string_view(move.setup).find('$') != std::string_view::npos ||
            std::string_view(move.name).find_first_of("abcdefghijklmnopqrstuvwxyz") == std::string_view::npos)
          continue;
        changes += std::string("; ") + move.setup + "; " + move.name + "=" + move.to;
        test::change(s, move.setup);
        test::change(s, std::string(move.name) + "=" + move.to);
      }
      scenario::check(s);
    } catch (const UsageError&) {
      continue;
    }
    if (s.settings.sft || !s.settings.lora_target_modules.empty()) continue;
    ++tried;
    CAPTURE(changes);
    const auto back = emit::from_bridge_text(dumped(s), "run_config.yaml", machine_of(s)).scenario;
    for (const auto& field : scenario::fields()) {
      if (field.section != "model" && field.section != "settings") continue;
      if (emit::is_ours(field.name) || !emit::matters(field.name, s) || emit::same_value(s, back, field.name)) continue;
      if (field.name == "align_grad_reduce" || field.name == "sequence_parallel") continue;  // not in it; TP 1
      if (field.name == "recompute_modules" && !s.settings.recompute_granularity) continue;  // the class' default
      FAIL_CHECK(field.name << ": " << scenario::get(s, field.name) << " -> " << scenario::get(back, field.name));
    }
    CHECK(back.environment == s.environment);
    CHECK(scenario::checks_for_nan(back) == scenario::checks_for_nan(s));
    CHECK(scenario::creates_attention_mask(back) == scenario::creates_attention_mask(s));
    CHECK(scenario::unmodelled(back).size() == scenario::unmodelled(s).size());
  }
  CHECK(tried >= test::draws(80));
}

TEST_CASE("what Bridge wrote of its own recipe is the scenario that was written by hand from it") {
  const auto text = read_file(SOURCE_ROOT "/tests/emit/data/run_config.yaml");
  REQUIRE(emit::is_bridge_text(text));
  const auto back = read(text, 0).scenario;
  const auto s = scenario::read(SOURCE_ROOT "/scenarios/llama31-405b-pretrain-1024xh100.yaml");
  CHECK(back.cluster.num_gpus == 1024);
  for (const auto& field : scenario::fields()) {
    if (field.section != "model" && field.section != "settings") continue;
    if (!emit::matters(field.name, s) || emit::same_value(s, back, field.name)) continue;
    const bool idle = field.name == "max_position_embeddings" || field.name == "microbatch_group_size_per_vp_stage" ||
                      field.name == "expert_tensor_parallel_size" ||
                      field.name == "disable_parameter_transpose_cache" || field.name == "moe_token_dispatcher_type" ||
                      field.name == "attention_softmax_in_fp32";
    if (!idle)
      FAIL_CHECK(field.name << ": " << scenario::get(s, field.name) << " -> " << scenario::get(back, field.name));
  }
  for (const auto& [name, value] : s.environment) CHECK(scenario::variable(back, name) == value);
  CHECK(scenario::unmodelled(back).empty());
  CHECK(scenario::group_size(back) == scenario::group_size(s));
}

TEST_CASE("a table of userbuffers of one's own is taken as it stands, and refused where a product overlaps otherwise") {
  const auto text = read_file(SOURCE_ROOT "/tests/emit/data/run_config.yaml");
  const auto changed = [&](const std::string& product, const std::string& key, const std::string& value) {
    auto other = text;
    const auto at =
        other.find(key + ": ", other.find(product + ":", other.find("  tp_comm_overlap_cfg:"))) + key.size() + 2;
    other.replace(at, other.find('\n', at) - at, value);
    return read(other, 0).scenario;
  };
  const auto gpu = profile::data_sheet("h100-sxm", {}).device;
  const auto recipes = model::overlap_multiprocessors(read(text, 0).scenario, gpu);
  for (const auto& [product, member] : {std::pair("qkv_dgrad", &model::OverlapMultiprocessors::qkv_dgrad),
                                        {"qkv_wgrad", &model::OverlapMultiprocessors::qkv_wgrad},
                                        {"fc1_dgrad", &model::OverlapMultiprocessors::fc1_dgrad},
                                        {"fc1_wgrad", &model::OverlapMultiprocessors::fc1_wgrad}}) {
    CAPTURE(std::string(product));
    const auto s = changed(product, "num_sm", "20");
    CHECK(scenario::unmodelled(s).empty());
    auto expected = recipes;
    expected.*member = 20;
    CHECK(model::overlap_multiprocessors(s, gpu) == expected);
  }
  for (const auto& s : {changed("fc1_fprop", "atomic_gemm", "true"), changed("fc1_dgrad", "method", "pipeline")}) {
    const auto refused = scenario::unmodelled(s);
    REQUIRE(refused.size() == 1);
    CHECK(refused.front().name == "tp_comm_overlap_cfg");
  }
}

TEST_CASE("tables of one's own in overrides and flags: none is lost, what cannot be said is told") {
  std::mt19937 random(17);
  const auto chance = [&](unsigned of) { return random() % of == 0; };
  auto s = scenario::read(SOURCE_ROOT "/scenarios/llama31-405b-pretrain-1024xh100.yaml");
  int said = 0, told = 0;
  for (int draw = 0; draw < 60; ++draw) {
    std::string table;
    for (const char* product : {"qkv_dgrad", "qkv_wgrad", "fc1_dgrad", "fc1_wgrad", "qkv_fprop", "fc1_fprop",
                                "proj_dgrad", "fc2_dgrad", "proj_fprop", "fc2_fprop"}) {
      if (chance(3)) continue;
      const std::string name = product;
      const bool bulk = name.ends_with("wgrad") || name == "qkv_dgrad" || name == "fc1_dgrad";
      const bool scatters = name == "proj_fprop" || name == "fc2_fprop";
      std::string row = bulk ? "bulk" : scatters && chance(2) ? "pipeline" : "ring_exchange";
      row = "method: " + row + (row == "ring_exchange" ? "" : ", num_sm: " + std::to_string(1 + random() % 30));
      if (chance(4)) row += ", set_sm_margin: false";
      if (chance(4)) row += ", cga_size: 1";
      if (!bulk && chance(4)) row += ", atomic_gemm: " + std::string(chance(2) ? "false" : "0");
      if (chance(40)) row += ", use_ce: true";  // no class of Bridge has it
      table += (table.empty() ? "" : ", ") + name + ": {" + row + "}";
    }
    if (table.empty()) continue;
    table = "{" + table + "}";
    CAPTURE(table);
    s.settings.other["tp_comm_overlap_cfg"] = table;
    const auto products = scenario::overlap_products(table);
    REQUIRE(products);
    const std::string flags = emit::text(emit::megatron(s), false);
    CHECK(flags.find("--tp-comm-overlap-cfg FILE, which holds " + table) != std::string::npos);
    const std::string overrides = emit::text(emit::bridge(s), false);
    const bool holds_all = table.find("use_ce") == std::string::npos;
    ++(holds_all ? said : told);
    CHECK((overrides.find("# tp_comm_overlap_cfg: ") == std::string::npos) == holds_all);
    if (!holds_all) continue;
    std::string text;
    for (const auto& word : emit::words(emit::bridge(s))) text += word + "\n";
    const auto back = read(text, 1024).scenario;
    CHECK(scenario::unmodelled(back).empty());
    CHECK(scenario::overlap_products(back.settings.other.at("tp_comm_overlap_cfg")) == products);
    const std::string begins = "cfg.comm_overlap = CommOverlapConfig(";
    const auto line =
        overrides.substr(overrides.find(begins), overrides.find('\n', overrides.find(begins)) - overrides.find(begins));
    CHECK(emit::text(emit::bridge(back), false).find(line) != std::string::npos);
  }
  CHECK(said > 20);
  CHECK(told > 0);
}

TEST_CASE("overrides name the table of userbuffers that the prediction is of") {
  auto s = scenario::read(SOURCE_ROOT "/scenarios/llama31-405b-pretrain-1024xh100.yaml");
  const std::string table = "userbuffers_fp8_h100_h16384_tp8_cp2_mbs1_seqlen8192";
  for (const auto& [gpu, named] : {std::pair(90, true), {120, false}}) {
    s.cluster.compute_capability = gpu;
    const auto words = emit::words(emit::bridge(s));
    const auto has = [&](const std::string& word) { return std::ranges::find(words, word) != words.end(); };
    CHECK(has("from megatron.bridge.training.comm_overlap import CommOverlapConfig, " + table) == named);
    CHECK(has("cfg.comm_overlap = CommOverlapConfig(tp_comm_overlap=True, tp_comm_overlap_cfg=" + table + ")") ==
          named);
    std::string text;
    for (const auto& word : words) text += word + "\n";
    const auto back = read(text, 1024).scenario;
    CHECK(back.settings.tp_comm_overlap);
    CHECK(back.settings.other.contains("tp_comm_overlap_cfg") == !named);
  }
}

TEST_CASE("overrides without a table run with Transformer Engine's; with another one they are refused") {
  auto s = scenario::read(SOURCE_ROOT "/scenarios/llama31-405b-pretrain-1024xh100.yaml");
  s.cluster.compute_capability = 90;
  const std::string table = "userbuffers_fp8_h100_h16384_tp8_cp2_mbs1_seqlen8192";
  std::string text;
  for (const auto& word : emit::words(emit::bridge(s))) text += word + "\n";
  const auto with = [&](const std::string& other) {
    auto changed = text;
    const auto at = changed.rfind(", tp_comm_overlap_cfg=" + table);
    changed.replace(at, 22 + table.size(), other);
    return read(changed, 1024).scenario;
  };
  const auto gpu = profile::data_sheet("h100-sxm", {}).device;
  const model::OverlapMultiprocessors engine;
  CHECK(model::overlap_multiprocessors(read(text, 1024).scenario, gpu) != engine);
  for (const char* none : {"", ", tp_comm_overlap_cfg=None"}) {
    const auto plain = with(none);
    CHECK(scenario::unmodelled(plain).empty());
    CHECK(model::overlap_multiprocessors(plain, gpu) == engine);
    CHECK(model::overlap_multiprocessors(scenario::parse(scenario::write(plain), "again.yaml"), gpu) == engine);
    CHECK(emit::text(emit::bridge(plain), false).find("tp_comm_overlap_cfg=") == std::string::npos);
  }
  for (const char* other : {"userbuffers_bf16_h100_h8192_tp4_mbs1_seqlen8192", "mine"}) {
    const auto refused = scenario::unmodelled(with(std::string(", tp_comm_overlap_cfg=") + other));
    REQUIRE(refused.size() == 1);
    CHECK(refused.front().name == "tp_comm_overlap_cfg");
    CHECK(refused.front().value == other);
  }
}

TEST_CASE("a precision writes over what the model says, named or built") {
  const std::string model =
      "cfg.model.num_layers = 2\ncfg.model.vocab_size = 9\ncfg.model.fp8_dot_product_attention = True\n"
      "cfg.model.fp8_recipe = \"delayed\"\ncfg.model.fp8_param = True\n";
  const auto of = [&](const std::string& precision) {
    return read(model + "cfg.mixed_precision = " + precision + "\n", 8);
  };
  for (const auto& [name, fields] : emit::precision_recipes()) {
    CAPTURE(name);
    const auto o = of("get_mixed_precision_config(\"" + name + "\")").scenario.settings;
    CHECK(o.bf16 != o.fp16);
    CHECK_FALSE(o.fp8_dot_product_attention);
    CHECK(o.fp8_recipe.value_or("") == (name.find("delayed") != name.npos      ? "delayed"
                                        : name.find("mxfp8") != name.npos      ? "mxfp8"
                                        : name.find("subchannel") != name.npos ? "blockwise"
                                        : name.starts_with("nanov2")           ? "blockwise"
                                                                               : "tensorwise"));
    CHECK(o.fp4.has_value() == (name.find("nvfp4") != name.npos));
    CHECK((o.fp8.has_value() && o.fp4.has_value()) == false);
  }
  const auto built = of("MixedPrecisionConfig(bf16=True, fp8=\"hybrid\")").scenario.settings;
  CHECK(built.bf16);
  CHECK(built.fp8_recipe == "tensorwise");
  CHECK_FALSE(built.fp8_param);
  CHECK_FALSE(built.fp8_dot_product_attention);
  const auto afterwards = of("bf16_with_mxfp8_mixed()\ncfg.mixed_precision.fp8_dot_product_attention = True").scenario;
  CHECK(afterwards.settings.fp8_dot_product_attention);
}

TEST_CASE("several fields may be given one value in a statement") {
  const std::string model = "cfg.model.num_layers = 2\ncfg.model.vocab_size = 9\n";
  const auto together =
      read(model +
           "cfg.rng.te_rng_tracker = cfg.model.use_te_rng_tracker = True\n"
           "cfg.train.micro_batch_size = cfg.model.num_query_groups = cfg.train.global_batch_size = 4\n");
  const auto apart = read(model +
                          "cfg.rng.te_rng_tracker = True\ncfg.model.use_te_rng_tracker = True\n"
                          "cfg.train.micro_batch_size = 4\ncfg.model.num_query_groups = 4\n"
                          "cfg.train.global_batch_size = 4\n");
  CHECK(together.scenario == apart.scenario);
  CHECK(together.scenario.settings.use_te_rng_tracker);
  CHECK(together.scenario.settings.micro_batch_size == 4);
  CHECK_THROWS_AS(read(model + "cfg.model.seq_length = cfg.model.vocab_size\n"), UsageError);
}

TEST_CASE("what must be a number says where it is none") {
  for (const char* line : {"cfg.tokenizer.vocab_size = SIZE", "cfg.tokenizer.vocab_size = \"many\""}) {
    try {
      read(std::string("cfg.model.num_layers = 2\n") + line + "\n", 8);
      FAIL("no error");
    } catch (const UsageError& error) {
      CHECK(error.where().line == 2);
      CHECK(error.key() == "cfg.tokenizer.vocab_size");
    }
  }
}

TEST_CASE("a log that prints its configuration, with lines before and after it") {
  const auto text = "Training setup\n[rank0] something: else\n------- Task Configuration -------\n" +
                    small("  pipeline_model_parallel_size: 2\n") +
                    "\n----------------------------------\nStep Time : 4.65s\n [2025-10-06] iteration 1 | loss: 9.7\n";
  CHECK(emit::is_bridge_text(text));
  const auto s = read(text).scenario;
  CHECK(s.settings.pipeline_model_parallel_size == 2);
  CHECK(s.settings.global_batch_size == 64);
  // Where it stands in the log.
  try {
    read("a line\nanother\n" + small("  num_query_groups: many\n"));
    FAIL("no error");
  } catch (const UsageError& e) {
    CHECK(std::string(e.what()).find("run_config.yaml:10: cfg.model.num_query_groups") == 0);
  }
  CHECK(emit::is_bridge_text("# a remark\nimport torch\n\nfrom x import y\n cfg.model.num_layers = 2\n"));
  CHECK_FALSE(emit::is_bridge_text("# cfg.model.num_layers = 2\nimport torch\n"));
  CHECK_FALSE(emit::is_bridge_text("scenario: 1\nmodel: {num_layers: 2}\n"));
  CHECK_FALSE(emit::is_bridge_text(""));
}

TEST_CASE("what else such files hold: nested classes, enumerators by number, aliases, layouts, the vocabulary") {
  const auto s =
      read(std::string(head) +
               "comm_overlap:\n  _target_: x.CommOverlapConfig\n  data_parallel_size: 4\n  tp_comm_overlap: false\n"
               "  tp_comm_overlap_cfg: {fc1_dgrad: {fp8_buf: &id001 {a: 1}, other: *id001}}\n"
               "model:\n  vocab_size: null\n  hf_model_id: meta-llama/Llama\n  high_freq_factor: 4.0\n"
               "  dsa_indexer_topk_freq: 1\n  autocast_dtype: {_call_: false, _target_: torch.bfloat16}\n"
               "  transformer:\n    _target_: x.TransformerConfig\n    num_layers: 6\n    hidden_size: 1024\n"
               "    num_attention_heads: 8\n    pipeline_model_parallel_size: 2\n    num_moe_experts: 8\n"
               "    attention_backend: {_args_: [1], _call_: true, _target_: enums.AttnBackend}\n"
               "    cuda_graph_modules:\n    - {_args_: [2], _call_: true, _target_: enums.CudaGraphModule}\n"
               "    moe_router_dtype: {_call_: false, _target_: torch.float32}\n"
               "    pipeline_model_parallel_layout:\n    - [embedding, decoder]\n    - [decoder, decoder]\n"
               "    - [decoder, decoder]\n    - [decoder, loss]\n"
               "dataset:\n  seq_length: 2048\npeft: null\nparams: !!set {}\n"
               "tokenizer:\n  vocab_size: 50304\ntrain: {micro_batch_size: 1, global_batch_size: 64}\n",
           0)
          .scenario;
  CHECK(s.cluster.num_gpus == 8);
  CHECK(s.model.num_layers == 6);
  CHECK(s.model.vocab_size == 50304);
  const auto padded = [](const char* more) {
    return scenario::padded_vocab_size(
        read(small(std::string("  make_vocab_size_divisible_by: 3000\n") + more)).scenario);
  };
  CHECK(padded("  should_pad_vocab: true\n") == 33000);
  CHECK(padded("  should_pad_vocab: false\n") == 32000);
  // training/setup.py: what a run has written says whether it was padded; overrides do not, a stated one never is.
  const auto said = [](const std::string& more, const std::string& stated = "cfg.model.vocab_size = 32000\n") {
    return scenario::padded_vocab_size(
        emit::from_bridge_text(
            "cfg.model.num_layers = 4\ncfg.model.hidden_size = 1024\ncfg.model.num_attention_heads = 8\n"
            "cfg.model.seq_length = 2048\ncfg.model.make_vocab_size_divisible_by = 3000\n" +
                stated + more,
            "x.py", {8, 8, "h200-sxm", "0.19.0"})
            .scenario);
  };
  for (const char* flag : {"", "cfg.model.should_pad_vocab = True\n", "cfg.model.should_pad_vocab = False\n"}) {
    CAPTURE(flag);
    CHECK(said(flag) == 32000);
    CHECK(said(flag, "cfg.tokenizer.vocab_size = 31000\n") == 33000);
    CHECK(said(std::string(flag) + "cfg.tokenizer.vocab_size = 31000\n") == 32000);
    CHECK(said(std::string(flag) +
               "cfg.tokenizer.vocab_size = 34000\ncfg.tokenizer.use_tokenizer_vocab_size = True\n") == 36000);
  }
  CHECK_THROWS_WITH_AS(said("cfg.model.tensor_model_parallel_size = 3\n"),
                       doctest::Contains("32000 is not divisible by tensor_model_parallel_size 3"), UsageError);
  CHECK(s.model.seq_length == 2048);
  CHECK(scenario::get(s, "attention_backend") == "flash");
  CHECK(s.settings.cuda_graph_modules == scenario::Strings{"mlp"});
  CHECK(scenario::get(s, "moe_router_dtype") == "fp32");
  CHECK(s.settings.pipeline_model_parallel_layout == "Et|tt|tt|tL");
  // The same lists in overrides.
  CHECK(emit::from_bridge_text(
            "cfg.model.num_layers = 4\ncfg.model.hidden_size = 1024\ncfg.model.num_attention_heads = 8\n"
            "cfg.model.seq_length = 2048\ncfg.model.vocab_size = 32000\n"
            "cfg.model.pipeline_model_parallel_layout = [['embedding'] + ['decoder'] * 2, ['decoder'] * 2 + "
            "['loss']]\n",
            "overrides", {})
            .scenario.settings.pipeline_model_parallel_layout == "Ett|ttL");
}

TEST_CASE("a layout that is there as an object only is asked for, and --set answers") {
  const auto text =
      small("  pipeline_model_parallel_layout:\n    _call_: true\n    _target_: x.PipelineParallelLayerLayout\n");
  try {
    read(text);
    FAIL("no error");
  } catch (const UsageError& e) {
    CHECK(std::string(e.what()).find("--set pipeline_model_parallel_layout") != std::string::npos);
  }
  CHECK_NOTHROW(read(text, 8, {"pipeline_model_parallel_layout"}));
}

TEST_CASE("a field that nobody knows is refused unless it is off, and the way out that is named leads out") {
  CHECK_NOTHROW(read(small("  some_new_switch: false\n  some_new_number: 0\n")));
  try {
    read(small("  some_new_switch: true\n"));
    FAIL("no error");
  } catch (const UsageError& e) {
    CHECK(std::string(e.what()).find("--ignore some_new_switch") != std::string::npos);
  }
  CHECK_NOTHROW(read(small("  some_new_switch: true\n"), 8, {}, {"some_new_switch"}));
}

TEST_CASE("a model's class and the specification of its layers are known, or refused by name") {
  const auto model = [](const std::string& provider, const std::string& fields = "") {
    return read(small("  _target_: megatron.bridge.models." + provider + "\n" + fields)).scenario;
  };
  const auto missing = [](const scenario::Scenario& s) {
    std::string names;
    for (const auto& [name, value] : s.settings.other) names += name + "=" + value + " ";
    return names;
  };
  for (const char* known :
       {"gpt_provider.GPTModelProvider", "llama.Llama31ModelProvider405B", "mla_provider.MLAModelProvider",
        "qwen.Qwen3MoEModelProvider235B_A22B", "nemotronh.NemotronNano12Bv2Provider"}) {
    CAPTURE(known);
    CHECK(missing(model(known)) == "");
  }
  // What a known one builds beyond its fields, and what looks like one.
  CHECK(model("gemma.Gemma2ModelProvider27B").model.post_layernorm);
  CHECK(model("gemma.GemmaModelProvider").model.apply_embedding_scaling);
  CHECK(model("olmoe.OlMoEModelProvider").model.qk_layernorm_whole);
  CHECK_FALSE(model("gpt_provider.GPTModelProvider").model.post_layernorm);
  for (const std::string unknown :
       {"Exaone45ModelProvider", "Qwen3VLModelProvider", "Qwen3MoEVLModelProvider", "GPTModelProviderX",
        "Llama33NemotronSuper49BProvider", "Ministral3ModelProvider"}) {
    CHECK(missing(model("x." + unknown)) == "model_provider=" + unknown + " ");
    CHECK(read(small("  _target_: x." + unknown + "\n"), 8, {}, {"model_provider"}).scenario.settings.other.empty());
  }
  // Every class of Bridge 067f987df.
  std::istringstream classes(read_file(SOURCE_ROOT "/tests/emit/data/providers.txt"));
  const auto general = scenario::effect_of("model_provider")->text;
  int count = 0;
  for (std::string name; classes >> name; ++count) {
    CAPTURE(name);
    const auto s = model("x." + name);
    for (const auto& one : scenario::unmodelled(s))
      if (one.name == "model_provider") CHECK(one.missing != general);
  }
  CHECK(count > 45);
  const auto spec = [](const std::string& field, const std::string& function, const char* kind) {
    return "  " + field + ":\n    _target_: megatron.bridge.models." + function + "\n    " + kind + "\n";
  };
  for (const char* kind : {"_call_: false", "_partial_: true"})
    for (const char* field : {"transformer_layer_spec", "hybrid_stack_spec", "mamba_stack_spec"}) {
      CHECK(missing(model("gpt_provider.GPTModelProvider", spec(field, "x.exaone4_layer_spec", kind))) ==
            std::string(field) + "=exaone4_layer_spec ");
      CHECK(missing(model("gpt_provider.GPTModelProvider", spec(field, "x.get_gpt_decoder_block_spec", kind))) == "");
    }
  const auto minimax =
      model("gpt_provider.GPTModelProvider",
            spec("transformer_layer_spec", "minimax_m2.minimax_m2_provider.minimax_m2_layer_spec", "_call_: false"));
  CHECK((missing(minimax).empty() && minimax.model.qk_layernorm_whole));
  // Precision by module is an object, too.
  CHECK(missing(model("gpt_provider.GPTModelProvider",
                      "  quant_recipe:\n    _target_: megatron.core.quantization.quant_config.RecipeConfig\n"
                      "    config_dict:\n      default:\n        kitchen_config_type: QLinearParams\n    matchers:\n"
                      "    - _target_: megatron.core.quantization.quant_config.GlobMatcher\n"
                      "      config_key: default\n      pattern: '*'\n")) == "te_precision_config_file=RecipeConfig ");
  CHECK(missing(model("gpt_provider.GPTModelProvider", "  quant_recipe: null\n")) == "");
  // The same in overrides.
  const auto overrides = emit::from_bridge_text(
      "cfg.model.num_layers = 4\ncfg.model.hidden_size = 1024\ncfg.model.num_attention_heads = 8\ncfg.model.vocab_size "
      "= 9\n"
      "cfg.model.seq_length = 2048\ncfg.model.transformer_layer_spec = exaone4_layer_spec\n",
      "overrides", {});
  CHECK(missing(overrides.scenario) == "transformer_layer_spec=exaone4_layer_spec ");
}

TEST_CASE("precision by module is read from what Bridge wrote and from its overrides, and written as it is read") {
  const auto matcher = [](const std::string& key, const std::string& pattern) {
    return "    - _target_: megatron.core.quantization.quant_config.GlobMatcher\n      config_key: " + key +
           "\n      pattern: '" + pattern + "'\n";
  };
  const auto recipe = [&](const std::string& training) {
    return read(small("  _target_: megatron.bridge.models.gpt_provider.GPTModelProvider\n  fp8: e4m3\n"
                      "  fp8_recipe: mxfp8\n  quant_recipe:\n"
                      "    _target_: megatron.core.quantization.quant_config.RecipeConfig\n    config_dict:\n"
                      "      a:\n        training_recipe: {}\n        transformer_engine_config_type: "
                      "TEQuantizationParams\n      b:\n        training_recipe:\n" +
                      training + "        transformer_engine_config_type: TEQuantizationParams\n    matchers:\n" +
                      matcher("a", "*.linear_qkv") + matcher("b", "*mlp.fc[12]_latent_proj") + matcher("a", "mtp.*")))
        .scenario;
  };
  const scenario::Strings said = {"*.linear_qkv=bf16", "*mlp.fc[12]_latent_proj=nvfp4", "mtp.*=bf16"};
  const auto s = recipe("          fp4_quantization_recipe: nvfp4\n          fp8_format: hybrid\n");
  CHECK(s.settings.quant_recipe == said);
  CHECK(s.settings.other.empty());
  std::string text;
  for (const auto& word : emit::words(emit::bridge(s))) text += word + "\n";
  CHECK(emit::from_bridge_text(text, "overrides", {}).scenario.settings.quant_recipe == said);
  for (const char* more :
       {"          fp4_quantization_recipe: custom\n", "          fp8_quantization_recipe: delayed\n",
        "          override_nonquantized_autocast: true\n", "          fp8_param: true\n",
        "          override_quantized_autocast: false\n"}) {
    CAPTURE(more);
    CHECK(recipe(more).settings.quant_recipe.empty());
    CHECK(recipe(more).settings.other.contains("te_precision_config_file"));
  }
  const std::string named =
      "cfg.model.quant_recipe = RecipeConfig(config_dict={\"x\": {\"transformer_engine_config_type\": "
      "\"TEQuantizationParams\", \"training_recipe\": {\"fp8_quantization_recipe\": Fp8Recipe.tensorwise}}}, "
      "matchers=[GlobMatcher(config_key=\"x\", pattern=\"*fc1\")])\n";
  CHECK(emit::from_bridge_text(text + named, "overrides", {}).scenario.settings.quant_recipe ==
        scenario::Strings{"*fc1=tensorwise"});
}

TEST_CASE("Gemma 3's provider has windows of its own spelling, which overrides speak and read") {
  const auto s = read(small("  _target_: megatron.bridge.models.gemma.gemma3_provider.Gemma3ModelProvider\n"
                            "  window_size: 512\n  interleaved_attn_pattern: [5, 1]\n"
                            "  rotary_base: [10000, 1000000]\n  qk_layernorm: true\n"))
                     .scenario;
  CHECK(scenario::get(s, "window_size") == "[511, 0]");
  CHECK(scenario::get(s, "window_attn_skip_freq") == "[6]");
  CHECK(s.model.rotary_base == doctest::Approx(1e6));
  const auto groups = emit::bridge(s);
  const auto words = emit::words(groups);
  const auto says = [&](const std::string& line) { return std::ranges::find(words, line) != words.end(); };
  CHECK(says("cfg.model.window_size = 512"));
  CHECK(says("cfg.model.interleaved_attn_pattern = (5, 1)"));
  CHECK(std::ranges::none_of(words, [](const auto& line) { return line.find("rotary_base") != line.npos; }));
  const auto back = emit::from_bridge_text(emit::text(groups, false), "overrides", {}).scenario;
  for (const char* field : {"window_size", "window_attn_skip_freq", "post_layernorm", "apply_embedding_scaling"})
    CHECK(scenario::get(back, field) == scenario::get(s, field));
  // Every layer's kind, as newer files have it; anything else is said to be wrong.
  const auto kinds =
      read(small("  window_size: 512\n  interleaved_attn_pattern: [sliding_attention, full_attention]\n"));
  CHECK(scenario::get(kinds.scenario, "window_attn_skip_freq") == "[1, 0]");
  CHECK_THROWS_AS(read(small("  interleaved_attn_pattern: [4, 2]\n")), UsageError);
}

}  // namespace bridge_config_test
