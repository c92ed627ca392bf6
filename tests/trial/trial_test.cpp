// Commands filled in, and what training loops print.
#include "pipewright/trial.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "pipewright/scenario/io.hpp"

namespace trial_test {

using namespace pipewright;
using namespace pipewright::trial;

namespace {

Candidate candidate() {
  Candidate result{"best", "VPP 2", {}};
  result.scenario = scenario::parse(R"(scenario: 1
model: {num_layers: 4, hidden_size: 1024, ffn_hidden_size: 4096, num_attention_heads: 16, seq_length: 2048, vocab_size: 32000}
settings: {pipeline_model_parallel_size: 2, pipeline_model_parallel_layout: 'Et|t|t|tL', micro_batch_size: 1, global_batch_size: 4, bf16: true}
environment: {NAME: "two words"}
cluster: {profile: h200-sxm, num_gpus: 2}
)",
                                    "test.yaml");
  return result;
}

}  // namespace

TEST_CASE("a placeholder alone becomes words, inside a word it is quoted for a shell") {
  const auto alone = fill({"run", "{flags}", "{env}", "-n={name}"}, candidate(), Form::megatron, 9);
  CHECK(alone.words.front() == "run");
  CHECK(std::find(alone.words.begin(), alone.words.end(), "Et|t|t|tL") != alone.words.end());
  CHECK(std::find(alone.words.begin(), alone.words.end(), "NAME=two words") != alone.words.end());
  CHECK(alone.words.back() == "-n=best");
  const auto inside =
      fill({"sh", "-c", "{env} run {flags} --train-iters {steps} ${HOME} {} {A}"}, candidate(), Form::megatron, 9);
  REQUIRE(inside.words.size() == 3);
  CHECK(inside.words[2].find("'NAME=two words' run ") == 0);
  CHECK(inside.words[2].find(" 'Et|t|t|tL'") != std::string::npos);
  CHECK(inside.words[2].ends_with("--train-iters 9 ${HOME} {} {A}"));
  CHECK(inside.environment == std::vector<std::pair<std::string, std::string>>{{"NAME", "two words"}});
}

TEST_CASE("a placeholder that is written otherwise is told, braces of a shell's own stay") {
  for (const char* wrong : {"{Flags}", "{ flags }", "{FLAGS}", "{flag}", "{step}", "{{flags}}", "x{Env}y"})
    CHECK_THROWS_WITH_AS(fill({"run", "{flags}", wrong}, candidate(), Form::megatron, 9),
                         doctest::Contains("did you mean"), UsageError);
  const std::string shell = "flags=x steps=3; run {flags} ${flags} ${steps} ${#name} {a,b} {1..3} {A} {\"flags\": 1}";
  const auto words = fill({"sh", "-c", shell}, candidate(), Form::megatron, 9).words;
  CHECK(words[2].ends_with(" ${flags} ${steps} ${#name} {a,b} {1..3} {A} {\"flags\": 1}"));
}

TEST_CASE("words that are quoted already do not stand in a shell's quotes") {
  for (const char* wrong : {"run '{flags}'", "run \"{flags}\" x", "ssh n 'cd x; run {flags}'", "'{env} {flags}"})
    CHECK_THROWS_WITH_AS(fill({"sh", "-c", wrong}, candidate(), Form::megatron, 9),
                         doctest::Contains("stands in quotes"), UsageError);
  for (const char* right : {"A='{name}' run {flags}", "it\\'s {flags}", "ssh n \"run {flags}\"",
                            "echo 'x' \"it's\" {flags}", "F=\"{flags}\"; run $F", "{\"args\": \"{flags}\"}"})
    CHECK_NOTHROW(fill({"sh", "-c", right}, candidate(), Form::megatron, 9));
}

TEST_CASE("what the flags do not say of a candidate is told with its command") {
  auto gated = candidate();
  const auto before = fill({"{flags}"}, gated, Form::megatron, 9).remarks;
  gated.scenario.model.gated_linear_unit = true;
  gated.scenario.model.activation_func = "gelu";
  for (const auto form : {Form::megatron, Form::bridge, Form::harness}) {
    const auto command = fill({"{flags}"}, gated, form, 9);
    const bool told = std::any_of(command.remarks.begin(), command.remarks.end(), [](const auto& remark) {
      return remark.starts_with("gated_linear_unit: true has no flag");
    });
    CHECK(told == (form == Form::megatron));
  }
  CHECK(std::none_of(before.begin(), before.end(), [](const auto& r) { return r.starts_with("gated_linear_unit"); }));
  CHECK(json({gated}, {fill({"{flags}"}, gated, Form::megatron, 9)}).find("has no flag") != std::string::npos);
}

