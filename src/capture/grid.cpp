#include "grid.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <set>
#include <string>

namespace pipewright::capture {
namespace {

using profile::Key;
using I = std::int64_t;
using List = std::vector<I>;

/// Published configurations (config.json of each model).
struct Model {
  I hidden, ffn, heads, groups, dim, vocab;
  List tensor_parallel;
  List tokens;  ///< sequence length x microbatch
};

const std::vector<Model>& models() {
  static const std::vector<Model> list = {
      {4096, 14336, 32, 8, 128, 128256, {1, 2, 4, 8}, {4096, 8192, 2048, 1024, 16384}},  // Llama 3 8B, Mistral 7B
      {8192, 28672, 64, 8, 128, 128256, {4, 8, 2, 1}, {4096, 8192, 2048, 1024, 16384}},  // Llama 3 70B
      {16384, 53248, 128, 8, 128, 128256, {8, 4}, {4096, 8192, 2048}},                   // Llama 3.1 405B
      {8192, 29568, 64, 8, 128, 152064, {4, 8, 2}, {4096, 8192, 2048}},                  // Qwen2.5 72B
      {5120, 27648, 40, 8, 128, 152064, {2, 4, 1, 8}, {4096, 8192, 2048}},               // Qwen2.5 32B
      {5120, 25600, 64, 8, 128, 151936, {2, 4, 8}, {4096, 8192, 2048}},                  // Qwen3 32B
      {5120, 17408, 40, 8, 128, 151936, {1, 2, 4}, {4096, 8192}},                        // Qwen3 14B
      {5120, 13824, 40, 8, 128, 152064, {1, 2, 4}, {4096}},                              // Qwen2.5 14B
      {4096, 12288, 32, 8, 128, 151936, {1, 2, 4}, {4096, 8192, 2048}},                  // Qwen3 8B
      {3584, 18944, 28, 4, 128, 152064, {1, 2, 4}, {4096, 8192, 2048}},                  // Qwen2.5 7B
      {2560, 9728, 32, 8, 128, 151936, {1, 2}, {4096, 8192}},                            // Qwen3 4B
      {2048, 11008, 16, 2, 128, 151936, {1, 2}, {4096, 8192}},                           // Qwen2.5 3B
      {2048, 6144, 16, 8, 128, 151936, {1, 2}, {4096, 8192}},                            // Qwen3 1.7B
      {1536, 8960, 12, 2, 128, 151936, {1}, {4096, 8192}},                               // Qwen2.5 1.5B
      {1024, 3072, 16, 8, 128, 151936, {1}, {4096, 8192}},                               // Qwen3 0.6B
  };
  return list;
}

class Grid {
 public:
  void add(std::string family, List dims) {
    Key key{std::move(family), std::move(dims)};
    if (seen_.insert(key).second) keys_.push_back(std::move(key));
  }
  void product(const std::string& family, const std::vector<List>& axes) { product(family, axes, {}); }

  /// The three products of a linear layer, every form of its weight gradient (added in fp32 or bf16, or written anew).
  void linear(I in, I out, I tokens, bool fp8) {
    add("gemm.bf16.tn", {out, tokens, in});
    add("gemm.bf16.nn", {in, tokens, out});
    add("gemm.bf16.nt.acc_f32", {in, out, tokens});
    add("gemm.bf16.nt.acc_bf16", {in, out, tokens});
    add("gemm.bf16.nt", {in, out, tokens});
    if (!fp8) return;
    add("gemm.fp8.tn", {out, tokens, in});
    add("gemm.fp8.tn.split", {in, tokens, out});
    add("gemm.fp8.tn.acc_f32", {in, out, tokens});
    add("gemm.fp8.tn.acc_bf16", {in, out, tokens});
    add("gemm.fp8.tn.out_bf16", {in, out, tokens});
  }

  /// A linear layer whose FP8 operands are scaled by blocks.
  void block_scaled(I in, I out, I tokens) {
    add("gemm.fp8.block.tn", {out, tokens, in});
    add("gemm.fp8.block.tn", {in, tokens, out});
    add("gemm.fp8.block.tn.acc_f32", {in, out, tokens});
    add("gemm.fp8.block.tn.acc_bf16", {in, out, tokens});
    add("gemm.fp8.block.tn.out_bf16", {in, out, tokens});
  }

