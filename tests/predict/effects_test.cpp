// Every name that is modelled moves what its row states; nothing that is refused passes without being ignored.
#include "pipewright/effects.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <set>

#include "../draws.hpp"
#include "moves.hpp"
#include "pipewright/predict.hpp"
#include "pipewright/scenario/io.hpp"

namespace effects_test {

using namespace pipewright;
using test::assign;
using test::base_of;
using test::change;

namespace {

const std::string root = SOURCE_ROOT;

const profile::Profiles& profiles_of(const scenario::Scenario& s) {
  static std::map<std::string, profile::Profiles> loaded;
  const std::string& name = s.cluster.profile;
  auto found = loaded.find(name);
  if (found == loaded.end())
    found = loaded.emplace(name, profile::Profiles({profile::load(root + "/profiles/" + name + ".json", {"test", 0})}))
                .first;
  return found->second;
}

double of_ranks(const predict::Prediction& p, double (*value)(const predict::RankPrediction&), bool sum) {
  double all = 0;
  for (const auto& rank : p.ranks) all = sum ? all + value(rank) : std::max(all, value(rank));
  return all;
}

double quantity(const predict::Prediction& p, const std::string& name) {
  using Rank = predict::RankPrediction;
  static const std::map<std::string, double (*)(const Rank&)> bytes = {
      {"peak", [](const Rank& r) { return static_cast<double>(r.walk.peak_allocated.value); }},
      {"static", [](const Rank& r) { return static_cast<double>(r.walk.static_bytes.value); }},
      {"reserved", [](const Rank& r) { return static_cast<double>(r.walk.peak_reserved.value); }},
      {"built", [](const Rank& r) { return static_cast<double>(r.walk.built.value); }},
      {"outside", [](const Rank& r) { return static_cast<double>(r.outside_allocator.value); }},
      {"pinned", [](const Rank& r) { return static_cast<double>(r.walk.pinned.value); }},
  };
  static const std::map<std::string, double (*)(const Rank&)> times = {
      {"p2p", [](const Rank& r) { return static_cast<double>(r.account.p2p); }},
      {"tp", [](const Rank& r) { return static_cast<double>(r.account.tp); }},
      {"ep", [](const Rank& r) { return static_cast<double>(r.account.ep); }},
      {"dp", [](const Rank& r) { return static_cast<double>(r.account.dp); }},
      {"host", [](const Rank& r) { return static_cast<double>(r.account.host); }},
      {"bubble", [](const Rank& r) { return static_cast<double>(r.account.bubble); }},
      {"recompute", [](const Rank& r) { return static_cast<double>(r.account.recompute); }},
  };
  if (name == "step") return static_cast<double>(p.step_ns);
  if (name == "optimizer") return static_cast<double>(p.optimizer_ns);
  if (name == "limit") return static_cast<double>(p.memory_limit.value);
  if (name == "interval")
    return static_cast<double>(p.interval_high_ns - p.interval_low_ns) / static_cast<double>(p.step_ns);
  if (name.ends_with('0')) return bytes.at(name.substr(0, name.size() - 1))(p.ranks.front());
  if (const auto found = bytes.find(name); found != bytes.end()) return of_ranks(p, found->second, false);
  return of_ranks(p, times.at(name), true);
}

}  // namespace

TEST_CASE("a modelled name moves what its row says") {
  for (const scenario::Move& move : scenario::moves()) {
    CAPTURE(std::string(move.name));
    CAPTURE(std::string(move.quantity));
    CAPTURE(move.up);
    std::vector<double> found;
    for (const char* value : {move.from, move.to}) {
      CAPTURE(std::string(value));
      auto s = base_of(move.base);
      try {
        change(s, move.setup);
        assign(s, move.name, value);
        found.push_back(quantity(predict::predict(s, profiles_of(s)), move.quantity));
      } catch (const UsageError& error) {
        FAIL_CHECK(std::string(error.what()));
      }
    }
    if (found.size() < 2) continue;
    CAPTURE(found[0]);
    CAPTURE(found[1]);
    CHECK((move.up ? found[1] > found[0] : found[1] < found[0]));
  }
}

TEST_CASE("a name without effect moves nothing, whatever stands beside it") {
  // What else may be said of a name: its listed values, the other truth, two numbers.
  const auto others = [](const scenario::FieldInfo& field) -> std::vector<std::string> {
    if (!field.allowed.empty()) return field.allowed;
    if (field.type.starts_with("bool")) return {"true", "false"};
    if (field.type.starts_with("int") || field.type.starts_with("float")) return {"4", "24"};
    return {};
  };
  std::vector<scenario::FieldInfo> silent;
  for (const auto& field : scenario::fields()) {
    const auto* row = scenario::effect_of(field.name);
    if (row != nullptr && row->effect == scenario::Effect::none && field.section != "cluster") silent.push_back(field);
  }
  unsigned tried = 0;
  std::size_t nth = 0;
  for (const auto& [base, setup] : std::initializer_list<std::pair<const char*, const char*>>{
           {"dense", ""},
           {"tensor", "fp8=hybrid; fp8_recipe=delayed"},
           {"dense", "fp8=hybrid; fp8_recipe=tensorwise; fp8_param=true; fp8_param_gather=true"},
           {"single", "optimizer_cpu_offload=true; use_precision_aware_optimizer=true"},
           {"moe", ""},
           {"moe", "mtp_num_layers=1; moe_router_score_function=sigmoid; moe_router_fusion=true"},
           {"moe", "moe_token_dispatcher_type=flex"},
           {"moe", "moe_token_dispatcher_type=flex; moe_flex_dispatcher_backend=hybridep"},
           {"moe", "moe_expert_capacity_factor=1.0; activation_func=quick_gelu"},
           {"combined", ""},
           {"mla", ""}}) {
    CAPTURE(std::string(base));
    CAPTURE(std::string(setup));
    auto plain = base_of(base);
    change(plain, setup);
    const auto asked = predict::predict(plain, profiles_of(plain));
    for (const auto& field : silent) {
      for (const auto& value : others(field)) {
        if (!test::taken(nth++)) continue;
        CAPTURE(field.name);
        CAPTURE(value);
        auto s = plain;
        std::optional<predict::Prediction> found;
        try {
          assign(s, field.name, value);
          found = predict::predict(s, profiles_of(s));
        } catch (const UsageError&) {
          continue;  // refused by name: nothing is said of it
        }
        CHECK(found->step_ns == asked.step_ns);
        for (const char* of : {"peak", "reserved", "static", "outside"})
          CHECK(quantity(*found, of) == quantity(asked, of));
        ++tried;
      }
    }
  }
  CHECK(tried > test::draws(300));
}

TEST_CASE("variables that tune NCCL widen the interval") {
  const auto plain = base_of("tensor");
  const double width = quantity(predict::predict(plain, profiles_of(plain)), "interval");
  int tried = 0;
  for (const auto& row : scenario::effects()) {
    if (row.effect != scenario::Effect::modelled || !row.text.starts_with("widens the interval")) continue;
    CAPTURE(row.name);
    auto s = plain;
    std::string name = row.name;
    if (name.ends_with('*')) name.back() = 'X';
    scenario::set_env(s, name + "=1");
    CHECK(quantity(predict::predict(s, profiles_of(s)), "interval") > width);
    ++tried;
  }
  CHECK(tried > 10);
}

TEST_CASE("what is refused stops a prediction; ignored, it voids the interval") {
  struct Case {
    const char *base, *change, *name;
  };
  for (const auto& [base, changes, name] : std::initializer_list<Case>{
           {"single", "context_parallel_size=2; window_size=[127, 0]", "window_size"},
           {"dense", "attention_backend=unfused; softmax_type=learnable", "softmax_type"},
           {"dense", "activation_func=squared_relu", "activation_func"},
           {"dense", "deterministic_mode=true", "deterministic_mode"},
           {"dense", "optimizer_cpu_offload=true; use_precision_aware_optimizer=true; pin_cpu_grads=false",
            "optimizer_cpu_offload"},
           {"dense", "offload_optimizer_states=true", "offload_optimizer_states"},
           {"dense", "tensor_parallel_num_weight_shards=2", "tensor_parallel_num_weight_shards"},
           {"dense", "use_torch_fsdp2=true", "use_torch_fsdp2"},
           {"dense", "spec=[a, b]", "spec"},
           {"dense", "rerun_mode=report_stats", "rerun_mode"},
           {"dense", "window_size=[511, 0]; $NVTE_ALLOW_NONDETERMINISTIC_ALGO=0", "NVTE_ALLOW_NONDETERMINISTIC_ALGO"},
           {"dense", "context_parallel_size=2; num_gpus=8; cp_comm_type=[p2p, a2a, p2p, a2a, p2p, a2a, p2p, a2a]",
            "cp_comm_type"},
           {"single", "context_parallel_size=2; cp_comm_type=all_gather; attention_backend=unfused", "cp_comm_type"},
           {"single", "context_parallel_size=2; cp_comm_type=a2a+p2p; hierarchical_context_parallel_sizes=[2, 2]",
            "hierarchical_context_parallel_sizes"},
           {"single", "num_distributed_optimizer_instances=2", "num_distributed_optimizer_instances"}}) {
    CAPTURE(std::string(changes));
    auto s = base_of(base);
    change(s, changes);
    std::string said;
    try {
      predict::predict(s, profiles_of(s));
    } catch (const UsageError& error) {
      said = error.what();
    }
    CAPTURE(said);
    CHECK(said.find("--ignore " + std::string(name)) != std::string::npos);
    scenario::ignore(s, name, {"test", 0});
    const auto prediction = predict::predict(s, profiles_of(s));
    CHECK(prediction.ignored == scenario::Strings{name});
  }
}

TEST_CASE("what a prediction is known to lack voids its interval unasked") {
  auto s = base_of("single");
  change(s, "use_megatron_fsdp=true; data_parallel_sharding_strategy=optim_grads_params");
  s.environment.erase("CUDA_DEVICE_MAX_CONNECTIONS");  // which it refuses
  const auto prediction = predict::predict(s, profiles_of(s));
  REQUIRE(prediction.ignored.size() == 1);
  CHECK(std::ranges::any_of(prediction.notes, [](const auto& n) { return n.starts_with("no interval holds"); }));
}

TEST_CASE("a neutral value is not refused") {
  for (const char* changes : {"softmax_type=vanilla", "window_size=[-1, -1]", "use_torch_fsdp2=false",
                              "pipeline_model_parallel_comm_backend=nccl", "cp_comm_type=a2a",
                              "$NVTE_ALLOW_NONDETERMINISTIC_ALGO=1", "spec=none"}) {
    CAPTURE(std::string(changes));
    auto s = base_of("dense");
    change(s, changes);
    CHECK_NOTHROW(predict::predict(s, profiles_of(s)));
  }
}

TEST_CASE("collections of garbage that stand between many steps are told") {
  for (const auto& [interval, told] : {std::pair("5", true), std::pair("100", false), std::pair("0", false)}) {
    CAPTURE(std::string(interval));
    auto s = base_of("single");
    const auto plain = predict::predict(s, profiles_of(s));
    change(s, std::string("manual_gc_interval=") + interval);
    const auto prediction = predict::predict(s, profiles_of(s));
    CHECK(prediction.step_ns == plain.step_ns);
    CHECK(std::ranges::any_of(prediction.notes, [](const auto& note) {
            return note.find("manual_gc_interval") != std::string::npos;
          }) == told);
  }
}

TEST_CASE("what is modelled within limits moves a prediction inside them") {
  constexpr scenario::Move within[] = {
      {"NVTE_ALLOW_NONDETERMINISTIC_ALGO", "mla", "", "1", "0", "step", true},
      {"NVTE_ALLOW_NONDETERMINISTIC_ALGO", "mla", "", "1", "0", "peak", true},
      {"CUDNNFE_CLUSTER_OVERLAP_MARGIN", "moe",
       "profile=gb200-nvl72; fp8=e4m3; fp8_recipe=mxfp8; fp8_param=true; fp8_param_gather=true; "
       "reuse_grad_buf_for_mxfp8_param_ag=true; moe_token_dispatcher_type=flex; moe_flex_dispatcher_backend=hybridep; "
       "moe_mlp_glu_interleave_size=32; $NVTE_CUTEDSL_FUSED_GROUPED_MLP=1; use_transformer_engine_op_fuser=true",
       "0", "8", "step", true},
      {"NVTE_EXT_MARGIN_SM", "dense", "", "0", "16", "step", true},
      {"nccl_ub", "single", "", "false", "true", "interval", true},
      {"moe_permute_fusion_into_hybridep", "moe",
       "moe_token_dispatcher_type=flex; moe_flex_dispatcher_backend=hybridep", "false", "true", "interval", true},
      {"rotary_interleaved", "dense", "", "false", "true", "step", true},
      {"rotary_percent", "dense", "", "1", "0.5", "step", true},
      {"fused_single_qkv_rope", "dense", "", "false", "true", "step", false},
      {"moe_expert_capacity_factor", "moe", "moe_pad_expert_input_to_capacity=true", "1.0", "1.25", "step", true},
      {"fp8_output_proj", "dense",
       "profile=gb200-nvl72; host_time_factor=1; vocab_size=128000; fp8=e4m3; fp8_recipe=mxfp8", "false", "true",
       "step", false},
  };
  for (const scenario::Move& move : within) {
    CAPTURE(std::string(move.name));
    double found[2] = {};
    for (const bool to : {false, true}) {
      auto s = base_of(move.base);
      change(s, move.setup);
      assign(s, move.name, to ? move.to : move.from);
      found[to ? 1 : 0] = quantity(predict::predict(s, profiles_of(s)), move.quantity);
    }
    CHECK((move.up ? found[1] > found[0] : found[1] < found[0]));
  }
}

}  // namespace effects_test