TEST_CASE("Bridge's overrides are those of its command line") {
  const auto command = fill({"{flags}"}, candidate(), Form::bridge, 9);
  CHECK(std::any_of(command.words.begin(), command.words.end(),
                    [](const auto& w) { return w == "model.pipeline_model_parallel_size=2"; }));
}

TEST_CASE(
    "what was recorded is told as it was, however slow the recorder made the step; the rest of the real step is idle") {
  Run run;
  run.candidate = candidate();
  run.prediction.step_ns = 100'000'000;
  run.prediction.ranks.resize(2);
  run.prediction.ranks[0].account.traced_busy = {{"comp", 60'000'000}, {"p2p", 30'000'000}};
  run.prediction.ranks[0].account.traced_exposed = {{"p2p", 25'000'000}};
  run.step_ms = 120;
  for (const double span_ms : {120.0, 150.0, 240.0}) {
    run.recorded = {{0, {span_ms * 1e3, {{"comp", 70e3}, {"p2p", 40e3}}, {{"p2p", 30e3}}}}};
    const auto found = differences(run);
    REQUIRE(found.size() == 3);
    CHECK(found[0].kind == "comp");
    CHECK(found[0].busy_ms == doctest::Approx(70));
    CHECK(found[1].exposed_ms == doctest::Approx(30));
    CHECK(found[2].kind == "idle");
    CHECK(found[2].exposed_ms == doctest::Approx(20));
    CHECK(found[2].predicted_exposed_ms == doctest::Approx(15));
    double measured = 0;  // the kinds add up to the step
    for (const auto& d : found) measured += d.kind == "comp" ? d.busy_ms : d.exposed_ms;
    CHECK(measured == doctest::Approx(*run.step_ms));
  }
  run.step_ms.reset();
  CHECK(differences(run).empty());
}

TEST_CASE("step times and the last memory line of every rank") {
  const auto log = read_log(
      "noise iteration of nothing\n"
      " [2026] iteration        2/       6 | consumed samples: 48 | elapsed time per iteration (ms): 915.3 | x\n"
      "[Rank 1] (after 1 iterations) memory (MB) | allocated: 1.00 | max allocated: 2.00 | reserved: 3.00 | max "
      "reserved: 4.00\n"
      "[Rank 1] (after 2 iterations) memory (MB) | allocated: 1.00 | max allocated: 2.50 | reserved: 3.00 | max "
      "reserved: 4.00 | total device memory used: 10.00\n"
      "Step Time : 4.11s GPU utilization: 545.3MODEL_TFLOP/s/GPU\n");
  for (const std::string& number : {std::string("99999999999999999999"), std::string(".."), std::string(400, '9')})
    for (const char* line : {"iteration N/ 6 | elapsed time per iteration (ms): N |", "Step Time : Ns",
                             "[Rank N] max allocated: N | reserved: N | max reserved: N",
                             "[Rank N] | mem-max-allocated-gigabytes: N | mem-max-reserved-gigabytes: N"}) {
      std::string text = line;
      for (auto at = text.find("N"); at != std::string::npos; at = text.find("N", at + number.size()))
        text.replace(at, 1, number);
      CHECK(read_log(text).steps.empty());
      CHECK(read_log(text).memory.empty());
    }
  CHECK(log.steps == std::vector{std::pair(2, 915.3)});
  REQUIRE(log.memory.size() == 1);
  CHECK(log.memory[0].allocated.value == 5 << 19);
  CHECK(log.memory[0].outside->value == 7 << 20);
}

