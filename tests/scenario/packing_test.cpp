// Rows of packed sequences: by hand, and what holds for any.
#include "pipewright/scenario/packing.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <numeric>
#include <random>

#include "pipewright/scenario/io.hpp"

namespace packing_test {

using namespace pipewright;
using scenario::Scenario;

namespace {

Scenario base() {
  return scenario::parse(R"(
scenario: 1
model:
  num_layers: 2
  hidden_size: 512
  num_attention_heads: 4
  seq_length: 1024
  vocab_size: 1000
settings:
  micro_batch_size: 1
  global_batch_size: 8
  sft: true
cluster:
  profile: h200-sxm
  num_gpus: 4
software:
  megatron_core: 0.19.0
)",
                         "packing.yaml");
}

Scenario with(const std::vector<std::string>& changes) {
  Scenario s = base();
  for (const auto& change : changes) scenario::set(s, change);
  return s;
}

double pairs(double length) { return length * (length + 1) / 2; }
/// Of equal sequences with as many pairs in a row of 1024 tokens.
double length_of(double all) { return 2 * all / 1024 - 1; }

std::string said(const std::vector<std::string>& changes) {
  try {
    const Scenario s = with(changes);
    scenario::packing(s);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("first fit, padding by Bridge and by --sft, counted by hand") {
  // Decreasing: 700 + 300 | 500 + 400 (padding 24 and 124).
  const std::vector<std::string> changes = {"sequence_lengths=[300, 700, 400, 500]",
                                            "packing_algorithm=first_fit_decreasing", "num_gpus=1",
                                            "global_batch_size=2", "pack_order=balanced"};
  auto sorted = [](std::vector<double> all) {
    std::ranges::sort(all);
    return all;
  };
  Scenario s = with(changes);
  const auto cut = scenario::packing(s);
  REQUIRE(cut);
  CHECK(cut->sequences == 4);
  CHECK(cut->rows == 2);
  CHECK(cut->fill == doctest::Approx(1900.0 / 2048));
  // sft_dataset.py: the last sequence of a row takes the padding.
  const double first = pairs(700) + pairs(324), second = pairs(500) + pairs(524);
  CHECK(sorted(cut->lengths) == std::vector<double>{length_of(second), length_of(first)});
  CHECK(cut->mean_length == doctest::Approx(length_of((first + second) / 2)));
  CHECK(cut->busiest == doctest::Approx(1));

  // gpt_sft.py:256: the padding is a sequence of its own.
  scenario::set(s, "software.megatron_bridge=0.7.0");
  const auto apart = scenario::packing(s);
  CHECK(sorted(apart->lengths) == std::vector<double>{length_of(pairs(500) + pairs(400) + pairs(124)),
                                                      length_of(pairs(700) + pairs(300) + pairs(24))});

  // Each sequence in a row of its own has the attention of a whole row.
  scenario::set(s, "packing_algorithm=none");
  CHECK(scenario::packing(s)->rows == 4);
  CHECK(scenario::packing(s)->mean_length == doctest::Approx(1024));
  CHECK_FALSE(scenario::rows_differ(s));
}

TEST_CASE("what Transformer Engine is told of a row: its sequences and the longest, or those of the fullest row") {
  Scenario s = with(
      {"sequence_lengths=[300+200+100, 500+500, 40+60]", "num_gpus=1", "global_batch_size=3", "pack_order=balanced"});
  const auto told = [&] {
    std::vector<std::pair<std::int64_t, std::int64_t>> all;
    for (const auto& row : scenario::packing(s)->boundaries) all.emplace_back(row.sequences, row.longest);
    std::ranges::sort(all);
    return all;
  };
  using Told = std::vector<std::pair<std::int64_t, std::int64_t>>;
  CHECK(told() == Told{{2, 524}, {2, 984}, {3, 524}});  // the last of a row takes the padding
  scenario::set(s, "software.megatron_bridge=0.7.0");
  CHECK(told() == Told{{3, 500}, {3, 924}, {4, 424}});
  scenario::set(s, "pad_cu_seqlens=true");  // the emptiest row lacks 924
  CHECK(told() == Told{{4, 924}, {4, 924}, {4, 924}});
}

TEST_CASE("context parallelism pads every sequence to a multiple of twice its size") {
  Scenario s = with({"sequence_lengths=[510+500]", "num_gpus=2", "cp=2", "global_batch_size=1"});
  CHECK(scenario::packing(s)->lengths.front() == doctest::Approx(length_of(pairs(512) + pairs(512))));
  scenario::set(s, "software.megatron_bridge=0.7.0");  // gpt_sft.py:238: nobody attends to the rest
  CHECK(scenario::packing(s)->lengths.front() == doctest::Approx(length_of(pairs(512) + pairs(500))));
}

TEST_CASE("sequences that no row holds are cut by --sft and left out by Bridge") {
  Scenario s = with({"sequence_lengths=[5000*3, 100*10]", "num_gpus=1", "global_batch_size=4"});
  CHECK(scenario::packing(s)->too_long == 3);
  CHECK(scenario::packing(s)->rows == 4);
  scenario::set(s, "software.megatron_bridge=0.7.0");
  CHECK(scenario::packing(s)->too_long == 3);
  CHECK(scenario::packing(s)->rows == 1);
}

TEST_CASE("experts make the ranks of a group wait for each other in every layer") {
  // Four ranks, two microbatches each; the long rows are two of eight.
  const std::vector<std::string> lengths = {"sequence_lengths=[1024*2, 128+128+128+128+128+128+128+128*6]"};
  Scenario s = with(lengths);
  const auto alone = scenario::packing(s);
  scenario::set(s, "num_moe_experts=4");
  scenario::set(s, "expert_model_parallel_size=4");
  const auto together = scenario::packing(s);
  const auto sum = [](const scenario::Packing& p) { return std::accumulate(p.lengths.begin(), p.lengths.end(), 0.0); };
  CHECK(sum(*together) >= sum(*alone));
  CHECK(together->mean_length == doctest::Approx(alone->mean_length));
}

TEST_CASE("a file holds sequences, counts and ready rows; what it may not hold is told with its line") {
  const std::string path = "packing_lengths.txt";
  std::ofstream(path) << "# tokens\n512\n512 *3\n\n100, 200\t300\n";
  CHECK(with({"sequence_lengths=" + path}).settings.sequence_lengths == scenario::Strings{"100+200+300", "512*4"});
  const auto again = with({"sequence_lengths=[100+200+300, 512*4]"});
  CHECK(again.settings.sequence_lengths == scenario::Strings{"100+200+300", "512*4"});
  CHECK(scenario::parse(scenario::write(again), "again").settings == again.settings);

  std::ofstream(path) << "512\nlong\n";
  CHECK(said({"sequence_lengths=" + path}).find(path + ":2") != std::string::npos);
  std::ofstream(path) << "# nothing\n";
  CHECK(said({"sequence_lengths=" + path}).find("holds no length") != std::string::npos);
  std::remove(path.c_str());
  CHECK(said({"sequence_lengths=" + path}).find("neither a length nor a file") != std::string::npos);
  for (const char* wrong : {"0", "5*0", "5*", "*5", "5+", "+5", "5++6", "99999999999999999999", "5*6*7"}) {
    CAPTURE(wrong);
    CHECK(said({std::string("sequence_lengths=[\"") + wrong + "\"]"}).find("sequence_lengths") != std::string::npos);
  }
  CHECK(said({"software.megatron_bridge=0.7.0", "sequence_lengths=[5000]"}).find("no sequence has at most") !=
        std::string::npos);
}

TEST_CASE("steps of very many rows are dealt in seconds or refused") {
  Scenario s = with({"sequence_lengths=[100*1000000, 1000*10000]", "num_gpus=1000", "global_batch_size=1000000"});
  CHECK(scenario::packing(s)->lengths.size() == 1000);
  scenario::set(s, "pack_order=balanced");
  CHECK(scenario::packing(s)->busiest < 1.01);
  scenario::set(s, "global_batch_size=1000000000");
  CHECK_THROWS_AS(scenario::packing(s), UsageError);
}

TEST_CASE("a window leaves each query its last keys: rows by hand, and as many in equal sequences") {
  // 1024 tokens a row; a query sees 100 keys, itself included.
  const auto in_window = [](double n) { return n <= 100 ? n * (n + 1) / 2 : 5050 + (n - 100) * 100; };
  const auto windowed = [&](const std::string& rows) {
    return scenario::packing(with({"window_size=[99, 0]", "sequence_lengths=[" + rows + "*8]"}))->windowed.at(0);
  };
  CHECK(windowed("64+960") == doctest::Approx(9900 / (2 * (100 - (2080 + in_window(960)) / 1024))));
  for (const char* equal : {"512+512", "256+256+256+256", "64+64+64+64+64+64+64+64+64+64+64+64+64+64+64+64"}) {
    CAPTURE(equal);
    CHECK(windowed(equal) == doctest::Approx(std::stod(equal)).epsilon(1e-9));  // up to the '+'
  }
  CHECK(scenario::packing(with({"sequence_lengths=[512+512*8]"}))->windowed.empty());
  std::mt19937 chance(11);
  for (int round = 0; round < 200; ++round) {
    double all = 0;
    std::string row;
    for (int left = 1024; left > 0;) {
      const int n = std::uniform_int_distribution<int>(1, left)(chance);
      all += in_window(n);
      row += (row.empty() ? "" : "+") + std::to_string(n);
      left -= n;
    }
    CAPTURE(row);
    const double length = windowed(row);
    CHECK(length >= 1 - 1e-9);
    CHECK(length <= 1024 + 1e-9);
    CHECK(1024 / length * in_window(length) == doctest::Approx(all).epsilon(1e-6));
  }
}

TEST_CASE("of any lengths: rows hold what they can, deals keep the attention, balance never loses to chance") {
  std::mt19937 chance(7);
  const auto draw = [&](int least, int most) { return std::uniform_int_distribution<int>(least, most)(chance); };
  for (int round = 0; round < 60; ++round) {
    std::string lengths;
    for (int n = draw(1, 12); n > 0; --n)
      lengths += (lengths.empty() ? "" : ", ") + std::to_string(draw(1, 1024)) + "*" + std::to_string(draw(1, 60));
    Scenario s = with(
        {"sequence_lengths=[" + lengths + "]", "num_gpus=" + std::to_string(draw(1, 4) * 2), "global_batch_size=48"});
    if (draw(0, 1) == 1) scenario::set(s, "software.megatron_bridge=0.7.0");
    if (draw(0, 2) == 0) scenario::set(s, "cp=2");
    if (draw(0, 1) == 1) scenario::set(s, "packing_algorithm=first_fit_decreasing");
    if (48 % (s.cluster.num_gpus / s.settings.context_parallel_size) != 0) scenario::set(s, "global_batch_size=120");
    CAPTURE(scenario::write(s));
    const auto shuffled = scenario::packing(s);
    REQUIRE(shuffled);
    CHECK(shuffled->too_long == 0);
    CHECK(shuffled->fill > 0);
    CHECK(shuffled->fill <= 1);
    const double rows = shuffled->fill * static_cast<double>(shuffled->rows);
    CHECK(static_cast<double>(shuffled->rows) <= 2 * rows + 1);  // first fit: no two rows are both half empty
    CHECK(shuffled->busiest >= 1 - 1e-9);
    for (const double length : shuffled->lengths) {
      CHECK(length >= 0);
      CHECK(length <= 1024 + 1e-9);
    }
    scenario::set(s, "pack_order=balanced");
    const auto balanced = scenario::packing(s);
    CHECK(balanced->mean_length == doctest::Approx(shuffled->mean_length));
    CHECK(balanced->busiest <= shuffled->busiest + 1e-9);
    // A microbatch's pairs are the rank's, the rank's are the mean times busiest.
    double sum = 0;
    for (const double length : balanced->lengths) sum += length + 1;
    CHECK(sum / static_cast<double>(balanced->lengths.size()) ==
          doctest::Approx((balanced->mean_length + 1) * balanced->busiest));
  }
}

}  // namespace packing_test
