// Reading, defaults, overrides, writing, values in force. Runs in tests/scenario.
#include <doctest/doctest.h>

#include <filesystem>
#include <functional>

#include "pipewright/modules.hpp"
#include "pipewright/scenario/derived.hpp"
#include "pipewright/scenario/fields.hpp"
#include "pipewright/scenario/io.hpp"

namespace scenario_test {

using namespace pipewright;
using namespace pipewright::scenario;

namespace {

const std::string small = R"(scenario: 1
model: {num_layers: 16, hidden_size: 4096, num_attention_heads: 32, seq_length: 4096, vocab_size: 32000}
settings: {pipeline_model_parallel_size: 4, micro_batch_size: 1, global_batch_size: 8, bf16: true}
cluster: {profile: h200-sxm, num_gpus: 8}
)";

Scenario with(const std::string& addition) { return parse(small + addition, "small.yaml"); }

std::string refusal(const std::function<void()>& action) {
  try {
    action();
  } catch (const UsageError& e) {
    return e.what();
  }
  return "accepted";
}

}  // namespace

TEST_CASE("every measured run parses, checks and survives writing") {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator("../measured")) {
    if (entry.path().extension() != ".yaml") continue;
    CAPTURE(entry.path().string());
    const Scenario s = read(entry.path().string());
    CHECK_NOTHROW(check(s));
    REQUIRE(s.measured);
    CHECK(s.measured->ranks.size() == static_cast<std::size_t>(s.cluster.num_gpus));
    CHECK(s.name == entry.path().stem());
    const std::string text = write(s);
    CHECK(parse(text, "written") == s);
    CHECK(write(parse(text, "written")) == text);
    ++files;
  }
  CHECK(files > 60);  // the folder was found
}

TEST_CASE("a measured run, figure by figure") {
  const Scenario s = read("../measured/a_pp4v2_m8.yaml");
  CHECK(s.settings.virtual_pipeline_model_parallel_size == 2);
  CHECK(s.settings.overlap_p2p_comm);
  CHECK(s.settings.grad_reduce_in_fp32);
  CHECK(s.model.num_query_groups == 8);
  CHECK(s.software.process_group_device_id);
  CHECK(s.software.cuda == "13.0");
  CHECK(variable(s, "CUDA_DEVICE_MAX_CONNECTIONS") == "1");
  CHECK(s.measured->forward_backward_ms == doctest::Approx(437.8).epsilon(0.02));
  REQUIRE(s.measured->ranks[0].trace_summary);
  CHECK(s.measured->ranks[0].trace_summary->busy_us.at("comp") > 1e5);
  CHECK(read("../measured/q_base.yaml").software.megatron_core == "pr-4268");
  CHECK(read("../measured/a_pp4v2_m8_shm.yaml").cluster.link == "shared host memory");
}

TEST_CASE("published runs: the step and its source are enough; memory by pipeline rank, if any") {
  for (const auto& entry : std::filesystem::directory_iterator("../published")) {
    if (entry.path().extension() != ".yaml") continue;
    CAPTURE(entry.path().string());
    const Scenario s = read(entry.path().string());
    CHECK_NOTHROW(check(s));
    REQUIRE(s.measured);
    // Of runs that gather all parameters outside the timed graph the logs hold forward and backward alone.
    CHECK((s.measured->step_alone() || (s.measured->forward_backward_ms > 0 && !s.settings.overlap_param_gather)));
    CHECK(parse(write(s), "written") == s);
  }
  const auto mlperf = read("../published/mlperf-llama31-405b_512.yaml");
  CHECK(mlperf.measured->peak_allocated_bytes_by_rank.at(0).value == 63154272862);  // 58.817 GiB
  const auto with = [](const std::string& measured) { return parse(std::string(small) + measured, "p.yaml"); };
  CHECK_THROWS_WITH_AS(with("measured: {step_ms: 100}\n"), doctest::Contains("measured.source: missing"), UsageError);
  CHECK_THROWS_WITH_AS(with("measured: {step_ms: 0, source: log}\n"), doctest::Contains("more than 0 ms"), UsageError);
  CHECK_THROWS_WITH_AS(with("measured: {source: log}\n"), doctest::Contains("forward_backward_ms"), UsageError);
  CHECK_THROWS_WITH_AS(with("measured: {step_ms: 1, source: log, peak_allocated_bytes_by_rank: [1]}\n"),
                       doctest::Contains("a map of pipeline ranks"), UsageError);
  CHECK_THROWS_WITH_AS(with("measured: {step_ms: 1, source: log, stepms: 1}\n"),
                       doctest::Contains("did you mean \"step_ms\""), UsageError);
}