TEST_CASE("a step's time is a number above zero, and nothing else is") {
  for (const char* number : {"1500.0", "915.3", "0.5", "7"}) {
    CAPTURE(number);
    CHECK(read_log(std::string("iteration 2/ 6 | elapsed time per iteration (ms): ") + number + " |").steps.size() ==
          1);
    CHECK(read_log(std::string("iteration 2/ 6 | elapsed time per iteration (ms): ") + number).steps.size() == 1);
    CHECK(read_log(std::string("Step Time : ") + number + "s GPU").steps.size() == 1);
  }
  for (const char* number : {"0.0", "0", "1,500.0", "1e308", "1.5e3", "nan", "inf", "-3.0", "1.2.3", "0x10", "12ms"}) {
    CAPTURE(number);
    CHECK(read_log(std::string("iteration 2/ 6 | elapsed time per iteration (ms): ") + number + " |").steps.empty());
    CHECK(read_log(std::string("Step Time : ") + number + "s GPU").steps.empty());
    CHECK(read_log(std::string("[Rank 1] max allocated: 2.00 | reserved: 3.00 | max reserved: ") + number + "e |")
              .memory.empty());
  }
}

TEST_CASE("of a run's steps: the first four are left out wherever it starts, each counts once, means are no samples") {
  const auto steps = [](int first, int last, int apart, int ranks) {
    std::string text;
    for (int step = first; step <= last; step += apart)
      for (int rank = 0; rank < ranks; ++rank)
        text += "iteration " + std::to_string(step) +
                "/ 200 | elapsed time per iteration (ms): " + std::to_string(100 + step - first) + ".0 |\n";
    return steps_of(read_log(text));
  };
  CHECK(steps_of(read_log("")).done == 0);
  for (const int first : {1, 2, 101})
    for (const int ranks : {1, 2, 8}) {
      const auto eight = steps(first, first + 7, 1, ranks);
      CHECK(eight.done == 8);
      CHECK(eight.samples_ms == std::vector<double>{104, 105, 106, 107});
      CHECK(steps(first, first + 3, 1, ranks).samples_ms.empty());
    }
  CHECK(steps(8, 8, 1, 1).samples_ms.empty());  // --log-interval 8
  CHECK(steps(2, 40, 2, 1).samples_ms.empty());
  CHECK(steps(2, 40, 2, 1).apart == 2);
  CHECK(steps(2, 40, 2, 1).done == 40);
}

TEST_CASE("colours, progress bars and lines of several ranks in one change nothing that is read") {
  const auto memory = [](int rank) {
    return "[Rank " + std::to_string(rank) +
           "] (after 2 iterations) memory (MB) | allocated: 1.00 | max allocated: " + std::to_string(rank + 1) +
           ".00 | reserved: 3.00 | max reserved: " + std::to_string(rank + 10) + ".00";
  };
  const std::string step = " [2026] iteration 2/ 6 | elapsed time per iteration (ms): 915.3 | x: 0 |";
  const std::string colour = "\x1b[1;32m", plain = "\x1b[0m";
  for (const std::string& text :
       {memory(0) + "\n" + memory(1) + "\n" + step + "\n", memory(0) + memory(1) + "\n\n" + step,
        memory(0) + step + memory(1),
        "\x1b]0;title\a" + colour + memory(0) + plain + "\r" + memory(1) + plain + "\r\n" + step,
        memory(1) + memory(0) + "\n50%|##  \r" + colour + step.substr(0, 61) + "\x1b[31m" + step.substr(61, 5) + plain +
            step.substr(66)}) {
    CAPTURE(text);
    auto log = read_log(text);
    CHECK(log.steps == std::vector{std::pair(2, 915.3)});
    std::sort(log.memory.begin(), log.memory.end(), [](auto& a, auto& b) { return a.rank < b.rank; });
    REQUIRE(log.memory.size() == 2);
    for (const int rank : {0, 1}) {
      CHECK(log.memory[static_cast<std::size_t>(rank)].rank == rank);
      CHECK(log.memory[static_cast<std::size_t>(rank)].allocated.value == (rank + 1) << 20);
      CHECK(log.memory[static_cast<std::size_t>(rank)].reserved.value == (rank + 10) << 20);
    }
  }
  const auto failure = failure_of(colour + "torch.OutOfMemoryError" + plain + ": CUDA out of memory. Tried\n", 1);
  CHECK(failure.status == Status::out_of_memory);
  CHECK(failure.reason == "torch.OutOfMemoryError: CUDA out of memory. Tried");
  CHECK(failure_of(colour + "ValueError" + plain + ": no", 1).cause == Cause::exception);
}

