// Packed sequences in predictions: what must be alike, what must be less, and both engines.
#include <doctest/doctest.h>

#include <map>

#include "../plan/bases.hpp"
#include "pipewright/bounds.hpp"
#include "pipewright/effects.hpp"
#include "pipewright/predict.hpp"
#include "pipewright/scenario/derived.hpp"
#include "pipewright/scenario/packing.hpp"

namespace packed_test {

using namespace pipewright;

namespace {

const profile::Profiles& h200() {
  static const profile::Profiles loaded(
      {profile::load(std::string(SOURCE_ROOT) + "/profiles/h200-sxm.json", {"test", 0})});
  return loaded;
}

scenario::Scenario packed(std::string_view base, const std::string& lengths, const std::string& more = "") {
  return test::scenario(base,
                        "profile=h200-sxm; apply_rope_fusion=true; bias_activation_fusion=true; "
                        "bias_dropout_fusion=true; moe_permute_fusion=true; sft=true; sequence_lengths=[" +
                            lengths + "]" + (more.empty() ? "" : "; " + more));
}

/// Of attention in a microbatch: what its kernels take alone.
double attention_ns(const predict::Run& run, int microbatch) {
  const auto& graph = run.timeline.graph;
  double ns = 0;
  for (std::size_t i = 0; i < graph.size(); ++i) {
    const auto& label = graph.labels[i];
    if (label.rank != 0 || label.kind != timeline::NodeKind::kernel || label.instruction == timeline::Label::none)
      continue;
    const auto* kernel = timeline::kernel_of(run.stages, label);
    const auto& instruction = run.program.ranks[0].instructions[label.instruction];
    if (kernel != nullptr && kernel->key.family.starts_with("attention.thd.") &&
        kernel->key.family.ends_with("forward.bf16") && instruction.microbatch == microbatch)
      ns += run.timeline.prices.pieces[label.piece()][label.kernel()].time.ns;
  }
  return ns;
}

}  // namespace

TEST_CASE("sequences that fill their rows are predicted as unpacked ones, but for kernels of variable lengths") {
  for (const char* base : {"dense", "tensor", "single"}) {
    CAPTURE(base);
    const auto full = predict::predict(packed(base, "4096*20"), h200());
    const auto plain = predict::predict(packed(base, "4096*20", "sft=false"), h200());
    // One sequence of 4096: 17 % longer forward, 12 % backward (h200-sxm), of a tenth of the step.
    CHECK(full.step_ns > plain.step_ns);
    CHECK(static_cast<double>(full.step_ns) < 1.03 * static_cast<double>(plain.step_ns));
    CHECK(full.tflops_per_gpu * static_cast<double>(full.step_ns) ==
          doctest::Approx(plain.tflops_per_gpu * static_cast<double>(plain.step_ns)));
    for (std::size_t r = 0; r < full.ranks.size(); ++r) {
      CHECK(full.ranks[r].walk.peak_allocated == plain.ranks[r].walk.peak_allocated);
      CHECK(full.ranks[r].walk.peak_reserved == plain.ranks[r].walk.peak_reserved);
    }
  }
}

TEST_CASE("attention of a packed row is timed by its pairs at the rate of its length") {
  // Two rows a rank: 4 x 1024 and 2 x 2048 tokens (first fit keeps ready rows).
  predict::Run run;
  predict::predict(packed("single", "1024+1024+1024+1024*8, 2048+2048*8", "pack_order=balanced"), h200(), &run);
  const auto time = [](std::int64_t batch, std::int64_t length) {
    return h200().time({"attention.thd.forward.bf16", {batch, length, length, 32, 8, 128}}).ns;
  };
  const double layers = 8;
  // Balanced deals the longest rows first.
  CHECK(attention_ns(run, 0) == doctest::Approx(layers * time(2, 2048)).epsilon(1e-4));
  CHECK(attention_ns(run, 1) == doctest::Approx(layers * time(4, 1024)).epsilon(1e-4));
  CHECK(attention_ns(run, 0) > attention_ns(run, 1));
}

TEST_CASE("blocks and sequences laid out for nothing cost what each was measured to") {
  // A rank has 4 of 1024 in one row; the fullest has 40 (41 with its padding), the emptiest lacks 4000 tokens.
  const std::string fullest = "100+" + [] {
    std::string all;
    for (int i = 0; i < 38; ++i) all += "100+";
    return all + "100";
  }();
  const auto kernels = [&](const std::string& more) {
    const auto s = packed("single", "1024+1024+1024+1024*1000, " + fullest + ", 48+48",
                          "software.megatron_bridge=0.5.0; pack_order=balanced; " + more);
    const auto stages = model::build(s, h200().device());
    std::map<std::string, std::int64_t> empty;
    for (const auto& piece : stages.pieces)
      for (const auto& kernel : piece.kernels)
        if (kernel.key.family.starts_with("rope.") || kernel.key.family.starts_with("attention.thd."))
          empty[kernel.key.family] = std::max(empty[kernel.key.family], kernel.empty);
    return empty;
  };
  auto told = kernels("pad_cu_seqlens=true; software.transformer_engine=2.16.1");
  CHECK(told["rope.forward"] == 41 * 4000 - 4096);
  CHECK(told["rope.backward"] == 41 * 4000 - 4096);
  CHECK(told["attention.thd.forward.bf16"] == 64 - 32);                       // graphs of 32 sequences, of 64, ...
  told = kernels("pad_cu_seqlens=true; software.transformer_engine=2.19.0");  // a block for every token
  CHECK(told["rope.forward"] == 0);
  CHECK(told["attention.thd.backward.bf16"] == 64 - 32);
  told = kernels("software.transformer_engine=2.16.1");
  CHECK(told["rope.forward"] == 0);  // four of 1024 fill the row
  CHECK(told["attention.thd.forward.bf16"] == 0);

  const auto step = [&](const char* padded) {
    return static_cast<double>(
        predict::predict(
            packed("single", "1024+1024+1024+1024*1000, " + fullest + ", 48+48",
                   "software.megatron_bridge=0.5.0; software.transformer_engine=2.16.1; pack_order=balanced; "
                   "pad_cu_seqlens=" +
                       std::string(padded)),
            h200())
            .step_ns);
  };
  const auto us = [](const char* family) { return h200().scalar(std::string(family) + ".empty_us").value; };
  // Of eight layers and two microbatches; q and k each rotate.
  const double more = 1e3 * 8 * 2 *
                      (2 * (41 * 4000 - 4096) * (us("rope.forward") + us("rope.backward")) +
                       32 * (us("attention.thd.forward.bf16") + us("attention.thd.backward.bf16")));
  CHECK(step("true") - step("false") == doctest::Approx(more).epsilon(0.25));  // under load a little longer
}

// Rows of sequences up to the window have no use for it; longer ones see less than without, and more than with half.
TEST_CASE("a window takes attention of packed rows by its pairs, layers without one as before") {
  const auto step = [](const char* lengths, const std::string& window) {
    return predict::predict(packed("single", lengths, window), h200()).step_ns;
  };
  for (const char* lengths : {"4096*40", "2048*80", "1500*90, 300*200"}) {
    CAPTURE(lengths);
    const auto full = step(lengths, ""), wide = step(lengths, "window_size=[1023, 0]"),
               half = step(lengths, "window_size=[127, 0]"),
               every_second = step(lengths, "window_size=[127, 0]; window_attn_skip_freq=2");
    CHECK(wide < full);
    CHECK(half < wide);
    CHECK(half < every_second);
    CHECK(every_second < full);
  }
  // The kernels of 256 tokens with and without: measured within 2 % of each other.
  CHECK(static_cast<double>(step("256*640", "window_size=[511, 0]")) ==
        doctest::Approx(static_cast<double>(step("256*640", ""))).epsilon(0.02));
  for (const auto& [change, why] :
       {std::pair("softmax_type=learnable", "sinks"),
        std::pair("window_size=[127, 0]; cp=2; $CUDA_DEVICE_MAX_CONNECTIONS=1", "window")}) {
    CAPTURE(change);
    CHECK_THROWS_WITH_AS(scenario::refuse_unmodelled(packed("single", "256*640", change)), doctest::Contains(why),
                         UsageError);
  }
}

TEST_CASE("sinks add to packed rows what they add to sequences of one length, and need a cuDNN that serves them") {
  constexpr std::int64_t length = 1024, batch = 4, layers = 8;
  const auto with = [](const std::string& more) {
    return packed("single", "1024*80",
                  "num_attention_heads=64; num_query_groups=8; kv_channels=64; software.transformer_engine=2.16.0; "
                  "software.cudnn=9.20.0; " +
                      more);
  };
  for (const std::int64_t window : {std::int64_t{128}, std::int64_t{512}, length, 4 * length}) {
    CAPTURE(window);
    const std::string windowed = window == length ? "" : "; window_size=[" + std::to_string(window - 1) + ", 0]";
    predict::Run sinks, plain;
    const auto a = predict::predict(with("softmax_type=learnable" + windowed), h200(), &sinks);
    const auto b = predict::predict(with("softmax_type=vanilla" + windowed), h200(), &plain);
    CHECK(a.step_ns > b.step_ns);
    CHECK(a.ignored.empty());
    const std::int64_t seen = std::min(window, length);
    const std::vector<std::int64_t> all = {batch, length, length, 64, 8, 64};
    auto within = all;
    within.push_back(seen);
    const double unpacked = seen < length ? h200().time({"attention.window.forward.bf16", within}).ns
                                          : h200().time({"attention.forward.bf16", all}).ns;
    CHECK(attention_ns(sinks, 0) / attention_ns(plain, 0) ==
          doctest::Approx(h200().time({"attention.sink.forward.bf16", within}).ns / unpacked).epsilon(1e-3));
    CHECK(attention_ns(sinks, 0) > layers * unpacked);
  }
  for (const auto& [te, cudnn, serves] : {std::tuple("2.16.0", "9.18.0", true),
                                          {"2.16.0", "9.17.1", false},
                                          {"2.20.2", "9.26.0", true},
                                          {"2.20.2", "9.25.3", false},
                                          {"2.11.0", "9.26.0", false}}) {
    CAPTURE(te);
    CAPTURE(cudnn);
    const auto s =
        with(std::string("softmax_type=learnable; software.transformer_engine=") + te + "; software.cudnn=" + cudnn);
    if (serves)
      CHECK_NOTHROW(scenario::refuse_unmodelled(s));
    else
      CHECK_THROWS_WITH_AS(scenario::refuse_unmodelled(s), doctest::Contains("software.cudnn"), UsageError);
  }
}

// rope_utils.py of 0.19 rotates one sequence after the other: a slow host pays for each, a fused kernel for none.
TEST_CASE("hosts pay for every sequence of a row that is rotated by itself") {
  const auto step = [](int sequences, const char* fused) {
    std::string row = "[";
    for (int i = 0; i < sequences; ++i) row += (i > 0 ? "+" : "") + std::to_string(4096 / sequences);
    auto s = packed("single", "4096*20", "cluster.host_time_factor=2; software.megatron_core=0.19.0");
    scenario::set(s, "sequence_lengths=" + row + "*40]");
    scenario::set(s, std::string("apply_rope_fusion=") + fused);
    return static_cast<double>(predict::predict(s, h200()).step_ns);
  };
  // 18 kernels of a row forward, 13 of every other sequence; 7 and 11 backward
  // (tests/model/data/rotation_kernels.json).
  const auto each = [](const char* name) { return h200().scalar(name).value; };
  const auto s = packed("single", "4096*20");
  const double microbatches = static_cast<double>(scenario::num_microbatches(s));
  const double loops = 2e3 * 8 * microbatches * 2 * 56 *
                       (13 * each("host.forward.rotation_each_us") + 11 * each("host.backward.rotation_each_us"));
  const double more = step(64, "false") - step(8, "false");
  CHECK(more > 0.7 * loops);  // hosts that run ahead of the GPU hide some
  CHECK(more < 1.5 * loops);
  CHECK(step(64, "true") < step(8, "true") * 1.05);
}

TEST_CASE("shorter sequences take less time, and memory stays") {
  for (const char* base : {"dense", "tensor", "moe"}) {
    CAPTURE(base);
    std::int64_t before = INT64_MAX;
    Bytes peak;
    for (const char* lengths : {"4096*40", "2048*80", "1024*160", "512*320"}) {
      CAPTURE(lengths);
      const auto p = predict::predict(packed(base, lengths), h200());
      CHECK(p.step_ns < before);
      before = p.step_ns;
      // But for rotary tables of the longest sequence: at most two of a row's length, in fp32, 128 wide.
      const auto now = p.ranks[0].walk.peak_allocated;
      if (peak.value > 0) CHECK(std::abs(now.value - peak.value) <= 2 * 4 * 4096 * 128);
      peak = p.ranks[0].walk.peak_allocated;
    }
  }
}

TEST_CASE("both engines agree on microbatches that differ, and the floor stays below") {
  const std::string lengths = "200*900, 700*300, 1500*100, 4096*30";
  struct Case {
    const char *base, *more;
  };
  for (const auto& [base, more] : std::initializer_list<Case>{
           {"dense", "global_batch_size=256"},
           {"dense", "overlap_p2p_comm=false; virtual_pipeline_model_parallel_size=none; global_batch_size=96"},
           {"tensor", "global_batch_size=64; overlap_grad_reduce=true; overlap_param_gather=true"},
           {"tensor", "pack_order=balanced; global_batch_size=64; fp8=hybrid; fp8_recipe=tensorwise"},
           {"single", "global_batch_size=64; cp=2; $CUDA_DEVICE_MAX_CONNECTIONS=1"},
           {"single", "global_batch_size=64; cp=2; cp_comm_type=a2a; $CUDA_DEVICE_MAX_CONNECTIONS=1"},
           {"single", "recompute_granularity=full; recompute_method=uniform; recompute_num_layers=1"},
           {"single", "global_batch_size=64; window_size=[255, 0]; window_attn_skip_freq=2"},
           {"moe", "global_batch_size=64"},
           {"moe", "global_batch_size=64; overlap_moe_expert_parallel_comm=true"}}) {
    CAPTURE(base);
    CAPTURE(more);
    const auto s = packed(base, lengths, more);
    REQUIRE(scenario::rows_differ(s));
    const auto exact = predict::predict(s, h200());
    const double ratio =
        static_cast<double>(predict::estimate(s, h200()).step_ns) / static_cast<double>(exact.step_ns) - 1;
    const auto bounds = predict::estimate_bounds(s);
    CHECK(ratio <= bounds.over);
    CHECK(ratio >= -bounds.under);
    const auto floor = predict::floor(s, h200());
    CHECK(floor.step_ns <= exact.step_ns);
    CHECK(static_cast<double>(floor.step_ns) > 0.5 * static_cast<double>(exact.step_ns));
  }
}

TEST_CASE("heads that context-parallel ranks exchange have the attention of whole rows, each its part of it") {
  const auto pairs = [](const char* more) {  // of query, key and head, of all microbatches of a rank
    const auto s = packed("single", "200*900, 700*300, 1500*100, 4096*30", more);
    const auto stages = model::build(s, h200().device());
    double sum = 0;
    for (const auto& piece : stages.pieces) {
      if (piece.name != "layer") continue;
      for (const auto& step : piece.forward) {
        if (step.kind != model::Step::Kind::launch ||
            piece.kernels[step.index].timed_as == model::Kernel::TimedAs::itself)
          continue;
        const auto& kernel = piece.kernels[step.index];
        const auto& dims = kernel.key.dims;  // sequences, queries, keys, heads
        const auto length = static_cast<double>(dims[1]);
        sum += kernel.share * static_cast<double>((step.before_microbatch - step.from_microbatch) * dims[0] * dims[3]) *
               length * (length + 1) / 2;
      }
      break;
    }
    return sum;
  };
  const double one = pairs("num_gpus=2; global_batch_size=64");
  CHECK(one > 0);
  CHECK(pairs("num_gpus=4; global_batch_size=64; cp=2; cp_comm_type=a2a; $CUDA_DEVICE_MAX_CONNECTIONS=1") ==
        doctest::Approx(one / 2).epsilon(0.02));  // sequences are padded to four tokens
  CHECK(pairs("num_gpus=8; global_batch_size=64; cp=4; cp_comm_type=a2a; $CUDA_DEVICE_MAX_CONNECTIONS=1") ==
        doctest::Approx(one / 4).epsilon(0.04));
}

TEST_CASE("what another packing would change") {
  const auto gain = predict::find_packing(packed("single", "256*800, 4096*20", "global_batch_size=64"), h200());
  REQUIRE(gain);
  CHECK(gain->balanced < 0);
  CHECK(gain->balanced > -0.5);
  CHECK(gain->padded > 800.0 / 90);  // 820 rows instead of some 70, and each takes longer
  CHECK_FALSE(predict::find_packing(packed("single", "256*800", "sft=false"), h200()));
}

TEST_CASE("what packs otherwise than modelled is refused") {
  for (const char* more :
       {"micro_batch_size=2", "attention_dropout=0.1", "softmax_type=learnable", "attention_backend=unfused",
        "mtp_num_layers=1; cp=2; $CUDA_DEVICE_MAX_CONNECTIONS=1", "mtp_num_layers=1; software.megatron_core=dev",
        "cp=2; cp_comm_type=a2a; transformer_engine=2.16.0; $CUDA_DEVICE_MAX_CONNECTIONS=1",
        "cp=2; cp_comm_type=all_gather; $CUDA_DEVICE_MAX_CONNECTIONS=1"}) {
    CAPTURE(more);
    CHECK_THROWS_AS(scenario::refuse_unmodelled(packed("single", "512*100", more)), UsageError);
  }
  CHECK_THROWS_AS(scenario::refuse_unmodelled(test::scenario("single", "sft=true")), UsageError);
  CHECK_NOTHROW(scenario::refuse_unmodelled(packed("single", "512*100")));
}

}  // namespace packed_test