TEST_CASE("a cluster's network: levels of switches, cards; what cannot be is refused with its key") {
  auto s = parse(std::string(small), "n.yaml");
  const auto refused = [&](const char* setting, const char* key) {
    Scenario copy = s;
    set(copy, setting);
    CHECK_THROWS_WITH_AS(check(copy), doctest::Contains(key), UsageError);
  };
  CHECK(nvlink_domain(s) == s.cluster.gpus_per_node);
  for (const char* setting : {"nics_per_node=4", "nic_gbits=200", "nvlink_domain=72",
                              "cluster.network.levels=[144, 1152]", "cluster.network.oversubscription=2",
                              "cluster.network.latency_us=20", "cluster.network.bandwidth_gbytes_per_s=23.5"})
    set(s, setting);
  CHECK_NOTHROW(check(s));
  CHECK(nvlink_domain(s) == 72);
  CHECK(s.cluster.network.oversubscription == std::vector<double>{2});
  CHECK(parse(write(s), "written") == s);
  refused("cluster.network.levels=[100]", "cluster.network.levels");
  refused("cluster.network.levels=[]", "cluster.network.oversubscription");
  CHECK_THROWS_AS(set(s, "nic_gbits=0"), UsageError);
}

TEST_CASE("the shipped scenarios can run") {
  for (const auto& entry : std::filesystem::directory_iterator("../../scenarios")) {
    if (entry.path().extension() != ".yaml") continue;
    CAPTURE(entry.path().string());
    const Scenario s = read(entry.path().string());
    CHECK_NOTHROW(check(s));
    CHECK(parse(write(s), "written") == s);
  }
}

TEST_CASE("Llama 3 70B on 32 H100") {
  const Scenario s = read("../../scenarios/llama3-70b-sft-32xh100.yaml");
  CHECK(data_parallel_size(s) == 2);
  CHECK(num_microbatches(s) == 16);
  CHECK(num_chunks(s) == 5);
  CHECK(padded_vocab_size(s) == 128512);  // 128256 up to a multiple of 128 x 4
  CHECK(layers_of(s, 3, 4) == Ints{76, 77, 78, 79});
  CHECK(recomputes(s, Recompute::core_attn));
  CHECK_FALSE(recomputes(s, Recompute::mlp));
  CHECK(s.search.recompute == "auto");
  CHECK(s.search.parallelism == "keep");
}

TEST_CASE("an omitted field has the default of the version's class") {
  const Scenario s = with("");
  CHECK(s.settings.hidden_dropout == 0.1);
  CHECK(s.settings.cuda_graph_use_single_mempool);
  CHECK(s.settings.deallocate_pipeline_outputs);
  CHECK(s.model.make_vocab_size_divisible_by == 128);
  CHECK_FALSE(s.settings.moe_deepep_num_sms);
  const Scenario old = with("software: {megatron_core: 0.16.0}\n");
  CHECK_FALSE(old.settings.cuda_graph_use_single_mempool);
  CHECK(old.settings.moe_deepep_num_sms == 20);
  CHECK(old.settings.moe_hybridep_num_sms == 16);
  CHECK(with("software: {megatron_core: 0.17.0}\n").settings.moe_hybridep_num_sms == std::nullopt);
  CHECK(with("software: {megatron_core: pr-4268}\n").settings.moe_hybridep_num_sms == 16);
  CHECK(with("software: {megatron_bridge: 0.7.0}\n").software.megatron_core == "main");
}

