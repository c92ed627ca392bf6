// Transformer Engine's recipes: what they keep of every operand, by GPU.
#include <algorithm>
#include <set>

#include "pipewright/effects.hpp"
#include "pipewright/scenario/io.hpp"
#include "support.hpp"

namespace precision_test {

using namespace pipewright;
using namespace pipewright::model::test;
using model::Step;

namespace {

constexpr std::int64_t tokens = 8192, h = 8192, q = 8192, kv = 1024, f = 28672, heads = 64, t = 4;

model::Stages on(const char* gpu, const scenario::Scenario& s) {
  return model::build(s, profile::data_sheet(gpu).device);
}

std::int64_t static_bytes(const model::Stages& stages, const std::string& owner) {
  const auto& piece = stages.ranks[1].construction;
  std::int64_t sum = 0;
  for (const auto& step : piece.forward) {
    const auto& tensor = piece.tensors[step.index];
    if (step.kind == Step::Kind::launch || stages.owners[tensor.owner] != owner) continue;
    sum += step.kind == Step::Kind::allocate ? tensor.bytes.value : -tensor.bytes.value;
  }
  return sum;
}

std::set<std::string> families(const model::Stages& stages) {
  std::set<std::string> names;
  for (const auto& piece : stages.pieces)
    for (const auto& kernel : piece.kernels) names.insert(kernel.key.family);
  for (const auto& rank : stages.ranks)
    for (const auto& kernel : rank.optimizer) names.insert(kernel.key.family);
  return names;
}

const char* const mxfp8[] = {"fp8=e4m3", "fp8_recipe=mxfp8"};

/// What a model is made of: kernels, tensors and what ranks hold for good.
std::vector<std::string> parts_of(const model::Stages& stages) {
  std::vector<std::string> list;
  const auto kernels = [&](const std::vector<model::Kernel>& all) {
    for (const auto& kernel : all) {
      list.push_back(kernel.name + " " + kernel.key.family + " " + std::to_string(kernel.share));
      for (const auto n : kernel.key.dims) list.back() += " " + std::to_string(n);
    }
  };
  const auto tensors = [&](const std::vector<model::Tensor>& all) {
    for (const auto& tensor : all)
      list.push_back(stages.owners[tensor.owner] + " " + std::to_string(tensor.bytes.value));
  };
  for (const auto& piece : stages.pieces) kernels(piece.kernels), tensors(piece.tensors);
  for (const auto& rank : stages.ranks) kernels(rank.optimizer), tensors(rank.since_first_step);
  return list;
}

struct Own {
  const char* name;
  std::vector<const char*> settings;
};
const std::vector<Own> recipes = {{"bf16", {}},
                                  {"tensorwise", {"fp8=hybrid", "fp8_recipe=tensorwise"}},
                                  {"mxfp8", {"fp8=e4m3", "fp8_recipe=mxfp8"}},
                                  {"nvfp4", {"fp4=e2m1"}}};

scenario::Scenario in(const Own& recipe, const std::string& by_module = "[]") {
  auto s = llama70b();
  for (const char* setting : recipe.settings) scenario::set(s, setting);
  scenario::set(s, "quant_recipe=" + by_module);
  return s;
}

}  // namespace

TEST_CASE("MXFP8 keeps the column-wise copy and its scales where per-tensor FP8 keeps a byte") {
  const auto tensorwise = saved(inner_layer(on("b200-sxm", with(llama70b(), {"fp8=hybrid", "fp8_recipe=tensorwise"}))));
  const auto blocks = saved(inner_layer(on("b200-sxm", with(llama70b(), {mxfp8[0], mxfp8[1]}))));
  // Inputs of qkv and fc1 (local tokens) and of fc2 (all tokens of a quarter of the width): a byte of scale for 32.
  CHECK(blocks - tensorwise == (2 * tokens / t * h + tokens * f / t) / 32);
  // On Blackwell a per-tensor copy serves all products: as much as Hopper's transposed one.
  const auto hopper = saved(inner_layer(on("h200-sxm", with(llama70b(), {"fp8=hybrid", "fp8_recipe=tensorwise"}))));
  CHECK(tensorwise == hopper);
}

TEST_CASE("NVFP4 keeps half a byte and a scale for 16") {
  const auto bf16 = saved(inner_layer(on("b200-sxm", llama70b())));
  const auto fp4 = saved(inner_layer(on("b200-sxm", with(llama70b(), {"fp4=e2m1"}))));
  const std::int64_t elements = 2 * tokens / t * h + tokens * f / t;
  CHECK(bf16 - fp4 == 2 * elements - elements / 2 - elements / 16);
}

TEST_CASE("no copy is transposed on tensor cores that take every layout, nor where scales run along k") {
  const auto kept = with(llama70b(), {"fp8=hybrid", "fp8_recipe=tensorwise", "fp8_param=true", "fp8_param_gather=true",
                                      "use_distributed_optimizer=true"});
  const auto hopper = families(on("h200-sxm", kept));
  for (const char* family : {"transpose.fp8", "cast_transpose.fp8", "cast_transpose.fp8.row"})
    CHECK(hopper.contains(family));
  for (const char* recipe : {"fp8_recipe=tensorwise", "fp8_recipe=delayed"}) {  // the optimizer's shards neither
    const auto names = families(on("gb200-nvl72", with(kept, {recipe})));
    CHECK(std::ranges::none_of(names, [](const auto& name) { return name.find("transpose") != name.npos; }));
  }
  for (const char* settings : {"fp8_recipe=tensorwise", "fp8_recipe=delayed", "fp8_recipe=mxfp8"}) {
    const auto blackwell = families(on("gb200-nvl72", with(llama70b(), {"fp8=e4m3", settings})));
    CAPTURE(settings);
    CHECK(!blackwell.contains("transpose.fp8"));
    CHECK(!blackwell.contains("cast_transpose.fp8"));
    CHECK(blackwell.contains("gemm.mxfp8.tn") == (std::string(settings) == "fp8_recipe=mxfp8"));
  }
  CHECK(families(on("gb200-nvl72", with(llama70b(), {"fp4=e2m1"}))).contains("quantize.nvfp4"));
}

TEST_CASE("MXFP8 parameters stay outside the buffers, gathered in bf16 where the gradients are") {
  const auto kept =
      with(llama70b(), {mxfp8[0], mxfp8[1], "fp8_param_gather=true", "reuse_grad_buf_for_mxfp8_param_ag=true"});
  const auto stages = on("b200-sxm", kept), bf16 = on("b200-sxm", llama70b());
  const std::int64_t weights = 20 * (h * (q + 2 * kv) + q * h + 3 * h * f) / t, norms = 20 * 2 * h;
  const auto near = [](std::int64_t bytes) { return doctest::Approx(static_cast<double>(bytes)).epsilon(1e-4); };
  CHECK(static_cast<double>(static_bytes(stages, "column-wise parameters")) == near(weights + weights / 32));
  CHECK(static_cast<double>(static_bytes(stages, "parameters")) == near(weights + weights / 32 + 2 * norms));
  CHECK(static_cast<double>(static_bytes(bf16, "parameters")) == near(2 * (weights + norms)));
  CHECK(static_cast<double>(static_bytes(stages, "gradients")) == near(static_bytes(bf16, "gradients")));
  std::int64_t gathered = 0;
  for (const auto& kernel : stages.ranks[1].optimizer)
    if (kernel.key.family == "quantize.mxfp8") gathered += kernel.key.dims[0] * kernel.key.dims[1];
  CHECK(gathered == weights);
}

TEST_CASE("NVFP4 parameters: half a byte in the buffers and gathered, scales and the column-wise copy outside") {
  const auto plain = with(llama70b(), {"fp4=e2m1", "use_distributed_optimizer=true", "num_gpus=32"});
  const auto kept = with(plain, {"fp4_param=true", "fp4_param_gather=true"});
  CHECK_NOTHROW(scenario::refuse_unmodelled(kept));
  const auto stages = on("gb200-nvl72", kept), bf16 = on("gb200-nvl72", plain);
  check_all(stages);
  // All sides are multiples of 128: scales are not padded.
  const std::int64_t weights = 20 * (h * (q + 2 * kv) + q * h + 3 * h * f) / t, norms = 20 * 2 * h, dp = 2;
  const auto near = [](std::int64_t bytes) { return doctest::Approx(static_cast<double>(bytes)).epsilon(1e-4); };
  CHECK(static_cast<double>(static_bytes(stages, "parameters")) == near(weights / 2 + 2 * norms));
  CHECK(static_cast<double>(static_bytes(stages, "scales of parameters")) == near(weights / 16));
  CHECK(static_cast<double>(static_bytes(stages, "column-wise parameters")) == near(weights / 2 + weights / 16));
  CHECK(static_cast<double>(static_bytes(bf16, "parameters")) == near(2 * (weights + norms)));
  for (const char* owner : {"gradients", "main parameters"})
    CHECK(static_cast<double>(static_bytes(stages, owner)) == near(static_bytes(bf16, owner)));
  const auto cached = [](const model::Stages& all) {
    std::int64_t bytes = 0;
    for (const auto& tensor : all.ranks[1].since_first_step)
      if (all.owners[tensor.owner] == "quantized weights") bytes += tensor.bytes.value;
    return bytes;
  };
  CHECK(cached(stages) == 0);  // of parameters in bf16 both copies live beside them
  CHECK(static_cast<double>(cached(bf16)) == near(weights + weights / 8));

  // Each step: maxima and scales of all blocks of 256 in fp32; what a rank owns is read twice and written in half
  // bytes.
  const auto& rank = stages.ranks[1];
  std::int64_t blocks = 0, gathered = 0, reduced = 0, cast = 0, maxima = 0, transposed = 0;
  for (const auto& tensor : rank.after_update)
    if (stages.owners[tensor.owner] == "maxima and scales of parameters' blocks") blocks += tensor.bytes.value;
  CHECK(static_cast<double>(blocks) == near(2 * 4 * weights / 256));
  for (const auto& kernel : rank.optimizer) {
    if (kernel.name == "parameter all-gather") gathered += kernel.key.dims[1];
    if (kernel.name == "parameters' amax all-reduce") reduced += kernel.key.dims[1];
    if (kernel.name == "parameter cast") cast += kernel.key.dims[0];
    if (kernel.name == "parameter amax") maxima += kernel.key.dims[0];
  }
  for (const auto& kernel : rank.chunks[0].parameter_gather) gathered += kernel.key.dims[1];
  CHECK(static_cast<double>(gathered) == near(weights / 2 + 2 * norms));
  CHECK(static_cast<double>(reduced) == near(4 * weights / 256));
  CHECK(static_cast<double>(3 * cast) == near(weights / dp * 9 / 2));  // bytes
  CHECK(static_cast<double>(2 * maxima) == near(weights / dp * 4));
  // After the gather each weight's data and scales are transposed, before its first forward pass.
  const auto& layer = inner_layer(stages);
  for (const auto& step : layer.forward)
    if (step.kind == Step::Kind::launch && layer.kernels[step.index].key.family == "transpose.fp8") {
      const auto& dims = layer.kernels[step.index].key.dims;
      transposed += dims[0] * dims[1];
      CHECK(step.before_microbatch == 1);
    }
  CHECK(static_cast<double>(transposed) == near(weights / 20 * 9 / 16));

  for (const char* change : {"fp4_param_gather=false", "fp4_param=false", "use_distributed_optimizer=false",
                             "use_precision_aware_optimizer=true", "transformer_engine=2.13", "megatron_core=0.16"}) {
    CAPTURE(change);
    CHECK(!scenario::unmodelled(with(kept, {change})).empty());
  }
  // Main parameters stay apart from Adam's states with any recipe but delayed, whether layers are in FP8 or not.
  CHECK(scenario::unmodelled(with(kept, {"use_precision_aware_optimizer=true", "fp8_recipe=tensorwise"})).empty());
}

TEST_CASE("experts in NVFP4 keep half a byte and a scale for 16 of every row where MXFP8 keeps one and one for 32") {
  const auto mixture =
      with(llama70b(), {"tensor_model_parallel_size=1", "sequence_parallel=false", "num_gpus=16", "num_moe_experts=8",
                        "moe_grouped_gemm=true", "moe_ffn_hidden_size=4096", "expert_model_parallel_size=4",
                        "moe_router_topk=2", "moe_token_dispatcher_type=alltoall", "moe_permute_fusion=true",
                        "moe_expert_capacity_factor=1", "moe_pad_expert_input_to_capacity=true"});  // rows alike
  const auto fp4 = with(mixture, {"fp4=e2m1"}), fp8 = with(mixture, {mxfp8[0], mxfp8[1]});
  CHECK_NOTHROW(scenario::refuse_unmodelled(fp4));
  const auto four = on("gb200-nvl72", fp4), eight = on("gb200-nvl72", fp8);
  check_all(four);
  // Inputs of qkv and of the experts' fc1 and fc2: 2 choices of 8192 tokens a rank.
  const std::int64_t rows = 2 * tokens, elements = tokens * h + rows * h + rows * 4096;
  CHECK(saved(inner_layer(eight)) - saved(inner_layer(four)) == elements * (32 + 1 - 16 - 2) / 32);
  // One cast for all experts of a tensor, each product behind a kernel of its own for the factor of both tensors.
  const auto& layer = inner_layer(four);
  int casts = 0, products = 0;
  for (const auto& kernel : layer.kernels) {
    if (kernel.name.find("other experts") != std::string::npos)
      CHECK(kernel.name.find("weight cast") != kernel.name.npos);
    if (kernel.key.family == "quantize.nvfp4" && kernel.key.dims[0] == rows) ++casts;
    if (!kernel.key.family.starts_with("gemm.grouped.nvfp4")) continue;
    ++products;
    CHECK(kernel.launches == 2 * 2);
  }
  CHECK(casts == 4);
  CHECK(products == 6);
  CHECK(!scenario::unmodelled(with(fp4, {"transformer_engine=2.11"})).empty());
  CHECK(!scenario::unmodelled(with(fp4, {"num_moe_experts=512"})).empty());
  // Rows of an expert are filled up to whole blocks of 128 for the grouped casts.
  const auto uneven = with(fp4, {"moe_expert_capacity_factor=none", "moe_pad_expert_input_to_capacity=false"});
  const auto stages = on("gb200-nvl72", uneven);
  for (const auto& kernel : inner_layer(stages).kernels)
    if (kernel.key.family.starts_with("gemm.grouped.nvfp4")) CHECK(kernel.key.dims[1] == rows + 2 * 128 / 2);
}

TEST_CASE("scales are put in order once, by the cast where a version of Transformer Engine does") {
  const auto launches = [](const scenario::Scenario& s) {
    int sum = 0;
    const auto stages = on("gb200-nvl72", s);
    for (const auto& kernel : inner_layer(stages).kernels)
      if (kernel.name == "swizzled scales") sum += kernel.launches;
    return sum;
  };
  const auto whole =
      with(llama70b(), {"tensor_model_parallel_size=1", "sequence_parallel=false", "num_gpus=4", mxfp8[0], mxfp8[1]});
  const auto kept = with(whole, {"fp8_param=true", "fp8_param_gather=true", "reuse_grad_buf_for_mxfp8_param_ag=true"});
  const auto split = with(whole, {"tensor_model_parallel_size=4", "sequence_parallel=true", "num_gpus=16"});
  constexpr int linears = 4, products = 3;
  const auto at = [&](const scenario::Scenario& s, const char* version) {
    return launches(with(s, {(std::string("transformer_engine=") + version).c_str()}));
  };
  CHECK(at(whole, "2.11") == linears * products * 2);
  CHECK(at(whole, "2.12") == linears * 2);  // a weight's, forward and dgrad
  CHECK(at(whole, "2.18") == 0);
  CHECK(at(kept, "2.18") == linears * 2);
  // What is gathered comes in no order: inputs of column-parallel layers for two products, gradients of row-parallel
  // ones.
  CHECK(at(split, "2.12") == linears * (2 + 2));
  CHECK(at(with(whole, {"fp8=none", "fp4=e2m1"}), "2.16") == linears * products * (2 + 1));
  CHECK(at(with(whole, {"fp8=none", "fp4=e2m1"}), "2.17") == linears * (2 + products));
}

TEST_CASE("sequence-parallel NVFP4 shares its maxima and joins what it gathered of transposed copies") {
  for (const bool parallel : {false, true}) {
    const auto s =
        parallel ? with(llama70b(), {"fp4=e2m1"}) : with(llama70b(), {"fp4=e2m1", "sequence_parallel=false"});
    const auto stages = on("gb200-nvl72", s);
    int reductions = 0;
    std::int64_t joined = 0;
    for (const auto& kernel : inner_layer(stages).kernels) {
      reductions += kernel.name.ends_with("amax all-reduce");
      if (kernel.name.ends_with(" joined")) joined += kernel.key.dims[0];
    }
    // Inputs of qkv and fc1, gradients of proj and fc2.
    CHECK(reductions == (parallel ? 4 : 0));
    CHECK(joined == (parallel ? 4 * tokens * h * 9 / 16 : 0));
  }
}

TEST_CASE("what is born dies in every recipe of every GPU") {
  for (const char* gpu : {"h200-sxm", "b200-sxm", "gb300-nvl72"})
    for (const char* precision : {"fp8=hybrid; fp8_recipe=tensorwise", "fp8=hybrid; fp8_recipe=delayed",
                                  "fp8=e4m3; fp8_recipe=mxfp8", "fp4=e2m1"})
      for (const char* other :
           {"sequence_parallel=true", "sequence_parallel=false", "tp_comm_overlap=true",
            "recompute_granularity=selective; recompute_modules=[mlp, core_attn]",
            "num_moe_experts=8; moe_grouped_gemm=true; moe_ffn_hidden_size=4096; "
            "expert_model_parallel_size=2; moe_router_topk=2; moe_token_dispatcher_type=alltoall"}) {
        const std::string text = std::string(precision) + "; " + other;
        const bool hopper = std::string(gpu) == "h200-sxm";
        if (hopper && (text.find("mxfp8") != text.npos || text.find("fp4") != text.npos)) continue;
        CAPTURE(gpu);
        CAPTURE(text);
        auto s = llama70b();
        for (std::size_t at = 0; at < text.size();) {
          const auto end = std::min(text.find("; ", at), text.size());
          scenario::set(s, text.substr(at, end - at));
          at = end + 2;
        }
        for (const auto& piece : on(gpu, s).pieces) check_balance(piece);
      }
}

TEST_CASE(
    "an output layer in MXFP8 leaves no product in bf16, and casts its weight, which is no FP8 parameter, once a "
    "step") {
  const auto whole = with(llama70b(), {mxfp8[0], mxfp8[1], "fp8_param=true", "fp8_param_gather=true",
                                       "reuse_grad_buf_for_mxfp8_param_ag=true", "tensor_model_parallel_size=1",
                                       "sequence_parallel=false", "num_gpus=4"});
  const auto quantized = with(whole, {"fp8_output_proj=true"});
  CHECK_NOTHROW(scenario::refuse_unmodelled(quantized));
  const auto plain = on("b200-sxm", whole), stages = on("b200-sxm", quantized);
  check_all(stages);
  CHECK(families(plain).contains("gemm.bf16.tn"));
  for (const char* family : {"gemm.bf16.tn", "gemm.bf16.nn"}) CHECK(!families(stages).contains(family));
  int casts = 0;
  for (const auto& piece : stages.pieces)
    for (const auto& step : piece.forward)
      if (step.kind == Step::Kind::launch && piece.kernels[step.index].name.find("weight cast") != std::string::npos) {
        CHECK(piece.kernels[step.index].name.starts_with("head"));
        ++casts;
      }
  CHECK(casts == 1);
  for (const char* change : {"tensor_model_parallel_size=4", "untie_embeddings_and_output_weights=false",
                             "final_logit_softcapping=30", "lora_target_modules=[linear_qkv]"}) {
    CAPTURE(change);
    const auto all = scenario::unmodelled(with(quantized, {change}));
    CHECK(std::ranges::any_of(all, [](const auto& one) { return one.name == "fp8_output_proj"; }));
  }
}

TEST_CASE("a recipe that the GPU or the model lacks is refused with its key") {
  const auto refused = [](const char* gpu, std::initializer_list<const char*> settings, const char* key) {
    CHECK_THROWS_WITH_AS(on(gpu, with(llama70b(), settings)), doctest::Contains(key), UsageError);
  };
  refused("h200-sxm", {"fp8=e4m3", "fp8_recipe=mxfp8"}, "compute capability 10.0");
  refused("h200-sxm", {"fp4=e2m1"}, "settings.fp4");
  refused("b200-sxm", {"fp8=e4m3", "fp8_recipe=blockwise"}, "computes it in MXFP8");
  refused("b200-sxm", {"fp8=e4m3", "fp8_recipe=mxfp8", "fp8_param_gather=true"}, "reuse_grad_buf_for_mxfp8_param_ag");
  // Told before a model is built, so that it can be let through.
  for (const auto& [change, name] : {std::pair("fp4_param_gather=true", "fp4_param_gather"),
                                     {"fp4_param=true", "fp4_param"},
                                     {"num_moe_experts=8", "fp4"}}) {
    CAPTURE(change);
    auto s = with(llama70b(), {"fp4=e2m1", "transformer_engine=2.11", change});
    const auto all = scenario::unmodelled(s);
    CHECK(std::ranges::any_of(all, [&](const auto& one) { return one.name == name; }));
  }
}

TEST_CASE("every module in another recipe is the model in that recipe") {
  for (std::size_t own = 1; own < recipes.size(); ++own)
    for (const auto& other : recipes) {
      CAPTURE(recipes[own].name);
      CAPTURE(other.name);
      const auto by_module = parts_of(on("b200-sxm", in(recipes[own], "['*=" + std::string(other.name) + "']")));
      CHECK(by_module == parts_of(on("b200-sxm", in(other))));
    }
}

TEST_CASE("modules of drawn recipes multiply in them, and what they keep adds up") {
  const std::pair<const char*, const char*> modules[] = {{"linear_qkv", "attention.qkv"},
                                                         {"linear_proj", "attention.proj"},
                                                         {"linear_fc1", "mlp.fc1"},
                                                         {"linear_fc2", "mlp.fc2"}};
  const std::map<std::string, std::string> products = {
      {"bf16", "gemm.bf16."}, {"tensorwise", "gemm.fp8."}, {"mxfp8", "gemm.mxfp8."}, {"nvfp4", "gemm.nvfp4."}};
  const auto kept = [](const std::string& entries) {
    return saved(inner_layer(on("b200-sxm", in(recipes.back(), "[" + entries + "]"))));
  };
  const auto none = kept("'*=bf16'");
  unsigned draw = 1;
  for (int i = 0; i < 12; ++i) {
    std::string entries;
    std::int64_t sum = none;
    std::vector<std::string> drawn;
    for (const auto& module : modules) {
      draw = draw * 1664525 + 1013904223;
      drawn.emplace_back(recipes[(draw >> 16) % recipes.size()].name);
      const std::string entry = "'*." + std::string(module.first) + "=" + drawn.back() + "'";
      sum += kept(entry + ", '*=bf16'") - none;
      entries += (entries.empty() ? "" : ", ") + entry;
    }
    CAPTURE(entries);
    CHECK(kept(entries) == sum);
    const auto stages = on("b200-sxm", in(recipes.back(), "[" + entries + "]"));
    for (std::size_t m = 0; m < std::size(modules); ++m) {
      int found = 0;
      for (const auto& kernel : inner_layer(stages).kernels) {
        if (!kernel.name.starts_with(modules[m].second) || !kernel.key.family.starts_with("gemm.")) continue;
        ++found;
        CHECK(kernel.key.family.starts_with(products.at(drawn[m])));
      }
      CHECK(found == 3);
    }
  }
}

TEST_CASE("a layer in bf16 stays so whatever its modules' recipe") {
  auto plain = in(recipes.back());
  scenario::set(plain, "first_last_layers_bf16=true");
  auto said = plain;
  scenario::set(said, "quant_recipe=['*=mxfp8']");
  const auto first = [](const model::Stages& stages) { return stages.pieces[stages.ranks[0].chunks[0].pieces[1]]; };
  for (const auto& s : {plain, said})
    for (const auto& kernel : first(on("b200-sxm", s)).kernels)
      if (kernel.key.family.starts_with("gemm.")) CHECK(kernel.key.family.starts_with("gemm.bf16."));
}

}  // namespace precision_test
