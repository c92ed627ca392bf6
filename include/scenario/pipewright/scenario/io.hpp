// Scenario files and Hugging Face configurations in, scenario files out. Everything throws UsageError for wrong input.
// Values are checked one by one when they are read; what they make together is checked by check(), which whoever uses a
// scenario calls after the last override.
#pragma once

#include <string>
#include <string_view>

#include "pipewright/scenario/types.hpp"

namespace pipewright::scenario {

Scenario read(const std::string& path);                          ///< a YAML file
Scenario parse(std::string_view yaml, const std::string& file);  ///< its text; `file` for messages
/// The architecture of a Hugging Face config.json; the caller supplies seq_length, cluster and settings.
Scenario from_hf(const std::string& path, Strings* notes = nullptr);
bool is_hf(std::string_view text);            ///< a config.json, by its text
std::string write(const Scenario& scenario);  ///< YAML of all that is not default; parse() reads it back
/// "tp" -> "tensor_model_parallel_size": what people type for a setting's name; other names as they are.
std::string full_name(std::string_view name);
/// --set NAME=VALUE (also SECTION.NAME); not checked. `option`: where messages say that it was given.
void set(Scenario& scenario, std::string_view name_is_value, std::string_view option = "--set");
/// --env NAME=VALUE; an empty value removes it
void set_env(Scenario& scenario, std::string_view name_is_value, std::string_view option = "--env");
/// Throws for what Megatron Core itself cannot run: splits that do not divide, GPU counts, ... (reference 1.1, 3.6).
void check(const Scenario& scenario);

}  // namespace pipewright::scenario