TEST_CASE("versions compare by what they contain") {
  using enum Version;
  const auto version = [](const char* core) {
    Software software;
    software.megatron_core = core;
    return core_version(software);
  };
  CHECK(version("0.18.3") == v0_18);
  CHECK(version("0.18") == v0_18);
  CHECK(version("0.17.2") < v0_18);
  CHECK(version("dev") > v0_19);
  CHECK(version("main") == newest);
  CHECK(version("pr-4268") > v0_17);
  CHECK(version("pr-4268") < v0_18);
  for (const char* none : {"", "0.1", "0.18.", "0.18.x", "0.18.1234", "0.180.1", "dev2", "mai", "v0.18.0"}) {
    CAPTURE(none);
    CHECK_FALSE(parse_version(none).has_value());
  }
}

TEST_CASE("cuDNN is as stated, or that of the container of Megatron Bridge's release") {
  const auto version = [](const char* bridge, const char* cudnn) {
    Software software;
    if (*bridge != 0) software.megatron_bridge = bridge;
    if (*cudnn != 0) software.cudnn = cudnn;
    return cudnn_version(software);
  };
  CHECK(version("0.2.1", "") == CudnnVersion{9, 13});
  CHECK(version("0.5.0", "") == CudnnVersion{9, 21});
  CHECK(version("0.2.1", "9.17.0") == CudnnVersion{9, 17});
  CHECK(*version("", "9.9.0") < *version("", "9.13.1.26"));
  for (const auto& [bridge, cudnn] : {std::pair("", ""), {"main", ""}, {"0.99.0", ""}, {"0.2.1", "main"}})
    CHECK_FALSE(version(bridge, cudnn));
}

TEST_CASE("sets of versions are ranges") {
  using enum Version;
  CHECK(from(v0_18) == Versions(v0_18, newest));
  CHECK(from(v0_17).has(pr_4268));
  CHECK_FALSE(from(v0_18).has(pr_4268));
  CHECK(up_to(v0_17) == (Versions(v0_16) | v0_17));
  CHECK(from(v0_19).except(dev) == (v0_19 | Versions(main)));
  CHECK(all_versions.except(all_versions).empty());
  CHECK(in_words(all_versions, true) == "0.16-0.19, dev, main, pr-4268");
  CHECK(in_words(v0_16 | from(v0_18).except(dev), true) == "0.16, 0.18-0.19, main");
  CHECK(in_words(from(pr_4268), false) == "0.18, 0.19, dev, main, pr-4268");
  CHECK(stated_names(up_to(v0_18) | dev) == Strings{"0.16.0", "0.17.0", "0.18.0", "pr-4268", "dev"});
  // Every row reads back as itself, in any spelling that is printed.
  std::size_t at = 0;
  for (const auto& row : versions()) {
    CHECK(static_cast<std::size_t>(row.version) == at++);
    CHECK(parse_version(stated_names(row.version).front()) == row.version);
  }
}

TEST_CASE("values in force") {
  Scenario s = with("");
  CHECK(ffn_hidden_size(s) == 16384);
  CHECK(num_query_groups(s) == 32);
  CHECK(kv_channels(s) == 128);
  CHECK(activation_func(s) == "gelu");
  CHECK(batch_p2p_comm(s));
  CHECK(group_size(s) == 4);
  CHECK_FALSE(interleaved(s));
  CHECK(recompute_modules(s).empty());
  set(s, "virtual_pipeline_model_parallel_size=2");
  set(s, "overlap_p2p_comm=true");
  CHECK_FALSE(batch_p2p_comm(s));  // follows, because it is not stated
  CHECK(interleaved(s));
  set(s, "recompute_granularity=selective");
  CHECK(recompute_modules(s) == Strings{"core_attn"});
  set(s, "tensor_model_parallel_size=2");
  CHECK(expert_tensor_parallel_size(s) == 2);
  CHECK(data_parallel_size(s) == 1);
  CHECK(padded_vocab_size(s) == 32000);
  set(s, "vocab_size=32001");
  CHECK(padded_vocab_size(s) == 32256);
}