  /// MXFP8 and NVFP4: the three products of a layer, all TN.
  void scaled_along_k(I in, I out, I tokens, bool all) {
    for (const char* family : {"gemm.mxfp8.tn", "gemm.nvfp4.tn"}) {
      const std::string name = family;
      add(name, {out, tokens, in});
      add(name, {in, tokens, out});
      add(name + ".acc_f32", {in, out, tokens});
      add(name + ".acc_bf16", {in, out, tokens});
      if (all) add(name + ".out_bf16", {in, out, tokens});
    }
  }

  void layer(const Model& m, I tp, I tokens) {
    const I groups = std::max<I>(m.groups / tp, 1);
    linear(m.hidden, 2 * m.ffn / tp, tokens, true);
    linear(m.ffn / tp, m.hidden, tokens, true);
    linear(m.hidden, (m.heads / tp + 2 * groups) * m.dim, tokens, true);
    linear(m.heads / tp * m.dim, m.hidden, tokens, true);
  }

  // Parts of a layer's products that tensor-parallel userbuffers split over the ranks or in four (TE
  // pytorch/module/base.py:336-387).
  void layer_parts(const Model& m, I tp, I tokens) {
    const I groups = std::max<I>(m.groups / tp, 1);
    const I qkv = (m.heads / tp + 2 * groups) * m.dim, fc1 = 2 * m.ffn / tp;
    const I proj = m.heads / tp * m.dim, fc2 = m.ffn / tp;
    for (const I out : {qkv, fc1}) {
      for (const char* family : {"gemm.bf16.tn", "gemm.fp8.tn"}) add(family, {out, tokens / tp, m.hidden});
    }
    for (const I in : {proj, fc2}) {
      for (const char* family : {"gemm.bf16.nn", "gemm.fp8.tn.split"}) add(family, {in, tokens / tp, m.hidden});
      for (const char* family : {"gemm.bf16.tn", "gemm.fp8.tn"}) add(family, {m.hidden, tokens / 4, in});
    }
  }

  void attention(I batch, I sequence, I heads, I groups, I dim) {
    for (const char* pass : {"attention.forward.bf16", "attention.backward.bf16"}) {
      add(pass, {batch, sequence, sequence, heads, groups, dim});
    }
  }

  void dropped(I batch, I sequence, I heads, I groups, I dim) {
    for (const char* pass : {"attention.dropout.forward.bf16", "attention.dropout.backward.bf16"}) {
      add(pass, {batch, sequence, sequence, heads, groups, dim});
    }
  }

  void windowed(const char* kind, I sequence, I heads, I groups, I dim, I window) {
    for (const char* pass : {"forward", "backward"}) {
      add(fmt::format("attention.{}.{}.bf16", kind, pass),
          {1, sequence, sequence, heads, groups, dim, std::min(window, sequence)});
    }
  }

  /// The products of a layer's local experts, both linear layers of each, every form of the weight gradient.
  void experts(I hidden, I ffn, I experts, I rows) {
    const auto linear = [&](I in, I out) {
      add("gemm.grouped.bf16.tn", {experts, rows, out, in});
      add("gemm.grouped.bf16.nn", {experts, rows, in, out});
      add("gemm.grouped.bf16.nt.acc_f32", {experts, rows, out, in});
      add("gemm.grouped.fp8.tn", {experts, rows, out, in});
      add("gemm.grouped.fp8.tn.split", {experts, rows, in, out});
      add("gemm.grouped.fp8.tn.acc_f32", {experts, rows, out, in});
      for (const char* family : {"bf16.nt", "bf16.nt.acc_bf16", "fp8.tn.acc_bf16", "fp8.tn.out_bf16"})
        add(std::string("gemm.grouped.") + family, {experts, rows, out, in});
    };
    linear(hidden, 2 * ffn);
    linear(ffn, hidden);
  }

  std::vector<Key> take() { return std::move(keys_); }

 private:
  void product(const std::string& family, const std::vector<List>& axes, List dims) {
    if (dims.size() == axes.size()) return add(family, std::move(dims));
    for (const I x : axes[dims.size()]) {
      List next = dims;
      next.push_back(x);
      product(family, axes, std::move(next));
    }
  }

