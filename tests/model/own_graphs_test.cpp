// Megatron's own CUDA graphs (cuda_graph_impl local): a whole layer each, whose input is what the last one put out.
#include <doctest/doctest.h>

#include <functional>

#include "dimensions.hpp"
#include "pipewright/effects.hpp"
#include "support.hpp"

namespace pipewright::own_graphs_test {

using namespace model::test;
using model::Kernel;

scenario::Scenario graphed(scenario::Scenario s, const std::string& modules) {
  return with(std::move(s), {"cuda_graph_impl=local", "use_te_rng_tracker=true", modules.c_str()});
}

std::map<std::string, int> names(const model::Piece& piece, const std::function<bool(const Kernel&)>& counts) {
  std::map<std::string, int> all;
  for (const auto& kernel : piece.kernels)
    if (counts(kernel)) ++all[kernel.name];
  return all;
}
bool of_graphs(const Kernel& kernel) { return kernel.name.find("CUDA graph") == 0; }

TEST_CASE("every layer is one graph forward and one backward, whichever of its modules is named") {
  const auto eager = pipewright::test::build(llama70b());
  for (const char* modules :
       {"cuda_graph_modules=[]", "cuda_graph_modules=[attn]", "cuda_graph_modules=[mlp]", "cuda_graph_modules=[mamba]"})
    for (const char* chunks :
         {"virtual_pipeline_model_parallel_size=none", "virtual_pipeline_model_parallel_size=20"}) {
      CAPTURE(modules);
      CAPTURE(chunks);
      const auto s = graphed(with(llama70b(), {chunks}), modules);
      REQUIRE_NOTHROW(scenario::refuse_unmodelled(s));
      const auto stages = pipewright::test::build(s);
      const bool holds = std::string(modules).find("mamba") == std::string::npos;
      for (const auto& rank : stages.ranks)
        for (const auto& chunk : rank.chunks) {
          std::vector<const model::Piece*> layers;
          for (std::size_t i = 0; i < chunk.pieces.size(); ++i)
            if (chunk.layers[i] >= 0) layers.push_back(&stages.pieces[chunk.pieces[i]]);
          for (std::size_t i = 0; i < layers.size(); ++i) {
            check_balance(*layers[i]);
            auto own = names(*layers[i], of_graphs);
            CHECK(own["CUDA graph forward"] == (holds ? 1 : 0));
            CHECK(own["CUDA graph backward"] == (holds ? 1 : 0));
            // Copied is only what no graph has put where it is read.
            CHECK(own["CUDA graph input"] == (holds && i == 0 ? 1 : 0));
            CHECK(own["CUDA graph rotary table"] == (holds && i == 0 ? 1 : 0));
            CHECK(own["CUDA graph output gradient"] == (holds && i + 1 == layers.size() ? 1 : 0));
            CHECK(own["CUDA graph attention mask"] == 0);
            const auto others = [](const Kernel& kernel) { return !of_graphs(kernel); };
            CHECK(names(*layers[i], others) == names(inner_layer(eager), others));
          }
        }
    }
}

TEST_CASE("the weights' gradients that a graph returns are cloned, read and written") {
  // _CudagraphReplayNode.backward clones one for each parameter: with fused accumulation Transformer Engine's dummies
  // in the weights' shape. Llama 3 70B with TP 4: qkv 10240, proj 8192, fc1 57344 wide, fc2 28672 deep, two norms.
  const auto stages = pipewright::test::build(graphed(llama70b(), "cuda_graph_modules=[]"));
  std::int64_t bytes = 0;
  for (const auto& kernel : inner_layer(stages).kernels)
    if (kernel.name == "CUDA graph weight gradient") bytes += kernel.key.dims.at(0);
  CHECK(bytes == 2 * ((10240LL + 8192 + 57344 + 28672) * 8192 / 4 + 2 * 8192));
}

TEST_CASE("a hybrid's layers are captured by what they are") {
  const auto base = with(llama70b(), {"num_layers=6", "pipeline_model_parallel_size=1", "hybrid_layer_pattern=M*M-M-",
                                      "mamba_num_heads=128", "num_gpus=4"});
  for (const auto& [modules, captured] : {std::pair("cuda_graph_modules=[]", "M*-"),
                                          {"cuda_graph_modules=[attn]", "*"},
                                          {"cuda_graph_modules=[mlp]", "-"},
                                          {"cuda_graph_modules=[mamba]", "M"}}) {
    CAPTURE(std::string(modules));
    const auto stages = pipewright::test::build(graphed(base, modules));
    const auto& chunk = stages.ranks[0].chunks[0];
    const std::string pattern = "M*M-M-";
    for (std::size_t i = 0; i < chunk.pieces.size(); ++i) {
      if (chunk.layers[i] < 0) continue;
      const char letter = pattern[static_cast<std::size_t>(chunk.layers[i])];
      CAPTURE(letter);
      const auto& piece = stages.pieces[chunk.pieces[i]];
      check_balance(piece);
      const auto holds = [&](int layer) {
        return layer >= 0 && layer < static_cast<int>(pattern.size()) &&
               std::string(captured).find(pattern[static_cast<std::size_t>(layer)]) != std::string::npos;
      };
      const int layer = static_cast<int>(chunk.layers[i]);
      auto own = names(piece, of_graphs);
      CHECK(own["CUDA graph forward"] == (holds(layer) ? 1 : 0));
      // What a layer without a graph has put out is copied, and so is its gradient.
      CHECK(own["CUDA graph input"] == (holds(layer) && !holds(layer - 1) ? 1 : 0));
      CHECK(own["CUDA graph output gradient"] == (holds(layer) && !holds(layer + 1) ? 1 : 0));
    }
  }
}

TEST_CASE("what is not modelled beside them is refused by name, and launched one by one where that is ignored") {
  for (const auto& [change, said] : {std::pair("num_moe_experts=8", "experts"),
                                     {"lora_target_modules=[linear_qkv]", "adapters"},
                                     {"mtp_num_layers=1", "multi-token prediction"},
                                     {"cpu_offloading=true", "offload"},
                                     {"delay_wgrad_compute=true", "delayed weight gradients"}}) {
    auto s = graphed(with(llama70b(), {change}), "cuda_graph_modules=[]");
    CAPTURE(std::string(change));
    bool told = false;
    for (const auto& one : scenario::unmodelled(s))
      told |= one.name == "cuda_graph_impl" && one.missing.find(said) != std::string::npos;
    CHECK(told);
    scenario::ignore(s, "cuda_graph_impl", {"test", 0});
    CHECK_FALSE(model::Dimensions(s, profile::data_sheet("h200-sxm").device).graphs.any());
  }
}

}  // namespace pipewright::own_graphs_test
