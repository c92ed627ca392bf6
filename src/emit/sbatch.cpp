#include "sbatch.hpp"

#include <algorithm>
#include <map>
#include <string>

namespace pipewright::emit {

std::vector<ShellWord> sbatch_directives(std::string_view text) {
  std::vector<ShellWord> words;
  int line = 1;
  for (std::size_t at = 0; at < text.size(); ++line) {
    const auto end = std::min(text.find('\n', at), text.size());
    if (auto row = text.substr(at, end - at); row.starts_with("#SBATCH"))
      for (const auto& word : split_words(row.substr(7))) words.push_back({word, line});
    at = end + 1;
  }
  return words;
}

void set_as_sbatch(const std::vector<ShellWord>& words, ShellState& state) {
  static const std::map<std::string, std::vector<std::string>> names = {
      {"--nodes", {"SLURM_NNODES", "SLURM_JOB_NUM_NODES"}},
      {"-N", {"SLURM_NNODES", "SLURM_JOB_NUM_NODES"}},
      {"--gpus-per-node", {"SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE"}},
      {"--ntasks-per-node", {"SLURM_NTASKS_PER_NODE"}},
      {"--ntasks", {"SLURM_NTASKS", "SLURM_NPROCS"}},
      {"-n", {"SLURM_NTASKS", "SLURM_NPROCS"}},
      {"--cpus-per-task", {"SLURM_CPUS_PER_TASK"}}};
  for (std::size_t i = 0; i < words.size(); ++i) {
    const auto equals = words[i].text.find('=');
    const auto found = names.find(words[i].text.substr(0, equals));
    if (found == names.end() || (equals == std::string::npos && i + 1 == words.size())) continue;
    const std::string value = equals == std::string::npos ? words[i + 1].text : words[i].text.substr(equals + 1);
    if (value.empty() || value.find_first_not_of("0123456789") != std::string::npos) continue;
    for (const auto& name : found->second) {
      if (state.exported.contains(name)) continue;  // --env says it
      state.scalars[name] = {value, words[i].line};
    }
  }
}

}  // namespace pipewright::emit