  std::set<Key> seen_;
  std::vector<Key> keys_;
};

List powers(I first, I last, I factor = 2) {
  List result;
  for (I x = first; x <= last; x *= factor) result.push_back(x);
  return result;
}

void memory_bound(Grid& g, bool quick) {
  const List rows = quick ? List{4096} : List{4096, 1024, 2048, 8192, 16384, 512};
  const List widths = quick ? List{4096, 8192} : List{4096, 8192, 16384, 5120, 2048, 1024};
  const List ffns = quick ? List{7168, 14336} : List{14336, 7168, 28672, 3584, 1792, 53248};
  const List sizes = quick ? List{1 << 20, 1 << 24, 1 << 28} : powers(1 << 19, 1 << 30);  // bf16 elements, or bytes
  for (const char* f : {"rmsnorm.forward", "rmsnorm.backward"}) g.product(f, {rows, widths});
  for (const char* f : {"swiglu.forward", "swiglu.backward"}) g.product(f, {rows, ffns});
  const List heads = quick ? List{8, 32} : List{32, 8, 16, 64, 4, 2, 1, 128};
  for (const char* f : {"rope.forward", "rope.backward"}) {
    g.product(f, {quick ? rows : List{4096, 2048, 8192, 16384}, heads, {128}});
    if (!quick) g.product(f, {{4096}, {4, 16, 32}, {64}});
  }
  // q (heads of a group together) and v out of the fused projection: tokens x groups rows.
  // and whole tensors of it (a gate, an exchange's order, the embedding's transposition): one row a token.
  g.product("copy.strided",
            {quick ? List{32768} : powers(2048, 131072), quick ? List{128, 512} : List{128, 512, 1024, 2048}});
  if (!quick) g.product("copy.strided", {{1024, 2048, 4096, 8192, 16384}, {3072, 4096, 6144, 8192}});
  g.product("cat", {quick ? rows : List{2048, 4096, 8192, 16384},
                    quick ? List{6144} : List{6144, 768, 1536, 3072, 10240, 20480}});
  for (const char* f : {"add", "cast.bf16_f32", "cast.f32_bf16", "amax", "cast.fp8"}) {
    for (const I n : sizes)
      if (n <= 1 << 29) g.add(f, {n});
  }
  for (const char* f : {"add.f32", "l2norm", "scale", "adam"}) {
    for (const I n : sizes)
      if (n <= 1 << 28) g.add(f, {n});
  }
  if (quick) g.add("adam", {20971520});
  for (const char* f : {"fill", "memset", "copy.d2d"}) {
    for (const I n : sizes) g.add(f, {n});
  }
  for (const char* f : {"copy.d2h", "copy.h2d"}) {
    for (const I n : quick ? List{1 << 20, 1 << 25} : powers(1 << 16, 1 << 28, 4)) g.add(f, {n});
  }
  for (const char* f : {"cast_transpose.fp8", "transpose.fp8"}) {
    g.product(f, {rows, quick ? List{4096, 14336} : List{4096, 8192, 14336, 28672, 6144, 2048}});
  }
  if (!quick) {
    g.product("cast_transpose.fp8.general",
              {{4112, 272, 528, 1040, 2064, 8208, 16400, 32784}, {2048, 512, 768, 1408, 4096, 7168}});
    g.product("quantize.blockwise.fp8",
              {{4096, 512, 1024, 2048, 8192, 16384, 65536}, {2048, 768, 1536, 4096, 7168, 8192, 14336, 28672}});
    for (const char* f : {"layernorm.forward", "layernorm.backward"})
      g.product(f, {{4096, 1024, 2048, 8192, 16384}, {2048, 1024, 3072, 4096, 5120, 6144, 8192, 12288, 16384}});
    for (const char* f : {"gelu.forward", "gelu.backward", "squared_relu.forward", "squared_relu.backward"}) {
      g.product(f, {{4096, 1024, 2048, 8192, 16384}, {2048, 4096, 8192, 16384, 28672}});
    }
    for (const char* f : {"dropout.forward", "dropout.backward"}) g.product(f, {powers(1 << 19, 1 << 29)});
  }
  const List tokens = quick ? List{4096} : List{4096, 2048, 8192, 1024};
  const List vocabularies = quick ? List{32000} : List{32000, 128256, 32064, 16032, 152064, 64128, 19008};
  for (const char* f : {"unfused.forward", "unfused.backward", "native.forward", "native.backward"}) {
    g.product(std::string("cross_entropy.") + f, {tokens, vocabularies});
  }
  g.product("embedding.forward", {tokens, quick ? List{4096} : List{4096, 1024, 2048, 8192, 16384}});
  g.product("embedding.backward", {tokens, quick ? List{4096} : List{4096, 8192, 2048, 16384},
                                   quick ? List{32000} : List{32000, 16032, 128256, 152064}});
  g.add("small", {});
}

// Mixtral 8x7B; Qwen3 30B-A3B and 235B-A22B; DeepSeek-V2-Lite and V3; OLMoE; GPT-OSS (config.json of each): local
// experts of usual expert-parallel sizes, rows of balanced routing.
void experts(Grid& g, bool quick) {
  if (quick) {
    g.experts(4096, 14336, 4, 8192);
    g.experts(2048, 768, 16, 32768);
  } else {
    for (const I local : {4, 2, 1, 8})
      for (const I rows : {8192, 4096, 16384, 32768}) g.experts(4096, 14336, local, rows);
    for (const I local : {16, 4, 8, 32, 1, 2})
      for (const I rows : {32768, 8192, 16384, 4096, 65536}) {
        g.experts(2048, 768, local, rows);
        g.experts(4096, 1536, local, rows);
        g.experts(7168, 2048, local, rows);
      }
    for (const I local : {64, 128})
      for (const I rows : {32768, 16384, 65536}) g.experts(2048, 768, local, rows);
    for (const I local : {64, 32, 8})
      for (const I rows : {24576, 32768, 65536}) {
        g.experts(2048, 1408, local, rows);
        g.experts(2048, 1024, local, rows);
      }
    for (const I local : {32, 16, 8, 4, 2})  // GPT-OSS 20B (32 experts) and 120B (128)
      for (const I rows : {16384, 8192, 32768, 65536}) g.experts(2880, 2880, local, rows);
  }
  const List tokens = quick ? List{4096} : List{4096, 2048, 8192, 1024, 16384},
             rows = quick ? List{8192, 32768} : powers(4096, 131072),
             hiddens = quick ? List{2048, 4096} : List{2048, 2880, 4096, 7168},
             topks = quick ? List{2, 8} : List{1, 2, 4, 6, 8};
  for (const char* f : {"moe.swiglu.forward", "moe.swiglu.backward"})
    g.product(f, {rows, quick ? List{768, 14336} : List{768, 1024, 1408, 1536, 2048, 2880, 5632, 14336}});
  for (const char* f : {"moe.router.gemm.forward", "moe.router.gemm.backward", "moe.router.gemm.bf16.tn",
                        "moe.router.gemm.bf16.nn", "moe.router.gemm.bf16.nt"})
    g.product(f, {tokens, hiddens, quick ? List{8, 32} : List{8, 32, 64, 128, 256}});
  for (const char* f :
       {"moe.permute.forward", "moe.permute.backward", "moe.unpermute.forward", "moe.unpermute.backward"})
    g.product(f, {tokens, hiddens, topks});
  g.product("moe.sort_chunks", {rows, hiddens});
}

// One group a head (GPT), and heads narrower or wider than 128.
void other_heads(Grid& g) {
  for (const I heads : {8, 16, 32, 40}) {
    for (const I sequence : {2048, 4096, 8192}) g.attention(1, sequence, heads, heads, 128);
  }
  for (const I batch : {2, 4}) g.attention(batch, 2048, 32, 32, 128);
  for (const auto& [heads, groups] : {std::pair<I, I>{32, 8}, {32, 4}, {32, 32}, {16, 16}, {14, 2}, {12, 12}}) {
    for (const I sequence : {1024, 2048, 4096, 8192}) g.attention(1, sequence, heads, groups, 64);
    for (const I batch : {4, 8}) g.attention(batch, 2048, heads, groups, 64);
  }
  for (const I dim : {80, 96, 256}) {
    for (const auto& [heads, groups] : {std::pair<I, I>{16, 16}, {32, 8}}) {
      for (const I sequence : {2048, 4096, 8192}) g.attention(1, sequence, heads, groups, dim);
    }
  }
}

// Dropout: GPT-3 (a group a head, 128 and 64 wide) and grouped queries at their tensor-parallel sizes.
void dropped(Grid& g) {
  for (const auto& [heads, groups] : {std::pair<I, I>{32, 8}, {32, 32}, {16, 16}, {16, 4}, {8, 2}, {8, 8}, {64, 8}}) {
    for (const I sequence : {4096, 2048, 8192, 1024}) g.dropped(1, sequence, heads, groups, 128);
  }
  for (const auto& [heads, groups] : {std::pair<I, I>{16, 16}, {32, 32}, {12, 12}, {32, 8}}) {
    for (const I sequence : {1024, 2048, 4096}) g.dropped(1, sequence, heads, groups, 64);
  }
  for (const I batch : {2, 4}) {
    g.dropped(batch, 2048, 32, 32, 128);
    g.dropped(batch, 4096, 32, 8, 128);
    g.dropped(2 * batch, 2048, 16, 16, 64);
  }
}

// Sliding windows and sinks (config.json of each model): GPT-OSS at its tensor-parallel sizes, with and without a
// window; Mistral and Mixtral (32 heads of 128, 4096 keys), Phi-3 mini (32 of 96, 2047), Gemma 2 and 3 (256 wide but
// for 27B).
void windows(Grid& g) {
  for (const auto& [heads, groups] : {std::pair<I, I>{64, 8}, {32, 4}, {16, 2}, {8, 1}}) {
    for (const I sequence : {4096, 8192, 2048, 16384, 32768}) {
      if (heads < 32 && sequence > 8192) continue;
      for (const I window : {I{128}, sequence}) g.windowed("sink", sequence, heads, groups, 64, window);
    }
  }
  for (const I window : {512, 1024, 4096}) g.windowed("sink", 8192, 64, 8, 64, window);
  for (const auto& [heads, groups] : {std::pair<I, I>{32, 8}, {16, 4}, {8, 2}, {32, 16}}) {
    for (const I sequence : {4096, 8192, 16384}) {
      for (const I window : {128, 512, 1024, 2048, 4096}) {
        if (window < sequence && (heads == 32 || window != 512))
          g.windowed("window", sequence, heads, groups, 128, window);
      }
    }
  }
  for (const auto& [heads, groups] : {std::pair<I, I>{16, 8}, {8, 4}, {4, 1}}) {
    for (const I sequence : {4096, 8192, 16384}) {
      for (const I window : {512, 1024, 4096}) {
        if (window < sequence) g.windowed("window", sequence, heads, groups, 256, window);
      }
    }
  }
  for (const auto& [heads, groups, dim] : {std::array<I, 3>{32, 32, 96}, {32, 8, 64}}) {
    for (const I sequence : {4096, 8192}) {
      for (const I window : {128, 512, 2048}) g.windowed("window", sequence, heads, groups, dim, window);
    }
  }
}

// What Blackwell's tensor cores take: layers of Llama 8B, 70B and 405B and of DeepSeek-V3, experts of it and of Qwen3,
// casts of their inputs.
void scaled_along_k(Grid& g, bool quick) {
  for (const I tokens : quick ? List{4096} : List{4096, 2048, 8192, 16384})
    for (const auto& [in, out] :
         quick ? std::vector<std::pair<I, I>>{{4096, 28672}, {8192, 8192}}
               : std::vector<std::pair<I, I>>{
                     {4096, 28672},  {14336, 4096},  {4096, 6144},   {4096, 4096},   {8192, 14336}, {7168, 8192},
                     {8192, 28672},  {14336, 8192},  {8192, 5120},   {8192, 8192},   {8192, 57344}, {28672, 8192},
                     {16384, 26624}, {13312, 16384}, {16384, 18432}, {16384, 16384}, {16384, 5120}, {4096, 16384},
                     {7168, 2112},   {1536, 24576},  {512, 32768},   {16384, 7168},  {7168, 4096},  {2048, 7168}})
      g.scaled_along_k(in, out, tokens, tokens == 4096);
  for (const I experts : quick ? List{8} : List{4, 8, 16, 32})
    for (const I rows : quick ? List{32768} : List{8192, 16384, 32768, 65536})
      for (const auto& [in, out] : {std::pair<I, I>{7168, 4096}, {2048, 7168}, {4096, 3072}, {1536, 4096}})
        for (const std::string family : {"gemm.grouped.mxfp8.tn", "gemm.grouped.nvfp4.tn"})
          for (const I forward : {0, 1}) {
            g.add(family, {experts, rows, forward ? out : in, forward ? in : out});
            if (!forward) continue;
            g.add(family + ".acc_f32", {experts, rows, out, in});
            g.add(family + ".acc_bf16", {experts, rows, out, in});
            if (rows == 32768) g.add(family + ".out_bf16", {experts, rows, out, in});
          }
  for (const char* f : {"quantize.mxfp8", "quantize.nvfp4"})
    g.product(
        f, {quick ? List{4096} : List{4096, 1024, 16384, 65536}, quick ? List{8192} : List{4096, 2048, 8192, 28672}});
}

// FP8 scaled by blocks: layers of Llama 8B and 70B and of DeepSeek-V3, and experts.
void block_scaled(Grid& g) {
  for (const I tokens : {2048, 4096, 8192}) {
    for (const auto& [in, out] : {std::pair<I, I>{4096, 28672},
                                  {14336, 4096},
                                  {4096, 6144},
                                  {4096, 4096},
                                  {8192, 28672},
                                  {14336, 8192},
                                  {8192, 5120},
                                  {4096, 8192},
                                  {7168, 4096},
                                  {2048, 7168},
                                  {16384, 7168},
                                  {1536, 24576},
                                  {2048, 11264},
                                  {5632, 2048},
                                  {2048, 2048}})
      g.block_scaled(in, out, tokens);
  }
  for (const I experts : {4, 8, 16, 32, 64}) {
    for (const I rows : {8192, 32768, 65536}) {
      for (const auto& [in, out] : {std::pair<I, I>{4096, 28672},
                                    {14336, 4096},
                                    {7168, 4096},
                                    {2048, 7168},
                                    {2048, 1536},
                                    {768, 2048},
                                    {4096, 3072},
                                    {1536, 4096}}) {
        g.add("gemm.grouped.fp8.block.tn", {experts, rows, out, in});
        g.add("gemm.grouped.fp8.block.tn", {experts, rows, in, out});
        g.add("gemm.grouped.fp8.block.tn.acc_f32", {experts, rows, out, in});
        g.add("gemm.grouped.fp8.block.tn.acc_bf16", {experts, rows, out, in});
        g.add("gemm.grouped.fp8.block.tn.out_bf16", {experts, rows, out, in});
      }
    }
  }
}

// Multi-latent attention of DeepSeek-V2 and V3: q and k of 128 + 64, v of 128, heads over the tensor-parallel ranks.
void latent_attention(Grid& g, bool quick) {
  const List heads = quick ? List{16, 128} : List{128, 64, 32, 16},
             tokens = quick ? List{4096} : List{4096, 2048, 8192};
  for (const char* pass : {"attention.mla.forward.bf16", "attention.mla.backward.bf16"}) {
    for (const I h : heads)
      for (const I s : tokens) g.add(pass, {1, s, s, h, 192, 128});
    if (!quick)
      for (const I batch : {2, 4})
        for (const I s : {2048, 4096}) g.add(pass, {batch, s, s, 16, 192, 128});
  }
  for (const char* f : {"rope.mla.forward", "rope.mla.backward"})
    g.product(f, {quick ? tokens : List{4096, 2048, 8192, 16384}, heads, {64, 288}});
  if (quick) return;
  for (const I s : tokens) {
    for (const auto& [in, out] : {std::pair<I, I>{7168, 1536},  // q and kv down, q and kv up, projection of V3
                                  {7168, 576},
                                  {7168, 2112},
                                  {1536, 24576},
                                  {512, 32768},
                                  {16384, 7168},
                                  {7168, 4096},  // shared expert, first dense layers
                                  {2048, 7168},
                                  {7168, 36864},
                                  {18432, 7168},
                                  {2048, 3072},  // V2 Lite
                                  {512, 4096}}) {
      g.linear(in, out, s, true);
    }
  }
  for (const char* f : {"rmsnorm.forward", "rmsnorm.backward"}) {
    g.product(f, {tokens, {7168, 1536, 512}});
    g.product(f, {{16384, 32768, 131072, 262144}, {128}});  // norms of a head's query and key
  }
}

}  // namespace

std::vector<Key> grid(bool quick) {
  Grid g;
  if (quick) {
    g.layer(models()[0], 1, 4096);
    g.layer(models()[1], 4, 4096);
    for (const I vocab : {32000, 128256 / 4}) g.linear(4096, vocab, 4096, false);
    g.attention(1, 4096, 32, 8, 128);
    g.attention(1, 4096, 16, 2, 128);
    g.dropped(1, 4096, 32, 8, 128);
    g.windowed("window", 4096, 32, 8, 128, 1024);
    g.windowed("sink", 4096, 64, 8, 64, 128);
    memory_bound(g, true);
    experts(g, true);
    latent_attention(g, true);
    for (const auto& [in, out] : {std::pair<I, I>{4096, 28672}, {8192, 8192}}) g.block_scaled(in, out, 4096);
    scaled_along_k(g, true);
    return g.take();
  }
  // Llama 8B and 70B with every form, then attention and memory-bound kernels, then the other models.
  for (std::size_t i = 0; i < 2; ++i) {
    const Model& m = models()[i];
    for (const I tp : m.tensor_parallel) g.layer(m, tp, 4096);
  }
  g.linear(4096, 32000, 4096, false);
  for (const I tp : {1, 2, 4, 8}) {
    g.linear(4096, 128256 / tp, 4096, false);
    g.linear(8192, 128256 / tp, 4096, false);
  }
  for (const auto& [heads, groups] : {std::pair<I, I>{32, 8},
                                      {16, 2},
                                      {8, 1},
                                      {64, 8},
                                      {16, 4},
                                      {8, 2},
                                      {32, 4},
                                      {40, 8},
                                      {20, 4},
                                      {10, 2},
                                      {28, 4},
                                      {14, 2},
                                      {7, 1},
                                      {16, 8},
                                      {12, 2},
                                      {4, 1},
                                      {16, 1}}) {
    for (const I sequence : {4096, 8192, 2048}) g.attention(1, sequence, heads, groups, 128);
  }
  for (const I batch : {2, 4}) {
    g.attention(batch, 4096, 32, 8, 128);
    g.attention(batch, 2048, 16, 2, 128);
  }
  for (const I sequence : {1024, 16384, 32768}) {
    g.attention(1, sequence, 32, 8, 128);
    g.attention(1, sequence, 8, 1, 128);
  }
  other_heads(g);
  dropped(g);
  windows(g);
  block_scaled(g);
  scaled_along_k(g, false);
  memory_bound(g, false);
  experts(g, false);
  latent_attention(g, false);
  // Attention blocks and output layer of GPT-OSS, attention blocks of Qwen3 30B-A3B and 235B-A22B.
  for (const I tokens : {4096, 2048, 8192}) {
    for (const auto& [in, out] : {std::pair<I, I>{2880, 5120}, {4096, 2880}}) g.linear(in, out, tokens, true);
    g.linear(2880, 201088, tokens, false);
  }
  for (const I tokens : {4096, 2048, 8192}) {
    for (const auto& [in, out] : {std::pair<I, I>{2048, 5120}, {4096, 2048}, {4096, 9216}, {8192, 4096}})
      g.linear(in, out, tokens, true);
    g.attention(1, tokens, 64, 4, 128);
  }
  for (const Model& m : models()) {
    for (const I tp : m.tensor_parallel) {
      for (const I tokens : m.tokens) {
        if (tokens == 16384 && 2 * m.ffn / tp * m.hidden > I{1} << 27) continue;
        g.layer(m, tp, tokens);
      }
    }
  }
  for (const Model& m : models()) {
    for (const I tp : m.tensor_parallel) {
      for (const I tokens : m.tokens) {
        if (tp > 1 && tokens >= 2048 && tokens <= 8192) g.layer_parts(m, tp, tokens);
      }
    }
  }
  // Output layers: bf16 in every recipe that Megatron's defaults give.
  for (const I hidden : {4096, 8192, 2048, 5120, 16384}) {
    for (const I vocab : {128256, 152064, 32064, 38016, 16032, 64128}) {
      if (hidden == 16384 && vocab > 40000) continue;
      for (const I tokens : {4096, 2048, 8192}) {
        if (tokens != 4096 && hidden * vocab > I{1} << 30) continue;
        g.linear(hidden, vocab, tokens, false);
      }
    }
  }
  // The regular grid: out, tokens, in.
  for (const I tokens : {1024, 2048, 4096, 8192, 16384}) {
    for (const I out : {1024, 2304, 4608, 10240, 20480, 40960}) {
      for (const I in : {1024, 2304, 4608, 10240, 20480, 40960}) {
        if (2.0 * static_cast<double>(out * in) * static_cast<double>(tokens) > 5e12) continue;
        g.linear(in, out, tokens, true);
      }
    }
  }
  return g.take();
}

std::vector<I> message_sizes(bool quick) { return quick ? powers(1 << 16, 1 << 28, 16) : powers(1 << 16, 1 << 30); }

}  // namespace pipewright::capture
