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
                             "[Rank N] max allocated: N | reserved: N | max reserved: N"}) {
      std::string text = line;
      for (auto at = text.find("N"); at != std::string::npos; at = text.find("N", at + number.size()))
        text.replace(at, 1, number);
      CHECK(read_log(text).steps.empty());
      CHECK(read_log(text).memory.empty());
    }
  REQUIRE(log.steps.size() == 2);
  CHECK(log.steps[0] == std::pair(2, 915.3));
  CHECK(log.steps[1].first == 3);
  CHECK(log.steps[1].second == doctest::Approx(4110));
  REQUIRE(log.memory.size() == 1);
  CHECK(log.memory[0].allocated.value == 5 << 19);
  CHECK(log.memory[0].outside->value == 7 << 20);
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
