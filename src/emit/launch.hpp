// The training command in what users have: a line for the shell, a launch script, a model_config.yaml of Megatron's
// functional tests. Also how many GPUs its launcher starts it on.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "pipewright/scenario/types.hpp"
#include "shell.hpp"

namespace pipewright::emit {

enum class Count : unsigned char { nodes, of_node, all };

struct Launch {
  std::string file;                                        ///< for messages
  std::vector<ShellWord> words;                            ///< flags of the training program
  std::map<std::string, std::string> variables;            ///< its environment
  std::optional<scenario::Int> nodes, gpus_of_node, gpus;  ///< as torchrun, srun, mpirun and #SBATCH lines say
  std::map<Count, ShellWord> unknown;                      ///< of those, what depends on what nobody says
  bool trains_recipe = false;                              ///< of Megatron Bridge: `words` are its runner's
  bool trains_gpt = false;      ///< pretrain_gpt.py was named, or the folder of a functional test says so
  bool trains_hybrids = false;  ///< likewise pretrain_hybrid.py or pretrain_mamba.py
  std::vector<std::string> notes;
};

/// Words as a shell split them: [NAME=value]... [srun ...] torchrun ... pretrain_gpt.py FLAGS, or FLAGS alone.
Launch launch_of_words(std::vector<ShellWord> words, const std::string& file);
/// Throws UsageError where no command of the script trains.
Launch launch_of_script(std::string_view text, const std::string& file,
                        const std::map<std::string, std::string>& variables,
                        const std::optional<std::vector<std::string>>& arguments = {});
/// MODEL_ARGS and ENV_VARS, as tests/functional_tests/shell_test_utils/_run_training.sh passes them on: what stands as
/// ${NAME} is taken from `variables` first (envsubst).
Launch launch_of_model_config(std::string_view text, const std::string& file,
                              const std::map<std::string, std::string>& variables);
/// Does a YAML text look like one?
bool is_model_config(std::string_view text);

}  // namespace pipewright::emit
