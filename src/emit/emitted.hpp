// Text helpers of the emitters.
#pragma once

#include <string>

#include "pipewright/emit.hpp"

namespace pipewright::emit {

/// Begins the remark of emitted overrides that names versions: "for Megatron Bridge 0.7.0, Megatron Core 0.19.0".
inline constexpr const char* version_remark = "for";

/// Begins the remark that names the class of the model, where it builds what no field says.
inline constexpr const char* provider_remark = "cfg.model is a ";

/// A value of the scenario without the quotes and escapes of YAML (scenario::yaml_scalar).
std::string unquoted(const std::string& text);
/// A comment on a field of Megatron's that is none of ours and that what is emitted does not hold.
std::string said_elsewhere(const std::string& name, const std::string& value);
/// decrease_batch_size_if_needed: a step takes as many samples as the data-parallel ranks divide
/// (num_microbatches_calculator.py, ConstantNumMicroBatchesCalculator). Returns what to say of it, if anything changes.
std::string lower_batch(scenario::Scenario& scenario);

}  // namespace pipewright::emit
