#include "seats.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <sstream>
#include <thread>

#include "pipewright/base.hpp"

namespace pipewright::capture {
namespace {

namespace fs = std::filesystem;

/// By launcher, the most particular first: mpirun inside a job of Slurm sets its own beside Slurm's. Slurm's are those
/// of a step: a batch script itself has SLURM_PROCID, too, and runs once.
struct Launcher {
  const char *name, *rank, *ranks;
};
constexpr Launcher launchers[] = {{"torchrun", "RANK", "WORLD_SIZE"},
                                  {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
                                  {"MPICH or Intel MPI", "PMI_RANK", "PMI_SIZE"},
                                  {"Slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"}};

constexpr int most_ranks = 1 << 20;

int number(const char* name, const std::string& text, int least, int most) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < least || value > most)
    throw UsageError({"environment", 0}, name, fmt::format("\"{}\" is no number from {} to {}", text, least, most));
  return value;
}

std::optional<std::string> content(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in) return std::nullopt;
  return std::string(std::istreambuf_iterator<char>(in), {});
}

/// Nobody sees a file that is half written.
void put(const fs::path& file, const std::string& text) {
  const auto beside = file.string() + ".part";
  std::ofstream(beside, std::ios::binary) << text;
  std::error_code error;
  fs::rename(beside, file, error);
  if (error) throw UsageError({file.string(), 0}, {}, "cannot be written: " + error.message());
}

std::string file_of(int rank, const char* what) { return fmt::format("{}.{}", rank, what); }

/// "3, 8 to 15 and 17"
std::string listed(const std::vector<int>& ranks) {
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    parts.push_back(i == last ? fmt::format("{}", ranks[i]) : fmt::format("{} to {}", ranks[i], ranks[last]));
    i = last + 1;
  }
  const std::string end = parts.back();
  parts.pop_back();
  return parts.empty() ? end : fmt::format("{} and {}", fmt::join(parts, ", "), end);
}

class Gathering {
 public:
  Gathering(const Meeting& where, const Seat& me, std::string said, const std::atomic<bool>& stop)
      : folder_(where.folder),
        me_(me),
        said_(std::move(said)),
        until_(std::chrono::steady_clock::now() + where.patience),
        stop_(stop) {
    std::random_device device;
    ticket_ = fmt::format("{:08x}{:08x}", device(), device());
    std::error_code error;
    fs::create_directories(folder_, error);
    if (!fs::is_directory(folder_, error))
      throw UsageError({where.folder, 0}, {}, "is no folder that can be made; all ranks must see it (--meet)");
    put(folder_ / file_of(me.rank, "said"), ticket_ + "\t" + said_);
  }

  /// Rank 0: writes down who is here until everyone has read this very list. A rank that says something new (its file
  /// was left by an earlier start) is written down anew. That the folder is gone tells the others that all agree.
  Met lead(const std::function<std::string()>& tell) {
    const std::string told = tell();
    for (std::string written;;) {
      std::vector<int> missing;
      std::string list = told + "\n";
      std::vector<std::string> said;
      for (int r = 0; r < me_.ranks; ++r) {
        const auto line = content(folder_ / file_of(r, "said")).value_or("");
        const auto tab = line.find('\t');
        if (tab == std::string::npos) {
          missing.push_back(r);
          continue;
        }
        said.push_back(line.substr(tab + 1));
        list += line + "\n";
      }
      if (missing.empty()) {
        if (list != written) put(folder_ / "told", list);
        written = list;
        for (int r = 1; r < me_.ranks; ++r)
          if (content(folder_ / file_of(r, "heard")) != receipt(list)) missing.push_back(r);
        if (missing.empty()) {
          std::error_code ignored;
          fs::remove_all(folder_, ignored);
          return {std::move(said), told};
        }
      }
      pause(missing);
    }
  }

  Met follow() {
    for (std::string heard;;) {
      const auto list = content(folder_ / "told");
      if (!list && !heard.empty()) return parse(heard);
      const auto mine = fmt::format("\n{}\t{}\n", ticket_, said_);
      if (list && *list != heard && list->find(mine) != std::string::npos) {
        heard = *list;
        put(folder_ / file_of(me_.rank, "heard"), receipt(heard));
      }
      pause({0});
    }
  }

