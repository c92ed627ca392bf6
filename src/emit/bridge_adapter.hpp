// cfg.peft of Megatron Bridge: its LoRA class as lora_* settings; what is not modelled of it, or another adapter,
// stands among what is refused (peft).
#pragma once

#include <string>

#include "pipewright/scenario/types.hpp"
#include "python.hpp"

namespace pipewright::emit {

/// cfg.peft = VALUE. Without target_modules LoRA adapts every linear layer.
void read_peft(scenario::Scenario& scenario, const Python& value, const Position& where);

/// cfg.peft.FIELD = VALUE
void read_adapter(scenario::Scenario& scenario, const std::string& field, const Python& value, const Position& where);

}  // namespace pipewright::emit