TEST_CASE("steps whose optimizer did not step are no samples") {
  std::string text;
  for (int step = 1; step <= 8; ++step)
    text += "iteration " + std::to_string(step) + "/ 8 | elapsed time per iteration (ms): " + std::to_string(step) +
            ".0 | loss scale: 1.0 | number of skipped iterations: " + (step < 7 ? "  1" : "  0") +
            " | number of nan iterations: " + (step == 8 ? "  1" : "  0") + " |\n";
  const auto steps = steps_of(read_log(text));
  CHECK(steps.done == 8);
  CHECK(steps.samples_ms == std::vector<double>{7});
  CHECK(steps.unusual == 3);
}

TEST_CASE("arguments that the program prints are the candidate's, or the run is another's") {
  const auto scenario = candidate().scenario;
  const auto megatron = [](const char* pipeline, const char* recompute, const char* world, const char* before) {
    const auto line = [&](std::string name, const std::string& value) {
      return before + ("  " + name) + " " + std::string(48 - name.size(), '.') + " " + value + "\n";
    };
    return "------------------------ arguments ------------------------\n" + line("global_batch_size", "4") +
           line("hidden_size", "1024") + line("pipeline_model_parallel_size", pipeline) +
           line("recompute_granularity", recompute) + line("tensor_model_parallel_size", "1") +
           line("world_size", world);
  };
  for (const char* before : {"", "0: ", "[default0]:", "[1,0]<stdout>: "}) {
    CAPTURE(before);
    CHECK(not_of(scenario, megatron("2", "None", "2", before)).empty());
    CHECK(not_of(scenario, megatron("1", "None", "2", before)) ==
          std::vector<std::string>{"pipeline_model_parallel_size 1, not 2"});
    CHECK(not_of(scenario, megatron("2", "full", "4", before)) ==
          std::vector<std::string>{"recompute_granularity full, not None", "world_size 4, not 2"});
  }
  CHECK(not_of(scenario, "  global_batch_size ............................. None\n").empty());
  const auto bridge = [](const std::string& pipeline) {
    return "Configuration Summary (Non-Default Values vs Megatron Core)\n\n[model] Non-default values (vs Mcore "
           "TransformerConfig):\n  hidden_size: 1024  (Mcore default: 0)\n" +
           pipeline +
           "\n[train]:\n  global_batch_size: 4\n  micro_batch_size: 1\n\n[dataset]:\n  micro_batch_size: 9\n";
  };
  CHECK(not_of(scenario, bridge("  pipeline_model_parallel_size: 2  (Mcore default: 1)\n")).empty());
  CHECK(not_of(scenario, bridge("")) == std::vector<std::string>{"pipeline_model_parallel_size 1, not 2"});
  CHECK(not_of(scenario, bridge("  pipeline_model_parallel_size: 2  (Mcore default: 1)\n"
                                "  recompute_granularity: 'full'  (Mcore default: None)\n")) ==
        std::vector<std::string>{"recompute_granularity full, not None"});
  CHECK(not_of(scenario, "nothing\n").empty());
}

TEST_CASE("the median of an even number is between the two in the middle") {
  CHECK(median({}) == std::nullopt);
  CHECK(median({3}) == 3);
  CHECK(median({4, 1}) == 2.5);
  CHECK(median({9, 1, 2}) == 2);
  CHECK(median({100, 1, 2, 3}) == 2.5);
}

TEST_CASE("a plan whose values are of another kind is refused with its key, never taken to be something else") {
  using Json = nlohmann::json;
  const std::string scenario = scenario::write(candidate().scenario);
  const Json plan = {{"best", {{"scenario", scenario}, {"label", "VPP 2"}}},
                     {"alternatives", {{{"scenario", scenario}, {"label", "other"}}}},
                     {"baseline", {{"scenario", scenario}, {"label", "given"}}}};
  const auto same = candidates_of_plan(plan.dump(), "p.json", 3);
  REQUIRE(same.size() == 1);
  CHECK(same.front().label == "as given: VPP 2");
  int refused = 0;
  const Json flat = plan.flatten();
  for (const auto& [pointer, ignored] : flat.items()) {
    for (auto at = Json::json_pointer(pointer); !at.empty(); at = at.parent_pointer())
      for (const Json& other : {Json(), Json(7), Json(-1.5), Json("x"), Json(true), Json::array(), Json::object()}) {
        Json changed = plan;
        changed[at] = other;
        CAPTURE(changed.dump());
        try {
          for (const auto& each : candidates_of_plan(changed.dump(), "p.json", 3))
            shell_line(fill({"{flags}"}, each, Form::megatron, 8));
        } catch (const UsageError& error) {
          CHECK(error.where().file.starts_with("p.json"));
          ++refused;
        }
      }
  }
  CHECK(refused > 20);
  CHECK_THROWS_WITH_AS(candidates_of_plan(R"({"best": {"scenario": 3}, "alternatives": []})", "p.json", 3),
                       "p.json: best.scenario: expected a text, found number", UsageError);
}