TEST_CASE("MoE layers by frequency, pattern and expression") {
  Scenario s = with("");
  CHECK_FALSE(is_moe_layer(s, 0));
  set(s, "num_moe_experts=8");
  CHECK(is_moe_layer(s, 3));
  set(s, "moe_layer_freq=2");
  CHECK(is_moe_layer(s, 2));
  CHECK_FALSE(is_moe_layer(s, 3));
  set(s, "moe_layer_freq=([0]*3+[1]*13)");
  CHECK(s.model.moe_layer_freq.size() == 16);
  CHECK_FALSE(is_moe_layer(s, 2));
  CHECK(is_moe_layer(s, 3));
  set(s, "moe_layer_freq=([0,1]*8)");
  CHECK(is_moe_layer(s, 15));
  CHECK(refusal([&] { set(s, "moe_layer_freq=([0]*9999999)"); }).starts_with("--set: moe_layer_freq: "));
}

TEST_CASE("TransformerConfig's fields may stand in either section") {
  const Scenario s = parse(R"(scenario: 1
model: {num_layers: 16, hidden_size: 4096, num_attention_heads: 32, seq_length: 4096, vocab_size: 32000,
  hidden_dropout: 0.0}
settings: {micro_batch_size: 1, global_batch_size: 8, normalization: RMSNorm, lr: 0.0001, dsa_indexer_topk: 2048}
cluster: {num_gpus: 8}
)",
                           "either.yaml");
  CHECK(s.settings.hidden_dropout == 0.0);
  CHECK(s.model.normalization == "RMSNorm");
  CHECK(s.settings.other.at("lr") == "0.0001");
  CHECK(s.settings.other.at("dsa_indexer_topk") == "2048");
  CHECK(parse(write(s), "written") == s);
}

TEST_CASE("TE's offload markers have three states") {
  CHECK(with("").settings.te_op_offload.fc1_op == std::nullopt);
  Scenario s = with("");
  set(s, "te_op_offload.fc1_op=true");
  set(s, "te_op_offload.activation_op=false");
  CHECK(s.settings.te_op_offload == TeOpOffload{true, false});
  CHECK(parse(write(s), "written") == s);
  const std::string text =
      "model: {num_layers: 2, hidden_size: 64, num_attention_heads: 2, seq_length: 64, vocab_size: 64}\n"
      "cluster: {num_gpus: 1}\nscenario: 1\n";
  const std::string batch = "settings: {micro_batch_size: 1, global_batch_size: 1, te_op_offload: ";
  CHECK(parse(text + batch + "{fc1_op: false}}", "t").settings.te_op_offload == TeOpOffload{false, std::nullopt});
  CHECK(parse(text + batch + "{fc1_op, activation_op}}", "t").settings.te_op_offload == TeOpOffload{true, true});
  CHECK(parse(text + batch + "[activation_op]}", "t").settings.te_op_offload == TeOpOffload{std::nullopt, true});
}

TEST_CASE("an empty list of modules recomputes nothing, no list recomputes core_attn") {
  const std::string text =
      "model: {num_layers: 2, hidden_size: 64, num_attention_heads: 2, seq_length: 64, vocab_size: 64}\n"
      "cluster: {num_gpus: 1}\nscenario: 1\n"
      "settings: {micro_batch_size: 1, global_batch_size: 1, recompute_granularity: selective";
  CHECK(recompute_modules(parse(text + "}", "t")) == Strings{"core_attn"});
  CHECK(recompute_modules(parse(text + ", recompute_modules: none}", "t")) == Strings{"core_attn"});
  Scenario s = parse(text + ", recompute_modules: []}", "t");
  CHECK(recompute_modules(s).empty());
  CHECK(parse(write(s), "written") == s);
  set(s, "recompute_granularity=selective");
  set(s, "recompute_modules=[]");
  CHECK(recompute_modules(s).empty());
  s.settings.moe_layer_recompute = true;
  CHECK(recompute_modules(s) == Strings{"core_attn", "moe"});
}