 private:
  static std::string receipt(const std::string& list) { return fmt::format("{:x}", std::hash<std::string>()(list)); }

  static Met parse(const std::string& list) {
    std::istringstream in(list);
    Met met;
    std::getline(in, met.told);
    for (std::string line; std::getline(in, line);) met.said.push_back(line.substr(line.find('\t') + 1));
    return met;
  }

  void pause(const std::vector<int>& missing) const {
    if (stop_) throw std::runtime_error("stopped while waiting for the other ranks");
    if (std::chrono::steady_clock::now() > until_) {
      throw UsageError({folder_.string(), 0}, {},
                       fmt::format("rank {} of {} ({}) waits for rank{} {}: were they started, and do they see this "
                                   "folder? --meet names another",
                                   me_.rank, me_.ranks, me_.launcher, missing.size() > 1 ? "s" : "", listed(missing)));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }

  fs::path folder_;
  const Seat& me_;
  std::string said_, ticket_;
  std::chrono::steady_clock::time_point until_;
  const std::atomic<bool>& stop_;
};

}  // namespace

std::optional<Seat> seat(const std::function<const char*(const char*)>& variable) {
  for (const Launcher& l : launchers) {
    const char *rank = variable(l.rank), *ranks = variable(l.ranks);
    if (rank == nullptr || ranks == nullptr) continue;
    Seat result;
    result.ranks = number(l.ranks, ranks, 1, most_ranks);
    result.rank = number(l.rank, rank, 0, result.ranks - 1);
    result.launcher = l.name;
    if (result.ranks > 1) return result;
  }
  return std::nullopt;
}

Met meet(const Meeting& where, const Seat& me, const std::string& said, const std::function<std::string()>& tell,
         const std::atomic<bool>& stop) {
  if (said.find('\n') != std::string::npos) throw InternalError("a rank says one line");
  Gathering gathering(where, me, said, stop);
  return me.rank == 0 ? gathering.lead(tell) : gathering.follow();
}

Hosts hosts(const std::vector<std::string>& host_of) {
  std::map<std::string, int> ranks;
  int changes = 0;
  for (std::size_t r = 0; r < host_of.size(); ++r) {
    ++ranks[host_of[r]];
    if (r > 0 && host_of[r] != host_of[r - 1]) ++changes;
  }
  const Hosts result{static_cast<int>(ranks.size()), ranks.begin()->second};
  for (const auto& [host, count] : ranks) {
    if (count != result.gpus_a_host)
      throw UsageError({"ranks", 0}, host,
                       fmt::format("runs {} ranks, {} runs {}: hosts must have equally many", count,
                                   ranks.begin()->first, result.gpus_a_host));
  }
  if (changes + 1 != result.hosts)
    throw UsageError({"ranks", 0}, {},
                     "the ranks of a host must be neighbours: mpirun --map-by slot, srun --distribution=block");
  return result;
}

int Grouping::group_of(int rank) const {
  const auto group = stride == 1 ? rank / ranks : rank % stride;
  return group < groups && (stride == 1 || rank / stride < ranks) ? static_cast<int>(group) : -1;
}

std::vector<Grouping> groupings(const Hosts& where) {
  std::vector<Grouping> result;
  const auto doubled = [](int most) {
    std::vector<std::int64_t> counts;
    for (int n = 2; n < most; n *= 2) counts.push_back(n);
    if (most > 1) counts.push_back(most);
    return counts;
  };
  for (const auto n : doubled(where.gpus_a_host)) result.push_back({n, 1, 1});
  if (where.hosts > 1 && where.gpus_a_host > 1) result.push_back({2, where.gpus_a_host, 1});
  for (const auto n : doubled(where.hosts)) {
    if (where.gpus_a_host > 1) result.push_back({n * where.gpus_a_host, 1, 1});
    result.push_back({n, where.gpus_a_host, where.gpus_a_host});
  }
  return result;
}

}  // namespace pipewright::capture
