// Ranks that find each other without MPI: launchers' variables, the folder in which they meet, groups that measure.
#include "seats.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <thread>
#include <tuple>

#include "pipewright/base.hpp"

namespace seats_test {

using namespace pipewright;
using namespace pipewright::capture;
using namespace std::chrono_literals;

namespace {

std::optional<Seat> seat_with(const std::map<std::string, std::string>& variables) {
  return seat([&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

class Folder {
 public:
  Folder() : path_(std::filesystem::temp_directory_path() / ("pipewright-seats-" + std::to_string(getpid()))) {
    std::filesystem::remove_all(path_);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string name() const { return path_.string(); }
  void write(const std::string& file, const std::string& text) const {
    std::filesystem::create_directories(path_);
    std::ofstream(path_ / file) << text;
  }

 private:
  std::filesystem::path path_;
};

/// All ranks as threads, the last one first.
std::vector<Met> meet_all(const std::string& folder, int ranks, const std::string& told) {
  std::vector<Met> all(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  const std::atomic<bool> stop{false};
  for (int r = ranks - 1; r >= 0; --r) {
    threads.emplace_back([&, r] {
      all[static_cast<std::size_t>(r)] = meet(
          {folder, 20s}, {r, ranks, "test"}, "host" + std::to_string(r / 4), [&] { return told; }, stop);
    });
    std::this_thread::sleep_for(5ms);
  }
  for (auto& thread : threads) thread.join();
  return all;
}

}  // namespace

TEST_CASE("every launcher's variables; none, or one rank: alone") {
  CHECK_FALSE(seat_with({}));
  CHECK_FALSE(seat_with({{"RANK", "0"}, {"WORLD_SIZE", "1"}}));
  const auto check = [](const std::map<std::string, std::string>& variables, int rank, int ranks,
                        const char* launcher) {
    const auto s = seat_with(variables);
    REQUIRE(s);
    CHECK(s->rank == rank);
    CHECK(s->ranks == ranks);
    CHECK(s->launcher == launcher);
  };
  check({{"RANK", "3"}, {"WORLD_SIZE", "16"}, {"LOCAL_RANK", "3"}}, 3, 16, "torchrun");
  check({{"OMPI_COMM_WORLD_RANK", "15"}, {"OMPI_COMM_WORLD_SIZE", "16"}}, 15, 16, "Open MPI");
  check({{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}}, 0, 2, "MPICH or Intel MPI");
  check({{"SLURM_PROCID", "9"}, {"SLURM_STEP_NUM_TASKS", "32"}}, 9, 32, "Slurm");
  // mpirun in a job's script: Slurm's variables are the script's own.
  check({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "16"}, {"OMPI_COMM_WORLD_RANK", "5"}, {"OMPI_COMM_WORLD_SIZE", "16"}},
        5, 16, "Open MPI");
  CHECK_FALSE(seat_with({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "16"}}));  // the script itself
  // srun starts one torchrun a host.
  check({{"SLURM_PROCID", "1"}, {"SLURM_STEP_NUM_TASKS", "2"}, {"RANK", "12"}, {"WORLD_SIZE", "16"}}, 12, 16,
        "torchrun");
  for (const char* rank : {"16", "-1", "two", "", "3 "})
    CHECK_THROWS_WITH_AS(seat_with({{"RANK", rank}, {"WORLD_SIZE", "16"}}), doctest::Contains("environment: RANK: \""),
                         UsageError);
  CHECK_THROWS_WITH_AS(seat_with({{"PMI_RANK", "0"}, {"PMI_SIZE", "0"}}), doctest::Contains("PMI_SIZE"), UsageError);
}

TEST_CASE("all ranks hear rank 0 and each other, and nothing stays behind") {
  const Folder folder;
  for (const int ranks : {2, 8}) {
    const auto all = meet_all(folder.name(), ranks, "the id of " + std::to_string(ranks));
    for (const Met& met : all) {
      CHECK(met.told == "the id of " + std::to_string(ranks));
      REQUIRE(met.said.size() == static_cast<std::size_t>(ranks));
      for (int r = 0; r < ranks; ++r) CHECK(met.said[static_cast<std::size_t>(r)] == "host" + std::to_string(r / 4));
    }
    CHECK_FALSE(std::filesystem::exists(folder.name()));
  }
}

TEST_CASE("what a start that was killed left behind is not taken for today's") {
  const Folder folder;
  folder.write("told", "an old id\n0123\thost0\n4567\thost0\n89ab\thost0\n");
  for (const char* r : {"0", "1", "2"}) {
    folder.write(std::string(r) + ".said", "4567\told");
    folder.write(std::string(r) + ".heard", "4567");
  }
  for (const Met& met : meet_all(folder.name(), 3, "today's")) {
    CHECK(met.told == "today's");
    CHECK(met.said == std::vector<std::string>{"host0", "host0", "host0"});
  }
}

TEST_CASE("who does not come is named; Ctrl-C ends the wait") {
  const Folder folder;
  const std::atomic<bool> go{false}, stop{true};
  const auto tell = [] { return std::string("id"); };
  folder.write("2.said", "1234\thost0");
  CHECK_THROWS_WITH_AS(meet({folder.name(), 60ms}, {0, 6, "Slurm"}, "host0", tell, go),
                       doctest::Contains("rank 0 of 6 (Slurm) waits for ranks 1 and 3 to 5"), UsageError);
  CHECK_THROWS_WITH_AS(meet({folder.name(), 60ms}, {1, 6, "Slurm"}, "host0", tell, go),
                       doctest::Contains("rank 1 of 6 (Slurm) waits for rank 0"), UsageError);
  CHECK_THROWS_WITH_AS(meet({folder.name(), 10s}, {1, 6, "Slurm"}, "host0", tell, stop), doctest::Contains("stopped"),
                       std::runtime_error);
  folder.write("file", "");
  CHECK_THROWS_WITH_AS(meet({folder.name() + "/file", 10s}, {0, 2, "Slurm"}, "host0", tell, go),
                       doctest::Contains("is no folder"), UsageError);
}

TEST_CASE("hosts hold neighbours, equally many") {
  const Hosts two = hosts({"a", "a", "b", "b"});
  CHECK(two.hosts == 2);
  CHECK(two.gpus_a_host == 2);
  CHECK_THROWS_WITH_AS(hosts({"a", "b", "a", "b"}), doctest::Contains("--map-by slot"), UsageError);
  CHECK_THROWS_WITH_AS(hosts({"a", "a", "b"}), doctest::Contains("ranks: b: runs 1 ranks, a runs 2"), UsageError);
}

TEST_CASE("groups: as many ranks as they say, a stride apart, none in two") {
  for (const int count : {1, 2, 3, 4, 16}) {
    for (const int gpus : {1, 2, 4, 8}) {
      CAPTURE(count);
      CAPTURE(gpus);
      std::set<std::tuple<std::int64_t, std::int64_t, std::int64_t>> kinds;
      for (const Grouping& g : groupings({count, gpus})) {
        std::map<int, std::vector<int>> members;
        for (int r = 0; r < count * gpus; ++r)
          if (g.has(r)) members[g.group_of(r)].push_back(r);
        CHECK(static_cast<std::int64_t>(members.size()) == g.groups);
        for (const auto& [group, ranks] : members) {
          CHECK(static_cast<std::int64_t>(ranks.size()) == g.ranks);
          for (std::size_t i = 1; i < ranks.size(); ++i) CHECK(ranks[i] - ranks[i - 1] == g.stride);
        }
        CHECK(kinds.insert({g.ranks, g.stride, g.groups}).second);
      }
      CHECK(kinds.contains({count * gpus, 1, 1}) == (count * gpus > 1));
    }
  }
}

}  // namespace seats_test