TEST_CASE("--set takes every section and type") {
  Scenario s = with("");
  set(s, "recompute_modules=mlp,core_attn");
  CHECK(s.settings.recompute_modules == Strings{"mlp", "core_attn"});
  set(s, "recompute_modules=mlp");
  CHECK(s.settings.recompute_modules == Strings{"mlp"});
  set(s, "recompute_modules=[layernorm, mlp]");
  CHECK(s.settings.recompute_modules.size() == 2);
  set(s, "recompute_modules=none");
  CHECK(s.settings.recompute_modules.empty());
  set(s, "fp8=hybrid");
  CHECK(s.settings.fp8 == "hybrid");
  set(s, "fp8=none");
  CHECK_FALSE(s.settings.fp8);
  set(s, "settings.moe_aux_loss_coeff=0.01");
  CHECK(s.settings.moe_aux_loss_coeff == std::vector{0.01});
  set(s, "pipeline_model_parallel_layout=Et*3|(tt|)*6,tL");
  CHECK(s.settings.pipeline_model_parallel_layout == "Et*3|(tt|)*6,tL");
  set(s, "cluster.memory_bytes=74GiB");
  CHECK(s.cluster.memory_bytes == Bytes(79'456'894'976));
  set(s, "link=shared host memory");
  CHECK(s.cluster.link == "shared host memory");
  set(s, "cluster.overrides.host.cuda_launch_us=4.5");
  CHECK(s.cluster.overrides.at("host.cuda_launch_us") == 4.5);
  set(s, "search.recompute=auto");
  CHECK(s.search.recompute == "auto");
  set(s, "memory_margin=3%");
  CHECK(s.search.memory_margin->percent == 3);
  set(s, "search.memory_limit=device");
  CHECK_FALSE(s.search.memory_limit);
  set(s, "search.micro_batch_size=[1, 2]");
  CHECK(s.search.values.at("micro_batch_size") == Strings{"1", "2"});
  set(s, "search.recompute_modules=[[mlp], core_attn]");
  CHECK(s.search.values.at("recompute_modules") == Strings{"[mlp]", "core_attn"});
  set(s, "cuda_graph_scope=full");
  CHECK(s.settings.cuda_graph_modules.empty());
  set(s, "lr=1e-5");
  CHECK(get(s, "lr") == "1e-5");
  CHECK(parse(write(s), "written") == s);
}

TEST_CASE("--set of another version moves the defaults along, stated values stay") {
  Scenario s = with("");
  set(s, "megatron_core=0.16.0");
  CHECK_FALSE(s.settings.cuda_graph_use_single_mempool);
  CHECK(s == with("software: {megatron_core: 0.16.0}\n"));
  s = with("");
  set(s, "moe_deepep_num_sms=24");
  set(s, "software.megatron_core=0.18.0");
  CHECK(s.settings.moe_deepep_num_sms == 24);
}

TEST_CASE("--set and --env refuse in one line") {
  Scenario s = with("");
  CHECK(refusal([&] { set(s, "bf16"); }) == "--set: bf16: expected NAME=VALUE");
  CHECK(refusal([&] { set(s, "bf17=true"); }).ends_with("did you mean \"bf16\"?"));
  CHECK(refusal([&] { set(s, "global_batch_size=017"); }) ==
        "--set: global_batch_size: expected an integer, found 017, octal to some readers of YAML: no leading zero");
  CHECK(refusal([&] {
          set(s, "rotary_base=0500");
        }).ends_with("found 0500, octal to some readers of YAML: no leading zero"));
  CHECK(refusal([&] { set(s, "rotary_base=0.5e4"); }) == "accepted");
  CHECK(refusal([&] { set(s, "bf16=2"); }) == "--set: bf16: expected true or false, found the integer 2");
  CHECK(refusal([&] { set(s, "global_batch_size=-1"); }) ==
        "--set: global_batch_size: the integer -1 is out of range; allowed: 1 to 1000000000");
  CHECK(refusal([&] { set(s, "hidden_size=1e30"); }).starts_with("--set: hidden_size: expected an integer"));
  CHECK(refusal([&] { set(s, "megatron_core=0.99.0"); }).find("pr-4268") != std::string::npos);
  CHECK(refusal([&] { set(s, "fp8="); }) == "--set: fp8: no value");
  CHECK(refusal([&] { set_env(s, "1A=2"); }).starts_with("--env: 1A: not the name"));
  CHECK(refusal([&] { set(s, "num_layers=\xff"); }) == "--set: num_layers: not UTF-8");
  CHECK(refusal([&] { set_env(s, "A=\xff"); }) == "--env: A: not UTF-8");
  set_env(s, "NCCL_P2P_DISABLE=1");
  set_env(s, "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True,max_split_size_mb:512");
  CHECK(variable(s, "NCCL_P2P_DISABLE") == "1");
  CHECK(parse(write(s), "written") == s);
  set_env(s, "NCCL_P2P_DISABLE=");
  CHECK(variable(s, "NCCL_P2P_DISABLE", "unset") == "unset");
}

TEST_CASE("a refused setting is refused in the name of the option that gave it") {
  Scenario s = with("");
  for (const char* wrong : {"bf16", "nosuch=1", "model.nosuch=1", "bf16=2", "global_batch_size=-1", "fp8=", "fp8=\xff",
                            "megatron_core=0.99.0", "search.nosuch=1", "overrides.nosuch=x", "environment.1A=2",
                            "environment.A", "environment.A=\xff", "\xff=1", "moe_layer_freq=([0]*9999999)"}) {
    CAPTURE(wrong);
    CHECK(refusal([&] { set(s, wrong, "--over"); }).starts_with("--over: "));  // no line, which an option has not
  }
  set(s, "global_batch_size=7", "--over");
  CHECK(refusal([&] { check(s); }).starts_with("--over: settings.global_batch_size: "));
}

TEST_CASE("line endings, a byte order mark and comments do not matter") {
  std::string crlf;
  for (const char c : small) crlf += c == '\n' ? std::string("\r\n") : std::string(1, c);
  CHECK(parse(crlf, "crlf") == with(""));
  CHECK(parse("\xEF\xBB\xBF" + small, "bom") == with(""));
  CHECK(parse("# \xC3\xBC\n" + small + "\n\n# end", "comments") == with(""));
}

TEST_CASE("an error of --set names --set, one of the file its line") {
  Scenario s = with("");
  set(s, "global_batch_size=7");
  CHECK(refusal([&] {
          check(s);
        }).starts_with("--set: settings.global_batch_size: global batch size (7) is not divisible"));
  s = with("");
  s.cluster.num_gpus = 6;
  CHECK(refusal([&] { check(s); }).starts_with("small.yaml:4: cluster.num_gpus: "));
}

TEST_CASE("the table describes itself") {
  bool found = false;
  for (const FieldInfo& f : fields()) {
    CAPTURE(f.section + "." + f.name);
    CHECK_FALSE(f.doc.empty());
    if (f.name == "recompute_granularity") {
      found = true;
      CHECK(f.section == "settings");
      CHECK(f.type == "string or none");
      CHECK(f.default_value == "none");
      CHECK(f.allowed == Strings{"full", "selective"});
      CHECK(f.versions == all_versions);
    }
    if (f.name == "overlap_p2p_backward_on_comm_stream") CHECK(f.versions == Versions(Version::pr_4268));
    if (f.name == "moe_load_imbalance") CHECK(f.versions.empty());
  }
  CHECK(found);
  CHECK(get(with(""), "settings.bf16") == "true");
  CHECK(refusal([] { get(with(""), "bf15"); }).find("bf16") != std::string::npos);
}

}  // namespace scenario_test
