// Commands filled in, and what training loops print.
#include "pipewright/trial.hpp"

#include <doctest/doctest.h>

#include <algorithm>

#include "pipewright/scenario/io.hpp"

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

TEST_CASE("Bridge's overrides are those of its command line") {
  const auto command = fill({"{flags}"}, candidate(), Form::bridge, 9);
  CHECK(std::any_of(command.words.begin(), command.words.end(),
                    [](const auto& w) { return w == "model.pipeline_model_parallel_size=2"; }));
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
  CHECK_FALSE(silent.named);
}
