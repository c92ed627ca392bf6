// Megatron-FSDP and an optimizer on the host: what ranks hold together, what moves when.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "fsdp.hpp"
#include "host_optimizer.hpp"
#include "pipewright/effects.hpp"
#include "support.hpp"

namespace sharded_test {

using namespace pipewright;
using namespace pipewright::model::test;
using model::Stream;
using Kind = model::Step::Kind;

namespace {

std::int64_t bytes(const model::Stages& stages, const std::vector<model::Tensor>& list, const std::string& owner) {
  std::int64_t sum = 0;
  for (const auto& tensor : list)
    if (stages.owners[tensor.owner] == owner) sum += tensor.bytes.value;
  return sum;
}

/// Alive once the model is built.
std::int64_t built(const model::Stages& stages, const std::string& owner) {
  const auto& piece = stages.ranks[0].construction;
  std::int64_t sum = 0;
  for (const auto& step : piece.forward) {
    const auto& tensor = piece.tensors[step.index];
    if (stages.owners[tensor.owner] != owner) continue;
    if (step.kind == Kind::allocate) sum += tensor.bytes.value;
    if (step.kind == Kind::free) sum -= tensor.bytes.value;
  }
  return sum;
}

scenario::Scenario one_stage(std::initializer_list<const char*> more = {}) {
  return with(
      with(llama70b(), {"pipeline_model_parallel_size=1", "virtual_pipeline_model_parallel_size=none", "num_layers=12",
                        "tensor_model_parallel_size=1", "sequence_parallel=false", "num_gpus=8", "fp8=none",
                        "fp8_param=false", "fp8_param_gather=false", "defer_embedding_wgrad_compute=false",
                        "overlap_param_gather_with_optimizer_step=false", "gradient_accumulation_fusion=false",
                        "tp_comm_overlap=false", "grad_reduce_in_fp32=false"}),
      more);
}
scenario::Scenario fsdp(std::initializer_list<const char*> more = {}) {
  return with(with(one_stage(), {"use_megatron_fsdp=true", "data_parallel_sharding_strategy=optim_grads_params"}),
              more);
}

/// A layer of a hybrid is one part, and a unit.
scenario::Scenario hybrid_fsdp(std::initializer_list<const char*> more = {}) {
  return with(fsdp({"hybrid_layer_pattern=M-M*-M-M*-M-", "mamba_num_heads=128"}), more);
}

scenario::Scenario fsdp_fp8(std::initializer_list<const char*> more = {}) {
  return with(fsdp({"fp8=hybrid", "fp8_recipe=tensorwise", "fp8_param=true", "fp8_param_gather=true"}), more);
}

/// Bytes that a microbatch's collectives move, by kind of collective.
std::int64_t moved(const model::Stages& stages, const std::string& kind, bool forward, int microbatch) {
  std::int64_t sum = 0;
  for (const auto index : stages.ranks[0].chunks[0].pieces) {
    const auto& piece = stages.pieces[index];
    for (const auto& step : forward ? piece.forward : piece.backward)
      if (step.kind == Kind::launch && step.runs(microbatch) &&
          piece.kernels[step.index].key.family.starts_with(kind + "."))
        sum += piece.kernels[step.index].key.dims[1];
  }
  return sum;
}

}  // namespace

TEST_CASE("between two steps every rank zeroes the gradient buffers that it holds, whole or its shard") {
  const auto check = [](const scenario::Scenario& s) {
    const auto stages = test::build(s);
    const auto& rank = stages.ranks[0];
    std::int64_t zeroed = 0;
    for (const auto& kernel : rank.optimizer)
      if (kernel.name == "gradients zeroed") zeroed += kernel.key.dims[0];
    CHECK(zeroed == built(stages, "gradients"));
    CHECK(zeroed > 0);
  };
  for (const char* bytes : {"grad_reduce_in_fp32=false", "grad_reduce_in_fp32=true"})
    for (const char* owner : {"use_distributed_optimizer=true", "use_distributed_optimizer=false"})
      for (const char* gpus : {"num_gpus=1", "num_gpus=8", "num_gpus=24"}) {
        CAPTURE(bytes);
        CAPTURE(owner);
        CAPTURE(gpus);
        check(one_stage({bytes, owner, gpus, "global_batch_size=48"}));
      }
  check(one_stage({"lora_target_modules=[linear_qkv]", "lora_dim=16"}));
  check(one_stage({"tensor_model_parallel_size=4", "sequence_parallel=true"}));
  check(fsdp());
  check(fsdp_fp8());
}

TEST_CASE("Megatron-FSDP: what ranks hold for good adds up to the model, whatever their number") {
  for (const auto& base : {fsdp(), hybrid_fsdp()})
    for (const char* gpus : {"num_gpus=2", "num_gpus=4", "num_gpus=8"}) {
      CAPTURE(std::string(gpus));
      const auto stages = test::build(with(base, {gpus}));
      const auto whole = stages.ranks[0].chunks[0].parameters;
      const std::int64_t ranks = gpus[9] - '0';
      CHECK(std::abs(ranks * built(stages, "parameters") - 2 * whole) < 2 * 64 * 200);
      CHECK(std::abs(ranks * built(stages, "gradients") - 2 * whole) < 2 * 64 * 200);
      CHECK(std::abs(ranks * built(stages, "main parameters") - 4 * whole) < 4 * 64 * 200);
      CHECK(std::abs(ranks * bytes(stages, stages.ranks[0].optimizer_state, "optimizer moments") - 8 * whole) <
            8 * 64 * 200);
    }
}

TEST_CASE("Megatron-FSDP: units are gathered in each pass and reduced in each microbatch, both ends gathered once") {
  for (const auto& s : {fsdp(), hybrid_fsdp(), hybrid_fsdp({"software.megatron_core=dev"})}) {
    const auto stages = test::build(s);
    const auto whole = stages.ranks[0].chunks[0].parameters;
    const std::int64_t vocabulary = 128256LL * 8192, ends = 2 * vocabulary + 8192;
    CHECK(moved(stages, "all_gather", true, 0) == 2 * whole);
    CHECK(moved(stages, "all_gather", true, 1) == 2 * (whole - ends));
    for (const int microbatch : {0, 1}) {
      CHECK(moved(stages, "all_gather", false, microbatch) == 2 * (whole - ends));
      CHECK(moved(stages, "reduce_scatter", false, microbatch) == 2 * whole);
    }
    CHECK(bytes(stages, stages.ranks[0].since_first_step, "gathered parameters") == 2 * ends);
    CHECK(stages.ranks[0].chunks[0].gradient_sync.empty());
    CHECK(stages.ranks[0].chunks[0].parameter_gather.empty());
  }
}

TEST_CASE("Megatron-FSDP: a layer waits for its own gather, which runs beside the layer before") {
  const auto stages = test::build(fsdp());
  const auto& chunk = stages.ranks[0].chunks[0];
  std::vector<const model::Piece*> layers;
  for (const auto index : chunk.pieces)
    if (stages.pieces[index].name == "layer") layers.push_back(&stages.pieces[index]);
  REQUIRE(layers.size() == 12);
  const auto gathers = [](const model::Piece& piece, const std::vector<model::Step>& steps) {
    std::vector<bool> waited;  // for each gather: whether the layer's own was waited for before it
    bool wait = false;
    for (const auto& step : steps) {
      wait |= step.kind == Kind::wait && step.index == static_cast<std::uint32_t>(Stream::parameter);
      if (step.kind == Kind::launch && piece.kernels[step.index].stream == Stream::parameter) waited.push_back(wait);
    }
    CHECK(wait);
    return waited;
  };
  using Waited = std::vector<bool>;
  CHECK(gathers(*layers.front(), layers.front()->forward) == Waited{false, true});
  CHECK(gathers(*layers[5], layers[5]->forward) == Waited{true});
  CHECK(gathers(*layers.back(), layers.back()->forward) == Waited{});
  // In backward the last layer waits for its first window, in which it comes last.
  CHECK(gathers(*layers.back(), layers.back()->backward) == Waited{false, false});
  CHECK(gathers(*layers[5], layers[5]->backward) == Waited{true});
  CHECK(gathers(*layers.front(), layers.front()->backward) == Waited{});
}

TEST_CASE("Megatron-FSDP: hooks launch every unit's gather once in each pass, and handle every parameter") {
  std::mt19937 random(29);
  for (int round = 0; round < 12; ++round) {
    const auto layers = "num_layers=" + std::to_string(1 + random() % 12);
    const auto width = "ffn_hidden_size=" + std::to_string(1024 * (1 + random() % 28));
    const char* buffers = random() % 2 == 0 ? "fsdp_double_buffer=false" : "fsdp_double_buffer=true";
    CAPTURE(layers);
    CAPTURE(width);
    CAPTURE(std::string(buffers));
    const auto stages = test::build(fsdp({layers.c_str(), width.c_str(), buffers}));
    const auto& chunk = stages.ranks[0].chunks[0];
    const auto hooks = [&](const std::string& family, bool forward) {
      int sum = 0;
      for (const auto index : chunk.pieces) {
        const auto& piece = stages.pieces[index];
        for (const auto& step : forward ? piece.forward : piece.backward) {
          if (step.kind != Kind::launch) continue;
          const auto& kernel = piece.kernels[step.index];
          if (kernel.host_family == family) sum += kernel.launches;
          // What hooks launch is in their time.
          if (kernel.stream == Stream::parameter || kernel.stream == Stream::gradient)
            CHECK((kernel.within_call && kernel.launches == 0));
        }
      }
      return sum;
    };
    const auto units = static_cast<int>(chunk.pieces.size()) - 2;  // beside embedding and output layer
    const int of_unit = 6, of_ends = 3;                            // weights and norms
    for (const bool forward : {true, false}) {
      CHECK(hooks("fsdp.gather", forward) == units);
      CHECK(hooks("fsdp.unit", forward) == of_unit * units);
    }
    CHECK(hooks("fsdp.reduce", false) == of_unit * units + of_ends);
    CHECK(hooks("fsdp.root", true) == 1);
    CHECK(hooks("fsdp.root", false) == units);
    const auto& step = stages.ranks[0].optimizer;
    CHECK(std::ranges::count_if(step, [&](const auto& kernel) {
            return kernel.host_family == "fsdp.step" && kernel.launches == of_unit * units + of_ends;
          }) == 1);
  }
}

TEST_CASE("Megatron-FSDP: what a pass allocates it frees, and two buffers hold no more than one layer ahead") {
  for (const char* buffers : {"fsdp_double_buffer=false", "fsdp_double_buffer=true"}) {
    CAPTURE(std::string(buffers));
    const auto stages = test::build(fsdp({buffers}));
    for (const auto& piece : stages.pieces)
      for (const auto* steps : {&piece.forward, &piece.backward}) {
        std::int64_t held = 0, most = 0;
        for (const auto& step : *steps) {
          if (step.kind != Kind::allocate && step.kind != Kind::free) continue;
          const auto& owner = stages.owners[piece.tensors[step.index].owner];
          if (owner != "gathered parameters" && owner != "gradient bucket") continue;
          held += (step.kind == Kind::allocate ? 1 : -1) * piece.tensors[step.index].bytes.value;
          most = std::max(most, held);
        }
        CHECK(held == 0);
        if (piece.name == "layer") CHECK((most == 0) == (buffers[19] == 't'));
      }
  }
}

TEST_CASE("Megatron-FSDP: a stated unit of communication is gathered ahead by half, a layer at least") {
  const std::int64_t layer = 855654400 - 2 * 8192 + 2 * 8192;  // elements of a unit: 70B's
  const auto most = [&](const std::string& owner, const scenario::Scenario& s) {
    const auto stages = test::build(s);
    std::int64_t largest = 0;
    for (const auto index : stages.ranks[0].chunks[0].pieces) {
      const auto& piece = stages.pieces[index];
      if (piece.name != "layer") continue;
      std::int64_t sum = 0;
      for (const auto& step : piece.forward)
        if (step.kind == Kind::allocate && stages.owners[piece.tensors[step.index].owner] == owner)
          sum += piece.tensors[step.index].bytes.value;
      largest = std::max(largest, sum);
    }
    return largest;
  };
  const auto units = [&](const char* size) { return most("gathered parameters", fsdp({size})) / (2 * layer); };
  CHECK(units("suggested_communication_unit_size=1000") == 2);  // its own and one ahead
  CHECK(units("suggested_communication_unit_size=none") == 2);
  CHECK(units("suggested_communication_unit_size=5000000000") == 4);  // 2.5e9 elements: three ahead
}

TEST_CASE("Megatron-FSDP beside whole-layer offload: the same groups move, the same units are gathered") {
  for (const char* buffers : {"fsdp_double_buffer=false", "fsdp_double_buffer=true"}) {
    const auto s = fsdp_fp8({buffers, "cpu_offloading=true", "cpu_offloading_num_layers=4"});
    CHECK_NOTHROW(scenario::refuse_unmodelled(s));
    const auto both = test::build(s);
    const auto offloads = test::build(with(s, {"use_megatron_fsdp=false"}));
    const auto gathers = test::build(with(s, {"cpu_offloading=false"}));
    std::vector<std::int64_t> groups[2];
    for (const auto* stages : {&both, &offloads})
      for (const auto index : stages->ranks[0].chunks[0].pieces) {
        const auto& piece = stages->pieces[index];
        for (const auto& group : piece.groups) {
          std::int64_t sum = 0;
          for (const auto& move : group.moves) sum += piece.tensors[move.tensor].bytes.value;
          groups[stages == &both ? 0 : 1].push_back(sum);
        }
      }
    CHECK(groups[0].size() == 12);
    CHECK(groups[0] == groups[1]);
    for (const char* kind : {"all_gather", "reduce_scatter"})
      for (const bool forward : {true, false}) CHECK(moved(both, kind, forward, 1) == moved(gathers, kind, forward, 1));
  }
}

TEST_CASE("Megatron-FSDP with FP8 parameters: bytes of an element and a rank, in either bucket, as by hand") {
  std::mt19937 random(31);
  const auto draw = [&](std::int64_t from, std::int64_t to) {
    return from + static_cast<std::int64_t>(random()) % (to - from + 1);
  };
  for (int round = 0; round < 16; ++round) {
    const std::int64_t layers = draw(1, 8), groups = std::int64_t{1} << draw(0, 3), heads = groups * draw(1, 4);
    const std::int64_t h = 1024 * draw(1, 8), f = 1024 * draw(1, 16), ranks = std::int64_t{1} << draw(1, 3);
    const bool keeps = random() % 2 == 0, buffers = random() % 2 == 0;
    auto s = fsdp_fp8({"kv_channels=128"});
    s.model.num_layers = layers, s.model.num_query_groups = groups, s.model.num_attention_heads = heads;
    s.model.hidden_size = h, s.model.ffn_hidden_size = f;
    s.cluster.num_gpus = ranks, s.settings.global_batch_size = 2 * ranks;
    s.settings.keep_fp8_transpose_cache = keeps, s.settings.fsdp_double_buffer = buffers;
    CAPTURE(scenario::write(s));
    const auto stages = test::build(s);
    const auto& rank = stages.ranks[0];
    const std::int64_t weights = h * 128 * (heads + 2 * groups) + 128 * heads * h + 3 * h * f, norms = 2 * h;
    const std::int64_t ends = 2 * 128256 * h + h, fp8 = layers * weights, whole = fp8 + layers * norms + ends;
    CHECK(rank.chunks[0].parameters == whole);
    const auto shared = [&](std::int64_t held, std::int64_t all) {
      return std::abs(ranks * held - all) < 4096 * ranks;
    };
    CHECK(shared(built(stages, "parameters"), 2 * whole - fp8));
    CHECK(shared(built(stages, "gradients"), 2 * whole));
    CHECK(shared(built(stages, "main parameters"), 4 * whole));
    CHECK(shared(bytes(stages, rank.optimizer_state, "optimizer moments"), 8 * whole));
    CHECK(shared(bytes(stages, rank.during_optimizer, "fp32 gradients"), 4 * whole));
    CHECK(shared(bytes(stages, rank.after_update, "main parameters in 16 bits"), 2 * fp8));
    CHECK(built(stages, "transposed FP8 parameters") == (keeps ? fp8 : 0));
    CHECK(bytes(stages, rank.until_first_step, "transposed FP8 parameters") == (keeps ? 0 : fp8));
    const std::int64_t unit = weights + 2 * norms;
    CHECK(bytes(stages, rank.since_first_step, "gathered parameters") == 2 * ends + (buffers ? 2 * unit : 0));
    CHECK(bytes(stages, rank.since_first_step, "quantized weights") == 0);
    CHECK(moved(stages, "all_gather", true, 0) == layers * unit + 2 * ends);
    CHECK(moved(stages, "all_gather", true, 1) == layers * unit);
    CHECK(moved(stages, "all_gather", false, 1) == layers * unit);
    CHECK(moved(stages, "reduce_scatter", false, 1) == 2 * whole);
    // Every weight is transposed in each pass, except by a forward that finds the last backward's.
    for (const bool forward : {true, false}) {
      std::int64_t transposed = 0;
      for (const auto index : rank.chunks[0].pieces) {
        const auto& piece = stages.pieces[index];
        std::int64_t held = 0, most = 0;
        for (const auto& step : forward ? piece.forward : piece.backward) {
          if (step.kind == Kind::launch && step.runs(1)) {
            const auto& key = piece.kernels[step.index].key;
            if (key.family == "transpose.fp8") transposed += key.dims[0] * key.dims[1];
          } else if ((step.kind == Kind::allocate || step.kind == Kind::free) &&
                     stages.owners[piece.tensors[step.index].owner] == "transposed FP8 parameters") {
            held += (step.kind == Kind::allocate ? 1 : -1) * piece.tensors[step.index].bytes.value;
            most = std::max(most, held);
          }
        }
        CHECK(held == 0);
        CHECK(most == (piece.name == "layer" && !keeps ? weights : 0));
      }
      CHECK(transposed == (forward && keeps ? 0 : fp8));
    }
    // The rank's shards become FP8 together, whatever parameters they are of.
    std::int64_t cast = 0, measured = 0;
    for (const auto& kernel : rank.optimizer) {
      if (kernel.key.family == "cast_transpose.fp8.row") cast += kernel.key.dims[0];
      if (kernel.key.family == "amax") measured += kernel.key.dims[0];
    }
    CHECK(shared(cast, fp8));
    CHECK(cast == measured);
  }
}

TEST_CASE("Megatron-FSDP: what is gathered has memory of its own; what building the model left cached is given back") {
  for (const auto& s : {fsdp(), fsdp_fp8()}) {
    const auto stages = test::build(s);
    const auto apart = [&](const model::Tensor& tensor) {
      return (stages.owners[tensor.owner] == "gathered parameters") == (tensor.stream == Stream::parameter);
    };
    for (const auto& piece : stages.pieces) CHECK(std::ranges::all_of(piece.tensors, apart));
    CHECK(std::ranges::all_of(stages.ranks[0].since_first_step, apart));
    CHECK(stages.ranks[0].empties_cache);
  }
}

TEST_CASE("Megatron-FSDP: the whole model is made first, unless on the meta device") {
  const auto most_built = [](scenario::Scenario s, const char* meta) {
    scenario::set(s, std::string("init_model_with_meta_device=") + meta);
    const auto stages = test::build(s);
    std::int64_t live = 0, most = 0;
    const auto& made = stages.ranks[0].construction;
    for (const auto& step : made.forward) {
      if (step.kind != model::Step::Kind::allocate && step.kind != model::Step::Kind::free) continue;
      const auto bytes = made.tensors[step.index].bytes.value;
      most = std::max(most, live += step.kind == model::Step::Kind::allocate ? bytes : -bytes);
    }
    return std::pair(most, live);
  };
  for (const auto& s : {fsdp(), fsdp_fp8()}) {
    const auto [whole, after] = most_built(s, "false");
    const auto [sharded, same] = most_built(s, "true");
    CHECK(after == same);
    std::int64_t parameters = 0;
    const auto stages = test::build(s);
    for (const auto& chunk : stages.ranks[0].chunks) parameters += chunk.parameters;
    CHECK(whole >= parameters);  // a byte each at least
    CHECK(sharded < whole);
  }
}

TEST_CASE("Megatron-FSDP with FP8 parameters: a unit's two buckets are one gather and one reduction") {
  const auto in_bf16 = test::build(fsdp()), in_fp8 = test::build(fsdp_fp8());
  const auto count = [](const model::Stages& stages, Stream stream) {
    std::ptrdiff_t sum = 0;
    for (const auto index : stages.ranks[0].chunks[0].pieces)
      sum += std::ranges::count_if(stages.pieces[index].kernels, [&](const auto& k) { return k.stream == stream; });
    return sum;
  };
  CHECK(count(in_bf16, Stream::parameter) == count(in_fp8, Stream::parameter));
  CHECK(count(in_bf16, Stream::gradient) == count(in_fp8, Stream::gradient));
}

TEST_CASE("Megatron-FSDP keeps transposes: an optimizer step makes them stale before 0.17 and TE 2.10 only") {
  const auto transposes = [](std::initializer_list<const char*> versions, int microbatch) {
    const auto stages = test::build(with(fsdp_fp8({"keep_fp8_transpose_cache=true"}), versions));
    int sum = 0;
    for (const auto index : stages.ranks[0].chunks[0].pieces) {
      const auto& piece = stages.pieces[index];
      for (const auto& step : piece.forward)
        if (step.kind == Kind::launch && step.runs(microbatch))
          sum += piece.kernels[step.index].key.family == "transpose.fp8";
    }
    return sum;
  };
  for (const int microbatch : {0, 1}) {
    const int again = microbatch == 0 ? 4 * 12 : 0;
    CHECK(transposes({"megatron_core=0.16.0", "transformer_engine=2.10.0"}, microbatch) == again);
    CHECK(transposes({"megatron_core=0.17.0", "transformer_engine=2.9.0"}, microbatch) == again);
    CHECK(transposes({"megatron_core=0.17.0", "transformer_engine=2.10.0"}, microbatch) == 0);
  }
}

TEST_CASE("an optimizer on the host: whole shards up to the fraction, nothing lost") {
  std::mt19937 chance(5);
  for (int round = 0; round < 300; ++round) {
    std::vector<std::int64_t> shards(std::uniform_int_distribution<std::size_t>(1, 40)(chance));
    for (auto& n : shards) n = std::uniform_int_distribution<std::int64_t>(1, 1 << 24)(chance);
    const auto sum = [](const std::vector<std::int64_t>& list) {
      return std::accumulate(list.begin(), list.end(), std::int64_t{0});
    };
    const std::int64_t all = sum(shards), largest = *std::ranges::max_element(shards);
    std::int64_t before = 0;
    for (const double fraction : {0.0, 0.25, 0.5, 1.0}) {
      const auto share = model::host_share(shards, fraction);
      CHECK(sum(share.host) + sum(share.gpu) == all);
      CHECK(static_cast<double>(sum(share.host)) >= fraction * static_cast<double>(all));
      CHECK(static_cast<double>(sum(share.host)) < fraction * static_cast<double>(all) + static_cast<double>(largest));
      CHECK(sum(share.host) >= before);
      before = sum(share.host);
    }
    CHECK(model::host_share(shards, 0).host.empty());
    CHECK(model::host_share(shards, 1).gpu.empty());
  }
}

TEST_CASE("an optimizer on the host: its shards leave the GPU, host and GPU together hold 12 bytes an element") {
  const auto stated = [](const char* fraction) {
    return test::build(with(one_stage(), {"optimizer_cpu_offload=true", "use_precision_aware_optimizer=true",
                                          "overlap_cpu_optimizer_d2h_h2d=true", fraction}));
  };
  const auto on_gpu = [](const model::Stages& stages) {
    return built(stages, "main parameters") + bytes(stages, stages.ranks[0].optimizer_state, "optimizer moments");
  };
  std::int64_t before = INT64_MAX, all = 0;
  for (const char* fraction : {"optimizer_offload_fraction=0", "optimizer_offload_fraction=0.25",
                               "optimizer_offload_fraction=0.5", "optimizer_offload_fraction=1"}) {
    const auto stages = stated(fraction);
    const auto gpu = on_gpu(stages);
    if (before == INT64_MAX) all = gpu;
    CHECK(gpu <= before);                                // whole shards: two fractions may move the same ones
    CHECK(gpu + stages.ranks[0].pageable.value == all);  // gradients are pinned beside
    CHECK(3 * stages.ranks[0].pinned.value >= stages.ranks[0].pageable.value);
    before = gpu;
  }
  CHECK(before == 0);
}

TEST_CASE("an optimizer on the host: what stays on the GPU has copies of bf16 gradients, all before the first moment") {
  for (const char* gradients : {"grad_reduce_in_fp32=false", "grad_reduce_in_fp32=true"}) {
    CAPTURE(std::string(gradients));
    const auto stages =
        test::build(with(one_stage(), {"optimizer_cpu_offload=true", "use_precision_aware_optimizer=true",
                                       "optimizer_offload_fraction=0.5", gradients}));
    const auto& state = stages.ranks[0].optimizer_state;
    const bool copies = std::string(gradients).ends_with("false");
    CHECK(2 * bytes(stages, state, "fp32 gradients") == (copies ? bytes(stages, state, "optimizer moments") : 0));
    REQUIRE_FALSE(state.empty());
    CHECK(std::ranges::is_sorted(
        state, {}, [&](const auto& tensor) { return stages.owners[tensor.owner] == "optimizer moments"; }));
  }
}

TEST_CASE("an optimizer on the host: copies beside Adam are the first gradient's only; main pins the parameters") {
  const auto step = [](std::initializer_list<const char*> more) {
    const auto stages =
        test::build(with(with(one_stage(), {"optimizer_cpu_offload=true", "use_precision_aware_optimizer=true",
                                            "optimizer_offload_fraction=1"}),
                         more));
    std::map<std::string, std::int64_t> by_family;
    for (const auto& kernel : stages.ranks[0].optimizer)
      if (kernel.purpose == model::Purpose::offload) by_family[kernel.key.family] += kernel.key.dims.back();
    return by_family;
  };
  const auto apart = step({}), beside = step({"overlap_cpu_optimizer_d2h_h2d=true"});
  const auto elements = apart.at("adam.host") / 8;  // of all eight processes of the host
  CHECK(apart.at("copy.d2h") == 4 * elements);
  CHECK(apart.at("copy.h2d.pageable") == 4 * elements);
  CHECK(beside.at("copy.d2h") < apart.at("copy.d2h"));
  CHECK(beside.at("copy.h2d.pageable") == apart.at("copy.h2d.pageable"));
  CHECK(beside.at("adam.host") == apart.at("adam.host"));
  const auto pinned = step({"megatron_core=main", "overlap_cpu_optimizer_d2h_h2d=true"});
  CHECK_FALSE(pinned.contains("copy.h2d.pageable"));
  CHECK(pinned.at("copy.h2d") < 4 * elements);
}

TEST_CASE("what is not modelled of both is refused by name") {
  const auto refused = [](const scenario::Scenario& s, const std::string& field) {
    return std::ranges::any_of(scenario::unmodelled(s), [&](const auto& one) { return one.name == field; });
  };
  CHECK_FALSE(refused(fsdp(), "use_megatron_fsdp"));
  for (const char* other : {"pipeline_model_parallel_size=2", "use_precision_aware_optimizer=true",
                            "untie_embeddings_and_output_weights=false", "fine_grained_activation_offloading=true"}) {
    CAPTURE(std::string(other));
    CHECK(refused(fsdp({other}), "use_megatron_fsdp"));
  }
  CHECK_FALSE(refused(hybrid_fsdp(), "use_megatron_fsdp"));
  CHECK_FALSE(refused(hybrid_fsdp(), "hybrid_layer_pattern"));
  CHECK(refused(hybrid_fsdp({"software.megatron_core=0.18.0"}), "use_megatron_fsdp"));
  CHECK(refused(hybrid_fsdp({"hybrid_layer_pattern=M-M*-M-M*-M-/*-", "mtp_num_layers=1"}), "use_megatron_fsdp"));
  for (const char* recipe : {"fp8_recipe=tensorwise", "fp8_recipe=delayed"})
    CHECK_FALSE(refused(fsdp_fp8({recipe}), "use_megatron_fsdp"));
  for (const char* other : {"fp8_recipe=blockwise", "fp8_recipe=mxfp8", "num_moe_experts=8",
                            "recompute_granularity=full", "first_last_layers_bf16=true"}) {
    CAPTURE(std::string(other));
    CHECK(refused(fsdp_fp8({other}), "use_megatron_fsdp"));
  }
  for (const char* other : {"data_parallel_sharding_strategy=optim", "data_parallel_sharding_strategy=optim_grads"})
    CHECK(refused(fsdp({other}), "data_parallel_sharding_strategy"));
  const auto host = with(one_stage(), {"optimizer_cpu_offload=true", "use_precision_aware_optimizer=true"});
  CHECK_FALSE(refused(host, "optimizer_cpu_offload"));
  for (const char* other : {"pin_cpu_grads=false", "optimizer=sgd", "fp8_param=true"})
    CHECK(refused(with(host, {other}), "optimizer_cpu_offload"));
}

}  // namespace sharded_test
