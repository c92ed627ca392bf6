// The seeds of every fuzz target, and damaged copies of each: what the fuzzer found once stays mended. Argument:
// corpus/.
#include <chrono>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>

#include "../mutate.hpp"
#include "targets.hpp"

namespace {

std::string content(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace

int main(int, char** argv) {
  using namespace pipewright;
  using Clock = std::chrono::steady_clock;
  constexpr auto patience = std::chrono::seconds(5);  // of one target; a slow machine tries fewer
  constexpr auto longest = std::chrono::seconds(10);  // of one input: the limits of readers end it sooner
  int failed = 0;
  for (const auto& target : fuzz::targets()) {
    std::set<std::filesystem::path> files;
    for (const auto& entry : std::filesystem::directory_iterator(std::filesystem::path(argv[1]) / target.name))
      files.insert(entry.path());
    int runs = 0, read = 0;
    const auto until = Clock::now() + patience;
    const auto run = [&](const std::string& bytes, const std::filesystem::path& file, unsigned round) {
      const auto begin = Clock::now();
      try {
        read += fuzz::survives(target, bytes);
      } catch (const std::exception& error) {
        std::printf("%s, %s, round %u: %s\n", std::string(target.name).c_str(), file.c_str(), round, error.what());
        ++failed;
      }
      if (const std::chrono::duration<double> took = Clock::now() - begin; took > longest) {
        std::printf("%s, %s, round %u: %.1f s\n", std::string(target.name).c_str(), file.c_str(), round, took.count());
        ++failed;
      }
      ++runs;
    };
    for (const auto& file : files) run(content(file), file, 0);
    for (unsigned round = 1; round <= 300 && Clock::now() < until; ++round)
      for (const auto& file : files) run(test::Mutator(round)(content(file)), file, round);
    std::printf("%-9s %d inputs, %d read, the others refused\n", std::string(target.name).c_str(), runs, read);
    if (read == 0 || files.empty()) ++failed;
  }
  return failed == 0 ? 0 : 1;
}