// megatron/bridge/training/utils/train_utils.py, training_log and report_memory.
TEST_CASE("Bridge prints every step twice, and memory in units of 1e9 bytes") {
  std::string both, seconds;
  for (int step = 1; step <= 8; ++step) {
    const std::string rounded = "Step Time : 0.12s GPU utilization: 545.3MODEL_TFLOP/s/GPU\n";
    both += rounded + " [2026] iteration        " + std::to_string(step) +
            "/       8 | consumed samples: 8 | elapsed time per iteration (ms): 124.9 |\r" + std::string(100'000, '#') +
            "\n";
    seconds += rounded;
  }
  const auto exact = read_log(both).steps, rounded = read_log(seconds).steps;
  REQUIRE(exact.size() == 8);
  REQUIRE(rounded.size() == 8);
  for (int i = 0; i < 8; ++i) {
    CHECK(exact[static_cast<std::size_t>(i)] == std::pair(i + 1, 124.9));
    CHECK(rounded[static_cast<std::size_t>(i)].first == i + 1);
    CHECK(rounded[static_cast<std::size_t>(i)].second == doctest::Approx(120));
  }
  const auto memory =
      read_log(
          "[Rank 4] (after 2 iterations) memory (GB) | mem-allocated-gigabytes: 9.1 | mem-reserved-gigabytes: 24.0"
          " | mem-max-allocated-gigabytes: 21.475 | mem-max-active-gigabytes: 21.5 | mem-max-inactive-gigabytes: "
          "2.0 | mem-max-reserved-gigabytes: 26.843 | mem-alloc-retires: 0\n")
          .memory;
  REQUIRE(memory.size() == 1);
  CHECK(memory[0].rank == 4);
  CHECK(memory[0].allocated.value == 21'475'000'000);
  CHECK(memory[0].reserved.value == 26'843'000'000);
}

TEST_CASE("a run's last words: memory before errors, errors before what the launcher says of them") {
  CHECK(failure_of("RuntimeError: later\n[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried\n", 1).status ==
        Status::out_of_memory);
  const auto raised = failure_of("[rank3]: ValueError: no\ntorch.distributed.elastic: ChildFailedError: x\n", 1);
  CHECK(raised.status == Status::failed);
  CHECK(raised.reason == "[rank3]: ValueError: no");
  CHECK(failure_of("just gone\n", 7).reason == "exit status 7; last line: just gone");
  CHECK(failure_of("", 139).reason == "exit status 139, nothing was printed");
}

// Whoever launched it: what it puts before the lines of its workers, and what it says itself when one has failed.
TEST_CASE("why a run ended, whoever launched it") {
  const std::string elastic =
      "E1122 04:26:38 140 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: -9) local_rank: 0\n"
      "Traceback (most recent call last):\n"
      "    raise ChildFailedError(\n"
      "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
      "Root Cause (first observed failure):\n  exitcode  : -9 (pid: 1234)\n  error_file: <N/A>\n=====\n";
  struct Said {
    const char* line;
    Status status;
  };
  const Said list[] = {{"AssertionError: 3 does not divide 8", Status::failed},
                       {"omegaconf_utils.OverridesError: Error parsing overrides: Key 'x'", Status::failed},
                       {"pretrain_gpt.py: error: unrecognized arguments: --fancy", Status::failed},
                       {"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate", Status::out_of_memory},
                       {"torch.AcceleratorError: CUDA error: out of memory", Status::out_of_memory},
                       {"Cuda failure 2 'out of memory'", Status::out_of_memory},
                       {"RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling", Status::out_of_memory}};
  for (const std::string before : {"", "[rank3]: ", "[default0]:", "12: ", "0: [rank0]: "})
    for (const std::string& after : {std::string(), elastic, std::string("srun: error: n1: task 3: Exited\n")})
      for (const auto& said : list) {
        const auto failure = failure_of(before + "Traceback\n" + before + said.line + "\n" + after, 1);
        const std::string line = before + said.line;
        CAPTURE(line);
        CHECK(failure.status == said.status);
        CHECK(failure.named);
        CHECK(failure.reason == line);
      }
  CHECK(failure_of("[rank0]:     assert a % 3 == 0\n[rank0]: AssertionError\n" + elastic, 1).reason ==
        "[rank0]: AssertionError: assert a % 3 == 0");
  const auto silent = failure_of("loading data\n" + elastic, 1);
  CHECK(silent.reason == "exit status 1 (a worker's: -9); last line: loading data");
  CHECK(silent.cause == Cause::killed);
  CHECK_FALSE(silent.named);
  CHECK(failure_of("loading\n", 139).cause == Cause::crash);
  CHECK(failure_of("loading\n", 3).cause == Cause::none);
}

// Words of PyTorch 2.x, NCCL 2.2x, Transformer Engine 2, argparse, OmegaConf, Slurm.
TEST_CASE(
    "failures have names, and of several ranks' the one nearest to the root counts, in whatever order they speak") {
  struct Said {
    const char* line;
    Cause cause;
  };
  const Said roots[] = {
      {"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.91 GiB", Cause::out_of_memory},
      {"node3:1:2 [0] include/alloc.h:230 NCCL WARN Cuda failure 2 'out of memory'", Cause::out_of_memory},
      {"OSError: [Errno 28] No space left on device", Cause::full_disk},
      {"misc/shmutils.cc:72 NCCL WARN Error: failed to extend /dev/shm/nccl-aB to 33030532 bytes, error: No space left "
       "on "
       "device (28)",
       Cause::full_disk},
      {"OSError: [Errno 122] Disk quota exceeded: 'ckpt'", Cause::full_disk},
      {"slurmstepd: error: Detected 1 oom_kill event in StepId=7.0. Some of the step tasks have been OOM Killed.",
       Cause::host_memory},
      {"RuntimeError: [enforce fail at alloc_cpu.cpp:118] DefaultCPUAllocator: can't allocate memory",
       Cause::host_memory},
      {"pretrain_gpt.py: error: unrecognized arguments: --fancy", Cause::unknown_flag},
      {"omegaconf_utils.OverridesError: Error parsing overrides: Key 'x' is not in struct", Cause::unknown_flag},
      {"TypeError: TransformerConfig.__init__() got an unexpected keyword argument 'x'", Cause::unknown_flag},
      {"pretrain_gpt.py: error: argument --lr: invalid float value: 'x'", Cause::refused_value},
      {"ModuleNotFoundError: No module named 'apex'", Cause::missing},
      {"python3: can't open file '/w/pretrain_gpt.py': [Errno 2] No such file or directory", Cause::missing},
      {"torch.distributed.DistNetworkError: The server socket has failed to bind to [::]:29500 (errno: 98 - Address "
       "already in use)",
       Cause::port_in_use},
      {"AssertionError: 3 does not divide 8", Cause::assertion},
      {"RuntimeError: /te/common/gemm.cu:1 in function f: Assertion failed: a == b. Dimensions", Cause::assertion},
      {"ValueError: no", Cause::exception},
      {"torch.AcceleratorError: CUDA error: an illegal memory access was encountered", Cause::cuda},
      {"RuntimeError: /te/common/x.cpp:53 in function f: cuDNN Error: CUDNN_STATUS_EXECUTION_FAILED", Cause::cuda},
      {"slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-11-22T04:00:00 DUE TO TIME LIMIT ***",
       Cause::time_limit}};
  const Said consequences[] = {
      {"[E1122 ProcessGroupNCCL.cpp:632] [Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, "
       "OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600029 milliseconds before timing out.",
       Cause::nccl_timeout},
      {"torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:2021, remote process exited or there "
       "was "
       "a network error, NCCL version 2.27",
       Cause::nccl},
      {"RuntimeError: [Rank 2]: Connection closed by peer [127.0.0.1]:1234", Cause::connection}};
  for (const auto& root : roots)
    for (const auto& consequence : consequences) {
      CAPTURE(root.line);
      CHECK(failure_of(consequence.line, 1).cause == consequence.cause);
      const std::string a = std::string("[rank0]: ") + root.line + "\n",
                        b = std::string("[rank1]: ") + consequence.line + "\n";
      for (const auto& text : {a, a + b, b + a, "UserWarning: MemoryError, AssertionError\n" + a}) {
        const auto failure = failure_of(text, 1);
        CHECK(failure.cause == root.cause);
        CHECK((failure.status == Status::out_of_memory) == (root.cause == Cause::out_of_memory));
        CHECK(failure.reason + "\n" == a);
      }
    }
  // A worker that the kernel killed is the root of what the others lost.
  const std::string elastic = "api.py:874] failed (exitcode: -15) local_rank: 0\n  exitcode  : -9 (pid: 4)\n";
  for (const auto& consequence : consequences) {
    const auto failure = failure_of(std::string(consequence.line) + "\n" + elastic, 1);
    CHECK(failure.cause == Cause::killed);
    CHECK(failure.reason == std::string("exit status 1 (a worker's: -9); ") + consequence.line);
  }
}

TEST_CASE("with a failure go the lines that its own process said before it") {
  const auto failure = failure_of(
      "[rank0]:   File \"training.py\", line 3, in step\n[rank1]: iteration 3\n[rank0]:     loss.backward()\n"
      "[rank1]: more\n[rank0]: ValueError: no\n[rank1]: after\n",
      1);
  CHECK(failure.lines ==
        std::vector<std::string>{"[rank0]:   File \"training.py\", line 3, in step", "[rank0]:     loss.backward()"});
  CHECK(failure_of("usage: x [-h]\n  [--lr LR]\nx.py: error: unrecognized arguments: --y\n", 2).lines.empty());
  CHECK(failure_of("one\ntwo\n", 1).lines == std::vector<std::string>{"one"});
}

TEST_CASE("a traceback through unfused attention, or Transformer Engine's own words of it, are seen") {
  const std::string out_of_memory = "[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 8.00 GiB\n";
  for (const char* line :
       {"[rank0]:     matmul_result = torch.baddbmm(", "[rank0]:     attention_probs = self.scale_mask_softmax(",
        "DEBUG | Selected backend = UnfusedDotProductAttention",
        "INFO | Running with UnfusedDotProductAttention backend"}) {
    CAPTURE(line);
    for (const int status : {0, 1}) {
      CHECK_FALSE(failure_of(line + ("\n" + out_of_memory), status).unfused.empty());
      CHECK_FALSE(failure_of(line + std::string("\n"), status).unfused.empty());
    }
  }
  for (const char* line : {"DEBUG | Disabling UnfusedDotProductAttention due to NVTE_UNFUSED_ATTN=0",
                           "Available backends = {FlashAttention=True, UnfusedDotProductAttention=True}",
                           "Running with FusedAttention backend"})
    CHECK(failure_of(line + ("\n" + out_of_memory), 1).unfused.empty());
}

TEST_CASE("what is said of several runs alike is said once, behind all their names") {
  const std::vector<Candidate> candidates = {candidate(), {"given", "as given", candidate().scenario}};
  Command command{{"run"}, {}, {"one", "two"}}, other{{"run"}, {}, {"two"}};
  const auto dry = text(candidates, {command, other});
  CHECK(dry.starts_with("# best: flags: one\n# best, given: flags: two\n# best: VPP 2\nrun\n# given: as given\nrun\n"));
}

TEST_CASE("a plan of a later version is refused by its number, whatever else it holds") {
  for (const char* rest : {"", R"(, "alternatives": [])", R"(, "best": 3, "alternatives": 4)"})
    for (const std::int64_t schema : {std::int64_t{3}, std::int64_t{4'000'000'000'000}})
      CHECK_THROWS_WITH_AS(
          candidates_of_plan("{\"schema\": " + std::to_string(schema) + rest + "}", "p.json", 3),
          doctest::Contains(("p.json: schema: " + std::to_string(schema) + " is of a later version").c_str()),
          UsageError);
  CHECK_THROWS_WITH_AS(candidates_of_plan(R"({"schema": "2"})", "p.json", 3),
                       "p.json: schema: expected a whole number, found string", UsageError);
  CHECK_THROWS_WITH_AS(candidates_of_plan(R"({"schema": 2, "alternatives": []})", "p.json", 3),
                       doctest::Contains("nothing that fits"), UsageError);
}

}  // namespace trial_test
